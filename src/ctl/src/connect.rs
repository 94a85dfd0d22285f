//! The connection to a running control plane: its HTTP pages, at an address or through port-forwards to its pods.

pub(crate) mod add_on;
mod error;
pub(crate) mod kubernetes;
mod partial;
mod request;
mod server;
mod tunnel;
mod xds;
pub(crate) mod xds_args;
mod xds_client;
mod ztunnels;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use sluice_crypto::{Roots, client_without_verification, verified_client};
use sluice_http_client::{HttpError, Url};

pub(crate) use error::QueryError;
use kubernetes::{ClusterFlags, KubeconfigCluster, PodReference};
pub(crate) use partial::{MissingReplicas, PartialAnswers, ReplicaAnswers};
pub(crate) use request::Parameters;
use request::{ANSWER_TIMEOUT, Question, Requester};
pub(crate) use server::Server;
use tunnel::Tunnel;
use xds::{XdsCredentials, XdsServer};
use xds_args::XdsArgs;
pub(crate) use ztunnels::ZtunnelTarget;

/// The command line or the question is invalid.
pub(crate) const EXIT_INVALID: u8 = 2;
/// The server cannot be reached, or does not answer the caller.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;
/// The answer is that of some replicas: others do not answer.
pub(crate) const EXIT_INCOMPLETE: u8 = 5;

/// HTTP port of the control plane in its pods.
const HTTP_PORT: u16 = 8080;

/// Flags about the server.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServerArgs {
    /// Address of the HTTP port of the control plane, such as http://localhost:8080 or https://HOST. Without it, the pods of the control
    /// plane are found with the kubeconfig, and their ports are forwarded.
    #[arg(
        id = "address_flag",
        long = "address",
        visible_alias = "server",
        value_name = "URL",
        help_heading = "Server"
    )]
    pub(crate) address: Option<String>,
    /// File with the root certificates that verify the server. Without it: for an --address with https those of the system, for
    /// xDS those of the mesh.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,
    /// File with a token of a service account in the namespace of the control plane. It is needed for an --address other
    /// than those of the loopback.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) xds: XdsArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

/// An HTTP server: at an address, or a port of a pod that is forwarded.
pub(crate) struct Endpoint {
    /// The pod, or the host and port of the address.
    pub(crate) name: String,
    /// The revision of the pod; empty if it is not known.
    pub(crate) revision: String,
    base: Url,
    tunnel: Option<Tunnel>,
    /// Its debug pages are requested over xDS.
    xds: Option<XdsServer>,
}

/// Prepares requests to the servers of these flags. No request is sent to them yet.
pub(crate) fn connect(args: &ServerArgs) -> Result<Server, QueryError> {
    let requester = match &args.address {
        Some(address) => requester_of(address, args.ca_file.as_ref(), args.token_file.as_ref(), args.xds.insecure)?,
        None => Requester::new(args.token_file.as_ref(), None)?,
    };
    let replicas = match &args.address {
        _ if args.xds.is_used() => requester.runtime.block_on(over_xds(args))?,
        Some(address) => vec![at_address(address)?],
        None => requester.runtime.block_on(control_plane(&args.cluster, HTTP_PORT))?,
    };
    Ok(Server { replicas, requester })
}

/// Sends requests to an address. One with https is verified by the roots of a file or of the system.
fn requester_of(
    address: &str,
    ca_file: Option<&PathBuf>,
    token_file: Option<&PathBuf>,
    insecure: bool,
) -> Result<Requester, QueryError> {
    if !address.starts_with("https://") {
        return Requester::new(token_file, None);
    }
    let roots = ca_file.cloned().map_or(Roots::System, Roots::File);
    let tls =
        if insecure { client_without_verification().map_err(Into::into) } else { verified_client(&roots, None, None) };
    let tls = tls.map_err(|error| QueryError::Flags(format!("TLS of --address: {error}")))?;
    Requester::new(token_file, Some(tls))
}

