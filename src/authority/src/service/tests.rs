use std::convert::Infallible;
use std::num::NonZeroU32;

use futures::{FutureExt as _, StreamExt as _};
use sluice_auth::{Authenticator, Verdict};
use sluice_ca::{Authority, NewKey, root};
use sluice_model::Identity;
use tonic::Code;

use super::*;

/// Authenticates the value of the header `account` as a service account.
struct AccountHeader;

impl Authenticator for AccountHeader {
    fn name(&self) -> &'static str {
        "account"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        let account = call.headers.get("account").and_then(|account| account.to_str().ok()).unwrap_or_default();
        let verdict = match account {
            "overloaded" => Verdict::Overloaded("too many callers wait".to_owned()),
            account => Verdict::Identified(vec![Identity::new("td", "shop", account)]),
        };
        Box::pin(std::future::ready(verdict))
    }
}

fn service(unread: UnreadLimits, message_timeout: Duration) -> CertificateService {
    let root = root::create("td", NewKey::EcdsaP256, Duration::from_secs(86400), unix_seconds()).expect("a root");
    let authority = Authority::new(&root, unix_seconds()).expect("an authority");
    let issuing = IssuingOptions {
        issuer: CertificateIssuer::Authority(Signer::new(authority)),
        authenticators: Authenticators::new(vec![Arc::new(AccountHeader)], true),
        nodes: None,
        lifetimes: LifetimeLimits::default(),
        rate: RequestRate::new(NonZeroU32::MAX),
        message_timeout,
        metrics: AuthorityMetrics::default(),
    };
    CertificateService::with_limits(issuing, unread)
}

fn request(account: &str, body: axum::body::Body) -> http::Request<Body> {
    http::Request::post("/istio.v1.auth.IstioCertificateService/CreateCertificate")
        .header("content-type", "application/grpc")
        .header("account", account)
        .body(Body::new(body))
        .expect("a request")
}

/// A request with a message that is not valid.
fn whole(account: &str) -> http::Request<Body> {
    let message = IstioCertificateRequest { csr: "x".to_owned(), ..IstioCertificateRequest::default() }.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    request(account, [&[0][..], &length, &message].concat().into())
}

/// A request with a message of 4 KiB that never arrives.
fn unread(account: &str) -> http::Request<Body> {
    let prefix = futures::stream::iter([Ok::<_, Infallible>(vec![0, 0, 0, 0x10, 0])]);
    request(account, axum::body::Body::from_stream(prefix.chain(futures::stream::pending())))
}

fn code(response: &http::Response<Body>) -> Option<Code> {
    Status::from_header_map(response.headers()).map(|status| status.code())
}

#[tokio::test]
async fn requests_of_a_caller_with_too_many_unread_ones_are_refused_at_once() {
    let service = service(UnreadLimits { of_caller: 2, all: 3 }, Duration::from_secs(600));
    let mut held: Vec<_> = ["cart", "cart", "till"]
        .into_iter()
        .map(|account| Box::pin(respond(service.clone(), unread(account))))
        .collect();
    for call in &mut held {
        assert!(futures::poll!(call.as_mut()).is_pending(), "the message does not arrive");
    }
    for account in ["cart", "other"] {
        let refused = respond(service.clone(), unread(account)).now_or_never().expect("an answer without the message");
        assert_eq!(code(&refused), Some(Code::ResourceExhausted), "{account}");
    }
    assert_eq!(service.issuing.metrics.refused.get(), 2);
    drop(held);
    for _ in 0..3 {
        assert_eq!(code(&respond(service.clone(), whole("cart")).await), Some(Code::InvalidArgument), "it is read");
    }
}

#[tokio::test]
async fn message_of_a_certificate_request_has_to_arrive_in_time() {
    let timeout = Duration::from_millis(50);
    let service = service(UnreadLimits { of_caller: 1, all: 1 }, timeout);
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(20), respond(service.clone(), unread("cart"))).await;
    assert_eq!(code(&ended.expect("it ends")), Some(Code::DeadlineExceeded));
    assert!(started.elapsed() >= timeout, "{:?}", started.elapsed());
    assert_eq!(code(&respond(service, whole("cart")).await), Some(Code::InvalidArgument), "it no longer counts");
}

#[tokio::test]
async fn only_large_messages_count_until_they_are_answered() {
    let service = service(UnreadLimits { of_caller: 1, all: 1 }, Duration::from_secs(600));
    let caller = Caller { identities: vec![Identity::new("td", "shop", "cart")], ..Caller::default() };
    for (bytes, is_counted) in [(100, false), (SMALL_REQUEST_BYTES, true)] {
        let counted = service.unread.add(&caller).expect("below the limit");
        let unread = Some((counted, oneshot::channel().0));
        let mut method = CreateCertificate { issuing: service.issuing.clone(), caller: caller.clone(), unread };
        let message = IstioCertificateRequest { csr: "x".repeat(bytes), ..IstioCertificateRequest::default() };
        let answer = method.call(Request::new(message));
        assert_eq!(service.unread.add(&caller).is_none(), is_counted, "{bytes} bytes");
        answer.await.expect_err("not a request for a certificate");
        assert!(service.unread.add(&caller).is_some(), "{bytes} bytes");
    }
}

#[tokio::test]
async fn request_whose_token_cannot_be_reviewed_now_is_refused_as_overload() {
    let service = service(UnreadLimits::default(), Duration::from_secs(600));
    assert_eq!(code(&respond(service.clone(), unread("overloaded")).await), Some(Code::ResourceExhausted));
    let metrics = &service.issuing.metrics;
    assert_eq!((metrics.refused.get(), metrics.unauthenticated.get()), (1, 0));
}
