//! The whole: a bridge, a control plane on it, and pods whose objects stand in its directory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::app::{App, Call, Reply};
use super::envoy::{Bootstrap, Envoy, Protocol};
use super::identity::{Authority, socket_path};
use super::network::{Network, PROXY_UID, PodNet, workspace_binary};
use crate::server::{Options, Sluiced};

/// The application runs as this user.
const APP_UID: u32 = 1000;

/// What a pod is.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name of the pod and, unless `service` says otherwise, of its workload.
    pub name: &'static str,
    /// Service it backs, value of its `app` label.
    pub service: &'static str,
    /// Value of its `version` label.
    pub version: &'static str,
    /// Namespace.
    pub namespace: &'static str,
    /// Port the application listens on.
    pub port: u16,
    /// What Envoy it has.
    pub proxy: Beside,
}

/// What stands beside, or in place of, the application.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Beside {
    /// A sidecar, traffic redirected.
    Sidecar(Protocol),
    /// Nothing.
    Nothing,
    /// The pod is a gateway: an Envoy and no application. The text is the value of its `istio` label.
    Gateway(Protocol, &'static str),
}

/// A running pod.
pub struct Pod {
    /// Its network.
    pub net: PodNet,
    /// Its application, none in a gateway.
    pub app: Option<App>,
    /// Its Envoy.
    pub envoy: Option<Envoy>,
    /// Its node id.
    pub node_id: String,
}

impl Pod {
    /// Sends a request from the application of this pod.
    ///
    /// # Errors
    /// It has no application, or that is gone.
    pub async fn call(&self, call: Call) -> Result<Reply> {
        self.app.as_ref().context("the pod has an application")?.call(call).await
    }
}

/// A mesh of pods on one machine.
pub struct Mesh {
    // Order of drop: processes first, then the network, then the files.
    pods: BTreeMap<&'static str, Pod>,
    /// The control plane.
    pub server: Sluiced,
    /// None on the loopback.
    network: Option<Network>,
    authority: Authority,
    directory: TempDir,
}

impl Mesh {
    /// A bridge and a control plane with the objects of these YAML files.
    ///
    /// # Errors
    /// Pods are not permitted here, or the control plane does not start.
    pub async fn start(objects: &[PathBuf]) -> Result<Self> {
        Self::start_in(Some(Network::new()?), objects).await
    }

    /// The same without network namespaces: pods are processes on loopback addresses, sidecars are not possible.
    ///
    /// # Errors
    /// The control plane does not start.
    pub async fn start_on_loopback(objects: &[PathBuf]) -> Result<Self> {
        Self::start_in(None, objects).await
    }

    async fn start_in(network: Option<Network>, objects: &[PathBuf]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sluice-mesh-").tempdir().context("make a directory")?;
        // Envoy, another user, has to reach its files.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let config = directory.path().join("config");
        std::fs::create_dir(&config)?;
        for file in objects {
            let name = file.file_name().context("a file has a name")?;
            std::fs::copy(file, config.join(name)).with_context(|| format!("copy {}", file.display()))?;
        }
        let mut options = Options::new(&config);
        if let Some(network) = &network {
            options.ip = network.gateway().into();
        }
        options.log = Some(directory.path().join("sluiced.log"));
        let server = Sluiced::start(&options).await?;
        Ok(Self { pods: BTreeMap::new(), server, network, authority: Authority::new()?, directory })
    }

    /// A pod by name.
    ///
    /// # Panics
    /// There is none of that name: the test is wrong.
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

