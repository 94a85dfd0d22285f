//! The connection to a running control plane: its HTTP pages, at an address or through port-forwards to its pods.

pub(crate) mod kubernetes;
mod tunnel;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use sluice_http_client::{HttpClient, HttpClientOptions, HttpError, HttpRequest, Url};

use kubernetes::{ClusterFlags, KubeconfigCluster, PodReference};
use tunnel::Tunnel;

/// The command line or the question is invalid.
pub(crate) const EXIT_INVALID: u8 = 2;
/// The server cannot be reached, or does not answer the caller.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;

/// HTTP port of the control plane in its pods.
const HTTP_PORT: u16 = 8080;
/// Time limit of a question. The answer takes less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 256 << 20;

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

/// A question that is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The flags are invalid.
    #[error("{0}")]
    Flags(String),
    /// The cluster does not answer, or has no such pod.
    #[error("{0}")]
    Cluster(String),
    /// There is no response.
    #[error(
        "{address}: {error}; --address is the address of the HTTP port of the control plane, and without it, its pods are found with the kubeconfig and a port-forward"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What failed.
        error: HttpError,
    },
    /// A port of a pod cannot be forwarded.
    #[error("{pod}: port-forward: {reason}")]
    PortForward {
        /// The pod.
        pod: String,
        /// What failed.
        reason: String,
    },
    /// The server refuses the question.
    #[error("{address}: status {status}: {text}")]
    Refused {
        /// The address.
        address: String,
        /// The status of the response.
        status: u16,
        /// The reason that the server gives.
        text: String,
    },
    /// The question is malformed.
    #[error("{0}")]
    Invalid(String),
    /// What the question names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The response is not what this version expects.
    #[error("the server's response is not understood: {0}; the versions of sluicectl and of the server may differ")]
    Response(String),
}

impl QueryError {
    /// The exit code: `not_found` if what the question names does not exist.
    pub(crate) fn exit_code(&self, not_found: u8) -> u8 {
        match self {
            Self::Flags(_) | Self::Invalid(_) => EXIT_INVALID,
            Self::Cluster(_)
            | Self::Unreachable { .. }
            | Self::PortForward { .. }
            | Self::Refused { .. }
            | Self::Response(_) => EXIT_UNREACHABLE,
            Self::NotFound(_) => not_found,
        }
    }
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

/// The replicas of a control plane.
pub(crate) struct Server {
    pub(crate) replicas: Vec<Endpoint>,
    requester: Requester,
}

/// Sends requests to endpoints.
pub(crate) struct Requester {
    authorization: Option<HeaderValue>,
    client: HttpClient,
    runtime: tokio::runtime::Runtime,
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

/// Forwards a port of the pod of a proxy: `POD[.NAMESPACE]` or `deploy/NAME[.NAMESPACE]`.
pub(crate) fn connect_to_proxy(
    flags: &ClusterFlags,
    proxy: &str,
    namespace: &str,
    port: u16,
) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None)?;
    let endpoint = requester.runtime.block_on(async {
        let cluster = KubeconfigCluster::connect(flags).await?;
        let pod = cluster.pod_of_proxy(proxy, namespace).await?;
        forward(&cluster, &pod, port).await
    })?;
    Ok(PodEndpoint { endpoint, requester })
}

/// Forwards a port of the first pod of the control plane.
pub(crate) fn connect_to_control_plane_port(flags: &ClusterFlags, port: u16) -> Result<PodEndpoint, QueryError> {
    let requester = Requester::new(None)?;
    let mut replicas = requester.runtime.block_on(control_plane(flags, port))?;
    Ok(PodEndpoint { endpoint: replicas.remove(0), requester })
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
        let mut received = Vec::new();
        let question = Question { method, body, ..Question::get(path, parameters, ANSWER_TIMEOUT) };
        self.requester.receive(&self.endpoint, question, &mut |chunk| received.extend_from_slice(chunk))?;
        Ok(received)
    }

    /// Forwards connections until the process is interrupted.
    pub(crate) fn serve_until_interrupted(&self) -> std::io::Result<()> {
        self.requester.runtime.block_on(tokio::signal::ctrl_c())
    }
}

