//! `/console/findings`: invalid configuration, objects that are declared more than once, and what cannot be read.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use axum::response::IntoResponse;
use maud::{Markup, html};
use sluice_model::{Reject, Severity};
use sluice_sources::Duplicate;

use super::blocking;
use super::layout::{self, PAGE_ROWS, Selection};
use crate::AdminState;
use crate::answer::Parameters;
use crate::answers::object_text;

pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| render(state, &selection).into_response()).await,
        Err(refused) => *refused,
    }
}

fn render(state: &AdminState, selection: &Selection) -> impl IntoResponse + use<> {
    let snapshot = state.engine.snapshot();
    let rejects = snapshot.iter(&state.handles.rejects).flat_map(|(_, rejects)| rejects);
    let (rows, count) = selection.rows(rejects.filter(|reject| selection.matches(&reject.to_string())));
    let objects: Vec<Markup> = rows.into_iter().map(row).collect();
    let duplicates = state.reporter.duplicates();
    let declared: Vec<Markup> = duplicates.iter().take(PAGE_ROWS).map(declarations).collect();
    let problems = state.reporter.problems();
    let files: Vec<Markup> = problems
        .iter()
        .map(|(file, problem)| html! { tr { td { (file) } td.number { (problem.line) } td { (problem.reason) } } })
        .collect();
    let failing = state.watches.failing();
    let watches: Vec<Markup> = failing
        .iter()
        .map(|(cluster, watch)| {
            html! { tr { td { (cluster) } td { (watch.resource) } td.number { (format!("{:.0} s", watch.age_seconds)) } } }
        })
        .collect();
    let content = html! {
        h2 { "Objects" }
        (layout::search("/console/findings", selection.query(), "kind, object, field or reason", &[]))
        (layout::table("Invalid objects", &["Effect", "Kind", "Object", "Field", "Reason"], &objects))
        (selection.pager("/console/findings", count, &[]))
        h2 { "Objects that are declared more than once" }
        (layout::table("Objects that are declared more than once", &["Object", "Declared in", "Used"], &declared))
        @if duplicates.len() > PAGE_ROWS { p.soft { "and " (duplicates.len() - PAGE_ROWS) " more objects" } }
        h2 { "Files that cannot be read" }
        (layout::table("Files that cannot be read", &["File", "Line", "Reason"], &files))
        h2 { "Collections of API servers that cannot be read" }
        (layout::table("Collections that cannot be read", &["Cluster", "Collection", "Age"], &watches))
    };
    layout::page("/console/findings", "Findings", false, &content)
}

fn row(reject: &Reject) -> Markup {
    let (class, effect) = match reject.severity {
        Severity::Warning => ("soft", "warning"),
        Severity::Refused => ("warn", "applies in part"),
        Severity::Error => ("bad", "does not apply"),
    };
    html! {
        tr {
            td.short { (layout::mark(class, effect)) }
            td.short { (reject.kind) }
            td { (reject.object.namespace) "/" (reject.object.name) }
            td { code { (reject.field_path) } }
            td { (reject.reason) }
        }
    }
}

/// The files that declare an object, and the declaration that applies.
fn declarations(duplicate: &Duplicate) -> Markup {
    let object = object_text(&duplicate.kind.name(), &duplicate.object.namespace, &duplicate.object.name);
    html! {
        tr {
            td { (object) }
            td { @for file in &duplicate.files { div { (file) } } }
            td { (duplicate.used) }
        }
    }
}