/// The servers of the control plane over xDS: at the address, or at a port of all its running pods.
async fn over_xds(args: &ServerArgs) -> Result<Vec<Endpoint>, QueryError> {
    let flags = &args.cluster;
    let needs_cluster = args.xds.needs_cluster(args.token_file.is_some(), args.ca_file.is_some());
    let cluster = if needs_cluster { Some(KubeconfigCluster::connect(flags).await?) } else { None };
    let credentials = XdsCredentials::new(args, cluster.as_ref()).await?;
    let (Some(port), Some(cluster)) = (args.xds.xds_port, &cluster) else {
        let address = args.xds.xds_address.clone().unwrap_or_default();
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let base = Url::parse(&format!("http://{address}")).ok().filter(|base| has_port && base.has_host());
        let invalid = || QueryError::Flags(format!("--xds-address {address:?}: HOST:PORT is accepted"));
        let base = base.ok_or_else(invalid)?;
        let xds = Some(credentials.server(address.clone()));
        return Ok(vec![Endpoint { name: address, revision: String::new(), base, tunnel: None, xds }]);
    };
    let mut replicas = Vec::new();
    for pod in cluster.control_plane(flags).await? {
        let mut replica = forward(cluster, &pod, port).await?;
        replica.xds = Some(credentials.server(replica.base.authority().to_owned()));
        replicas.push(replica);
    }
    Ok(replicas)
}

/// The ports of all running pods of the control plane.
async fn control_plane(flags: &ClusterFlags, port: u16) -> Result<Vec<Endpoint>, QueryError> {
    let cluster = KubeconfigCluster::connect(flags).await?;
    let mut replicas = Vec::new();
    for pod in cluster.control_plane(flags).await? {
        replicas.push(forward(&cluster, &pod, port).await?);
    }
    Ok(replicas)
}

/// A port of a pod.
async fn forward(
    cluster: &KubeconfigCluster,
    pod: &PodReference,
    port: impl Into<ForwardedPort>,
) -> Result<Endpoint, QueryError> {
    let ForwardedPort { port, local_port } = port.into();
    let failed = |reason: String| QueryError::PortForward { pod: pod.name.clone(), reason };
    let tunnel = Tunnel::open(cluster.client(), &pod.namespace, &pod.name, port, local_port);
    let tunnel = tunnel.await.map_err(|error| failed(error.to_string()))?;
    let base = Url::parse(&format!("http://{}", tunnel.address)).map_err(|error| failed(error.to_string()))?;
    let (name, revision) = (pod.name.clone(), pod.revision.clone());
    Ok(Endpoint { name, revision, base, tunnel: Some(tunnel), xds: None })
}

fn at_address(text: &str) -> Result<Endpoint, QueryError> {
    let invalid = |error: &dyn std::fmt::Display| QueryError::Flags(format!("--address {text:?}: {error}"));
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let base = Url::parse(&with_scheme).map_err(|error| invalid(&error))?;
    if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
        return Err(invalid(&"an address has the form http://HOST:PORT or https://HOST:PORT"));
    }
    let name = base.authority().to_owned();
    Ok(Endpoint { name, revision: String::new(), base, tunnel: None, xds: None })
}

/// A port of a proxy's or another pod, with what is needed to send requests to it.
pub(crate) struct PodEndpoint {
    endpoint: Endpoint,
    requester: Requester,
}

/// Forwards ports of many pods of a cluster, one after the other.
pub(crate) struct PodConnector {
    cluster: KubeconfigCluster,
    requester: Requester,
}

impl PodConnector {
    /// Reads the kubeconfig.
    pub(crate) fn new(flags: &ClusterFlags) -> Result<Self, QueryError> {
        let requester = Requester::new(None, None)?;
        let cluster = requester.runtime.block_on(KubeconfigCluster::of(&flags.target))?;
        Ok(Self { cluster, requester })
    }

    /// Forwards a port of a pod until the endpoint is dropped.
    pub(crate) fn forward(&self, pod: &PodReference, port: u16) -> Result<Endpoint, QueryError> {
        self.requester.runtime.block_on(forward(&self.cluster, pod, port))
    }

    /// The body of a page.
    pub(crate) fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<u8>, QueryError> {
        self.requester.body(endpoint, Question::get(path, parameters, ANSWER_TIMEOUT))
    }
}

