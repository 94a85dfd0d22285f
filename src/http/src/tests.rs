//! Requests to servers of the test on the loopback interface.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Serves one of the responses on each connection, with the port and the path of the request for `{port}` and `{path}`.
async fn serve(responses: Vec<String>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        for response in responses {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..read]);
            let path = request.split(' ').nth(1).unwrap_or_default();
            let response = response.replace("{port}", &port.to_string()).replace("{path}", path);
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    port
}

fn client(change: impl FnOnce(&mut HttpClientOptions)) -> HttpClient {
    let mut options = HttpClientOptions { max_redirects: 2, ..HttpClientOptions::default() };
    change(&mut options);
    HttpClient::new(options).expect("a client")
}

fn request(url: &str) -> HttpRequest {
    HttpRequest::get(url.parse().expect("a URL"))
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

#[tokio::test]
async fn response_body_is_limited_or_truncated() {
    let port = serve(vec![ok("0123456789"); 3]).await;
    let client = client(|_| {});
    let request = HttpRequest { max_body_bytes: 10, ..request(&format!("http://127.0.0.1:{port}/")) };
    assert_eq!(client.send(request.clone()).await.expect("a response").body, "0123456789");
    let short = HttpRequest { max_body_bytes: 9, ..request };
    assert!(matches!(client.send(short.clone()).await, Err(HttpError::BodyTooLong(9))));
    let truncated = HttpRequest { long_body: LongBody::Truncate, ..short };
    assert_eq!(client.send(truncated).await.expect("a response").body, "012345678");
}

#[tokio::test]
async fn blocked_address_is_refused_as_literal_by_name_and_in_redirect() {
    let blocking = client(|options| {
        options.blocked = vec!["127.0.0.0/8".parse().expect("a block"), "::1/128".parse().expect("a block")]
    });
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"] {
        let error = blocking.send(request(&format!("http://{host}:1/"))).await.expect_err("blocked");
        assert!(matches!(error, HttpError::BlockedAddress { .. }), "{host}: {error:?}");
        assert!(!error.is_retryable());
    }
    let port = serve(vec![redirect("http://169.254.169.254/latest")]).await;
    let error = client(|_| {}).send(request(&format!("http://127.0.0.1:{port}/"))).await.expect_err("blocked");
    assert!(matches!(error, HttpError::BlockedAddress { .. }), "{error:?}");
    assert_eq!(error.to_string(), "connect to 169.254.169.254: 169.254.169.254 is link-local");
}

#[tokio::test]
async fn redirects_are_limited_and_may_be_refused() {
    let port = serve(vec![redirect("/a"), redirect("b"), ok("end")]).await;
    let url = format!("http://127.0.0.1:{port}/");
    assert_eq!(client(|_| {}).send(request(&url)).await.expect("a response").body, "end");
    let port = serve(vec![redirect("/a"), redirect("/b"), redirect("/c")]).await;
    let error = client(|_| {}).send(request(&format!("http://127.0.0.1:{port}/"))).await.expect_err("circles");
    assert!(matches!(error, HttpError::TooManyRedirects(2)), "{error:?}");
    let port = serve(vec![redirect("/a")]).await;
    let url = format!("http://127.0.0.1:{port}/");
    let response = client(|options| options.max_redirects = 0).send(request(&url)).await.expect("a response");
    assert_eq!(
        (response.status, &response.headers["location"]),
        (http::StatusCode::FOUND, &"/a".parse().expect("text"))
    );
    let error = client(|options| options.plaintext = PlaintextPolicy::Refused).send(request(&url)).await;
    assert!(matches!(error, Err(HttpError::Url(_))));
}

