//! The directory of objects that the server watches.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::objects::{self, Endpoints};
use crate::shape::{Service, Shape};

/// A directory with the objects of a shape in it, a file a service.
pub(crate) struct World {
    root: PathBuf,
    /// Files are written here first, beside what the server watches, on the same file system.
    staging: PathBuf,
    pub(crate) shape: Shape,
}

impl World {
    /// Writes everything. A directory that is not empty is refused, unless an earlier run of this tool wrote it.
    pub(crate) fn lay(root: &Path, shape: &Shape) -> Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("make {}", root.display()))?;
        let mark = root.join(".sluice-bench");
        let strange = std::fs::read_dir(root)?.next().is_some() && !mark.exists();
        anyhow::ensure!(!strange, "{} is not empty and not of an earlier run", root.display());
        std::fs::write(&mark, "objects of sluice-bench\n")?;
        let staging = root.join(".staging");
        std::fs::create_dir_all(&staging)?;
        let world = Self { root: root.to_owned(), staging, shape: *shape };
        world.write("mesh.yaml", &objects::mesh_config(None))?;
        world.write("nodes.yaml", &objects::nodes())?;
        world.write("istio-system.yaml", &objects::namespace("istio-system"))?;
        for number in 0..shape.namespaces {
            let name = Shape::namespace(number);
            std::fs::create_dir_all(root.join(&name))?;
            world.write(&format!("{name}/namespace.yaml"), &objects::namespace(&name))?;
        }
        for number in 0..shape.services {
            world.service(shape.service(number), &Endpoints::default())?;
        }
        for number in 0..shape.service_entries {
            let namespace = Shape::namespace(number % shape.namespaces);
            let text = objects::service_entry(number, &namespace);
            world.write(&format!("{namespace}/entry-{number:05}.yaml"), &text)?;
        }
        Ok(world)
    }

    /// Says what was written.
    pub(crate) fn finish(&self) {
        println!(
            "{}: {} services × {} endpoints in {} namespaces, {} service entries",
            self.root.display(),
            self.shape.services,
            self.shape.endpoints,
            self.shape.namespaces,
            self.shape.service_entries
        );
    }

    /// Writes a file the way an editor or a mounted ConfigMap does, and says when.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<Instant> {
        let staged = self.staging.join("next");
        std::fs::write(&staged, text).with_context(|| format!("write {}", staged.display()))?;
        let at = Instant::now();
        let target = self.root.join(name);
        std::fs::rename(&staged, &target).with_context(|| format!("write {}", target.display()))?;
        Ok(at)
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &str) -> Result<Instant> {
        let at = Instant::now();
        let target = self.root.join(name);
        std::fs::remove_file(&target).with_context(|| format!("remove {}", target.display()))?;
        Ok(at)
    }

    /// Writes a service with its endpoints.
    pub(crate) fn service(&self, service: Service, endpoints: &Endpoints) -> Result<Instant> {
        self.write(&service_file(service), &objects::service(service, self.shape.endpoints, endpoints))
    }

    /// Removes a service.
    pub(crate) fn remove_service(&self, service: Service) -> Result<Instant> {
        self.remove(&service_file(service))
    }
}

fn service_file(service: Service) -> String {
    format!("{}/{}.yaml", service.namespace(), service.name())
}