    /// The control plane's log so far.
    #[must_use]
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("sluiced.log")).unwrap_or_default()
    }

    /// Writes a file of objects as an editor or a mounted ConfigMap does: beside it, then renamed over it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let staged = self.directory.path().join("staged");
        std::fs::write(&staged, text).context("write the staged file")?;
        std::fs::rename(&staged, self.config_file(name)).context("rename it into place")
    }

    /// Starts pods together, their objects in one file, and waits until their Envoys have listeners.
    ///
    /// # Errors
    /// A pod does not start.
    pub async fn deploy(&mut self, workloads: &[Workload]) -> Result<()> {
        let mut objects = String::new();
        let mut nets = Vec::new();
        for workload in workloads {
            let index = u8::try_from(self.pods.len() + nets.len()).context("at most 200 pods")?;
            let net = match &mut self.network {
                Some(network) => network.add_pod(index)?,
                None => PodNet::loopback(index),
            };
            for object in objects_of(workload, &net) {
                objects.push_str(&serde_json::to_string(&object)?);
                objects.push_str("\n---\n");
            }
            nets.push(net);
        }
        let file = format!("pods-{}.yaml", workloads.first().map_or("none", |workload| workload.name));
        self.write(&file, &objects)?;
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

    async fn start_pod(&self, workload: &Workload, net: PodNet) -> Result<Pod> {
        let directory = self.directory.path().join(workload.name);
        std::fs::create_dir(&directory)?;
        if net.namespace.is_some() {
            std::os::unix::fs::chown(&directory, Some(PROXY_UID), Some(PROXY_UID))
                .context("hand Envoy its directory")?;
        }
        let node_id = node_id(workload, &net);
        let app = match workload.proxy {
            Beside::Gateway(..) => None,
            _ => {
                let mut command = net.command(APP_UID, &self.reachable("sluice-testapp")?);
                let ip = if net.namespace.is_some() { "0.0.0.0".to_owned() } else { net.ip.to_string() };
                command.arg(format!("--listen={ip}:{}", workload.port));
                command.args(["--name", workload.service, "--version", workload.version]);
                Some(App::start(command).await?)
            }
        };
        let envoy = match workload.proxy {
            Beside::Nothing => None,
            Beside::Sidecar(protocol) | Beside::Gateway(protocol, _) => {
                let spiffe_id = format!("spiffe://cluster.local/ns/{}/sa/{}", workload.namespace, workload.service);
                self.authority.serve(&spiffe_id, &socket_path(&directory))?;
                let bootstrap = Bootstrap {
                    node_id: node_id.clone(),
                    metadata: metadata(workload, &net),
                    discovery: self.server.grpc,
                    protocol,
                    directory,
                };
                let envoy =
                    Envoy::start(net.command(PROXY_UID, &self.reachable_path(&super::envoy::binary()?)?), &bootstrap)?;
                if matches!(workload.proxy, Beside::Sidecar(_)) {
                    net.redirect()?;
                }
                Some(envoy)
            }
        };
        Ok(Pod { net, app, envoy, node_id })
    }

    fn reachable(&self, binary: &str) -> Result<PathBuf> {
        self.reachable_path(&workspace_binary(binary)?)
    }

    /// A link to the binary in the mesh's own directory: the build's may be closed to the pods' users.
    fn reachable_path(&self, binary: &Path) -> Result<PathBuf> {
        let name = binary.file_name().context("a binary has a name")?;
        let here = self.directory.path().join(name);
        if !here.exists() && std::fs::hard_link(binary, &here).is_err() {
            std::fs::copy(binary, &here).with_context(|| format!("copy {}", binary.display()))?;
        }
        Ok(here)
    }
}

fn labels(workload: &Workload) -> Value {
    let mut labels = json!({
        "app": workload.service,
        "version": workload.version,
        "service.istio.io/canonical-name": workload.service,
        "service.istio.io/canonical-revision": workload.version,
    });
    match workload.proxy {
        Beside::Sidecar(_) => labels["security.istio.io/tlsMode"] = "istio".into(),
        Beside::Gateway(_, name) => labels["istio"] = name.into(),
        Beside::Nothing => {}
    }
    labels
}

/// The Pod and its EndpointSlice as an API server would hold them.
fn objects_of(workload: &Workload, net: &PodNet) -> Vec<Value> {
    let address = net.ip.to_string();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": workload.name, "namespace": workload.namespace, "labels": labels(workload) },
        "spec": {
            "serviceAccountName": workload.service,
            "nodeName": "machine",
            "containers": [{
                "name": "app", "image": "app",
                "ports": [{ "name": "http", "containerPort": workload.port, "protocol": "TCP" }],
            }],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-slice", workload.name),
            "namespace": workload.namespace,
            "labels": { "kubernetes.io/service-name": workload.service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": workload.port, "protocol": "TCP" }],
        "endpoints": [{
            "addresses": [address],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": "machine",
            "targetRef": { "kind": "Pod", "name": workload.name, "namespace": workload.namespace },
        }],
    });
    vec![pod, slice]
}

fn node_id(workload: &Workload, net: &PodNet) -> String {
    let kind = if matches!(workload.proxy, Beside::Gateway(..)) { "router" } else { "sidecar" };
    format!("{kind}~{}~{}.{ns}~{ns}.svc.cluster.local", net.ip, workload.name, ns = workload.namespace)
}

/// Node metadata as an agent beside the proxy would send it (X05).
fn metadata(workload: &Workload, net: &PodNet) -> Value {
    json!({
        "NAME": workload.name,
        "NAMESPACE": workload.namespace,
        "WORKLOAD_NAME": workload.name,
        "SERVICE_ACCOUNT": workload.service,
        "CLUSTER_ID": "Kubernetes",
        "MESH_ID": "cluster.local",
        "NODE_NAME": "machine",
        "INSTANCE_IPS": net.ip.to_string(),
        "INTERCEPTION_MODE": "REDIRECT",
        "LABELS": labels(workload),
        "POD_PORTS": format!("[{{\"name\":\"http\",\"containerPort\":{},\"protocol\":\"TCP\"}}]", workload.port),
        "PROXY_CONFIG": { "concurrency": 1 },
    })
}

/// The address a client of a Service uses.
#[must_use]
pub fn vip(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap_or_else(|_| panic!("{address} is an IP address")), port)
}
