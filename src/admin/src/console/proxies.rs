//! `/console/proxies`: the connected proxies, and whether they acknowledged each type.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use axum::response::IntoResponse;
use maud::{Markup, html};
use sluice_model::ResourceType;
use sluice_xds::{StreamStatus, short_id, short_name};
use sluice_xds_protocol::{SyncState, TypeStatus};

use super::layout::{self, Selection};
use super::{blocking, resource};
use crate::AdminState;
use crate::answer::Parameters;

/// Types with a column of their own.
const COLUMN_TYPES: [ResourceType; 4] =
    [ResourceType::Cluster, ResourceType::Endpoint, ResourceType::Listener, ResourceType::Route];

pub(super) async fn list(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Response<Body> {
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| render(state, &selection).into_response()).await,
        Err(refused) => *refused,
    }
}

fn render(state: &AdminState, selection: &Selection) -> impl IntoResponse + use<> {
    let streams = state.status.streams();
    let matching = streams.iter().filter(|stream| {
        selection.matches(&stream.proxy.id) || stream.types.values().any(|status| selection.matches(sync(status).1))
    });
    let (rows, count) = selection.rows(matching);
    let rows: Vec<Markup> = rows.into_iter().map(row).collect();
    let types = COLUMN_TYPES.map(|kind| short_name(kind).to_uppercase());
    let mut columns = vec!["Proxy", "Version", "Cluster", "Address"];
    columns.extend(types.iter().map(String::as_str));
    columns.push("Error");
    let content = html! {
        (layout::search("/console/proxies", selection.query(), "name, namespace or state", &[]))
        (layout::table("Connected proxies", &columns, &rows))
        (selection.pager("/console/proxies", count, &[]))
    };
    layout::page("/console/proxies", "Proxies", false, &content)
}

fn row(stream: &StreamStatus) -> Markup {
    let name = short_id(&stream.proxy.id);
    let error = stream.types.values().find_map(|status| status.error.as_ref());
    html! {
        tr {
            td.short { a href=(resource::path(&name, "")) { (name) } }
            td { (stream.proxy.istio_version) }
            td { (stream.proxy.cluster) }
            td.short { (stream.peer) }
            @for kind in COLUMN_TYPES { td.short { (state_of(stream.types.get(&kind))) } }
            td { @if let Some((_, message)) = error { (message) } }
        }
    }
}

fn state_of(status: Option<&TypeStatus>) -> Markup {
    status.map_or_else(
        || layout::mark("soft", "not subscribed"),
        |status| {
            let (class, text) = sync(status);
            layout::mark(class, text)
        },
    )
}

/// The class and the name of a synchronization status, as in `istioctl proxy-status`.
fn sync(status: &TypeStatus) -> (&'static str, &'static str) {
    match status.state() {
        SyncState::Synced => ("good", "SYNCED"),
        SyncState::Stale => ("warn", "STALE"),
        SyncState::NotSent => ("soft", "NOT SENT"),
        SyncState::Error => ("bad", "ERROR"),
    }
}
