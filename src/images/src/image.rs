//! The images of Sluice.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::file_system::{FileSystem, OWNER};
use crate::layer::Layer;
use crate::layout::{Digest, LayoutWriter};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Time of creation in all images, so that equal content gives equal digests.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// An image: layers, and how it runs.
pub struct Image {
    /// Its name with a tag, such as `sluiced:0.1.0`.
    pub name: String,
    /// What it contains.
    pub description: &'static str,
    /// The layers; each has a comment.
    pub layers: Vec<(&'static str, FileSystem)>,
    /// The program.
    pub entrypoint: &'static str,
    /// Its default arguments.
    pub arguments: Vec<&'static str>,
    /// User and group of the process.
    pub user: u64,
    /// TCP ports it listens on.
    pub ports: Vec<u16>,
}

/// The image of `sluiced` and `sluicectl`; `binaries` is their directory.
///
/// # Errors
/// A binary does not exist, or a library that it needs.
pub fn control_plane(binaries: &Path) -> Result<Image> {
    let (sluiced, sluicectl) = (binaries.join("sluiced"), binaries.join("sluicectl"));
    let mut base = FileSystem::base()?;
    base.libraries_of(&sluiced)?;
    base.libraries_of(&sluicectl)?;
    let mut program = FileSystem::default();
    program.executable("usr/local/bin/sluiced", &sluiced);
    program.executable("usr/local/bin/sluicectl", &sluicectl);
    // As in Istio's image: charts and scripts run the program by this name.
    program.link("usr/local/bin/pilot-discovery", "sluiced");
    Ok(Image {
        name: format!("sluiced:{}", env!("CARGO_PKG_VERSION")),
        description: "The control plane of Sluice: sluiced and sluicectl",
        layers: vec![("base", base), ("sluiced", program)],
        entrypoint: "/usr/local/bin/sluiced",
        arguments: vec!["discovery"],
        user: OWNER,
        ports: vec![8080, 15010, 15012, 15014, 15017],
    })
}

/// The image of `sluice-agent` with an Envoy.
///
/// # Errors
/// A binary does not exist, or a library that it needs.
pub fn proxy(binaries: &Path, envoy: &Path) -> Result<Image> {
    let agent = binaries.join("sluice-agent");
    let mut base = FileSystem::base()?;
    base.libraries_of(&agent)?;
    base.libraries_of(envoy)?;
    let mut proxy = FileSystem::default();
    proxy.executable("usr/local/bin/envoy", envoy);
    let mut program = FileSystem::default();
    program.executable("usr/local/bin/sluice-agent", &agent);
    // Injected pods start the agent by its name in Istio.
    program.link("usr/local/bin/pilot-agent", "sluice-agent");
    // Directories that the agent writes to. Injected pods mount volumes there.
    for directory in ["etc/istio/proxy", "var/lib/istio/data", "var/run/secrets/workload-spiffe-uds"] {
        program.directory(directory, 0o755, OWNER);
    }
    Ok(Image {
        name: format!("sluice-agent:{}", env!("CARGO_PKG_VERSION")),
        description: "A proxy of Sluice: sluice-agent and Envoy",
        layers: vec![("base", base), ("envoy", proxy), ("sluice-agent", program)],
        entrypoint: "/usr/local/bin/sluice-agent",
        arguments: vec!["proxy", "sidecar"],
        user: OWNER,
        ports: vec![15020, 15021, 15090],
    })
}

/// The image of `sluice-cni` with the programs that it runs, `nft` and `ip`, which are found on the search path of this machine.
///
/// # Errors
/// A binary does not exist, or a library that it needs.
pub fn cni(binaries: &Path) -> Result<Image> {
    let agent = binaries.join("sluice-cni");
    let tools = ["nft", "ip"].map(|name| (name, on_search_path(name)));
    let mut base = FileSystem::base()?;
    base.libraries_of(&agent)?;
    let mut networking = FileSystem::default();
    for (name, tool) in tools {
        let tool = tool.with_context(|| format!("{name} is not installed: install nftables and iproute2"))?;
        base.libraries_of(&tool)?;
        networking.executable(Path::new("usr/local/bin").join(name), &tool);
    }
    let mut program = FileSystem::default();
    program.executable("usr/local/bin/sluice-cni", &agent);
    Ok(Image {
        name: format!("sluice-cni:{}", env!("CARGO_PKG_VERSION")),
        description: "The CNI agent of Sluice: sluice-cni, nft and ip",
        layers: vec![("base", base), ("networking", networking), ("sluice-cni", program)],
        entrypoint: "/usr/local/bin/sluice-cni",
        arguments: Vec::new(),
        // It enters the network namespaces of pods.
        user: 0,
        ports: vec![8000, 15014],
    })
}

/// A program of this machine. Those of administrators may not be on the search path of the user.
fn on_search_path(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&own).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|file| file.is_file())?.canonicalize().ok()
}

impl Image {
    /// Writes the image as an OCI layout, which replaces the directory. Returns the digest of its manifest.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write(&self, directory: &Path) -> Result<Digest> {
        let writer = LayoutWriter::create(directory)?;
        let (mut layers, mut diff_ids, mut history) = (Vec::new(), Vec::new(), Vec::new());
        for (comment, files) in &self.layers {
            let layer = Layer::of(files).with_context(|| format!("layer {comment} of {}", self.name))?;
            layers.push(writer.blob(LAYER, &layer.blob)?);
            diff_ids.push(layer.diff_id.to_string());
            history.push(json!({"created": CREATED, "created_by": "sluice-images", "comment": comment}));
        }
        let config = self.config(&diff_ids, &history)?;
        let config = writer.blob(CONFIG, config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": self.labels(),
        });
        let bytes = manifest.to_string();
        let mut descriptor = writer.blob(MANIFEST, bytes.as_bytes())?;
        descriptor["platform"] = platform()?;
        descriptor["annotations"] =
            json!({"org.opencontainers.image.ref.name": self.tag(), "io.containerd.image.name": self.name});
        writer.finish(descriptor)?;
        Ok(Digest::of(bytes.as_bytes()))
    }

    fn tag(&self) -> &str {
        self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag)
    }

    fn labels(&self) -> Value {
        json!({
            "org.opencontainers.image.title": self.name.split(':').next(),
            "org.opencontainers.image.version": self.tag(),
            "org.opencontainers.image.description": self.description,
            "org.opencontainers.image.licenses": "Apache-2.0",
        })
    }

    fn config(&self, diff_ids: &[String], history: &[Value]) -> Result<Value> {
        let ports: serde_json::Map<String, Value> =
            self.ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
        let mut config = platform()?;
        config["created"] = CREATED.into();
        config["config"] = json!({
            "User": format!("{0}:{0}", self.user),
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            "Entrypoint": [self.entrypoint],
            "Cmd": self.arguments,
            "ExposedPorts": ports,
            "Labels": self.labels(),
        });
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        config["history"] = history.into();
        Ok(config)
    }
}

/// The platform of the binaries: that of this program, which is built together with them.
fn platform() -> Result<Value> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no images for {other}: use x86_64 or aarch64"),
    };
    Ok(json!({"os": "linux", "architecture": architecture}))
}