#[tokio::test]
async fn redirects_may_be_relative() {
    let echo = || "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{path}".to_owned();
    for (to, expect) in
        [("http://127.0.0.1:{port}/y", "/y"), ("//127.0.0.1:{port}/y", "/y"), ("/y", "/y"), ("y?d", "/a/y?d")]
    {
        let port = serve(vec![redirect(to), echo()]).await;
        let response = client(|_| {}).send(request(&format!("http://127.0.0.1:{port}/a/b?c"))).await;
        assert_eq!(response.expect(to).body, expect, "{to}");
    }
    let port = serve(vec![redirect("ftp://127.0.0.1/y")]).await;
    let error = client(|_| {}).send(request(&format!("http://127.0.0.1:{port}/"))).await.expect_err("refused");
    assert_eq!(error.to_string(), "scheme \"ftp\" is not accepted");
}

#[tokio::test]
async fn failure_status_is_an_error_where_success_is_required() {
    // The response promises a body that never arrives.
    let failure = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 7\r\n\r\n".to_owned();
    let port = serve(vec![failure, ok("body")]).await;
    let required = HttpRequest { requires_success: true, ..request(&format!("http://127.0.0.1:{port}/")) };
    let error = client(|_| {}).send(required.clone()).await.expect_err("a failure");
    assert!(matches!(error, HttpError::Status(http::StatusCode::SERVICE_UNAVAILABLE)), "{error:?}");
    assert!(error.is_retryable() && !HttpError::Status(http::StatusCode::NOT_FOUND).is_retryable());
    assert_eq!(client(|_| {}).send(required).await.expect("a response").body, "body");
}

#[tokio::test]
async fn request_over_tls_needs_roots() {
    let error = client(|_| {}).send(request("https://127.0.0.1:1/")).await.expect_err("no roots");
    assert!(matches!(error, HttpError::NoRoots));
    let port = serve(vec![redirect("https://127.0.0.1:1/")]).await;
    let error = client(|_| {}).send(request(&format!("http://127.0.0.1:{port}/"))).await.expect_err("no roots");
    assert!(matches!(error, HttpError::NoRoots), "{error:?}");
}

#[tokio::test]
async fn errors_name_their_cause_and_never_quote_secrets() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let url = format!("http://me:hush@127.0.0.1:{port}/x?token=hush#hush");
    let slow = HttpRequest { timeout: Duration::from_millis(50), ..request(&url) };
    let error = client(|_| {}).send(slow).await.expect_err("it does not respond");
    assert!(matches!(error, HttpError::Timeout(_)) && error.is_retryable());
    drop(listener);
    let error = client(|_| {}).send(request(&url)).await.expect_err("it does not listen");
    assert!(matches!(error, HttpError::Connect { .. }) && error.is_retryable(), "{error:?}");
    assert!(error.to_string().starts_with(&format!("connect to 127.0.0.1:{port}: Connection refused")), "{error}");
    assert!(!format!("{error:?}{error}").contains("hush"));
    let port = serve(vec!["garbage\r\n\r\n".to_owned()]).await;
    let url = format!("http://127.0.0.1:{port}/x?token=hush");
    let error = client(|_| {}).send(request(&url)).await.expect_err("not HTTP");
    assert!(matches!(error, HttpError::Exchange(_)), "{error:?}");
    assert!(!format!("{error:?}{error}").contains("hush"), "{error:?}");
}

#[tokio::test]
async fn unavailable_source_address_is_recognised() {
    let port = serve(vec![ok("")]).await;
    let from = |address: &str| client(|options| options.local_address = Some(address.parse().expect("an address")));
    let url = format!("http://127.0.0.1:{port}/");
    let error = from("192.0.2.1").send(request(&url)).await.expect_err("no such address");
    assert!(error.is_source_address_unavailable(), "{error:?}");
    assert!(from("127.0.0.6").send(request(&url)).await.is_ok());
}

#[tokio::test]
async fn certificate_of_unknown_root_is_refused() {
    // Bytes that are not a TLS record fail the handshake in the same way.
    let port = serve(vec![ok("")]).await;
    let tls = sluice_crypto::client(None).expect("TLS").with_root_certificates(rustls::RootCertStore::empty());
    let client = client(|options| options.tls = Some(tls.with_no_client_auth()));
    let error = client.send(request(&format!("https://127.0.0.1:{port}/"))).await.expect_err("no TLS");
    assert!(matches!(error, HttpError::Connect { .. }), "{error:?}");
}
