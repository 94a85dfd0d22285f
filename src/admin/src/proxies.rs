//! Connected proxies: `adsz`, `syncz`, `connections`, `frontier` (O11).

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::json;
use sluice_auth::Viewer;
use sluice_model::ResourceType;

use crate::AdminState;
use crate::answer::{self, Parameters};
use sluice_xds::short_name;

/// All streams. A push is not possible: a proxy is sent each resource when its content changes, and nothing else.
pub(crate) async fn adsz(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Response<Body> {
    if parameters.get("push").is_some_and(|push| push == "true") {
        let connected = state.status.streams().len();
        // istiod: "Pushed to N servers".
        let text = format!(
            "Pushed to 0 servers: {connected} are connected, and each is sent a resource when its content changes; \
             /debug/syncz has what each has acknowledged\n"
        );
        return text.into_response();
    }
    answer::stream_json(state.status.adsz(), &parameters)
}

pub(crate) async fn syncz(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let namespace = parameters.get("namespace").filter(|namespace| !namespace.is_empty());
    answer::json(&state.status.syncz(namespace.map(String::as_str)), &parameters)
}

pub(crate) async fn connections(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let clients: Vec<_> = state
        .status
        .streams()
        .into_iter()
        .map(|stream| {
            let since = stream.connected_at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = jiff::Timestamp::from_second(i64::try_from(since.as_secs()).unwrap_or_default());
            let connected_at = at.map(|at| at.to_string()).unwrap_or_default();
            let id = format!("{}-{}", stream.proxy.id, stream.id);
            json!({"connectionId": id, "connectedAt": connected_at, "address": stream.peer})
        })
        .collect();
    answer::json(&json!({"totalClients": clients.len(), "clients": clients}), &parameters)
}

/// Closes the stream of a proxy, which then connects again. A page of another origin cannot cause that.
pub(crate) async fn force_disconnect(
    State(state): State<Arc<AdminState>>,
    Extension(viewer): Extension<Viewer>,
    headers: HeaderMap,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    // Browsers name the relation of the page that caused the request. Other clients do not.
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if site.is_some_and(|site| ![&b"same-origin"[..], b"none"].contains(&site)) {
        return answer::fail(StatusCode::FORBIDDEN, "requests from other origins are rejected");
    }
    let Some(proxy) = parameters.get("proxyID").filter(|proxy| !proxy.is_empty()) else {
        return answer::missing_proxy_id();
    };
    match state.status.disconnect(proxy, &viewer) {
        true => "OK".into_response(),
        false => answer::not_connected(),
    }
}

pub(crate) async fn frontier(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(kind) = parameters.get("type").and_then(|text| resource_type(text)) else {
        return answer::fail(StatusCode::BAD_REQUEST, "type is missing or unknown: cds, eds, lds, rds, sds, ecds, nds");
    };
    let Some(name) = parameters.get("name") else {
        return answer::fail(StatusCode::BAD_REQUEST, "name of the resource is missing");
    };
    answer::json(&state.status.frontier(kind, name), &parameters)
}

/// A type by its short name or its URL.
pub(crate) fn resource_type(text: &str) -> Option<ResourceType> {
    let by_name = || ResourceType::ALL.into_iter().find(|kind| short_name(*kind).eq_ignore_ascii_case(text));
    ResourceType::from_type_url(text).or_else(by_name)
}
