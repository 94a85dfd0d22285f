//! Who may look (O09).

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Lets the loopback in and nobody else: there is no way to say who one is on this port yet.
///
/// A page of a browser on the same machine reaches the loopback too, so a request that names another host, or comes from
/// another origin, is refused.
pub(super) async fn loopback_only(
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() {
        let reason = "only the loopback may look here: use a port-forward\n";
        return (StatusCode::UNAUTHORIZED, reason).into_response();
    }
    if !is_local_host(request.headers()) || request.headers().contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "requests on behalf of other origins are refused\n").into_response();
    }
    next.run(request).await
}

/// Whether the request is meant for an address or `localhost`, not for a name that somebody else may point here.
fn is_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header};

    use super::is_local_host;

    #[test]
    fn only_addresses_and_localhost_are_local() {
        let check = |host: &'static str, expect: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            assert_eq!(is_local_host(&headers), expect, "{host}");
        };
        check("localhost:8080", true);
        check("127.0.0.1", true);
        check("[::1]:8080", true);
        check("10.0.0.1:8080", true);
        check("evil.example:8080", false);
        check("localhost.evil.example", false);
    }
}