/// A port of a pod, and the port of this machine from which it is forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardedPort {
    pub(crate) port: u16,
    /// 0 for any free one.
    pub(crate) local_port: u16,
}

impl From<u16> for ForwardedPort {
    fn from(port: u16) -> Self {
        Self { port, local_port: 0 }
    }
}

/// Forwards a port of the pod of a proxy: `POD[.NAMESPACE]` or `deploy/NAME[.NAMESPACE]`.
pub(crate) fn connect_to_proxy(
    flags: &ClusterFlags,
    proxy: &str,
    namespace: &str,
    port: impl Into<ForwardedPort>,
) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None, None)?;
    let endpoint = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::of(&flags.target).await?;
        let pod = cluster.pod_of_proxy(proxy, namespace).await?;
        forward(&cluster, &pod, port).await
    })?;
    Ok(PodEndpoint { endpoint, requester })
}

/// Which ztunnel is asked, if none is named.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ztunnels {
    /// Any.
    First,
    /// The only one.
    TheOnly,
}

/// A ztunnel with its pod, and the name and namespace of the pod that was named in its place.
pub(crate) struct FoundZtunnel {
    pub(crate) pod: PodReference,
    pub(crate) ztunnel: PodEndpoint,
    pub(crate) workload: Option<(String, String)>,
}

/// Forwards the admin port of a ztunnel: of the named one, or of that on the node of the named pod.
pub(crate) fn connect_to_ztunnel(target: &ZtunnelTarget<'_>, which: Ztunnels) -> Result<FoundZtunnel, QueryError> {
    let requester = Requester::new(None, None)?;
    let (endpoint, found) = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::connect(target.cluster).await?;
        let found = cluster.find_ztunnel(target, which == Ztunnels::TheOnly).await?;
        Ok::<_, QueryError>((forward(&cluster, &found.pod, target.port).await?, found))
    })?;
    Ok(FoundZtunnel { pod: found.pod, ztunnel: PodEndpoint { endpoint, requester }, workload: found.workload })
}

/// Forwards the admin ports of the named ztunnel, or of all.
pub(crate) fn connect_to_ztunnels(target: &ZtunnelTarget<'_>) -> Result<Vec<FoundZtunnel>, QueryError> {
    if target.pod.is_some() || target.node.is_some() {
        return Ok(vec![connect_to_ztunnel(target, Ztunnels::First)?]);
    }
    let pods = Requester::new(None, None)?.runtime.block_on(async {
        KubeconfigCluster::connect(target.cluster).await?.ztunnels(&target.cluster.istio_namespace).await
    })?;
    let one = |pod: PodReference| {
        let name = format!("{}.{}", pod.name, pod.namespace);
        connect_to_ztunnel(&ZtunnelTarget { pod: Some(&name), ..*target }, Ztunnels::First)
    };
    pods.into_iter().map(|ztunnel| one(ztunnel.pod)).collect()
}

/// Forwards a port of the first pod of the control plane.
pub(crate) fn connect_to_control_plane_port(
    flags: &ClusterFlags,
    port: impl Into<ForwardedPort>,
) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None, None)?;
    let endpoint = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::connect(flags).await?;
        // There is at least one.
        let pods = cluster.control_plane(flags).await?;
        forward(&cluster, &pods[0], port).await
    })?;
    Ok(PodEndpoint { endpoint, requester })
}

/// A server at an address that is no control plane, such as ControlZ.
pub(crate) fn connect_to_address(address: &str) -> Result<PodEndpoint, QueryError> {
    Ok(PodEndpoint { endpoint: at_address(address)?, requester: Requester::new(None, None)? })
}

impl PodEndpoint {
    /// The pod or address.
    pub(crate) fn name(&self) -> &str {
        &self.endpoint.name
    }

    /// The address on this machine.
    pub(crate) fn url(&self) -> &Url {
        &self.endpoint.base
    }

