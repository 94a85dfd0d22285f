//! A mesh for tests: a bridge, a control plane, and pods whose objects are in the control plane's directory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_documents};

use super::network::{BridgeNetwork, PodNet};
use super::pod_set::{ControlPlaneAccess, PodSet, ROOTS, revocation_lists};
use super::token::TokenIssuer;
use super::workload::Workload;
use crate::server::{Options, Sluiced};

/// The file of EndpointSlices.
const SLICES: &str = "endpoint-slices.yaml";

/// Issuer of the tokens of service accounts.
const TOKEN_ISSUER: &str = "https://cluster.local";

/// Lifetime of tokens, in seconds.
const TOKEN_LIFETIME_SECONDS: u64 = 24 * 3600;

/// Options of a mesh.
#[derive(Clone, Debug, Default)]
pub struct MeshOptions {
    /// Environment of the control plane.
    pub control_plane: Vec<(&'static str, String)>,
    /// Environment of every agent.
    pub agents: Vec<(&'static str, String)>,
}

/// A mesh of pods on one machine.
pub struct Mesh {
    /// The control plane.
    pub server: Sluiced,
    /// The pods.
    pub pods: PodSet,
    tokens: TokenIssuer,
    options: MeshOptions,
}

impl Mesh {
    /// A bridge and a control plane with the objects of these YAML files.
    ///
    /// # Errors
    /// Pods are not permitted here, or the control plane does not start.
    pub async fn start(objects: &[PathBuf]) -> Result<Self> {
        Self::start_with(objects, MeshOptions::default()).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Mesh::start`].
    pub async fn start_with(objects: &[PathBuf], options: MeshOptions) -> Result<Self> {
        Self::start_in(Some(BridgeNetwork::new()?), objects, options).await
    }

    /// The same without network namespaces: pods are processes on loopback addresses, and sidecars are not possible.
    ///
    /// # Errors
    /// The control plane does not start.
    pub async fn start_on_loopback(objects: &[PathBuf]) -> Result<Self> {
        Self::start_in(None, objects, MeshOptions::default()).await
    }

    async fn start_in(network: Option<BridgeNetwork>, objects: &[PathBuf], options: MeshOptions) -> Result<Self> {
        let pods = PodSet::new(network)?;
        let path = |name: &str| pods.file(name);
        std::fs::create_dir(path("config"))?;
        for file in objects {
            let name = file.file_name().context("a file has a name")?;
            std::fs::copy(file, path("config").join(name)).with_context(|| format!("copy {}", file.display()))?;
        }
        let tokens = TokenIssuer::new()?;
        std::fs::write(path("token-keys.json"), tokens.key_set()).context("write the keys of tokens")?;
        let ip = pods.host_ip();
        let mut server_options = Options::new(&path("config"));
        server_options.args = vec![
            format!("--secureGRPCAddr={ip}:0"),
            "--createCA".to_owned(),
            format!("--tokenKeys={}", path("token-keys.json").display()),
            format!("--tokenIssuer={TOKEN_ISSUER}"),
        ];
        server_options.env.push(("ROOT_CA_DIR".to_owned(), path("authority").display().to_string()));
        server_options
            .env
            .extend(options.control_plane.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        server_options.log = Some(path("sluiced.log"));
        let server = Sluiced::start(&server_options).await?;
        let mesh = Self { server, pods, tokens, options };
        mesh.distribute_roots()?;
        Ok(mesh)
    }

    /// The directory of the control plane's authority.
    #[must_use]
    pub fn authority_directory(&self) -> PathBuf {
        self.pods.file("authority")
    }

    /// Copies the roots of the control plane's authority to every proxy, which verifies the control plane with them.
    ///
    /// # Errors
    /// The roots cannot be read or written.
    pub fn distribute_roots(&self) -> Result<()> {
        self.pods.replace(ROOTS, self.read_of_authority("root-cert.pem")?)
    }

    /// Copies the revocation lists of the control plane's authority to the proxies of these pods, as ConfigMap volumes do.
    /// Returns them.
    ///
    /// # Errors
    /// The lists cannot be read or written.
    pub fn distribute_revocation_lists(&self, pods: &[&str]) -> Result<String> {
        let lists = self.read_of_authority("ca-crl.pem")?;
        pods.iter().try_for_each(|pod| self.pods.replace(&revocation_lists(pod), &lists))?;
        Ok(lists)
    }

    fn read_of_authority(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.authority_directory().join(file)).with_context(|| format!("read {file}"))
    }

    /// Path of a file in the control plane's directory.
    #[must_use]
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.pods.file("config").join(name)
    }

    /// The control plane's log so far.
    #[must_use]
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.pods.file("sluiced.log")).unwrap_or_default()
    }

    /// Writes a file of objects as an editor or a mounted ConfigMap does: to another file, which is then renamed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let staged = self.pods.file("staged");
        std::fs::write(&staged, text).context("write the staged file")?;
        std::fs::rename(&staged, self.config_file(name)).context("rename it into place")
    }

    /// Writes a file of objects with `$DIRECTORY` and `$IP_OF_pod` filled in, and the EndpointSlices of its Services.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn apply(&self, name: &str, text: &str) -> Result<()> {
        let mut text = text.replace("$DIRECTORY", self.pods.file("").to_string_lossy().trim_end_matches('/'));
        // Longer names precede the names that are their prefixes.
        for (pod, ip) in self.pods.addresses() {
            text = text.replace(&format!("$IP_OF_{pod}"), &ip.to_string());
        }
        ensure!(!text.contains("$IP_OF_"), "{name} names a pod that does not run:\n{text}");
        self.write(name, &text)?;
        self.write_slices(self.pods.workloads())
    }

    /// Starts pods, writes their objects to one file, and waits until their Envoys are ready.
    ///
    /// # Errors
    /// A pod does not start.
    pub async fn deploy(&mut self, workloads: &[Workload]) -> Result<()> {
        let mut objects = Vec::new();
        let mut nets = Vec::new();
        for workload in workloads {
            let net = self.pods.add_network()?;
            objects.extend(workload.objects(&net));
            nets.push(net);
        }
        // Several pods of a node have the same Node object.
        objects.dedup_by_key(|object| object.to_string());
        let file = format!("pods-{}.yaml", workloads.first().map_or("none", |workload| workload.name));
        self.write(&file, &documents(&objects)?)?;
        let starting = workloads.iter().zip(&nets);
        self.write_slices(self.pods.workloads().chain(starting.clone()))?;
        self.pods.set_external_names(starting)?;
        let discovery = self.server.secure.context("the control plane serves xDS over TLS")?;
        let (tokens, variables) = (&self.tokens, &self.options.agents);
        let access = async |workload: &Workload| {
            let token = token(tokens, workload)?;
            Ok(ControlPlaneAccess { discovery, token, variables: variables.clone(), machine: None })
        };
        self.pods.start(workloads.iter().zip(nets), access).await
    }

    /// Removes a pod from the EndpointSlices, as if it were terminating. It is stopped afterwards.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn withdraw(&self, pod: &str) -> Result<()> {
        self.write_slices(self.pods.workloads().filter(|(workload, _)| workload.name != pod))
    }

    /// Writes the EndpointSlices of every Service in the directory, as the EndpointSlice controller does.
    fn write_slices<'p>(&self, pods: impl Iterator<Item = (&'p Workload, &'p PodNet)> + Clone) -> Result<()> {
        let mut slices = Vec::new();
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.pods.file("config"))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            for document in parse_documents(&text, &Limits::default()).into_iter().flatten() {
                let service = &document.value;
                if service["kind"] == "Service" && service["apiVersion"] == "v1" {
                    slices.extend(pods.clone().filter_map(|(workload, net)| workload.slice(net, service)));
                }
            }
        }
        self.write(SLICES, &documents(&slices)?)
    }
}

fn token(tokens: &TokenIssuer, workload: &Workload) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?.as_secs();
    tokens.sign(&json!({
        "iss": TOKEN_ISSUER,
        "sub": format!("system:serviceaccount:{}:{}", workload.namespace, workload.app),
        "aud": ["istio-ca"],
        "exp": now + TOKEN_LIFETIME_SECONDS,
    }))
}

fn documents(objects: &[Value]) -> Result<String> {
    let mut text = String::new();
    for object in objects {
        text.push_str(&serde_json::to_string(object)?);
        text.push_str("\n---\n");
    }
    Ok(text)
}

/// The cluster IP and port of a Service.
#[must_use]
pub fn vip(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap_or_else(|_| panic!("{address} is an IP address")), port)
}
