//! A real Kubernetes control plane on the loopback: etcd, kube-apiserver and kube-controller-manager.
//!
//! There are no nodes and no scheduler: tests create Node objects, assign Pods to them, and write the statuses that a
//! kubelet would write. What controllers do is done by the real controllers. The API server authorizes by RBAC, issues
//! tokens of service accounts, and writes an audit log of the requests of service accounts.
//! `make cluster` builds the programs.

mod audit;
mod credentials;
mod helm;
mod objects;
mod program;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use audit::AuditedRequest;
use credentials::Credentials;
pub use helm::Helm;
pub use objects::ADMIN;
use program::Program;

use crate::ports::free_ports;

/// The variable with the directory of the programs. Without it, tests that need a cluster are skipped.
const PROGRAMS_VARIABLE: &str = "SLUICE_CLUSTER";
/// Time limit of the start of each program. It takes a few seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time between two checks whether a program is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The audit log has the requests of service accounts. The request of a watch is logged when the response begins.
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [\"system:serviceaccounts\"]
- level: None
";

/// The controllers that run. Those of nodes and volumes would only find that there are none.
const CONTROLLERS: [&str; 8] = [
    "deployment-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
];

/// A running control plane. It ends when the last handle is dropped, and when the process of the test ends.
pub struct Cluster {
    running: Arc<Running>,
    client: kube::Client,
}

/// The programs of a control plane, and what they read.
struct Running {
    programs: PathBuf,
    _etcd: Program,
    etcd_address: SocketAddr,
    api_server: Mutex<Option<Program>>,
    controller_manager: Mutex<Option<Program>>,
    address: SocketAddr,
    /// Further arguments of the API server.
    api_server_arguments: Vec<String>,
    credentials: Credentials,
    // Removed last, when the programs have ended.
    directory: TempDir,
}

impl Cluster {
    /// The directory of the programs; `None` if the tests run without them.
    #[must_use]
    pub fn programs() -> Option<PathBuf> {
        std::env::var_os(PROGRAMS_VARIABLE).map(PathBuf::from)
    }

    /// Starts the programs of a directory, and waits until the controllers work.
    ///
    /// # Errors
    /// A program is not there, ends, or is not ready in time. The message has the end of its log.
    pub async fn start(programs: &Path) -> Result<Self> {
        Self::start_with(programs, &[]).await
    }

    /// The same with further arguments of the API server.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub async fn start_with(programs: &Path, api_server_arguments: &[&str]) -> Result<Self> {
        let started = Instant::now();
        let directory = tempfile::tempdir().context("make a directory")?;
        let [etcd_port, peer_port, port] = free_ports()?;
        let [etcd_address, peer_address, address] =
            [etcd_port, peer_port, port].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let credentials = Credentials::write(directory.path())?;
        std::fs::write(directory.path().join("audit-policy.yaml"), AUDIT_POLICY).context("write the audit policy")?;
        let etcd = Program::start(
            programs,
            "etcd",
            directory.path(),
            &[
                format!("--data-dir={}", directory.path().join("etcd").display()),
                format!("--listen-client-urls=http://{etcd_address}"),
                format!("--advertise-client-urls=http://{etcd_address}"),
                format!("--listen-peer-urls=http://{peer_address}"),
                format!("--initial-advertise-peer-urls=http://{peer_address}"),
                format!("--initial-cluster=default=http://{peer_address}"),
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
        )?;
        etcd.wait_until("it is healthy", START_TIMEOUT, async || {
            crate::server::get(etcd_address, "/health").await.is_ok_and(|(status, _)| status == 200)
        })
        .await?;
        let admin = credentials.kubeconfig(address, credentials.admin());
        helm::write_kubeconfig(directory.path(), &admin)?;
        let client = client(admin).await?;
        let running = Running {
            programs: programs.to_owned(),
            _etcd: etcd,
            etcd_address,
            api_server: Mutex::new(None),
            controller_manager: Mutex::new(None),
            address,
            api_server_arguments: api_server_arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            credentials,
            directory,
        };
        let cluster = Self { running: Arc::new(running), client };
        cluster.start_api_server().await?;
        cluster.start_controller_manager().await?;
        eprintln!("the cluster is ready after {:.1} s", started.elapsed().as_secs_f64());
        Ok(cluster)
    }

    /// Another handle of the same control plane. A client works only while the async runtime runs in which it was made, so
    /// each test that shares a control plane needs a handle of its own.
    ///
    /// # Errors
    /// The client cannot be made.
    pub async fn another_handle(&self) -> Result<Self> {
        let admin = self.running.credentials.kubeconfig(self.address(), self.running.credentials.admin());
        Ok(Self { running: self.running.clone(), client: client(admin).await? })
    }

    /// Removes the directory when the process ends. A control plane in a `static` is never dropped.
    ///
    /// # Errors
    /// The process that does this cannot be started.
    pub fn remove_directory_at_exit(&self) -> Result<()> {
        program::remove_at_exit(self.running.directory.path())
    }

    /// The address of the API server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.running.address
    }

    /// A client of an administrator.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// A kubeconfig with a bearer token, for the API server behind `address`.
    #[must_use]
    pub fn kubeconfig(&self, address: SocketAddr, token: &str) -> Value {
        self.running.credentials.kubeconfig(address, json!({"token": token}))
    }

    /// The kubeconfig file of an administrator.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.running.directory.path().join(helm::KUBECONFIG)
    }

    /// Helm as an administrator.
    #[must_use]
    pub fn helm(&self) -> Helm {
        Helm::new(&self.running.programs, self.running.directory.path())
    }

    /// The requests of service accounts so far.
    ///
    /// # Errors
    /// The audit log cannot be read.
    pub fn audited(&self) -> Result<Vec<AuditedRequest>> {
        self.audited_of("")
    }

    /// The requests so far of service accounts whose user names begin with a prefix.
    ///
    /// # Errors
    /// The audit log cannot be read.
    pub fn audited_of(&self, prefix: &str) -> Result<Vec<AuditedRequest>> {
        audit::read(&self.running.directory.path().join("audit.log"), prefix)
    }

    /// Kills the API server (SIGKILL).
    pub fn kill_api_server(&self) {
        drop(self.running.api_server.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Starts the API server, and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready in time. The message has the end of its log.
    pub async fn start_api_server(&self) -> Result<()> {
        let path = |name: &str| self.running.directory.path().join(name).display().to_string();
        let mut arguments = vec![
            format!("--etcd-servers=http://{}", self.running.etcd_address),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.running.address.port()),
            // There is no node through which pods could reach the API server.
            "--endpoint-reconciler-type=none".to_owned(),
            "--advertise-address=192.0.2.1".to_owned(),
            format!("--tls-cert-file={}", path("server.crt")),
            format!("--tls-private-key-file={}", path("server.key")),
            format!("--client-ca-file={}", path("ca.crt")),
            format!("--cert-dir={}", path("generated")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", path("accounts.pub")),
            format!("--service-account-signing-key-file={}", path("accounts.key")),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            // A Service of a webhook or of an aggregated API resolves to its EndpointSlices.
            "--enable-aggregator-routing=true".to_owned(),
            format!("--audit-policy-file={}", path("audit-policy.yaml")),
            format!("--audit-log-path={}", path("audit.log")),
            "--audit-log-mode=blocking".to_owned(),
            "--profiling=false".to_owned(),
        ];
        arguments.extend_from_slice(&self.running.api_server_arguments);
        let program =
            Program::start(&self.running.programs, "kube-apiserver", self.running.directory.path(), &arguments)?;
        let is_ready = async || {
            let Ok(request) = Request::get("/readyz").body(Vec::new()) else { return false };
            self.client.request_text(request).await.is_ok()
        };
        program.wait_until("it is ready", START_TIMEOUT, is_ready).await?;
        *self.running.api_server.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        Ok(())
    }

    async fn start_controller_manager(&self) -> Result<()> {
        let kubeconfig = self.running.directory.path().join("controller-manager.kubeconfig");
        let user = self.running.credentials.controller_manager();
        std::fs::write(&kubeconfig, self.running.credentials.kubeconfig(self.running.address, user).to_string())
            .context("write the kubeconfig of the controller manager")?;
        let path = |name: &str| self.running.directory.path().join(name).display().to_string();
        let program = Program::start(
            &self.running.programs,
            "kube-controller-manager",
            self.running.directory.path(),
            &[
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--controllers={}", CONTROLLERS.join(",")),
                // Each controller has its own rights then.
                "--use-service-account-credentials=true".to_owned(),
                format!("--root-ca-file={}", path("ca.crt")),
                format!("--service-account-private-key-file={}", path("accounts.key")),
                "--leader-elect=false".to_owned(),
                // The controllers do not wait for each other's requests.
                "--kube-api-qps=1000".to_owned(),
                "--kube-api-burst=1000".to_owned(),
                "--secure-port=0".to_owned(),
                "--profiling=false".to_owned(),
            ],
        )?;
        let is_ready =
            async || self.get("v1", "ServiceAccount", "default", "default").await.is_ok_and(|found| found.is_some());
        program.wait_until("it creates the ServiceAccount default", START_TIMEOUT, is_ready).await?;
        *self.running.controller_manager.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        Ok(())
    }

    /// Compacts the history in etcd. The API server still has a part of it in memory until it is started again.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn compact(&self) -> Result<()> {
        let post = async |path: &str, body: Value| -> Result<Value> {
            let (status, text) = program::post(self.running.etcd_address, path, &body).await?;
            ensure!(status == 200, "{path}: {status} {text}");
            serde_json::from_str(&text).context("read the answer of etcd")
        };
        let header = post("/v3/kv/range", json!({"key": "AA==", "limit": "1"})).await?;
        let Some(revision) = header["header"]["revision"].as_str() else { bail!("no revision: {header}") };
        post("/v3/kv/compaction", json!({"revision": revision, "physical": true})).await.map(drop)
    }

    /// The last lines of the log of a program, for the message of a failed test.
    #[must_use]
    pub fn log_tail(&self, program: &str) -> String {
        program::log_tail(&self.running.directory.path().join(format!("{program}.log")))
    }
}

async fn client(kubeconfig: Value) -> Result<kube::Client> {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).context("read a kubeconfig")?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    kube::Client::try_from(config).context("make a client")
}
