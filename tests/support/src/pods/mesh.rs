//! A mesh for tests: a bridge, a control plane, and pods whose objects are in the control plane's directory.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_documents};
use tempfile::TempDir;

use super::agent::{Container, ProxyPorts};
use super::app::{App, AppReply, AppRequest, RECEIVED};
use super::envoy::Envoy;
use super::identity::Authority;
use super::network::{BridgeNetwork, PodNet};
use super::token::TokenIssuer;
use super::workload::{PodRole, PortProtocol, Workload};
use crate::binary::workspace_binary;
use crate::server::{Options, Sluiced};

/// The application runs as this user.
const APP_UID: u32 = 1000;

/// The file with the roots with which proxies verify the control plane.
const ROOTS: &str = "mesh-roots.pem";

/// The file with the revocation list of the mesh's authority.
const REVOCATION_LIST: &str = "mesh-revoked.pem";

/// The file of EndpointSlices.
const SLICES: &str = "endpoint-slices.yaml";

/// Issuer of the tokens of service accounts.
const TOKEN_ISSUER: &str = "https://cluster.local";

/// Lifetime of tokens, in seconds.
const TOKEN_LIFETIME_SECONDS: u64 = 24 * 3600;

/// A running pod.
pub struct Pod {
    /// Its definition.
    pub workload: Workload,
    /// Its network.
    pub net: PodNet,
    /// Its application, none in a gateway.
    pub app: Option<App>,
    /// Its Envoy and agent.
    pub envoy: Option<Envoy>,
}

/// Options of a mesh.
#[derive(Clone, Debug, Default)]
pub struct MeshOptions {
    /// Environment of the control plane.
    pub control_plane: Vec<(&'static str, String)>,
    /// Environment of every agent.
    pub agents: Vec<(&'static str, String)>,
}

impl Pod {
    /// Sends a request from the application of this pod.
    ///
    /// # Errors
    /// The pod has no application, or the application has ended.
    pub async fn call(&self, call: AppRequest) -> Result<AppReply> {
        self.app.as_ref().context("the pod has an application")?.call(call).await
    }

    /// The requests with `marker` in the path that its application received over HTTP, in order. They are read directly
    /// from the application, not through an Envoy.
    ///
    /// # Errors
    /// The application does not respond.
    pub async fn received(&self, marker: &str) -> Result<Vec<Value>> {
        let port =
            self.workload.listening().iter().find(|port| port.protocol == PortProtocol::Http).map(|port| port.number);
        let address = SocketAddr::new([127, 0, 0, 1].into(), port.context("the application speaks HTTP")?);
        let reply = self.call(AppRequest::get(address, "here").path(&format!("{RECEIVED}?marker={marker}"))).await?;
        let answer = reply.outcome.map_err(anyhow::Error::msg).context("request the received requests")?;
        serde_json::from_str(&answer.body).context("read the received requests")
    }
}

/// A mesh of pods on one machine.
pub struct Mesh {
    // Order of drop: processes first, then the network, then the files.
    pods: BTreeMap<&'static str, Pod>,
    /// The control plane.
    pub server: Sluiced,
    /// The network of the pods; none if they are on the loopback.
    network: Option<BridgeNetwork>,
    /// Issues the certificates of hosts. The control plane issues those of workloads.
    pub authority: Authority,
    tokens: TokenIssuer,
    options: MeshOptions,
    directory: TempDir,
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
        let directory = tempfile::Builder::new().prefix("sluice-mesh-").tempdir().context("make a directory")?;
        // Proxies run as another user and must be able to read their files.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("config"))?;
        for file in objects {
            let name = file.file_name().context("a file has a name")?;
            std::fs::copy(file, path("config").join(name)).with_context(|| format!("copy {}", file.display()))?;
        }
        let authority = Authority::new()?;
        std::fs::write(path("root.pem"), authority.root()).context("write the root certificate")?;
        let tokens = TokenIssuer::new()?;
        std::fs::write(path("token-keys.json"), tokens.key_set()).context("write the keys of tokens")?;
        let ip = network.as_ref().map_or(Ipv4Addr::LOCALHOST, BridgeNetwork::gateway);
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
        let mesh = Self { pods: BTreeMap::new(), server, network, authority, tokens, options, directory };
        mesh.distribute_roots()?;
        Ok(mesh)
    }

    /// The directory of the control plane's authority.
    #[must_use]
    pub fn authority_directory(&self) -> PathBuf {
        self.directory.path().join("authority")
    }

    /// Copies the roots of the control plane's authority to every proxy, which verifies the control plane with them.
    ///
    /// # Errors
    /// The roots cannot be read or written.
    pub fn distribute_roots(&self) -> Result<()> {
        self.distribute("root-cert.pem", ROOTS)
    }

    /// Copies the revocation list of the control plane's authority to every proxy, as a ConfigMap volume does.
    ///
    /// # Errors
    /// The list cannot be read or written.
    pub fn distribute_revocation_list(&self) -> Result<()> {
        self.distribute("ca-crl.pem", REVOCATION_LIST)
    }

    fn distribute(&self, of_authority: &str, to: &str) -> Result<()> {
        let text = std::fs::read(self.authority_directory().join(of_authority));
        let text = text.with_context(|| format!("read {of_authority}"))?;
        let staged = self.file("staged-for-proxies");
        std::fs::write(&staged, text).context("write the staged file")?;
        std::fs::rename(&staged, self.file(to)).with_context(|| format!("rename {to} into place"))
    }

    fn token(&self, workload: &Workload) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?.as_secs();
        self.tokens.sign(&json!({
            "iss": TOKEN_ISSUER,
            "sub": format!("system:serviceaccount:{}:{}", workload.namespace, workload.app),
            "aud": ["istio-ca"],
            "exp": now + TOKEN_LIFETIME_SECONDS,
        }))
    }

