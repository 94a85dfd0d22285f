//! Running pods, and the files that their processes read.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::agent::{Container, ProxyPorts};
use super::app::{App, AppReply, AppRequest, RECEIVED};
use super::envoy::Envoy;
use super::grpc_app::{GrpcApp, GrpcCall, GrpcOutcome};
use super::identity::Authority;
use super::network::{BridgeNetwork, PodNet};
use super::workload::{PodRole, PortProtocol, Workload};
use crate::binary::workspace_binary;

/// The application runs as this user.
const APP_UID: u32 = 1000;

/// The file with the roots with which proxies verify the control plane.
pub(super) const ROOTS: &str = "mesh-roots.pem";

/// The file with the revocation lists of the mesh's authority that the proxy of a pod reads. Each has its own, as kubelets
/// update volumes at different times.
pub(super) fn revocation_lists(pod: &str) -> String {
    format!("{pod}-revoked.pem")
}

/// Time limit until the Envoy of a pod is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running pod.
pub struct Pod {
    /// Its definition.
    pub workload: Workload,
    /// Its network.
    pub net: PodNet,
    /// Its application, none in a gateway.
    pub app: Option<App>,
    /// Its application with a gRPC library.
    pub grpc: Option<GrpcApp>,
    /// Its Envoy and agent; with a gRPC library, the agent only.
    pub envoy: Option<Envoy>,
}

impl Pod {
    /// Sends a request from the application of this pod.
    ///
    /// # Errors
    /// The pod has no application, or the application has ended.
    pub async fn call(&self, call: AppRequest) -> Result<AppReply> {
        self.app.as_ref().context("the pod has an application")?.call(call).await
    }

    /// Its application with a gRPC library.
    ///
    /// # Errors
    /// It has none.
    pub fn grpc_app(&self) -> Result<&GrpcApp> {
        self.grpc.as_ref().with_context(|| format!("{} has no gRPC library", self.workload.name))
    }

    /// Sends calls from its application with a gRPC library.
    ///
    /// # Errors
    /// The pod has no such application, or the application has ended.
    pub async fn call_grpc(&self, call: &GrpcCall) -> Result<GrpcOutcome> {
        self.grpc_app()?.call(call).await
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

    /// The counters of its Envoy for a host, and the end of Envoy's log.
    pub async fn stats_of(&self, host: &str) -> String {
        let name = self.workload.name;
        let Some(envoy) = &self.envoy else { return format!("{name} has no Envoy") };
        let pattern =
            format!("^cluster\\..*{host}.*(rq_|cx_|ssl|ejections|retry|lb_)|PassthroughCluster.*rq_|BlackHole.*cx_");
        let lines = envoy.nonzero_stats(&pattern).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
        format!("stats of {name}:\n  {}\nEnvoy's log: {}", lines.join("\n  "), envoy.log_tail())
    }
}

/// How the proxy of a pod reaches its control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneAccess {
    /// Address of xDS and certificates over TLS.
    pub discovery: SocketAddr,
    /// Token of the service account of the pod.
    pub token: String,
    /// Further environment of the agent.
    pub variables: Vec<(&'static str, String)>,
    /// The pod is a machine outside of Kubernetes, and this directory has the files of `sluicectl workload entry configure`. They
    /// replace the fields above.
    pub machine: Option<PathBuf>,
}

/// Running pods, and the files that their processes read.
pub struct PodSet {
    // Order of drop: processes first, then the network, then the files.
    pods: BTreeMap<&'static str, Arc<Pod>>,
    /// The network of the pods; none if they are on the loopback.
    pub(super) network: Option<BridgeNetwork>,
    /// Issues the certificates of hosts. The control plane issues those of workloads.
    pub authority: Authority,
    /// Names that are not those of pods.
    names: BTreeMap<String, Ipv4Addr>,
    /// Pods that have a network, running or not.
    networks: u8,
    directory: TempDir,
}

impl PodSet {
    /// No pods yet. Without a network, pods are processes on loopback addresses, and sidecars are not possible.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn new(network: Option<BridgeNetwork>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sluice-mesh-").tempdir().context("make a directory")?;
        // Proxies run as another user and must be able to read their files.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let authority = Authority::new()?;
        std::fs::write(directory.path().join("root.pem"), authority.root()).context("write the root certificate")?;
        Ok(Self { pods: BTreeMap::new(), network, authority, names: BTreeMap::new(), networks: 0, directory })
    }

