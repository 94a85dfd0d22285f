//! Debug pages over xDS (I01, I03, I05): one request of type `istio.io/debug` for each page, as istioctl sends them to istiod.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::json;
use sluice_crypto::{ClientCertificate, Roots, client_without_verification, verified_client};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use sluice_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_stream::StreamExt as _;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint as ChannelEndpoint};

use super::ServerArgs;
use super::error::QueryError;
use super::kubernetes::KubeconfigCluster;
use super::xds_client::{Client, client_of_certificate, client_of_token};

/// The type of a debug page.
const DEBUG_PAGE: &str = "istio.io/debug";
/// The type whose response has the identifier of the control plane.
const SYNC_STATUS: &str = "istio.io/debug/syncz";
/// The version that istioctl states in its node.
const CLIENT_VERSION: &str = "65536.65536.65536";
/// Largest response.
const MAX_RESPONSE_BYTES: usize = 512 << 20;
/// Time limit to connect, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Service account whose token is requested.
const SERVICE_ACCOUNT: &str = "default";
/// Audience of tokens for the control plane.
const TOKEN_AUDIENCE: &str = "istio-ca";
/// Lifetime of the token.
const TOKEN_SECONDS: u32 = 3_600;
/// ConfigMap with the roots of the mesh, in each namespace.
const ROOT_CONFIG_MAP: &str = "istio-ca-root-cert";

/// How the debug pages of a server are requested over xDS.
pub(crate) struct XdsServer {
    /// `HOST:PORT`.
    address: String,
    transport: Transport,
    client: Client,
    token: Option<MetadataValue<Ascii>>,
}

#[derive(Clone)]
enum Transport {
    Plaintext,
    Tls { config: Arc<rustls::ClientConfig>, name: ServerName<'static> },
}

/// What all servers of a control plane have in common.
pub(crate) struct XdsCredentials {
    transport: Transport,
    client: Client,
    token: Option<MetadataValue<Ascii>>,
}

impl XdsCredentials {
    /// Reads certificates, or requests a token and the roots of the mesh in the cluster of the kubeconfig.
    pub(crate) async fn new(flags: &ServerArgs, cluster: Option<&KubeconfigCluster>) -> Result<Self, QueryError> {
        let (args, namespace) = (&flags.xds, flags.cluster.istio_namespace.as_str());
        let anonymous = Client { namespace: namespace.to_owned(), service_account: SERVICE_ACCOUNT.to_owned() };
        if args.plaintext {
            return Ok(Self { transport: Transport::Plaintext, client: anonymous, token: None });
        }
        let setup = |error: &dyn std::fmt::Display| QueryError::Flags(format!("xDS over TLS: {error}"));
        let authority = args.authority.clone().unwrap_or_else(|| format!("istiod.{namespace}.svc"));
        let certificate = args.cert_dir.as_ref().map(|dir| (dir.join("cert-chain.pem"), dir.join("key.pem")));
        let presented = certificate.as_ref().map(|(chain, key)| ClientCertificate::Files(chain, key));
        let mut config = if args.insecure {
            // Without verification, the client presents no certificate.
            client_without_verification().map_err(|error| setup(&error))?
        } else {
            let roots = match (&flags.ca_file, &args.cert_dir) {
                (Some(file), _) => Roots::File(file.clone()),
                (None, Some(dir)) => Roots::File(dir.join("root-cert.pem")),
                (None, None) => Roots::Pem(roots_of_mesh(cluster, namespace).await?),
            };
            verified_client(&roots, presented, None).map_err(|error| setup(&error))?
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(authority.clone());
        let name = name.map_err(|error| QueryError::Flags(format!("--authority {authority:?}: {error}")))?;
        let transport = Transport::Tls { config: Arc::new(config), name };
        if let Some((chain, _)) = certificate {
            let client = client_of_certificate(&chain).unwrap_or(anonymous);
            return Ok(Self { transport, client, token: None });
        }
        let token = match (&flags.token_file, cluster) {
            (Some(path), _) => std::fs::read_to_string(path)
                .map_err(|error| QueryError::Flags(format!("--token-file {}: {error}", path.display())))?,
            (None, Some(cluster)) => {
                let spec = json!({"audiences": [TOKEN_AUDIENCE], "expirationSeconds": TOKEN_SECONDS});
                cluster.request_token(namespace, SERVICE_ACCOUNT, &spec).await.map_err(|error| {
                    let hint = "--token-file and --cert-dir are other credentials";
                    QueryError::Cluster(format!(
                        "no token of service account {namespace}/{SERVICE_ACCOUNT}: {error}; {hint}"
                    ))
                })?
            }
            (None, None) => {
                let reason = "a token is needed: use a kubeconfig, --token-file, --cert-dir or --plaintext";
                return Err(QueryError::Flags(reason.to_owned()));
            }
        };
        let token = token.trim();
        let client = client_of_token(token).unwrap_or(anonymous);
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {token}").parse().map_err(|_| QueryError::Flags("the token is no text".to_owned()))?;
        value.set_sensitive(true);
        Ok(Self { transport, client, token: Some(value) })
    }

    /// A server with these credentials.
    pub(crate) fn server(&self, address: String) -> XdsServer {
        XdsServer { address, transport: self.transport.clone(), client: self.client.clone(), token: self.token.clone() }
    }
}

/// The roots that verify the control plane: those that its namespaces have.
async fn roots_of_mesh(cluster: Option<&KubeconfigCluster>, namespace: &str) -> Result<String, QueryError> {
    let hint = "--ca-file or --cert-dir has the roots, and --insecure does not verify the server";
    let Some(cluster) = cluster else {
        return Err(QueryError::Flags(format!("the server cannot be verified without a kubeconfig; {hint}")));
    };
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{ROOT_CONFIG_MAP}");
    let config_map = cluster.read(&path).await.map_err(|error| {
        QueryError::Cluster(format!("the roots that verify the server cannot be read: {error}; {hint}"))
    })?;
    let roots = config_map["data"]["root-cert.pem"].as_str();
    roots
        .map(str::to_owned)
        .ok_or_else(|| QueryError::Cluster(format!("{ROOT_CONFIG_MAP} has no root-cert.pem; {hint}")))
}

impl XdsServer {
    /// The body of a debug page: `syncz?namespace=shop`.
    pub(crate) async fn page(&self, page: &str, timeout: Duration) -> Result<Vec<u8>, QueryError> {
        let response = self.ask(DEBUG_PAGE, vec![page.to_owned()], timeout).await?;
        let body = response.resources.into_iter().next().map(|resource| resource.value).unwrap_or_default();
        match std::str::from_utf8(&body).map(str::trim) {
            Ok("404 page not found") => {
                Err(QueryError::NoPage { address: self.address.clone(), page: format!("/debug/{page}") })
            }
            Ok(text) if text.starts_with("Proxy not connected") => Err(QueryError::NotFound(text.to_owned())),
            _ => Ok(body),
        }
    }

