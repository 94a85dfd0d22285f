//! `/console/collections`: all collections with their sizes and cost; the records of one, and one record with its inputs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::blocking;
use super::layout::{self, Selection};
use super::resource::pretty;
use crate::AdminState;
use crate::answer::Parameters;
use crate::findings::{CollectionSummary, collection_summaries};

pub(super) async fn list(State(state): State<Arc<AdminState>>, Query(parameters): Query<Parameters>) -> Response<Body> {
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| all(state, &selection)).await,
        Err(refused) => *refused,
    }
}

/// The page of a collection.
pub(super) fn path(name: &str) -> String {
    // Names contain slashes.
    format!("/console/collections/{}", utf8_percent_encode(name, NON_ALPHANUMERIC))
}

/// The page of one record, by its key as JSON.
pub(super) fn record_path(collection: &str, key: &str) -> String {
    layout::href(&path(collection), &[("key", key)])
}

fn all(state: &AdminState, selection: &Selection) -> Response<Body> {
    let all = collection_summaries(&state.engine);
    let matches = |of: &&CollectionSummary| selection.matches(&of.info.name) || selection.matches(&of.info.dataflow);
    let (rows, count) = selection.rows(all.iter().filter(matches));
    let rows: Vec<Markup> = rows.into_iter().map(row).collect();
    let columns = ["Collection", "Operation", "Derived from", "Records", "Updates", "CPU time", "Panics"];
    let content = html! {
        (layout::search("/console/collections", selection.query(), "name of a collection", &[]))
        (layout::table("Collections", &columns, &rows))
        (selection.pager("/console/collections", count, &[]))
    };
    layout::page("/console/collections", "Collections", false, &content).into_response()
}

fn row(CollectionSummary { info, metrics }: &CollectionSummary) -> Markup {
    html! {
        tr {
            td.short { a href=(path(&info.name)) { (info.name) } }
            td { (info.kind) }
            td.words { @for parent in &info.parents { a href=(path(parent)) { (parent) } " " } }
            @if let Some(metrics) = metrics {
                td.number { (metrics.size) }
                td.number { (metrics.records_out) }
                td.number { (format!("{:.1} ms", metrics.busy.as_secs_f64() * 1e3)) }
                td.number { (metrics.panics) }
            } @else { td; td; td; td; }
        }
    }
}

pub(super) async fn records(
    State(state): State<Arc<AdminState>>,
    Path(name): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    if let Some(key) = parameters.get("key") {
        return match serde_json::from_str::<Value>(key) {
            Ok(key) => blocking(state, move |state| record(state, &name, &key)).await,
            Err(error) => layout::failed(StatusCode::BAD_REQUEST, &format!("key is not JSON: {error}")),
        };
    }
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| records_of(state, &name, &selection)).await,
        Err(refused) => *refused,
    }
}

fn records_of(state: &AdminState, name: &str, selection: &Selection) -> Response<Body> {
    let Some(dump) = state.engine.dump(name) else {
        return layout::failed(StatusCode::NOT_FOUND, &format!("there is no collection {name}"));
    };
    let texts = dump.records().map(|(key, value)| (key.to_string(), value.to_string()));
    let (rows, count) = selection.rows(texts.filter(|(key, value)| selection.matches(key) || selection.matches(value)));
    let here = path(name);
    let rows: Vec<Markup> = rows
        .iter()
        .map(|(key, value)| {
            html! {
                tr {
                    td { a href=(record_path(name, key)) { code { (key) } } }
                    td { code { (layout::beginning(value, MAX_VALUE_CHARACTERS)) } }
                }
            }
        })
        .collect();
    let content = html! {
        p.soft { (dump.info().kind) " · epoch " (dump.epoch().0) @if !dump.is_synced() { " · not synced" } }
        (layout::search(&here, selection.query(), "text of a key or value", &[]))
        (layout::table("Records", &["Key", "Value"], &rows))
        (selection.pager(&here, count, &[]))
    };
    layout::page("/console/collections", name, false, &content).into_response()
}

/// Characters of a value in a list.
const MAX_VALUE_CHARACTERS: usize = 240;

fn record(state: &AdminState, name: &str, key: &Value) -> Response<Body> {
    let Some(explanation) = state.engine.explain_json(name, key) else {
        return layout::failed(StatusCode::NOT_FOUND, &format!("collection {name} has no record {key}"));
    };
    let content = html! {
        p { a href=(path(name)) { "All records of " (name) } }
        p { code { (key.to_string()) } }
        pre tabindex="0" role="region" aria-label="The record and its inputs as JSON" { (pretty(&explanation)) }
    };
    layout::page("/console/collections", name, false, &content).into_response()
}
