//! The control plane of the tests: certificate authority and xDS server on one address, with or without TLS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use futures::{Stream, StreamExt as _};
use http::{Request as HttpRequest, Response as HttpResponse};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{NamedGroup, ProtocolVersion};
use serde_json::{Value, json};
use sluice_ca::{LifetimeLimits, root};
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use sluice_proto::google::protobuf::Any;
use sluice_proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use sluice_testkit::ports::free_ports;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::test_pod::ControlPlaneAddress;

pub(crate) const TOKEN: &str = "eyJ.this-is.the-secret-token";
/// The identity of the token.
pub(crate) const IDENTITY: &str = "spiffe://cluster.local/ns/shop/sa/tea";
pub(crate) const LISTENER: &str = "served";
const TYPE: &str = "type.googleapis.com/";

/// The requests of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamRecord {
    pub(crate) delta: bool,
    pub(crate) authorization: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) node: String,
    /// Types of requests that are not acknowledgements, in order.
    pub(crate) types: Vec<String>,
}

/// The negotiated version and group of a TLS handshake.
pub(crate) type NegotiatedTls = (Option<ProtocolVersion>, Option<NamedGroup>);

#[derive(Clone)]
pub(crate) struct ControlPlane(Arc<Inner>);

pub(crate) struct Inner {
    address: SocketAddr,
    /// Port of Envoy's listener.
    listener: u16,
    secure: bool,
    /// Envoy's listener presents the workload's certificate.
    certified: bool,
    authority: sluice_ca::Authority,
    pub(crate) authority_available: AtomicBool,
    pub(crate) rejected_requests: AtomicU32,
    requests: Mutex<Vec<String>>,
    streams: Mutex<Vec<StreamRecord>>,
    handshakes: Mutex<Vec<NegotiatedTls>>,
    generation: watch::Sender<u32>,
}

impl std::ops::Deref for ControlPlane {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl ControlPlane {
    pub(crate) async fn secure() -> Result<Self> {
        Self::start(true, true).await
    }

    pub(crate) async fn plaintext() -> Result<Self> {
        Self::start(false, false).await
    }

    /// Without an authority, but with a listener that presents a certificate.
    pub(crate) async fn plaintext_with_certificates() -> Result<Self> {
        Self::start(false, true).await
    }