    /// The address at which pods reach the control plane.
    #[must_use]
    pub fn host_ip(&self) -> Ipv4Addr {
        self.network.as_ref().map_or(Ipv4Addr::LOCALHOST, BridgeNetwork::gateway)
    }

    /// Makes the network of a pod that is started later.
    ///
    /// # Errors
    /// The network cannot be made.
    pub fn add_network(&mut self) -> Result<PodNet> {
        let index = self.networks;
        self.networks = index.checked_add(1).context("at most 200 pods")?;
        match &mut self.network {
            Some(network) => network.add_pod(index),
            None => Ok(PodNet::loopback(index)),
        }
    }

    /// Adds the name of a Service, which all pods that are started afterwards resolve.
    ///
    /// # Errors
    /// The files of the pods cannot be written.
    pub fn add_name(&mut self, name: &str, address: Ipv4Addr) -> Result<()> {
        self.names.insert(name.to_owned(), address);
        self.set_external_names(std::iter::empty())
    }

    /// Sets the names of external services, which all pods resolve.
    ///
    /// # Errors
    /// The files of the pods cannot be written.
    pub fn set_external_names<'p>(&'p self, starting: impl Iterator<Item = (&'p Workload, &'p PodNet)>) -> Result<()> {
        let Some(network) = &self.network else { return Ok(()) };
        let mut names = self.names.clone();
        for (workload, net) in self.workloads().chain(starting) {
            if let PodRole::External(hosts) = workload.proxy {
                names.extend(hosts.iter().map(|host| ((*host).to_owned(), net.ip)));
            }
        }
        network.set_hosts(&names)
    }

    /// Starts pods in their networks, and waits until their Envoys are ready. `access` is asked for each pod.
    ///
    /// # Errors
    /// A pod does not start.
    pub async fn start(
        &mut self,
        pods: impl IntoIterator<Item = (&Workload, PodNet)>,
        mut access: impl AsyncFnMut(&Workload) -> Result<ControlPlaneAccess>,
    ) -> Result<()> {
        let mut started = Vec::new();
        for (workload, net) in pods {
            let access = access(workload).await?;
            let pod = self.start_pod(workload, net, &access).await;
            started.push(pod.with_context(|| format!("start pod {}", workload.name))?);
        }
        for mut pod in started {
            let name = pod.workload.name;
            if let Some(envoy) = &mut pod.envoy {
                envoy.ready(READY_TIMEOUT).await.with_context(|| format!("proxy of {name}"))?;
            }
            if let PodRole::Grpc(library) = pod.workload.proxy {
                let app = GrpcApp::start(library, &pod.workload, &pod.net, &self.file(name)).await;
                pod.grpc = Some(app.with_context(|| format!("application of {name}"))?);
            }
            self.pods.insert(name, Arc::new(pod));
        }
        Ok(())
    }

    /// Ends a pod, and removes its files.
    ///
    /// # Errors
    /// There is no pod of that name, or it is shared.
    pub fn stop(&mut self, name: &str) -> Result<()> {
        let pod = self.pods.remove(name).with_context(|| format!("no pod {name}"))?;
        ensure!(Arc::into_inner(pod).is_some(), "the pod {name} sends requests");
        std::fs::remove_dir_all(self.file(name)).context("remove the files of a pod")
    }

    /// A pod by name.
    ///
    /// # Panics
    /// There is no pod of that name.
    #[must_use]
    pub fn pod(&self, name: &str) -> &Pod {
        self.pods.get(name).unwrap_or_else(|| panic!("no pod {name}"))
    }

    /// A pod by name, for requests that are sent while pods change.
    ///
    /// # Panics
    /// There is no pod of that name.
    #[must_use]
    pub fn shared(&self, name: &str) -> Arc<Pod> {
        self.pods.get(name).unwrap_or_else(|| panic!("no pod {name}")).clone()
    }

    /// Every pod by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Pod)> {
        self.pods.iter().map(|(name, pod)| (*name, &**pod))
    }

    /// The pods with their networks.
    pub fn workloads(&self) -> impl Iterator<Item = (&Workload, &PodNet)> + Clone {
        self.pods.values().map(|pod| (&pod.workload, &pod.net))
    }

    /// The addresses of the pods, those with longer names first.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&'static str, Ipv4Addr)> {
        self.pods.iter().rev().map(|(name, pod)| (*name, pod.net.ip))
    }

    /// Path of a file that every process of the mesh can read. `root.pem` is the root of the certificates of hosts.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file that proxies may be reading: to another file, which is then renamed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn replace(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let staged = self.file("staged-for-proxies");
        std::fs::write(&staged, text).context("write the staged file")?;
        std::fs::rename(&staged, self.file(name)).with_context(|| format!("rename {name} into place"))
    }

    /// Starts a pod, without waiting for its Envoy.
    async fn start_pod(&self, workload: &Workload, net: PodNet, access: &ControlPlaneAccess) -> Result<Pod> {
        let directory = self.directory.path().join(workload.name);
        std::fs::create_dir(&directory)?;
        let app = match workload.has_app() {
            false => None,
            true => Some(App::start(self.app_command(workload, &net)?).await?),
        };
        let envoy = match workload.proxy {
            PodRole::NoProxy | PodRole::External(_) => None,
            role => {
                let container = Container {
                    workload,
                    net: &net,
                    protocol: role.protocol(),
                    directory,
                    agent: self.linked_binary("sluice-agent")?,
                    envoy: self.linked_path(&super::envoy::binary()?)?,
                    discovery: access.discovery,
                    roots: &self.file(ROOTS),
                    revoked: &self.file(&revocation_lists(workload.name)),
                    token: access.token.clone(),
                    ports: ProxyPorts::of(&net)?,
                    variables: &access.variables,
                    machine: access.machine.as_deref(),
                };
                let envoy = Envoy::start(&container)?;
                if matches!(workload.proxy, PodRole::Sidecar(_)) {
                    net.redirect()?;
                }
                Some(envoy)
            }
        };
        Ok(Pod { workload: workload.clone(), net, app, grpc: None, envoy })
    }

    fn app_command(&self, workload: &Workload, net: &PodNet) -> Result<tokio::process::Command> {
        let mut command = net.command(APP_UID, &self.linked_binary("sluice-testapp")?);
        let ip = if net.namespace.is_some() { "0.0.0.0".to_owned() } else { net.ip.to_string() };
        for port in workload.listening() {
            let flag = match port.protocol {
                PortProtocol::Http => "listen",
                PortProtocol::Https => "https",
                PortProtocol::Lines => "tcp",
                PortProtocol::Datagrams => "udp",
                PortProtocol::Authorization => "authorize",
                PortProtocol::Grpc | PortProtocol::PlainGrpc => {
                    bail!("port {}: {} has no gRPC library", port.name, workload.name)
                }
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
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn linked_path(&self, binary: &Path) -> Result<PathBuf> {
        let name = binary.file_name().context("a binary has a name")?;
        let here = self.directory.path().join(name);
        if !here.exists() && std::fs::hard_link(binary, &here).is_err() {
            std::fs::copy(binary, &here).with_context(|| format!("copy {}", binary.display()))?;
        }
        Ok(here)
    }
}
