//! HTTP servers of the tests: module servers and registries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sluice_ca::root;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::MODULE;

/// The pages of a server, by path.
#[derive(Clone, Default)]
pub(super) struct Pages(pub(super) Arc<Mutex<BTreeMap<String, Page>>>);

#[derive(Default)]
pub(super) struct Page {
    /// Statuses of the first responses.
    pub(super) first_statuses: Vec<u16>,
    /// The required value of `Authorization`, and the challenge to requests without it.
    pub(super) authorization: Option<(String, String)>,
    pub(super) location: Option<String>,
    pub(super) body: Vec<u8>,
    pub(super) requests: Vec<HeaderMap>,
}

impl Pages {
    pub(super) fn put(&self, path: &str, page: Page) {
        self.0.lock().expect("the pages").insert(path.to_owned(), page);
    }

    pub(super) fn module(&self, path: &str) {
        self.put(path, Page { body: MODULE.to_vec(), ..Page::default() });
    }

    /// The headers of each request to a path.
    pub(super) fn requests(&self, path: &str) -> Vec<HeaderMap> {
        self.0.lock().expect("the pages").get(path).map(|page| page.requests.clone()).unwrap_or_default()
    }

    fn respond(&self, path: &str, headers: HeaderMap) -> http::Response<axum::body::Body> {
        let response = |status: StatusCode| http::Response::builder().status(status);
        let mut pages = self.0.lock().expect("the pages");
        let Some(page) = pages.get_mut(path) else {
            return response(StatusCode::NOT_FOUND).body("not found".into()).expect("a response");
        };
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        page.requests.push(headers);
        let page_response = match (&page.authorization, &page.location) {
            (Some((required, challenge)), _) if authorization.as_ref() != Some(required) => {
                response(StatusCode::UNAUTHORIZED).header(WWW_AUTHENTICATE, challenge).body("authenticate".into())
            }
            _ if !page.first_statuses.is_empty() => {
                let status = StatusCode::from_u16(page.first_statuses.remove(0)).expect("a status");
                response(status).body("unavailable".into())
            }
            (_, Some(location)) => response(StatusCode::FOUND).header(LOCATION, location).body("moved".into()),
            _ => response(StatusCode::OK).body(page.body.clone().into()),
        };
        page_response.expect("a response")
    }

    /// Serves the pages. Returns the port.
    pub(super) async fn serve(&self, tls: Option<Arc<rustls::ServerConfig>>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let pages = self.clone();
        let router = axum::Router::new().fallback(move |request: axum::extract::Request| async move {
            let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            pages.respond(&path, request.headers().clone())
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (service, tls) = (TowerToHyperService::new(router.clone()), tls.clone());
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = match tls {
                        None => builder.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => match TlsAcceptor::from(tls).accept(stream).await {
                            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        port
    }
}

/// TLS of a server named `localhost`, and of a client that trusts it.
pub(super) fn tls() -> (Arc<rustls::ServerConfig>, ClientConfig) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs();
    let now = i64::try_from(now).expect("a time");
    let day = Duration::from_secs(24 * 3600);
    let material = root::create("cluster.local", sluice_ca::NewKey::EcdsaP256, day, now).expect("a root");
    let authority = sluice_ca::Authority::new(&material, now).expect("an authority");
    let own = authority.server_certificate(&["localhost".to_owned()], day, now).expect("a certificate");
    let provider = sluice_crypto::provider(None);
    let key = PrivateKeyDer::from_pem_slice(own.key.secret_pem().as_bytes()).expect("a key");
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(own.chain, key)
        .expect("a server");
    let mut roots = rustls::RootCertStore::empty();
    let pem = authority.roots_pem().as_bytes();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), client)
}
