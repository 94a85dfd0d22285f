//! The connection to a running control plane: its HTTP pages, at an address or through port-forwards to its pods.

mod error;
pub(crate) mod kubernetes;
mod request;
mod server;
mod tunnel;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use sluice_http_client::{HttpError, Url};

pub(crate) use error::QueryError;
use kubernetes::{ClusterFlags, KubeconfigCluster, PodReference};
pub(crate) use request::Parameters;
use request::{ANSWER_TIMEOUT, Question, Requester};
pub(crate) use server::{ReplicaAnswers, Server};
use tunnel::Tunnel;

/// The command line or the question is invalid.
pub(crate) const EXIT_INVALID: u8 = 2;
/// The server cannot be reached, or does not answer the caller.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;

/// HTTP port of the control plane in its pods.
const HTTP_PORT: u16 = 8080;

/// Flags about the server.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServerArgs {
    /// Address of the HTTP port of the control plane, such as http://localhost:8080. Without it, the pods of the control
    /// plane are found with the kubeconfig, and their ports are forwarded.
    #[arg(long, visible_alias = "server", value_name = "URL", help_heading = "Server")]
    pub(crate) address: Option<String>,
    /// File with a token of a service account in the namespace of the control plane. It is needed for an --address other
    /// than those of the loopback.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
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
}

/// Prepares requests to the servers of these flags. No request is sent to them yet.
pub(crate) fn connect(args: &ServerArgs) -> Result<Server, QueryError> {
    let requester = Requester::new(args.token_file.as_ref())?;
    let replicas = match &args.address {
        Some(address) => vec![at_address(address)?],
        None => requester.runtime.block_on(control_plane(&args.cluster, HTTP_PORT))?,
    };
    Ok(Server { replicas, requester })
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
async fn forward(cluster: &KubeconfigCluster, pod: &PodReference, port: u16) -> Result<Endpoint, QueryError> {
    let failed = |reason: String| QueryError::PortForward { pod: pod.name.clone(), reason };
    let tunnel = Tunnel::open(cluster.client(), &pod.namespace, &pod.name, port, 0);
    let tunnel = tunnel.await.map_err(|error| failed(error.to_string()))?;
    let base = Url::parse(&format!("http://{}", tunnel.address)).map_err(|error| failed(error.to_string()))?;
    Ok(Endpoint { name: pod.name.clone(), revision: pod.revision.clone(), base, tunnel: Some(tunnel) })
}

fn at_address(text: &str) -> Result<Endpoint, QueryError> {
    let invalid = |error: &dyn std::fmt::Display| QueryError::Flags(format!("--address {text:?}: {error}"));
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let base = Url::parse(&with_scheme).map_err(|error| invalid(&error))?;
    if base.scheme() != "http" || !base.has_host() {
        return Err(invalid(&"an address has the form http://HOST:PORT"));
    }
    let name = base.authority().to_owned();
    Ok(Endpoint { name, revision: String::new(), base, tunnel: None })
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
        let requester = Requester::new(None)?;
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

/// Forwards a port of the pod of a proxy: `POD[.NAMESPACE]` or `deploy/NAME[.NAMESPACE]`.
pub(crate) fn connect_to_proxy(
    flags: &ClusterFlags,
    proxy: &str,
    namespace: &str,
    port: u16,
) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None)?;
    let endpoint = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::of(&flags.target).await?;
        let pod = cluster.pod_of_proxy(proxy, namespace).await?;
        forward(&cluster, &pod, port).await
    })?;
    Ok(PodEndpoint { endpoint, requester })
}

/// Forwards a port of the first pod of the control plane.
pub(crate) fn connect_to_control_plane_port(flags: &ClusterFlags, port: u16) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None)?;
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
    Ok(PodEndpoint { endpoint: at_address(address)?, requester: Requester::new(None)? })
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
        for address in ["https://localhost:8080", "ftp://a", "http://", ""] {
            let error = connect(&flags(address)).err().expect("invalid");
            assert_eq!(error.exit_code(1), EXIT_INVALID, "{address}");
            assert!(error.to_string().starts_with("--address"), "{error}");
        }
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
