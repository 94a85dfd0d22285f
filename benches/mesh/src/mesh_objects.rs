//! The objects of the mesh, written where the server reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::api::Api;
use crate::objects::{self, Endpoints};
use crate::shape::{Layout, Service, Shape};
use crate::{ambient, gateway};

/// Services that gateways have routes to.
const ROUTED_SERVICES: usize = 50;

/// Where objects are written.
pub(crate) enum ObjectTarget {
    /// A directory that the server watches, with a file for each service.
    Directory {
        root: PathBuf,
        /// Files are written here first, and then renamed: it is on the same file system and not watched.
        staging: PathBuf,
    },
    /// A Kubernetes API.
    Api(Api),
}

impl ObjectTarget {
    /// A directory. It must be empty or written by an earlier run of this tool.
    pub(crate) fn directory(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).with_context(|| format!("make {}", root.display()))?;
        let mark = root.join(".sluice-bench");
        let is_foreign = std::fs::read_dir(root)?.next().is_some() && !mark.exists();
        anyhow::ensure!(!is_foreign, "{} is not empty, and sluice-bench has not written it", root.display());
        std::fs::write(&mark, "objects of sluice-bench\n")?;
        let staging = root.join(".staging");
        std::fs::create_dir_all(&staging)?;
        Ok(Self::Directory { root: root.to_owned(), staging })
    }
}

/// The objects of a shape.
pub(crate) struct MeshObjects {
    target: ObjectTarget,
    pub(crate) shape: Shape,
    /// The last content of the files with the second and further slices of services.
    slices: Mutex<BTreeMap<String, String>>,
}

impl MeshObjects {
    /// Writes all objects of a shape.
    pub(crate) fn create(target: ObjectTarget, shape: &Shape) -> Result<Self> {
        let mesh = Self { target, shape: *shape, slices: Mutex::default() };
        if let ObjectTarget::Api(api) = &mesh.target {
            api.begin_initial_load();
        }
        mesh.write("mesh.yaml", &objects::mesh_config(None))?;
        mesh.write("nodes.yaml", &objects::nodes())?;
        mesh.write("istio-system.yaml", &objects::namespace("istio-system", false))?;
        for number in 0..shape.namespaces {
            let name = Shape::namespace(number);
            if let ObjectTarget::Directory { root, .. } = &mesh.target {
                std::fs::create_dir_all(root.join(&name))?;
            }
            let mut text = objects::namespace(&name, shape.is_ambient());
            if shape.layout == Layout::Scoped {
                text += "---\n";
                text += &objects::scope(&name, &Shape::namespace(shape.neighbour(number)));
            }
            mesh.write(&format!("{name}/namespace.yaml"), &text)?;
        }
        for number in 0..shape.services {
            mesh.service(shape.service(number), &Endpoints::default())?;
        }
        for number in 0..shape.service_entries {
            let namespace = Shape::namespace(number % shape.namespaces);
            let text = objects::service_entry(number, &namespace);
            mesh.write(&format!("{namespace}/entry-{number:05}.yaml"), &text)?;
        }
        if shape.gateways > 0 {
            let services: Vec<Service> =
                (0..shape.services.min(ROUTED_SERVICES)).map(|at| shape.http_service(at)).collect();
            mesh.write("gateways.yaml", &gateway::objects(shape.gateways, &services))?;
            mesh.write("gateway-secret.yaml", &gateway::secret()?.0)?;
        }
        if shape.waypoints > 0 {
            mesh.write("waypoints.yaml", &objects::namespace(ambient::NAMESPACE, false))?;
        }
        for number in 0..shape.waypoints {
            mesh.write(&format!("{}.yaml", ambient::name(number)), &ambient::waypoint(number))?;
        }
        if let ObjectTarget::Api(api) = &mesh.target {
            api.finish_initial_load()?;
        }
        Ok(mesh)
    }

    /// The Kubernetes API that objects are written to, if they are.
    pub(crate) fn api(&self) -> Option<&Api> {
        match &self.target {
            ObjectTarget::Directory { .. } => None,
            ObjectTarget::Api(api) => Some(api),
        }
    }

    /// Prints where the objects are and their shape.
    pub(crate) fn print_summary(&self) {
        if let ObjectTarget::Directory { root, .. } = &self.target {
            println!("{}: {}", root.display(), self.shape);
        }
    }

    /// Writes a file by rename, or its objects to the API. Returns the time at which that began.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<Instant> {
        let (root, staging) = match &self.target {
            ObjectTarget::Directory { root, staging } => (root, staging),
            ObjectTarget::Api(api) => return api.write(name, text),
        };
        let staged = staging.join("next");
        std::fs::write(&staged, text).with_context(|| format!("write {}", staged.display()))?;
        let at = Instant::now();
        let target = root.join(name);
        std::fs::rename(&staged, &target).with_context(|| format!("write {}", target.display()))?;
        Ok(at)
    }

    /// Removes a file, or the objects that were written under its name from the API.
    pub(crate) fn remove(&self, name: &str) -> Result<Instant> {
        let root = match &self.target {
            ObjectTarget::Directory { root, .. } => root,
            ObjectTarget::Api(api) => return api.write(name, ""),
        };
        let at = Instant::now();
        let target = root.join(name);
        std::fs::remove_file(&target).with_context(|| format!("remove {}", target.display()))?;
        Ok(at)
    }

    /// Writes a service with its endpoints.
    pub(crate) fn service(&self, service: Service, endpoints: &Endpoints) -> Result<Instant> {
        let texts = objects::service(service, &self.shape, endpoints);
        let at = self.write(&service_file(service), &texts[0])?;
        self.slices(service, &texts[1..])?;
        Ok(at)
    }

    /// Removes a service.
    pub(crate) fn remove_service(&self, service: Service) -> Result<Instant> {
        let at = self.remove(&service_file(service))?;
        self.slices(service, &[])?;
        Ok(at)
    }

    /// Writes those of the second and further slices of a service that differ, and removes slices that it no longer has.
    fn slices(&self, service: Service, texts: &[String]) -> Result<()> {
        let mut slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, text) in texts.iter().enumerate() {
            let file = slice_file(service, at);
            if slices.get(&file) != Some(text) {
                self.write(&file, text)?;
                slices.insert(file, text.clone());
            }
        }
        for file in (texts.len()..).map(|at| slice_file(service, at)) {
            if slices.remove(&file).is_none() {
                return Ok(());
            }
            self.remove(&file)?;
        }
        Ok(())
    }
}

fn service_file(service: Service) -> String {
    format!("{}/{}.yaml", service.namespace(), service.name())
}

/// The file of a slice after the first.
fn slice_file(service: Service, at: usize) -> String {
    format!("{}/{}-{}.yaml", service.namespace(), service.name(), at + 2)
}