    async fn start(secure: bool, certified: bool) -> Result<Self> {
        let day = Duration::from_secs(24 * 3600);
        let authority = sluice_ca::Authority::new(
            &root::create("cluster.local", sluice_ca::NewKey::EcdsaP256, day, now())?,
            now(),
        )?;
        let own = authority.server_certificate(&["istiod.istio-system.svc".to_owned()], day, now())?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let [port] = free_ports()?;
        let inner = Inner {
            address: listener.local_addr()?,
            listener: port,
            secure,
            certified,
            authority,
            authority_available: AtomicBool::new(true),
            rejected_requests: AtomicU32::new(0),
            requests: Mutex::default(),
            streams: Mutex::default(),
            handshakes: Mutex::default(),
            generation: watch::Sender::new(0),
        };
        let control_plane = Self(Arc::new(inner));
        let key = PrivateKeyDer::from_pem_slice(own.key.secret_pem().as_bytes())?;
        let provider = sluice_crypto::provider(None);
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(own.chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = secure.then(|| tokio_rustls::TlsAcceptor::from(Arc::new(config)));
        let server = control_plane.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, acceptor) = (server.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => server.serve(stream).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                let tls = stream.get_ref().1;
                                let version = tls.protocol_version();
                                let group = tls.negotiated_key_exchange_group().map(|group| group.name());
                                server.handshakes.lock().expect("no panic").push((version, group));
                                server.serve(stream).await;
                            }
                        }
                    }
                });
            }
        });
        Ok(control_plane)
    }

    async fn serve<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let routes = tonic::service::Routes::new(AggregatedDiscoveryServiceServer::new(self.clone()))
            .add_service(Authority(self.clone()));
        let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await;
    }

    /// All handshakes so far.
    pub(crate) fn handshakes(&self) -> Vec<NegotiatedTls> {
        self.handshakes.lock().expect("no panic").clone()
    }

    /// Certificate and key of the workload, issued without the agent.
    pub(crate) fn pair(&self) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key)?.pem()?;
        let issued = self.authority.issue(&csr, &[IDENTITY.to_owned()], 600, LifetimeLimits::default(), now())?;
        Ok((issued.chain.concat(), key.serialize_pem()))
    }

    pub(crate) fn upstream(&self) -> ControlPlaneAddress {
        ControlPlaneAddress {
            address: self.address,
            secure: self.secure,
            root: self.authority.roots_pem().to_owned(),
            token: TOKEN.to_owned(),
            listener: self.listener,
        }
    }

    pub(crate) fn streams(&self) -> Vec<StreamRecord> {
        self.streams.lock().expect("the streams").clone()
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("the requests").clone()
    }

    /// Closes all streams.
    pub(crate) fn break_streams(&mut self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    fn begin(&self, metadata: &MetadataMap, delta: bool) -> usize {
        let text = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let record = StreamRecord {
            delta,
            authorization: text("authorization"),
            cluster: text("clusterid"),
            ..StreamRecord::default()
        };
        let mut streams = self.streams.lock().expect("the streams");
        streams.push(record);
        streams.len() - 1
    }

    fn note(&self, stream: usize, node: Option<String>, type_url: &str) {
        let record = &mut self.streams.lock().expect("the streams")[stream];
        if let Some(node) = node {
            record.node = node;
        }
        record.types.push(type_url.to_owned());
    }

    /// Resources of a type, by name.
    fn resources(&self, type_url: &str) -> BTreeMap<String, Any> {
        let resources = match type_url.strip_prefix(TYPE).unwrap_or_default() {
            "envoy.config.listener.v3.Listener" => vec![(LISTENER, self.listener_json())],
            "istio.networking.nds.v1.NameTable" => {
                let table = json!({ "table": { "pot.shop.svc.cluster.local": {
                    "ips": ["10.1.2.3"], "registry": "Kubernetes", "shortname": "pot", "namespace": "shop" } } });
                vec![("", table)]
            }
            _ => Vec::new(),
        };
        let any = |mut value: Value| {
            value["@type"] = type_url.into();
            let (type_url, value) = sluice_proto::json::decode_any(&value).expect("a valid resource").message;
            Any { type_url, value }
        };
        resources.into_iter().map(|(name, value)| (name.to_owned(), any(value))).collect()
    }

    fn listener_json(&self) -> Value {
        let mut chain = json!({ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                          HttpConnectionManager",
                "stat_prefix": "served",
                "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [{
                    "match": { "prefix": "/" },
                    "direct_response": { "status": 200, "body": { "inline_string": "served" } },
                }] }] },
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
                }],
            },
        }] });
        if self.certified {
            chain["transport_socket"] = json!({
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    "common_tls_context": { "tls_certificate_sds_secret_configs": [{
                        "name": "default",
                        "sds_config": { "resource_api_version": "V3", "api_config_source": {
                            "api_type": "GRPC",
                            "transport_api_version": "V3",
                            "grpc_services": [{ "envoy_grpc": { "cluster_name": "sds-grpc" } }],
                        } },
                    }] },
                },
            });
        }
        json!({
            "name": LISTENER,
            "traffic_direction": "INBOUND",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": self.listener } },
            "filter_chains": [chain],
        })
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Responses until the streams are closed.
fn until_broken<T: Send + 'static>(
    control_plane: &ControlPlane,
    responses: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> ResponseStream<T> {
    let mut generation = control_plane.generation.subscribe();
    let broken = Box::pin(async move {
        let _ = generation.changed().await;
    });
    Box::pin(responses.take_until(broken))
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for ControlPlane {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (own, stream) = (self.clone(), self.begin(request.metadata(), false));
        let responses = request.into_inner().filter_map(move |request| {
            let response = request.ok().filter(|request| request.response_nonce.is_empty()).map(|request| {
                own.note(stream, request.node.map(|node| node.id), &request.type_url);
                Ok(DiscoveryResponse {
                    version_info: "1".to_owned(),
                    nonce: "1".to_owned(),
                    resources: own.resources(&request.type_url).into_values().collect(),
                    type_url: request.type_url,
                    ..Default::default()
                })
            });
            std::future::ready(response)
        });
        Ok(Response::new(until_broken(self, responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (own, stream) = (self.clone(), self.begin(request.metadata(), true));
        let responses = request.into_inner().filter_map(move |request| {
            let response = request.ok().filter(|request| request.response_nonce.is_empty()).map(|request| {
                own.note(stream, request.node.map(|node| node.id), &request.type_url);
                let resources = own.resources(&request.type_url).into_iter().map(|(name, any)| Resource {
                    name,
                    version: "1".to_owned(),
                    resource: Some(any),
                    ..Default::default()
                });
                Ok(DeltaDiscoveryResponse {
                    nonce: "1".to_owned(),
                    resources: resources.collect(),
                    type_url: request.type_url,
                    ..Default::default()
                })
            });
            std::future::ready(response)
        });
        Ok(Response::new(until_broken(self, responses)))
    }
}

/// `istio.v1.auth.IstioCertificateService`.
#[derive(Clone)]
struct Authority(ControlPlane);

impl tonic::server::NamedService for Authority {
    const NAME: &'static str = "istio.v1.auth.IstioCertificateService";
}

impl tower::Service<HttpRequest<Body>> for Authority {
    type Response = HttpResponse<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse<Body>, std::convert::Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let own = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<IstioCertificateResponse, IstioCertificateRequest>::default();
            Ok(tonic::server::Grpc::new(codec).unary(own, request).await)
        })
    }
}

