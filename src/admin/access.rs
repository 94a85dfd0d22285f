//! Who may look (O09).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_auth::{Call, Viewer};
use sluice_telemetry::Count;
use tracing::warn;

use crate::admin::AdminState;

/// Label `reason` of refusals.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts who was not let in. Cloning gives another handle.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Family<ReasonLabel, Count>);

impl Refusals {
    /// Adds the count to the registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests for debug pages refused, by reason: unauthenticated, forbidden, origin";
        registry.register("sluice_debug_refused", help, self.0.clone());
    }

    fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// Lets the loopback see everything, and others what they may who prove who they are as they do for xDS.
///
/// A page of a browser on the same machine reaches the loopback too, so a request from there that names another host, or
/// comes from another origin, is refused.
pub(super) async fn check(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let viewer = match viewer(&state, peer, request.headers(), request.uri().path()).await {
        Ok(viewer) => viewer,
        Err(refused) => {
            state.refusals.count(refused.label);
            let (path, who) = (request.uri().path(), refused.who);
            warn!(%peer, path, who, "refused to show a debug page: {}", refused.label);
            return (refused.status, refused.text).into_response();
        }
    };
    request.extensions_mut().insert(viewer);
    next.run(request).await
}

/// Why somebody is shown nothing.
struct Refused {
    status: StatusCode,
    label: &'static str,
    /// Who it is, or why that is not known: for the log.
    who: String,
    /// What he is told.
    text: &'static str,
}

async fn viewer(state: &AdminState, peer: SocketAddr, headers: &HeaderMap, path: &str) -> Result<Viewer, Refused> {
    if peer.ip().to_canonical().is_loopback() {
        if !is_local_host(headers) || headers.contains_key(header::ORIGIN) {
            let (who, text) = ("a page of a browser".to_owned(), "requests on behalf of other origins are refused\n");
            return Err(Refused { status: StatusCode::FORBIDDEN, label: "origin", who, text });
        }
        return Ok(Viewer::All);
    }
    let unknown = |who: String| {
        let text = "authentication failure: show a token of a service account, or use a port-forward\n";
        Refused { status: StatusCode::UNAUTHORIZED, label: "unauthenticated", who, text }
    };
    let authenticators = state.callers.get().ok_or_else(|| unknown("callers cannot be told yet".to_owned()))?;
    let call = Call { headers, peer: Some(peer), certificates: &[] };
    let caller = authenticators.caller(&call).await.map_err(|refused| unknown(refused.0.doubt))?;
    if caller.means.is_none() {
        return Err(unknown(caller.doubt));
    }
    let name = path.strip_prefix("/debug/").unwrap_or_default();
    state.viewer(&caller.identities).filter(|viewer| viewer.may_open(name)).ok_or_else(|| {
        let who: Vec<String> = caller.identities.iter().map(ToString::to_string).collect();
        let text = "this page is not for service accounts of your namespace\n";
        Refused { status: StatusCode::FORBIDDEN, label: "forbidden", who: who.join(", "), text }
    })
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
