//! `/console/proxies/PROXY`: the resources that a proxy holds, by type; `/console/proxies/PROXY/TYPE?name=`: one of them, with the
//! objects that made it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use sluice_auth::Viewer;
use sluice_model::ResourceType;
use sluice_xds::short_name;

use super::blocking;
use super::layout::{self, Selection};
use crate::AdminState;
use crate::answer::Parameters;
use crate::answers::{WhyQuestion, why};
use crate::proxies::resource_type;

/// The path of a proxy, or of a type of its resources.
pub(super) fn path(proxy: &str, kind: &str) -> String {
    let proxy = utf8_percent_encode(proxy, NON_ALPHANUMERIC);
    if kind.is_empty() { format!("/console/proxies/{proxy}") } else { format!("/console/proxies/{proxy}/{kind}") }
}

pub(super) async fn list(
    State(state): State<Arc<AdminState>>,
    Path(proxy): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let selection = match Selection::read(&parameters) {
        Ok(selection) => selection,
        Err(refused) => return *refused,
    };
    let text = parameters.get("type").map_or("cds", String::as_str);
    match resource_type(text) {
        Some(kind) => blocking(state, move |state| resources(state, &proxy, kind, &selection)).await,
        None => layout::failed(StatusCode::BAD_REQUEST, &format!("type={text:?} is unknown: cds, eds, lds, rds, …")),
    }
}

fn resources(state: &AdminState, proxy: &str, kind: ResourceType, selection: &Selection) -> Response<Body> {
    let Some(held) = state.status.config_dump(proxy, &Viewer::All) else {
        return layout::failed(StatusCode::NOT_FOUND, &format!("proxy {proxy} is not connected to this instance"));
    };
    let of_kind = held.get(&kind).into_iter().flatten();
    let (rows, count) = selection.rows(of_kind.filter(|resource| selection.matches(&resource.name)));
    let one = path(proxy, short_name(kind));
    let rows: Vec<Markup> = rows
        .into_iter()
        .map(|resource| {
            html! {
                tr {
                    td { a href=(layout::href(&one, &[("name", &resource.name)])) { (resource.name) } }
                    td.short { code { (resource.version.to_string()) } }
                }
            }
        })
        .collect();
    let (here, kept) = (path(proxy, ""), [("type", short_name(kind))]);
    let content = html! {
        nav.types aria-label="Types of resources" {
            @for (other, resources) in &held {
                a href=(layout::href(&here, &[("type", short_name(*other))])) aria-current=[(*other == kind).then_some("true")] {
                    (short_name(*other).to_uppercase()) " (" (resources.len()) ")"
                }
            }
        }
        (layout::search(&here, selection.query(), "name of a resource", &kept))
        (layout::table("Resources", &["Name", "Version"], &rows))
        (selection.pager(&here, count, &kept))
    };
    layout::page("/console/proxies", proxy, false, &content).into_response()
}

pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    Path((proxy, kind)): Path<(String, String)>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(name) = parameters.get("name").cloned() else {
        return layout::failed(StatusCode::BAD_REQUEST, "parameter name is missing: the name of a resource");
    };
    blocking(state, move |state| explained(state, proxy, kind, name)).await
}

fn explained(state: &AdminState, proxy: String, kind: String, name: String) -> Response<Body> {
    let back = layout::href(&path(&proxy, ""), &[("type", &kind)]);
    let question =
        WhyQuestion { proxy: proxy.clone(), kind, name: name.clone(), namespace: String::new(), path: String::new() };
    let answer = match why(state, &question) {
        Ok(answer) => serde_json::to_value(answer).unwrap_or_default(),
        Err(error) => return layout::failed(StatusCode::NOT_FOUND, &error.to_string()),
    };
    let content = html! {
        p { a href=(back) { "All resources of " (proxy) } }
        h2 { "Made by" }
        (objects("Objects that made the resource", &answer["madeBy"]))
        @if let Some(note) = answer["note"].as_str() { p { (note) } }
        h2 { "Also read" }
        (objects("Objects that were read", &answer["alsoRead"]))
        h2 { "Resource" }
        pre tabindex="0" role="region" aria-label="Resource as JSON" { (pretty(&answer["value"])) }
    };
    layout::page("/console/proxies", &name, false, &content).into_response()
}

/// Objects of an answer, with their source and the fields that they made.
fn objects(label: &str, objects: &Value) -> Markup {
    let row = |object: &Value| {
        html! {
            tr {
                td { (text(&object["object"])) }
                td { (text(&object["source"])) }
                td { (list_text(&object["fields"])) }
                td { (list_text(&object["through"])) }
            }
        }
    };
    let rows: Vec<Markup> = layout::entries(objects).iter().map(row).collect();
    layout::table(label, &["Object", "File or resourceVersion", "Fields", "Through"], &rows)
}

/// A text of an answer.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The texts of a list of an answer.
pub(super) fn list_text(value: &Value) -> String {
    layout::entries(value).iter().map(text).collect::<Vec<_>>().join(", ")
}

/// JSON with indentation.
pub(super) fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("the value cannot be encoded as JSON: {error}"))
}
