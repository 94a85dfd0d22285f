//! `/console/preview`: what applying or deleting pasted objects would change. Nothing is applied.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use maud::{Markup, html};
use serde_json::Value;

use super::forms::{form_fields, is_from_own_page};
use super::layout::{self, entries};
use super::resource::{list_text, text};
use crate::AdminState;
use crate::preview::{MAX_PREVIEW_BYTES, PreviewQuestion, answered};

const PATH: &str = "/console/preview";
/// Characters of a value.
const MAX_VALUE_CHARACTERS: usize = 400;

/// The handler of the page.
pub(super) fn route() -> MethodRouter<Arc<AdminState>> {
    // The port limits the size of bodies.
    get(|| async { page(&form("", false)) }).post(serve).layer(DefaultBodyLimit::disable())
}

async fn serve(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    if let Err(refused) = is_from_own_page(&headers) {
        refused.record(&state, peer, PATH);
        return layout::failed(refused.status, refused.text.trim());
    }
    let fields = form_fields(&body);
    // Browsers end the lines of a form with both characters.
    let objects = fields.get("objects").map(|text| text.replace("\r\n", "\n")).unwrap_or_default();
    let delete = fields.contains_key("delete");
    let answer = match PreviewQuestion::new(objects.clone(), delete) {
        Ok(question) => answered(state, question).await,
        Err(reason) => Err((StatusCode::BAD_REQUEST, reason)),
    };
    let (status, result) = match answer {
        Ok(answer) => (StatusCode::OK, result(&serde_json::to_value(answer).unwrap_or_default())),
        Err((status, reason)) => (status, html! { p.bad role="alert" { (reason) } }),
    };
    (status, page(&html! { (form(&objects, delete)) (result) })).into_response()
}

fn page(content: &Markup) -> axum::response::Html<String> {
    layout::page(PATH, "Preview", false, content)
}

fn form(objects: &str, delete: bool) -> Markup {
    html! {
        form.stacked method="post" action=(PATH) {
            label for="objects" { "Objects as YAML or JSON documents, up to " (MAX_PREVIEW_BYTES >> 20) " MiB. Nothing is applied." }
            textarea #objects name="objects" rows="14" required spellcheck="false" autocomplete="off" { "\n" (objects) }
            label { input type="checkbox" name="delete" value="true" checked[delete]; " The objects are deleted" }
            button type="submit" { "Preview" }
        }
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

fn result(answer: &Value) -> Markup {
    let proxies = &answer["proxies"];
    let names = list_text(&proxies["names"]);
    let unnamed = number(proxies, "count").saturating_sub(entries(&proxies["names"]).len() as u64);
    html! {
        h2 #result { "Result" }
        p {
            (number(proxies, "count")) " of " (number(proxies, "connected")) " proxies that are connected to this instance would be sent "
            (number(answer, "bytes")) " bytes"
            @if !names.is_empty() { ": " (names) } @if unnamed > 0 { " and " (unnamed) " more" } "."
        }
        @if answer["isComplete"] == false { p.warn { "Not everything was compared in time: the numbers are lower bounds." } }
        @for note in entries(&answer["notes"]) { p { "Note: " (text(note)) "." } }
        h2 { "Objects" }
        (objects(answer))
        h2 { "Findings" }
        (findings("Findings", &answer["findings"]))
        @if !entries(&answer["solved"]).is_empty() {
            h2 { "Findings that the change removes" }
            (findings("Findings that the change removes", &answer["solved"]))
        }
        h2 { "Resources by type" }
        (summaries(answer))
        h2 { "Changed resources" }
        @if entries(&answer["changes"]).is_empty() { p.empty { "None." } }
        @for change in entries(&answer["changes"]) { (resource(change)) }
        @if number(answer, "changesLeftOut") > 0 { p.soft { "and " (number(answer, "changesLeftOut")) " more" } }
        p.soft { "Epoch " (answer["epoch"]) ". Computed in " (format!("{:.2} s", answer["cost"]["seconds"].as_f64().unwrap_or_default())) "." }
    }
}

fn objects(answer: &Value) -> Markup {
    let row = |object: &Value| {
        html! {
            tr {
                td { (text(&object["object"])) }
                td.number { (object["line"]) }
                td.short { (text(&object["change"])) }
                td { (text(&object["reason"])) }
            }
        }
    };
    let rows: Vec<Markup> = entries(&answer["objects"]).iter().map(row).collect();
    layout::table("Objects of the preview", &["Object", "Line", "Change", "Reason"], &rows)
}

fn findings(label: &str, findings: &Value) -> Markup {
    let row = |finding: &Value| {
        let class = if finding["severity"] == "error" { "bad" } else { "warn" };
        html! {
            tr {
                td.short { (layout::mark(class, text(&finding["severity"]))) }
                td { (text(&finding["object"])) }
                td.number { @if let Some(line) = finding["line"].as_u64() { (line) } }
                td { code { (text(&finding["field"])) } }
                td { (text(&finding["message"])) }
            }
        }
    };
    let rows: Vec<Markup> = entries(findings).iter().map(row).collect();
    layout::table(label, &["Severity", "Object", "Line", "Field", "Reason"], &rows)
}

fn summaries(answer: &Value) -> Markup {
    let row = |summary: &Value| {
        html! {
            tr {
                td { (text(&summary["type"]).to_uppercase()) }
                @for field in ["added", "changed", "removed", "proxies", "bytes"] { td.number { (number(summary, field)) } }
            }
        }
    };
    let rows: Vec<Markup> = entries(&answer["resources"]).iter().map(row).collect();
    layout::table("Changed resources by type", &["Type", "Added", "Changed", "Removed", "Proxies", "Bytes"], &rows)
}

/// A changed resource with the fields that differ.
fn resource(change: &Value) -> Markup {
    let sizes = ["bytesBefore", "bytesAfter"].map(|field| change[field].as_u64().map(|bytes| bytes.to_string()));
    let sizes: Vec<String> = sizes.into_iter().flatten().collect();
    let (fields, parts) = (entries(&change["fields"]), list_text(&change["parts"]));
    html! {
        details open[!fields.is_empty()] {
            summary {
                (text(&change["change"])) " " (text(&change["type"]).to_uppercase()) " " b { (text(&change["name"])) }
                span.soft {
                    ": " (sizes.join(" → ")) " bytes, " (number(change, "proxies")) " proxies such as " (text(&change["example"]))
                }
            }
            @if fields.is_empty() && !parts.is_empty() { p { "Parts: " (parts) } }
            @for field in fields {
                p.field { code { (text(&field["path"])) } }
                @if let Some(old) = field.get("old") { del { span.sign { "- " } code { (shortened(old)) } } }
                @if let Some(new) = field.get("new") { ins { span.sign { "+ " } code { (shortened(new)) } } }
            }
            @if number(change, "fieldsLeftOut") > 0 { p.soft { (number(change, "fieldsLeftOut")) " more fields differ." } }
        }
    }
}

fn shortened(value: &Value) -> String {
    layout::beginning(&value.to_string(), MAX_VALUE_CHARACTERS)
}
