//! The container of a proxy as an injector would create it: files, environment, and `sluice-agent` as its program.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::process::Command;

use super::network::{PROXY_UID, PodNet};
use super::workload::{PodRole, Workload};
use crate::ads::Protocol;

/// Ports of a proxy and its agent.
#[derive(Clone, Copy, Debug)]
pub struct ProxyPorts {
    pub(super) admin: u16,
    pub(super) status: u16,
    pub(super) envoy_status: u16,
    pub(super) envoy_prometheus: u16,
}

impl ProxyPorts {
    /// The standard ports in a network namespace; free ports without one.
    ///
    /// # Errors
    /// No port is free.
    pub fn of(net: &PodNet) -> Result<Self> {
        if net.namespace.is_some() {
            return Ok(Self { admin: 15000, status: 15020, envoy_status: 15021, envoy_prometheus: 15090 });
        }
        // All ports are bound before the first is released, so that they differ.
        let held: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("0.0.0.0:0")).collect::<Result<_, _>>()?;
        let port = |index: usize| -> Result<u16> { Ok(held[index].local_addr()?.port()) };
        Ok(Self { admin: port(0)?, status: port(1)?, envoy_status: port(2)?, envoy_prometheus: port(3)? })
    }
}

/// The container.
pub struct Container<'a> {
    /// Its pod.
    pub workload: &'a Workload,
    /// The pod's network.
    pub net: &'a PodNet,
    /// Protocol of ADS.
    pub protocol: Protocol,
    /// Its root directory, empty.
    pub directory: PathBuf,
    /// The program.
    pub agent: PathBuf,
    /// The Envoy that the agent starts.
    pub envoy: PathBuf,
    /// The control plane, over TLS.
    pub discovery: SocketAddr,
    /// File with the roots of the mesh.
    pub roots: &'a Path,
    /// File with the revocation lists, if there are any.
    pub revoked: &'a Path,
    /// Token of the pod's service account.
    pub token: String,
    /// Ports it listens on.
    pub ports: ProxyPorts,
    /// Further environment.
    pub variables: &'a [(&'static str, String)],
    /// Directory with the files of `sluicectl workload entry configure`: the container is a machine outside of Kubernetes, whose
    /// agent has these files and no others.
    pub machine: Option<&'a Path>,
}

/// The files of `sluicectl workload entry configure`, with their paths on a machine.
const MACHINE_FILES: [(&str, &str); 4] = [
    ("cluster.env", "var/lib/istio/envoy/cluster.env"),
    ("mesh.yaml", "etc/istio/config/mesh"),
    ("root-cert.pem", "etc/certs/root-cert.pem"),
    ("istio-token", "var/run/secrets/tokens/istio-token"),
];

/// What the unit of a machine runs: `$0` is the agent and `$1` the name of the machine.
const MACHINE_SCRIPT: &str = "set -ea; . ./var/lib/istio/envoy/cluster.env
    PROV_CERT=./etc/certs OUTPUT_CERTS=./etc/certs INSTANCE_IP=$ISTIO_SVC_IP POD_NAME=$1 POD_NAMESPACE=$ISTIO_NAMESPACE
    exec \"$0\" proxy";