/// Parameters of a page. Empty ones are not sent.
pub(crate) type Parameters<'a> = [(&'a str, &'a str)];

/// A request.
struct Question<'q> {
    method: Method,
    path: &'q str,
    parameters: &'q Parameters<'q>,
    body: String,
    timeout: Duration,
    max_answer_bytes: usize,
}

impl<'q> Question<'q> {
    fn get(path: &'q str, parameters: &'q Parameters<'q>, timeout: Duration) -> Self {
        let (method, body) = (Method::GET, String::new());
        Self { method, path, parameters, body, timeout, max_answer_bytes: MAX_ANSWER_BYTES }
    }
}

impl Server {
    /// The answer of a debug page: of the first replica that has what the question names.
    pub(crate) fn get(&self, page: &str, parameters: &Parameters<'_>) -> Result<Value, QueryError> {
        parsed(&self.bytes(&format!("/debug/{page}"), parameters)?)
    }

    /// The body of a page, as [`Self::get`].
    pub(crate) fn bytes(&self, path: &str, parameters: &Parameters<'_>) -> Result<Vec<u8>, QueryError> {
        let mut not_found = None;
        for replica in &self.replicas {
            match self.bytes_of(replica, path, parameters) {
                Err(QueryError::NotFound(text)) => not_found = not_found.or(Some(text)),
                answer => return answer,
            }
        }
        Err(QueryError::NotFound(not_found.unwrap_or_default()))
    }

    /// The body of a page of one replica.
    pub(crate) fn bytes_of(
        &self,
        replica: &Endpoint,
        path: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<u8>, QueryError> {
        let mut body = Vec::new();
        let question = Question::get(path, parameters, ANSWER_TIMEOUT);
        self.requester.receive(replica, question, &mut |chunk| body.extend_from_slice(chunk))?;
        Ok(body)
    }

    /// The answer of a debug page of the first replica to a request with a body.
    pub(crate) fn post(&self, page: &str, parameters: &Parameters<'_>, body: String) -> Result<Value, QueryError> {
        let (path, mut answer) = (format!("/debug/{page}"), Vec::new());
        let question = Question { method: Method::POST, body, ..Question::get(&path, parameters, ANSWER_TIMEOUT) };
        self.requester.receive(self.first()?, question, &mut |chunk| answer.extend_from_slice(chunk))?;
        parsed(&answer)
    }

    /// Reads a debug page of the first replica as its bytes arrive, of any size.
    pub(crate) fn stream(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_chunk: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), QueryError> {
        let path = format!("/debug/{page}");
        let question = Question { max_answer_bytes: usize::MAX, ..Question::get(&path, parameters, timeout) };
        self.requester.receive(self.first()?, question, on_chunk)
    }

    fn first(&self) -> Result<&Endpoint, QueryError> {
        self.replicas.first().ok_or_else(|| QueryError::Cluster("the control plane has no running pod".to_owned()))
    }

    /// The answers of a debug page of all replicas.
    pub(crate) fn get_all(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<(&Endpoint, Value)>, QueryError> {
        let path = format!("/debug/{page}");
        let answers = self.replicas.iter();
        let answers = answers.map(|replica| Ok((replica, parsed(&self.bytes_of(replica, &path, parameters)?)?)));
        answers.collect()
    }

    /// Reads a page of lines, each a JSON value, as they arrive. The first replica answers that has what the question names.
    pub(crate) fn lines(
        &self,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_line: &mut (dyn FnMut(Value) + Send),
    ) -> Result<(), QueryError> {
        let mut not_found = None;
        for replica in &self.replicas {
            match self.lines_of(replica, page, parameters, timeout, on_line) {
                Err(QueryError::NotFound(text)) => not_found = not_found.or(Some(text)),
                answer => return answer,
            }
        }
        Err(QueryError::NotFound(not_found.unwrap_or_default()))
    }

    fn lines_of(
        &self,
        replica: &Endpoint,
        page: &str,
        parameters: &Parameters<'_>,
        timeout: Duration,
        on_line: &mut (dyn FnMut(Value) + Send),
    ) -> Result<(), QueryError> {
        let (mut rest, mut failed) = (Vec::new(), None);
        let path = format!("/debug/{page}");
        let question = Question::get(&path, parameters, timeout);
        self.requester.receive(replica, question, &mut |chunk| {
            rest.extend_from_slice(chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(value) => on_line(value),
                    Err(error) => failed = Some(error.to_string()),
                }
            }
        })?;
        failed.map_or(Ok(()), |error| Err(QueryError::Response(error)))
    }
}

fn parsed(body: &[u8]) -> Result<Value, QueryError> {
    serde_json::from_slice(body).map_err(|error| QueryError::Response(error.to_string()))
}

impl Requester {
    fn new(token_file: Option<&PathBuf>) -> Result<Self, QueryError> {
        let authorization = token_file.map(|path| {
            let failed =
                |error: &dyn std::fmt::Display| QueryError::Flags(format!("--token-file {}: {error}", path.display()));
            let token = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
            let mut header =
                HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|error| failed(&error))?;
            header.set_sensitive(true);
            Ok(header)
        });
        let setup =
            |error: &dyn std::fmt::Display| QueryError::Flags(format!("the HTTP client cannot be set up: {error}"));
        let client = HttpClient::new(HttpClientOptions {
            user_agent: "sluicectl",
            max_redirects: 3,
            ..HttpClientOptions::default()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            authorization: authorization.transpose()?,
            client: client.map_err(|error| setup(&error))?,
            runtime: runtime.map_err(|error| setup(&error))?,
        })
    }

