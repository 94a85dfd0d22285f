//! Access to the debug pages (O09).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sluice_auth::{Call, Viewer};
use tracing::warn;

use crate::AdminState;

/// A router that only callers with access reach; see [`check`].
pub(crate) fn restrict(router: Router, state: Arc<AdminState>) -> Router {
    router.layer(axum::middleware::from_fn_with_state(state, check))
}

/// Gives callers on the loopback access to all pages. Other callers authenticate as for xDS, and their identity decides
/// which pages they see.
///
/// A web page in a browser of the same machine can also reach the loopback. A request from the loopback that names another
/// host or comes from another origin is therefore rejected.
async fn check(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let viewer = match viewer(&state, peer, request.headers(), request.uri().path()).await {
        Ok(viewer) => viewer,
        Err(refused) => {
            state.refusals.count(refused.label);
            let (path, caller) = (request.uri().path(), refused.caller);
            warn!(%peer, path, caller, "rejected a request for a debug page: {}", refused.label);
            return (refused.status, refused.text).into_response();
        }
    };
    request.extensions_mut().insert(viewer);
    next.run(request).await
}

/// A rejected request.
struct Refused {
    status: StatusCode,
    label: &'static str,
    /// The identities of the caller, or the reason why it is anonymous; for the log.
    caller: String,
    /// The text of the response.
    text: &'static str,
}

async fn viewer(state: &AdminState, peer: SocketAddr, headers: &HeaderMap, path: &str) -> Result<Viewer, Refused> {
    if peer.ip().to_canonical().is_loopback() {
        if !is_local_host(headers) || headers.contains_key(header::ORIGIN) {
            let (caller, text) = ("a web page in a browser".to_owned(), "requests from other origins are rejected\n");
            return Err(Refused { status: StatusCode::FORBIDDEN, label: "origin", caller, text });
        }
        return Ok(Viewer::All);
    }
    let unauthenticated = |caller: String| {
        let text = "authentication failure: send a token of a service account, or use a port-forward\n";
        Refused { status: StatusCode::UNAUTHORIZED, label: "unauthenticated", caller, text }
    };
    let authenticators =
        state.callers.get().ok_or_else(|| unauthenticated("authentication is not ready yet".to_owned()))?;
    let call = Call { headers, peer: Some(peer), certificates: &[] };
    let caller = authenticators.caller(&call).await.map_err(|refused| unauthenticated(refused.0.anonymous_reason))?;
    if caller.authenticator.is_none() {
        return Err(unauthenticated(caller.anonymous_reason));
    }
    let name = path.strip_prefix("/debug/").unwrap_or_default();
    state.viewer(&caller.identities).filter(|viewer| viewer.may_open(name)).ok_or_else(|| {
        let names: Vec<String> = caller.identities.iter().map(ToString::to_string).collect();
        let text = "this page is not for service accounts of your namespace\n";
        Refused { status: StatusCode::FORBIDDEN, label: "forbidden", caller: names.join(", "), text }
    })
}

/// Whether the request names an address or `localhost`, not a DNS name that an attacker can resolve to this host.
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