    /// Sends a request and returns the body of the response.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        parameters: &Parameters<'_>,
        body: String,
    ) -> Result<Vec<u8>, QueryError> {
        let question = Question { method, body, ..Question::get(path, parameters, ANSWER_TIMEOUT) };
        self.requester.body(&self.endpoint, question)
    }

    /// The body of a page, of at most so many bytes.
    pub(crate) fn get(
        &self,
        path: &str,
        parameters: &Parameters<'_>,
        max_answer_bytes: usize,
    ) -> Result<Vec<u8>, QueryError> {
        let question = Question { max_answer_bytes, ..Question::get(path, parameters, ANSWER_TIMEOUT) };
        self.requester.body(&self.endpoint, question)
    }

    /// Forwards connections until the process is interrupted.
    pub(crate) fn serve_until_interrupted(&self) -> std::io::Result<()> {
        self.requester.runtime.block_on(tokio::signal::ctrl_c())
    }
}

impl Endpoint {
    /// How errors name it.
    fn label(&self) -> String {
        match &self.tunnel {
            Some(_) => self.name.clone(),
            None => self.base.to_string().trim_end_matches('/').to_owned(),
        }
    }

    fn unreachable(&self, error: HttpError) -> QueryError {
        match &self.tunnel {
            Some(tunnel) => QueryError::PortForward {
                pod: self.name.clone(),
                reason: tunnel.failure().unwrap_or_else(|| error.to_string()),
            },
            None => QueryError::Unreachable { address: self.label(), error },
        }
    }
}

/// A duration as a parameter.
pub(crate) fn seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install_args::ClusterArgs;

    fn flags(address: &str) -> ServerArgs {
        ServerArgs { address: Some(address.to_owned()), ..ServerArgs::default() }
    }

    #[test]
    fn addresses_are_http_with_a_host() {
        for address in ["http://localhost:8080", "localhost:8080", "http://[::1]:8080", "10.0.0.1:8080"] {
            assert!(connect(&flags(address)).is_ok(), "{address}");
        }
        for address in ["ftp://a", "http://", ""] {
            let error = connect(&flags(address)).err().expect("invalid");
            assert_eq!(error.exit_code(1), EXIT_INVALID, "{address}");
            assert!(error.to_string().starts_with("--address"), "{error}");
        }
    }

    #[test]
    fn address_over_tls_needs_roots() {
        let directory = tempfile::tempdir().expect("a directory");
        let roots = directory.path().join("roots.pem");
        std::fs::write(&roots, "nothing").expect("written");
        let args = ServerArgs { ca_file: Some(roots), ..flags("https://localhost:8080") };
        let error = connect(&args).err().expect("no roots");
        assert!(error.to_string().contains("contains no certificate"), "{error}");
        let insecure = XdsArgs { insecure: true, ..XdsArgs::default() };
        assert!(connect(&ServerArgs { xds: insecure, ..flags("https://localhost:8080") }).is_ok());
    }

    #[test]
    fn server_over_xds_is_named_with_the_reason() {
        let xds = XdsArgs { xds_address: Some("127.0.0.1:1".to_owned()), plaintext: true, ..XdsArgs::default() };
        let server = connect(&ServerArgs { xds, ..ServerArgs::default() }).expect("valid flags");
        let error = server.get("syncz", &[]).expect_err("no server");
        assert_eq!(error.exit_code(1), EXIT_UNREACHABLE);
        assert!(error.to_string().starts_with("127.0.0.1:1: xDS: "), "{error}");
    }

    #[test]
    fn unreachable_server_is_named_with_a_hint() {
        let server = connect(&flags("http://127.0.0.1:1")).expect("valid flags");
        let error = server.get("why", &[]).expect_err("no server");
        assert_eq!(error.exit_code(1), EXIT_UNREACHABLE);
        let text = error.to_string();
        assert!(text.starts_with("http://127.0.0.1:1: ") && text.contains("port-forward"), "{text}");
    }

    #[test]
    fn kubeconfig_that_cannot_be_read_is_named() {
        let target = ClusterArgs { kubeconfig: Some(PathBuf::from("/nowhere/config")), context: None };
        let cluster = ClusterFlags { target, ..ClusterFlags::default() };
        let error = connect(&ServerArgs { cluster, ..ServerArgs::default() }).err().expect("no kubeconfig");
        assert_eq!(error.exit_code(1), EXIT_UNREACHABLE);
        assert!(error.to_string().contains("/nowhere/config"), "{error}");
    }
}