    fn receive(
        &self,
        endpoint: &Endpoint,
        question: Question<'_>,
        on_chunk: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), QueryError> {
        let mut url = endpoint.base.clone();
        url.set_path(question.path);
        {
            let mut query = url.query_pairs_mut();
            query.clear();
            query.extend_pairs(question.parameters.iter().filter(|(_, value)| !value.is_empty()));
        }
        if url.query() == Some("") {
            url.set_query(None);
        }
        let (timeout, max_body_bytes) = (question.timeout, question.max_answer_bytes);
        let mut request = HttpRequest { timeout, max_body_bytes, ..HttpRequest::get(url) };
        request.method = question.method;
        if !question.body.is_empty() {
            request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request.body = question.body.into();
        }
        request.headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let mut refusal = Vec::new();
        let received = self.runtime.block_on(self.client.receive(request, &mut |status, chunk| {
            if status.is_success() { on_chunk(chunk) } else { refusal.extend_from_slice(chunk) }
        }));
        let status = received.map_err(|error| endpoint.unreachable(error))?;
        let text = String::from_utf8_lossy(&refusal).trim().to_owned();
        let address = || endpoint.label();
        match status.as_u16() {
            _ if status.is_success() => Ok(()),
            400 => Err(QueryError::Invalid(text)),
            404 if !text.is_empty() => Err(QueryError::NotFound(text)),
            404 => Err(QueryError::Response(format!("{} has no page {}", address(), question.path))),
            status => Err(QueryError::Refused { address: address(), status, text }),
        }
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
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write!(text, "{}", duration.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let cluster = ClusterFlags { kubeconfig: Some(PathBuf::from("/nowhere/config")), ..ClusterFlags::default() };
        let error = connect(&ServerArgs { cluster, ..ServerArgs::default() }).err().expect("no kubeconfig");
        assert_eq!(error.exit_code(1), EXIT_UNREACHABLE);
        assert!(error.to_string().contains("/nowhere/config"), "{error}");
    }
}
