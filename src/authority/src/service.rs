//! `istio.v1.auth.IstioCertificateService/CreateCertificate` (P05, P06).

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http::HeaderMap;
use sluice_auth::{Authenticators, Call, Caller};
use sluice_ca::LifetimeLimits;
use sluice_proto::google::protobuf::value::Kind;
use sluice_proto::istio::v1::auth::{IstioCertificateRequest, IstioCertificateResponse};
use sluice_telemetry::unix_seconds;
use sluice_tls::TlsConnection;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tonic_prost::prost::Message as _;
use tower::Service;
use tracing::{debug, warn};

use super::unread_requests::{UnreadLimits, UnreadRequest, UnreadRequests};
use super::{AuthorityMetrics, ImpersonationError, KubernetesSigner, NodePods, RequestRate, Signer};

/// The file that declares the service.
pub const CERTIFICATE_SERVICE_PROTO: &str = "istio/security/certificate_service.proto";
/// Largest request: four times one with the largest key.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// A larger message counts as unread until its request is answered.
const SMALL_REQUEST_BYTES: usize = 8 << 10;
/// Time limit for the message of an authenticated caller to arrive and for its certificate to be issued, by a signer of the
/// Kubernetes API too.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Request metadata: the identity that a node proxy requests a certificate for.
const IMPERSONATED_IDENTITY_FIELD: &str = "ImpersonatedIdentity";
/// Request metadata: the requested signer of the Kubernetes API.
const SIGNER_FIELD: &str = "CertSigner";

/// The issuer of workload certificates.
#[derive(Clone)]
pub enum CertificateIssuer {
    /// The built-in authority.
    Authority(Arc<Signer>),
    /// A signer of the Kubernetes API.
    Kubernetes(Arc<KubernetesSigner>),
}

/// What the service needs.
pub struct IssuingOptions {
    /// The issuer.
    pub issuer: CertificateIssuer,
    /// Authentication of callers.
    pub authenticators: Authenticators,
    /// Pods on whose behalf node proxies request certificates; `None` if no node proxy may.
    pub nodes: Option<Arc<NodePods>>,
    /// Lifetimes of certificates.
    pub lifetimes: LifetimeLimits,
    /// Limits the requests for each identity.
    pub rate: RequestRate,
    /// Time limit for the message of an authenticated caller to arrive.
    pub message_timeout: Duration,
    /// Metrics.
    pub metrics: AuthorityMetrics,
}

/// The gRPC service.
#[derive(Clone)]
pub struct CertificateService {
    issuing: Arc<IssuingOptions>,
    unread: Arc<UnreadRequests>,
}

impl CertificateService {
    /// The service over an authority.
    #[must_use]
    pub fn new(issuing: IssuingOptions) -> Self {
        Self::with_limits(issuing, UnreadLimits::default())
    }

    fn with_limits(issuing: IssuingOptions, unread: UnreadLimits) -> Self {
        Self { issuing: Arc::new(issuing), unread: UnreadRequests::new(unread) }
    }
}

impl IssuingOptions {
    /// Authenticates the caller of a request, whose message has not been read.
    async fn caller(&self, headers: &HeaderMap, connection: Option<&TlsConnection>) -> Result<Caller, Status> {
        self.metrics.requests.inc();
        let none: &[_] = &[];
        let call = Call {
            headers,
            peer: connection.map(|connection| connection.peer),
            certificates: connection.map_or(none, |connection| &connection.certificates),
        };
        self.authenticators.caller(&call).await.map_err(|refused| {
            if refused.is_overloaded {
                self.metrics.refused.inc();
                return Status::resource_exhausted(
                    "too many callers wait for the review of their tokens, try again later",
                );
            }
            self.metrics.unauthenticated.inc();
            warn!(target: "serverca", "rejected a certificate request: {refused}");
            Status::unauthenticated("request authenticate failure")
        })
    }

    async fn issue(
        &self,
        caller: &Caller,
        request: IstioCertificateRequest,
    ) -> Result<IstioCertificateResponse, Status> {
        let identities = self.identities(caller, &request)?;
        self.check_rate(caller, &identities)?;
        let seconds = request.validity_duration;
        let issued = match &self.issuer {
            CertificateIssuer::Authority(signer) => {
                signer.current().issue(&request.csr, &identities, seconds, self.lifetimes, unix_seconds())
            }
            CertificateIssuer::Kubernetes(signer) => {
                let named = text_of(&request, SIGNER_FIELD).unwrap_or_default();
                signer.issue(&request.csr, &identities, seconds, named).await
            }
        };
        let issued = issued.map_err(|error| {
            if matches!(error, sluice_ca::IssueError::Request(_)) {
                self.metrics.malformed.inc();
            }
            self.metrics.count_sign_error(error.label());
            warn!(target: "serverca", peer = %caller.address(), ?identities, "rejected a certificate request: {error}");
            let text = format!("CSR signing error ({error})");
            if error.is_caller_error() { Status::invalid_argument(text) } else { Status::internal(text) }
        })?;
        self.metrics.issued.inc();
        debug!(target: "serverca", peer = %caller.address(), ?identities, not_after = issued.not_after, "issued a certificate");
        Ok(IstioCertificateResponse { cert_chain: issued.chain })
    }

