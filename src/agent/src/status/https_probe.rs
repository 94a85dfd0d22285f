//! Probes over TLS, with HTTP/2 if the application selects it.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, Uri, Version, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sluice_http_client::{HttpRequest, HttpResponse};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Settings of TLS: the certificate of the application is not verified, as the kubelet does not verify it.
///
/// # Errors
/// TLS cannot be set up.
pub(super) fn tls() -> Result<Arc<ClientConfig>> {
    let mut tls = sluice_crypto::client_without_verification().context("set up TLS")?;
    tls.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(tls))
}

/// Sends a request on a connection to the server in its URL, and reads the response. The rest of a long body is dropped.
///
/// # Errors
/// The handshake or the request fails, or there is no response in the time of the request.
pub(super) async fn send(request: &HttpRequest, stream: TcpStream, tls: Arc<ClientConfig>) -> Result<HttpResponse> {
    let exchanged = tokio::time::timeout(request.timeout, exchange(request, stream, tls)).await;
    exchanged.with_context(|| format!("no response within {:?}", request.timeout))?
}

async fn exchange(request: &HttpRequest, stream: TcpStream, tls: Arc<ClientConfig>) -> Result<HttpResponse> {
    let host = request.url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).context("name of the server")?;
    let stream = TlsConnector::from(tls).connect(name, stream).await.context("TLS handshake")?;
    let selects_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    let response = if selects_http2 {
        over_http2(message(request, Version::HTTP_2)?, stream).await
    } else {
        over_http1(message(request, Version::HTTP_11)?, stream).await
    };
    let (head, mut body) = response?.into_parts();
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("read the response")?.into_data() else { continue };
        read.extend_from_slice(&data[..data.len().min(request.max_body_bytes - read.len())]);
        if read.len() == request.max_body_bytes {
            break;
        }
    }
    Ok(HttpResponse { status: head.status, headers: head.headers, body: read.freeze(), peer: None })
}

/// The request. In HTTP/2, the host is the authority and no header.
fn message(request: &HttpRequest, version: Version) -> Result<Request<Empty<Bytes>>> {
    let url = &request.url;
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let host = url.host_str().unwrap_or_default();
    let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or(&authority).to_owned();
    let mut headers = request.headers.clone();
    let uri = if version == Version::HTTP_2 {
        headers.remove(header::HOST);
        Uri::builder().scheme("https").authority(host).path_and_query(path).build()
    } else {
        headers.insert(header::HOST, HeaderValue::try_from(host).context("host")?);
        Uri::builder().path_and_query(path).build()
    };
    let mut message = Request::new(Empty::new());
    *message.method_mut() = request.method.clone();
    *message.uri_mut() = uri.context("URL of the probe")?;
    *message.version_mut() = version;
    *message.headers_mut() = headers;
    Ok(message)
}

async fn over_http2(request: Request<Empty<Bytes>>, stream: TlsStream<TcpStream>) -> Result<Response<Incoming>> {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.context("begin HTTP/2")?;
    // It ends with the response.
    tokio::spawn(connection);
    sender.send_request(request).await.context("request over HTTP/2")
}

async fn over_http1(request: Request<Empty<Bytes>>, stream: TlsStream<TcpStream>) -> Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("begin HTTP/1.1")?;
    tokio::spawn(connection);
    sender.send_request(request).await.context("request over HTTP/1.1")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{HeaderMap, StatusCode};
    use hyper::service::service_fn;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::status::probe::{Probe, Prober, Target};

    /// An application that accepts one of the protocols, and answers with the version, host and path of the request.
    async fn serve(protocol: &'static [u8]) -> u16 {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let tls = builder.expect("versions").with_no_client_auth();
        let mut tls = tls.with_single_cert(vec![certificate.der().clone()], key).expect("a certificate");
        tls.alpn_protocols = vec![protocol.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let service = service_fn(|request: Request<Incoming>| async move {
                    let header =
                        request.headers().get(header::HOST).map(|host| host.to_str().expect("text").to_owned());
                    let authority = request.uri().authority().map(ToString::to_string);
                    assert!(header.is_none() || authority.is_none(), "the host is stated once");
                    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
                    let mut response = Response::new(format!(
                        "{:?} {} {path}",
                        request.version(),
                        authority.or(header).unwrap_or_default()
                    ));
                    if path == "/moved" {
                        *response.status_mut() = StatusCode::FOUND;
                        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/up?new=1"));
                    }
                    Ok::<_, Infallible>(response)
                });
                let stream = TokioIo::new(stream);
                tokio::spawn(async move {
                    if protocol == HTTP2 {
                        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(stream, service)
                            .await;
                    } else {
                        let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
                    }
                });
            }
        });
        port
    }

    async fn probed(prober: &Prober, port: u16, path: &str) -> Result<String> {
        let target = Target::Http { tls: true, path: path.to_owned() };
        let probe = Probe { target, host: "127.0.0.1".to_owned(), port, timeout: Duration::from_secs(5) };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("tea.example:1"));
        let (status, body) = prober.probe(&probe, headers).await?;
        assert_eq!(status, StatusCode::OK);
        Ok(String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn application_selects_the_version_of_http() {
        let prober = Prober::new(true).expect("a prober");
        for (protocol, version) in [(HTTP2, "HTTP/2.0"), (HTTP1, "HTTP/1.1")] {
            let port = serve(protocol).await;
            let answer = probed(&prober, port, "up").await.expect("an answer");
            assert_eq!(answer, format!("{version} tea.example:1 /up"));
            let answer = probed(&prober, port, "/moved").await.expect("a redirect is followed");
            assert_eq!(answer, format!("{version} tea.example:1 /up?new=1"));
        }
    }

    #[tokio::test]
    async fn application_with_http2_alone_is_not_probed_where_it_is_disabled() {
        let port = serve(HTTP2).await;
        let prober = Prober::new(false).expect("a prober");
        probed(&prober, port, "/up").await.expect_err("the application refuses HTTP/1.1");
    }

    #[tokio::test]
    async fn silent_application_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let target = Target::Http { tls: true, path: "/".to_owned() };
        let probe = Probe { target, host: "127.0.0.1".to_owned(), port, timeout: Duration::from_millis(50) };
        let prober = Prober::new(true).expect("a prober");
        let error = prober.probe(&probe, HeaderMap::new()).await.expect_err("no answer");
        assert!(format!("{error:#}").contains("no response within 50ms"), "{error:#}");
    }
}