    /// The identifier of the control plane, a JSON text; empty if it has none.
    pub(crate) async fn identifier(&self, timeout: Duration) -> Result<String, QueryError> {
        let response = self.ask(SYNC_STATUS, Vec::new(), timeout).await?;
        Ok(response.control_plane.map(|it| it.identifier).unwrap_or_default())
    }

    /// Sends one request, and returns the first response of its type.
    async fn ask(
        &self,
        type_url: &str,
        resource_names: Vec<String>,
        timeout: Duration,
    ) -> Result<DiscoveryResponse, QueryError> {
        let node = self.node().map_err(|error| QueryError::Flags(format!("the node is invalid: {error}")))?;
        let request = DiscoveryRequest {
            node: Some(node),
            type_url: type_url.to_owned(),
            resource_names,
            ..DiscoveryRequest::default()
        };
        let exchange = async {
            let channel = self.connect().await?;
            let client = AggregatedDiscoveryServiceClient::new(channel);
            let mut client = client.max_decoding_message_size(MAX_RESPONSE_BYTES);
            // The stream stays open until the response is read.
            let requests = tokio_stream::once(request).chain(tokio_stream::pending());
            let mut call = tonic::Request::new(requests);
            if let Some(token) = &self.token {
                call.metadata_mut().insert("authorization", token.clone());
            }
            let mut responses =
                client.stream_aggregated_resources(call).await.map_err(|status| self.refused(&status))?.into_inner();
            while let Some(response) = responses.message().await.map_err(|status| self.refused(&status))? {
                if response.type_url == type_url {
                    return Ok(response);
                }
            }
            Err(QueryError::Response(format!("{}: the stream ended without a response", self.address)))
        };
        let late = || self.unreachable(format!("no response within {} s", timeout.as_secs_f64()));
        tokio::time::timeout(timeout, exchange).await.map_err(|_| late())?
    }

    fn node(&self) -> Result<Node, String> {
        let Client { namespace, service_account } = &self.client;
        let node = serde_json::json!({
            "id": format!("sidecar~0.0.0.0~sluicectl.{namespace}~{namespace}.svc.cluster.local"),
            "metadata": {
                "GENERATOR": "event", "NAMESPACE": namespace, "SERVICE_ACCOUNT": service_account,
                "ISTIO_VERSION": CLIENT_VERSION,
            },
        });
        sluice_proto::json::decode::<Node>(&node).map(|node| node.message).map_err(|error| error.to_string())
    }

    async fn connect(&self) -> Result<Channel, QueryError> {
        let invalid = |error: tonic::transport::Error| QueryError::Flags(format!("{:?}: {error}", self.address));
        let endpoint = ChannelEndpoint::from_shared(format!("http://{}", self.address)).map_err(invalid)?;
        let stream = self.tcp().await?;
        let failed = |reason: String| self.unreachable(reason);
        match &self.transport {
            Transport::Plaintext => connected(&endpoint, stream).await,
            Transport::Tls { config, name } => {
                let handshake = TlsConnector::from(config.clone()).connect(name.clone(), stream);
                let late = |_| failed(format!("no TLS handshake within {} s", CONNECT_TIMEOUT.as_secs()));
                let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await.map_err(late)?;
                let hint = "--authority is a name in the certificate of the server";
                let stream = stream.map_err(|error| failed(format!("TLS: {error}; {hint}")))?;
                connected(&endpoint, stream).await
            }
        }
        .map_err(failed)
    }

    async fn tcp(&self) -> Result<TcpStream, QueryError> {
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.address)).await;
        let late = |_| self.unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()));
        let stream = opened.map_err(late)?.map_err(|error| self.unreachable(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    fn unreachable(&self, reason: String) -> QueryError {
        QueryError::Xds { address: self.address.clone(), reason }
    }

    /// Why the server refuses the call. Its status never has the token.
    fn refused(&self, status: &tonic::Status) -> QueryError {
        self.unreachable(format!("{:?}: {}", status.code(), status.message()))
    }
}

/// A channel over an established connection.
async fn connected<S>(endpoint: &ChannelEndpoint, stream: S) -> Result<Channel, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        // The channel does not connect again: each request has a channel of its own.
        let stream = stream.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected));
        std::future::ready(stream)
    });
    endpoint.connect_with_connector(connector).await.map_err(|error| sluice_kube::chain(&error))
}