impl Container<'_> {
    /// Writes every file to its path in an injected container, owned by the proxy's user.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write_files(&self) -> Result<()> {
        if let Some(machine) = self.machine {
            return MACHINE_FILES.iter().try_for_each(|(name, path)| {
                let text = std::fs::read_to_string(machine.join(name)).with_context(|| format!("read {name}"))?;
                self.write(path, &text)
            });
        }
        let labels = self.workload.labels().into_iter().map(|(name, value)| format!("{name}=\"{value}\"\n"));
        self.write("etc/istio/pod/labels", &labels.collect::<String>())?;
        self.write("var/run/secrets/tokens/istio-token", &self.token)?;
        // Symbolic links, as in mounted volumes: a rewritten file changes for all proxies.
        let directory = self.directory_of("var/run/secrets/istio/crl")?;
        std::os::unix::fs::symlink(self.revoked, directory.join("ca-crl.pem")).context("link the revocation lists")?;
        std::os::unix::fs::symlink(self.roots, self.directory_of("var/run/secrets/istio")?.join("root-cert.pem"))
            .context("link the roots")
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = Path::new(path);
        let directory = self.directory_of(path.parent().context("a file has a directory")?)?;
        let file = directory.join(path.file_name().context("a file has a name")?);
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        self.give_to_proxy(&file)
    }

    /// Creates a directory and its parents.
    fn directory_of(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let mut directory = self.directory.clone();
        self.give_to_proxy(&directory)?;
        for part in path.as_ref() {
            directory.push(part);
            if !directory.exists() {
                std::fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
                self.give_to_proxy(&directory)?;
            }
        }
        Ok(directory)
    }

    fn give_to_proxy(&self, path: &Path) -> Result<()> {
        if self.net.namespace.is_none() {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(PROXY_UID), Some(PROXY_UID))
            .with_context(|| format!("change the owner of {}", path.display()))
    }

    /// The command that starts the agent. Its output and Envoy's go to a file. Both are in one new process group.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn command(&self, log: &Path) -> Result<Command> {
        // Envoy opens /dev/stdout for access logs.
        let output = std::fs::File::create(log).context("make the log")?;
        self.give_to_proxy(log)?;
        let mut command = match self.machine {
            Some(_) => {
                let mut command = self.net.command(PROXY_UID, Path::new("sh"));
                command.arg("-c").arg(MACHINE_SCRIPT).arg(&self.agent).arg(self.workload.name).env_clear();
                command.env("PATH", std::env::var("PATH").unwrap_or_default());
                command
            }
            None => self.pod_command(),
        };
        command
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    /// The agent with the environment of an injected container.
    fn pod_command(&self) -> Command {
        let role = match self.workload.proxy {
            PodRole::Gateway(..) => "router",
            PodRole::Waypoint(_) | PodRole::EastWest(_) => "waypoint",
            PodRole::Sidecar(_) | PodRole::NoProxy | PodRole::External(_) | PodRole::Grpc(_) => "sidecar",
        };
        let proxy_config = json!({
            "binaryPath": self.envoy,
            "discoveryAddress": self.discovery.to_string(),
            "proxyAdminPort": self.ports.admin,
            "statusPort": self.ports.status,
            "concurrency": 1,
            // Tests read any stat.
            "proxyStatsMatcher": { "inclusionRegexps": [".*"] },
        });
        let environment = [
            ("POD_NAME", self.workload.name.to_owned()),
            ("POD_NAMESPACE", self.workload.namespace.to_owned()),
            ("SERVICE_ACCOUNT", self.workload.app.to_owned()),
            ("INSTANCE_IP", self.net.ip.to_string()),
            // The address is that of a bridge, which is not in the certificate.
            ("ISTIOD_SAN", "istiod.istio-system.svc".to_owned()),
            ("ISTIO_DELTA_XDS", (self.protocol == Protocol::Delta).to_string()),
            ("ENVOY_STATUS_PORT", self.ports.envoy_status.to_string()),
            ("ENVOY_PROMETHEUS_PORT", self.ports.envoy_prometheus.to_string()),
            ("PROXY_CONFIG", proxy_config.to_string()),
            ("PATH", std::env::var("PATH").unwrap_or_default()),
        ];
        // As the template `grpc-agent` of injection.
        let of_grpc = [
            ("DISABLE_ENVOY", "true"),
            ("OUTPUT_CERTS", "./var/lib/istio/data"),
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ];
        let of_grpc = of_grpc.into_iter().filter(|_| matches!(self.workload.proxy, PodRole::Grpc(_)));
        let mut command = self.net.command(PROXY_UID, &self.agent);
        command
            .args(["proxy", role])
            .env_clear()
            .envs(environment)
            .envs(self.workload.metadata())
            .envs(of_grpc)
            .envs(self.variables.iter().cloned());
        command
    }
}
