//! `/console/changes`: recent epochs that changed objects, with the resources and proxies that each concerned.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde_json::Value;

use super::blocking;
use super::layout;
use super::resource::text;
use crate::AdminState;
use crate::answer::Parameters;
use crate::answers::{HistoryQuestion, history};

/// Epochs on the page.
const MAX_EPOCHS: usize = 100;

pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let object = parameters.get("q").map(|text| text.trim().to_owned()).unwrap_or_default();
    blocking(state, move |state| render(state, &object)).await
}

fn render(state: &AdminState, object: &str) -> Response<Body> {
    let question = HistoryQuestion {
        object: Some(object.to_owned()).filter(|object| !object.is_empty()),
        proxy: None,
        namespace: String::new(),
        max_age: None,
        limit: MAX_EPOCHS,
    };
    let answer = match history(state, &question) {
        Ok(answer) => serde_json::to_value(answer).unwrap_or_default(),
        Err(error) => return layout::failed(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let changes = layout::entries(&answer["changes"]);
    let longest = changes.iter().map(milliseconds).fold(1.0, f64::max);
    let rows: Vec<Markup> = changes.iter().rev().map(|change| row(change, longest)).collect();
    let columns = ["Epoch", "Committed", "Time in the dataflow", "Objects", "Resources", "Proxies"];
    let content = html! {
        (layout::search("/console/changes", object, "VirtualService/shop/cart", &[]))
        (layout::table("Recent changes", &columns, &rows))
        @if answer["more"] == true { p.soft { "Older changes are not listed." } }
    };
    layout::page("/console/changes", "Changes", false, &content).into_response()
}

fn milliseconds(change: &Value) -> f64 {
    change["tookSeconds"].as_f64().unwrap_or_default() * 1e3
}

fn row(change: &Value, longest: f64) -> Markup {
    let took = milliseconds(change);
    let objects = layout::entries(&change["objects"]);
    let label = format!("{took:.1} ms of {longest:.1} ms");
    html! {
        tr {
            td.number { (change["epoch"]) }
            td.short { (text(&change["at"])) }
            td.short { meter min="0" max=(longest) value=(took) aria-label=(label) {} " " (format!("{took:.1} ms")) }
            td {
                @for object in objects.iter().take(MAX_OBJECTS) {
                    div { (text(&object["object"])) @if object["deleted"] == true { " (deleted)" } }
                }
                @if objects.len() > MAX_OBJECTS { div.soft { "and " (objects.len() - MAX_OBJECTS) " more" } }
            }
            td { (resources(&change["resources"])) }
            td.short { @if let Some(count) = change["proxies"]["count"].as_u64() { (count) } @else { "not known" } }
        }
    }
}

/// Objects that are listed for each epoch.
const MAX_OBJECTS: usize = 8;

fn resources(types: &Value) -> Markup {
    let Some(types) = types.as_array() else { return html! { span.soft { "too many to keep" } } };
    html! {
        @if types.is_empty() { span.soft { "none" } }
        @for changed in types { div { (text(&changed["type"]).to_uppercase()) ": " (changed["count"]) } }
    }
}