    /// A pod by name.
    ///
    /// # Panics
    /// There is no pod of that name.
    #[must_use]
    pub fn pod(&self, name: &str) -> &Pod {
        self.pods.get(name).unwrap_or_else(|| panic!("no pod {name}"))
    }

    /// Every pod by name.
    pub fn pods(&self) -> impl Iterator<Item = (&'static str, &Pod)> {
        self.pods.iter().map(|(name, pod)| (*name, pod))
    }

    /// Path of a file in the control plane's directory.
    #[must_use]
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.directory.path().join("config").join(name)
    }

    /// Path of a file that every process of the mesh can read. `root.pem` is the root of the certificates of hosts.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The control plane's log so far.
    #[must_use]
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("sluiced.log")).unwrap_or_default()
    }

    /// Writes a file of objects as an editor or a mounted ConfigMap does: to another file, which is then renamed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let staged = self.directory.path().join("staged");
        std::fs::write(&staged, text).context("write the staged file")?;
        std::fs::rename(&staged, self.config_file(name)).context("rename it into place")
    }

    /// Writes a file of objects with `$DIRECTORY` and `$IP_OF_pod` filled in, and the EndpointSlices of its Services.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn apply(&self, name: &str, text: &str) -> Result<()> {
        let mut text = text.replace("$DIRECTORY", &self.directory.path().to_string_lossy());
        // Longer names precede the names that are their prefixes.
        for (pod, running) in self.pods.iter().rev() {
            text = text.replace(&format!("$IP_OF_{pod}"), &running.net.ip.to_string());
        }
        ensure!(!text.contains("$IP_OF_"), "{name} names a pod that does not run:\n{text}");
        self.write(name, &text)?;
        self.write_slices(self.pods.values().map(|pod| (&pod.workload, &pod.net)))
    }

    /// Starts pods, writes their objects to one file, and waits until their Envoys are ready.
    ///
    /// # Errors
    /// A pod does not start.
    pub async fn deploy(&mut self, workloads: &[Workload]) -> Result<()> {
        let mut objects = Vec::new();
        let mut nets = Vec::new();
        for workload in workloads {
            let index = u8::try_from(self.pods.len() + nets.len()).context("at most 200 pods")?;
            let net = match &mut self.network {
                Some(network) => network.add_pod(index)?,
                None => PodNet::loopback(index),
            };
            objects.extend(workload.objects(&net));
            nets.push(net);
        }
        // Several pods of a node have the same Node object.
        objects.dedup_by_key(|object| object.to_string());
        let file = format!("pods-{}.yaml", workloads.first().map_or("none", |workload| workload.name));
        self.write(&file, &documents(&objects)?)?;
        let running = self.pods.values().map(|pod| (&pod.workload, &pod.net));
        let all: Vec<_> = running.chain(workloads.iter().zip(&nets)).collect();
        self.write_slices(all.iter().copied())?;
        if let Some(network) = &self.network {
            network.set_hosts(&external_names(all))?;
        }
        for (workload, net) in workloads.iter().zip(nets) {
            let pod = self.start_pod(workload, net).await.with_context(|| format!("start pod {}", workload.name))?;
            self.pods.insert(workload.name, pod);
        }
        for workload in workloads {
            if let Some(envoy) = self.pods.get_mut(workload.name).and_then(|pod| pod.envoy.as_mut()) {
                envoy.ready(Duration::from_secs(30)).await.with_context(|| format!("Envoy of {}", workload.name))?;
            }
        }
        Ok(())
    }

    /// Writes the EndpointSlices of every Service in the directory, as the EndpointSlice controller does.
    fn write_slices<'p>(&self, pods: impl Iterator<Item = (&'p Workload, &'p PodNet)> + Clone) -> Result<()> {
        let mut slices = Vec::new();
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.directory.path().join("config"))?
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

    async fn start_pod(&self, workload: &Workload, net: PodNet) -> Result<Pod> {
        let directory = self.directory.path().join(workload.name);
        std::fs::create_dir(&directory)?;
        let app = match workload.proxy {
            PodRole::Gateway(..) => None,
            _ => Some(App::start(self.app_command(workload, &net)?).await?),
        };
        let envoy = match workload.proxy {
            PodRole::NoProxy | PodRole::External(_) => None,
            PodRole::Sidecar(protocol) | PodRole::Gateway(protocol, _) => {
                let container = Container {
                    workload,
                    net: &net,
                    protocol,
                    directory,
                    agent: self.linked_binary("sluice-agent")?,
                    envoy: self.linked_path(&super::envoy::binary()?)?,
                    discovery: self.server.secure.context("the control plane serves xDS over TLS")?,
                    roots: &self.file(ROOTS),
                    revoked: &self.file(REVOCATION_LIST),
                    token: self.token(workload)?,
                    ports: ProxyPorts::of(&net)?,
                    variables: &self.options.agents,
                };
                let envoy = Envoy::start(&container)?;
                if matches!(workload.proxy, PodRole::Sidecar(_)) {
                    net.redirect()?;
                }
                Some(envoy)
            }
        };
        Ok(Pod { workload: workload.clone(), net, app, envoy })
    }

    fn app_command(&self, workload: &Workload, net: &PodNet) -> Result<tokio::process::Command> {
        let mut command = net.command(APP_UID, &self.linked_binary("sluice-testapp")?);
        let ip = if net.namespace.is_some() { "0.0.0.0".to_owned() } else { net.ip.to_string() };
        for port in workload.listening() {
            let flag = match port.protocol {
                PortProtocol::Http => "listen",
                PortProtocol::Https => "https",
                PortProtocol::Lines => "tcp",
                PortProtocol::Authorization => "authorize",
            };
            command.arg(format!("--{flag}={ip}:{}", port.number));
        }
        if workload.listening().iter().any(|port| port.protocol == PortProtocol::Https) {
            let (certificate, key) = self.write_certificate(workload.name, &workload.hosts())?;
            command.arg("--certificate").arg(certificate).arg("--key").arg(key);
            command.arg("--client-roots").arg(self.file("root.pem"));
        }
        command.args(["--name", workload.app, "--version", workload.version]);
        Ok(command)
    }

    /// Issues a certificate for hosts. Returns the paths of the files `NAME.pem` and `NAME-key.pem`.
    ///
    /// # Errors
    /// Key generation fails, or the files cannot be written.
    pub fn write_certificate(&self, name: &str, hosts: &[String]) -> Result<(PathBuf, PathBuf)> {
        let (chain, key) = self.authority.issue_hosts(hosts)?;
        let files = (self.file(&format!("{name}.pem")), self.file(&format!("{name}-key.pem")));
        std::fs::write(&files.0, chain).context("write a certificate")?;
        std::fs::write(&files.1, key).context("write a key")?;
        Ok(files)
    }

    fn linked_binary(&self, binary: &str) -> Result<PathBuf> {
        self.linked_path(&workspace_binary(binary)?)
    }

    /// A link to a binary in the mesh's directory: the users of pods may not be able to read the build directory.
    fn linked_path(&self, binary: &Path) -> Result<PathBuf> {
        let name = binary.file_name().context("a binary has a name")?;
        let here = self.directory.path().join(name);
        if !here.exists() && std::fs::hard_link(binary, &here).is_err() {
            std::fs::copy(binary, &here).with_context(|| format!("copy {}", binary.display()))?;
        }
        Ok(here)
    }
}

fn external_names(pods: Vec<(&Workload, &PodNet)>) -> BTreeMap<String, Ipv4Addr> {
    let mut names = BTreeMap::new();
    for (workload, net) in pods {
        if let PodRole::External(hosts) = workload.proxy {
            names.extend(hosts.iter().map(|host| ((*host).to_owned(), net.ip)));
        }
    }
    names
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
