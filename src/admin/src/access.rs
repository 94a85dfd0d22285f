//! Access to the debug pages and the web console (O09).

mod sender;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sluice_auth::{Call, Caller, Viewer};
use sluice_model::Identity;
use sluice_telemetry::unix_seconds;
use tracing::warn;

pub(crate) use sender::{Sender, is_over_tls};

use crate::AdminState;
use crate::sessions::Session;

/// Name of the cookie with the secret of a session.
pub(crate) const SESSION_COOKIE: &str = "sluice-session";

/// A router that only callers with access reach; see [`check`].
pub(crate) fn restrict(router: Router, state: Arc<AdminState>) -> Router {
    router.layer(axum::middleware::from_fn_with_state(state, check))
}

/// Gives callers on the loopback access to all pages. Other callers authenticate as for xDS, or have a session in a browser, and
/// their identity decides which pages they see.
///
/// A web page in a browser of the same machine can also reach the loopback. A request from the loopback that names another
/// host or comes from a page of another origin is therefore rejected, as is one with a session.
async fn check(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let viewer = match viewer(&state, peer, (method, path), request.headers()).await {
        Ok(viewer) => viewer,
        Err(refused) => {
            refused.record(&state, peer, path);
            return (refused.status, refused.text).into_response();
        }
    };
    request.extensions_mut().insert(viewer);
    next.run(request).await
}

/// A rejected request.
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    label: &'static str,
    /// The identities of the caller, or the reason why it is anonymous; for the log.
    caller: String,
    /// The text of the response.
    pub(crate) text: &'static str,
}

impl Refused {
    /// The request comes from a page of another origin.
    pub(crate) fn other_origin() -> Self {
        let (caller, text) = ("a web page in a browser".to_owned(), "requests from other origins are rejected\n");
        Self { status: StatusCode::FORBIDDEN, label: "origin", caller, text }
    }

    fn unauthenticated(caller: String) -> Self {
        let text = "authentication failure: send a token of a service account, or use a port-forward\n";
        Self { status: StatusCode::UNAUTHORIZED, label: "unauthenticated", caller, text }
    }

    /// Counts and logs it.
    pub(crate) fn record(&self, state: &AdminState, peer: SocketAddr, path: &str) {
        state.refusals.count(self.label);
        warn!(%peer, path, caller = self.caller, "rejected a request for a debug page: {}", self.label);
    }
}

async fn viewer(
    state: &AdminState,
    peer: SocketAddr,
    (method, path): (&Method, &str),
    headers: &HeaderMap,
) -> Result<Viewer, Refused> {
    if is_loopback(peer) {
        return match is_local_host(headers) && Sender::of(headers) != Sender::Other {
            true => Ok(Viewer::All),
            false => Err(Refused::other_origin()),
        };
    }
    if !headers.contains_key(header::AUTHORIZATION)
        && let Some(session) = session(state, headers)
    {
        let sender = Sender::of(headers);
        return match sender == Sender::Own || (sender == Sender::Unknown && !is_change(method, path)) {
            true => authorize(state, &session.identities, path),
            false => Err(Refused::other_origin()),
        };
    }
    let caller = authenticate(state, peer, headers).await?;
    authorize(state, &caller.identities, path)
}

/// Authenticates a caller by its headers, as for xDS.
pub(crate) async fn authenticate(state: &AdminState, peer: SocketAddr, headers: &HeaderMap) -> Result<Caller, Refused> {
    let authenticators =
        state.callers.get().ok_or_else(|| Refused::unauthenticated("authentication is not ready yet".to_owned()))?;
    let call = Call { headers, peer: Some(peer), certificates: &[] };
    let caller = authenticators.caller(&call).await;
    let caller = caller.map_err(|refused| Refused::unauthenticated(refused.caller.anonymous_reason))?;
    match caller.authenticator {
        Some(_) => Ok(caller),
        None => Err(Refused::unauthenticated(caller.anonymous_reason)),
    }
}

/// The access of a caller to a page.
pub(crate) fn authorize(state: &AdminState, identities: &[Identity], path: &str) -> Result<Viewer, Refused> {
    let name = path.strip_prefix("/debug/").unwrap_or_default();
    state.viewer(identities).filter(|viewer| viewer.may_open(name)).ok_or_else(|| {
        let names: Vec<String> = identities.iter().map(ToString::to_string).collect();
        let text = "this page is not for service accounts of your namespace\n";
        Refused { status: StatusCode::FORBIDDEN, label: "forbidden", caller: names.join(", "), text }
    })
}

/// Whether the request changes something: no other page may send it with the session of a browser, not even as a link.
fn is_change(method: &Method, path: &str) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) || path == "/debug/force_disconnect"
}

/// Whether the caller is on the same machine.
pub(crate) fn is_loopback(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// The secret of the session of a browser.
pub(crate) fn session_secret(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut cookies = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(name, _)| *name == SESSION_COOKIE).map(|(_, secret)| secret)
}

/// The session of a browser, unless it has ended.
pub(crate) fn session(state: &AdminState, headers: &HeaderMap) -> Option<Session> {
    state.sessions.get(session_secret(headers)?, unix_seconds())
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