impl tonic::server::UnaryService<IstioCertificateRequest> for Authority {
    type Response = IstioCertificateResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<IstioCertificateResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<IstioCertificateRequest>) -> Self::Future {
        let own = self.0.clone();
        Box::pin(async move {
            let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
            if token != Some(format!("Bearer {TOKEN}").as_str()) {
                return Err(Status::unauthenticated("the token is missing"));
            }
            if !own.authority_available.load(SeqCst) {
                own.rejected_requests.fetch_add(1, SeqCst);
                return Err(Status::unavailable("not now"));
            }
            let request = request.into_inner();
            let identities = [IDENTITY.to_owned()];
            let seconds = request.validity_duration;
            let issued = own.authority.issue(&request.csr, &identities, seconds, LifetimeLimits::default(), now());
            let issued = issued.map_err(|error| Status::invalid_argument(error.to_string()))?;
            own.requests.lock().expect("the requests").push(request.csr);
            Ok(Response::new(IstioCertificateResponse { cert_chain: issued.chain }))
        })
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or_default()
}

/// Accepts servers whose certificate is signed by the root, at any time and with any name.
#[derive(Debug)]
pub(crate) struct IssuerVerifier(pub(crate) CertificateDer<'static>);

impl rustls::client::danger::ServerCertVerifier for IssuerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        use x509_parser::prelude::{FromDer as _, X509Certificate};
        let bad = || rustls::Error::General("not signed by the root".to_owned());
        let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| bad())?;
        let (_, root) = X509Certificate::from_der(&self.0).map_err(|_| bad())?;
        leaf.verify_signature(Some(root.public_key())).map_err(|_| bad())?;
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = sluice_crypto::provider(None).signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = sluice_crypto::provider(None).signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        sluice_crypto::provider(None).signature_verification_algorithms.supported_schemes()
    }
}