    /// Refuses a request if there have been too many for the same identities.
    fn check_rate(&self, caller: &Caller, identities: &[String]) -> Result<(), Status> {
        if self.rate.admit(identities.join(","), Instant::now()) {
            return Ok(());
        }
        self.metrics.refused.inc();
        if let Some(requests) = self.rate.log.event(Instant::now()) {
            let limit = self.rate.per_minute();
            warn!(
                target: "serverca", peer = %caller.address(), ?identities, limit, requests,
                "refused certificate requests: too many in a minute for an identity (logged once a minute)"
            );
        }
        Err(Status::resource_exhausted("too many certificate requests for this identity, try again later"))
    }

    /// The identities of the certificate: those of the caller, or of a pod on its node.
    fn identities(&self, caller: &Caller, request: &IstioCertificateRequest) -> Result<Vec<String>, Status> {
        if let Some(wanted) = text_of(request, IMPERSONATED_IDENTITY_FIELD) {
            let checked = match &self.nodes {
                Some(nodes) => nodes.check(caller, wanted),
                None => Err(ImpersonationError::Disabled),
            };
            return checked.map(|identity| vec![identity.to_string()]).map_err(|error| {
                self.metrics.unauthenticated.inc();
                warn!(
                    target: "serverca", peer = %caller.address(), identities = ?caller.identities, wanted,
                    "rejected a certificate request for another identity: {error}"
                );
                Status::unauthenticated("request impersonation authentication failure")
            });
        }
        if caller.identities.is_empty() {
            self.metrics.unidentified.inc();
            warn!(target: "serverca", peer = %caller.address(), "rejected a certificate request: the caller has no identity of the mesh");
            return Err(Status::unauthenticated("request authenticate failure"));
        }
        Ok(caller.identities.iter().map(ToString::to_string).collect())
    }
}

/// A non-empty string of the request metadata.
fn text_of<'r>(request: &'r IstioCertificateRequest, name: &str) -> Option<&'r str> {
    match request.metadata.as_ref()?.fields.get(name)?.kind.as_ref()? {
        Kind::StringValue(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

impl NamedService for CertificateService {
    const NAME: &'static str = "istio.v1.auth.IstioCertificateService";
}

impl Service<http::Request<Body>> for CertificateService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if !request.uri().path().ends_with("/CreateCertificate") {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let (metrics, started) = (service.issuing.metrics.grpc.clone(), Instant::now());
            metrics.started();
            let response = respond(service, request).await;
            metrics.handled(response.headers(), started.elapsed());
            Ok(response)
        })
    }
}

/// Answers a call of `CreateCertificate`.
async fn respond(service: CertificateService, request: http::Request<Body>) -> http::Response<Body> {
    // The message is read only if the caller is authenticated and does not send too many, and has to arrive in time.
    let CertificateService { issuing, unread } = service;
    let (head, body) = request.into_parts();
    let caller = match issuing.caller(&head.headers, head.extensions.get::<TlsConnection>()).await {
        Ok(caller) => caller,
        Err(refused) => return refused.into_http(),
    };
    let Some(counted) = unread.add(&caller) else {
        issuing.metrics.refused.inc();
        if let Some(requests) = unread.log.event(Instant::now()) {
            warn!(
                target: "serverca", peer = %caller.address(), identities = ?caller.identities, requests,
                "refused certificate requests: too many that have not been read (logged once a minute)"
            );
        }
        return Status::resource_exhausted("too many certificate requests at a time, try again later").into_http();
    };
    let (is_unread, read) = oneshot::channel::<()>();
    let message_timeout = issuing.message_timeout;
    let late = async {
        // The sender is dropped when the message has been read.
        if tokio::time::timeout(message_timeout, read).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let request = http::Request::from_parts(head, body);
    let method = CreateCertificate { issuing, caller, unread: Some((counted, is_unread)) };
    let mut grpc = Grpc::new(ProstCodec::<IstioCertificateResponse, IstioCertificateRequest>::default())
        .max_decoding_message_size(MAX_REQUEST_BYTES);
    tokio::select! {
        response = tokio::time::timeout(REQUEST_TIMEOUT, grpc.unary(method, request)) => {
            response.unwrap_or_else(|_| Status::deadline_exceeded("the request takes too long").into_http())
        }
        () = late => Status::deadline_exceeded("the request has not arrived in time").into_http(),
    }
}

struct CreateCertificate {
    issuing: Arc<IssuingOptions>,
    caller: Caller,
    /// The request as one that has not been read, and the sender that is dropped once it has.
    unread: Option<(UnreadRequest, oneshot::Sender<()>)>,
}

impl UnaryService<IstioCertificateRequest> for CreateCertificate {
    type Response = IstioCertificateResponse;
    type Future = BoxFuture<'static, Result<Response<IstioCertificateResponse>, Status>>;

    fn call(&mut self, request: Request<IstioCertificateRequest>) -> Self::Future {
        let (issuing, caller) = (self.issuing.clone(), self.caller.clone());
        issuing.metrics.grpc.received();
        let request = request.into_inner();
        // The others no longer count: a signer may take long, and the proxies of a whole service may wait for it.
        let is_large = request.encoded_len() > SMALL_REQUEST_BYTES;
        let counted = self.unread.take().map(|(counted, _)| counted).filter(|_| is_large);
        Box::pin(async move {
            let issued = issuing.issue(&caller, request).await;
            drop(counted);
            Ok(Response::new(issued?))
        })
    }
}

#[cfg(test)]
mod tests;
