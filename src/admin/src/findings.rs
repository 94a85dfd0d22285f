//! `rejects` and `collections`: JSON for tools, tables for browsers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use maud::html;
use serde::Serialize;
use serde_json::json;
use sluice_engine::{CollectionInfo, CollectionMetrics, Engine};

use crate::AdminState;
use crate::answer::{self, PageResult, Parameters, read};
use crate::html::{self, cell, link, number, table};

/// Invalid configuration: objects, and files and collections that cannot be read; and objects that files declare more than once.
pub(crate) async fn rejects(
    State(state): State<Arc<AdminState>>,
    headers: HeaderMap,
    Query(parameters): Query<Parameters>,
) -> PageResult {
    let snapshot = state.engine.snapshot();
    let objects: Vec<_> = snapshot.iter(&state.handles.rejects).flat_map(|(_, rejects)| rejects).collect();
    let failing = state.watches.failing().into_iter();
    let collections: Vec<_> =
        failing.map(|(cluster, watch)| json!({"cluster": cluster, "collection": watch})).collect();
    let (files, duplicates) = (state.reporter.problems(), state.reporter.duplicates());
    if !html::is_preferred(&headers) {
        let page = json!({"objects": objects, "files": files, "collections": collections, "duplicates": duplicates});
        return Ok(answer::json(&page, &parameters));
    }
    let invalid = objects.iter().map(|reject| {
        let object = format!("{}/{}/{}", reject.kind, reject.object.namespace, reject.object.name);
        let severity = format!("{:?}", reject.severity);
        vec![cell(&object), cell(&reject.field_path), cell(&reject.reason), cell(&severity)]
    });
    let files = files.iter().map(|(file, problem)| vec![cell(file), cell(&problem.line), cell(&problem.reason)]);
    let unread = collections.iter().map(|row| vec![cell(&row["cluster"]), cell(&row["collection"])]);
    let declared = duplicates.iter().map(|row| {
        let object = format!("{}/{}/{}", row.kind, row.object.namespace, row.object.name);
        vec![cell(&object), cell(&row.files.join(", ")), cell(&row.used)]
    });
    let body = html! {
        h2 { "Objects" }
        (table(&["object", "field", "reason", "severity"], invalid))
        h2 { "Objects that are declared more than once" }
        (table(&["object", "files", "used"], declared))
        h2 { "Files that cannot be read" }
        (table(&["file", "line", "reason"], files))
        h2 { "Collections that cannot be read" }
        (table(&["cluster", "collection"], unread))
    };
    Ok(html::page("Rejects", &body).into_response())
}

/// A collection with its counters.
#[derive(Serialize)]
pub(crate) struct CollectionSummary {
    #[serde(flatten)]
    pub(crate) info: CollectionInfo,
    /// `None` if nothing is counted for it.
    pub(crate) metrics: Option<CollectionMetrics>,
}

/// All collections, in the order of the graph.
pub(crate) fn collection_summaries(engine: &Engine) -> Vec<CollectionSummary> {
    let metrics = engine.metrics().collections;
    let mut by_name: BTreeMap<_, _> = metrics.into_iter().map(|it| (it.name.clone(), it)).collect();
    let summary = |info: &CollectionInfo| CollectionSummary { metrics: by_name.remove(&info.name), info: info.clone() };
    engine.graph().iter().map(summary).collect()
}

/// All collections: size, inputs, cost.
pub(crate) async fn collections(
    State(state): State<Arc<AdminState>>,
    headers: HeaderMap,
    Query(parameters): Query<Parameters>,
) -> PageResult {
    let rows = read(&state.engine, collection_summaries).await?;
    if !html::is_preferred(&headers) {
        return Ok(answer::json(&rows, &parameters));
    }
    let cells = rows.iter().map(|row| {
        let metrics = row.metrics.as_ref();
        let size = metrics.map(|metrics| metrics.size.to_string());
        let busy = metrics.map(|metrics| format!("{:.1}", metrics.busy.as_secs_f64() * 1e3));
        let name = &row.info.name;
        vec![
            link(name, &format!("/debug/collections/{}", name.replace('/', "%2F"))),
            number(&size.unwrap_or_default()),
            number(&busy.unwrap_or_default()),
            cell(&row.info.parents.join(", ")),
        ]
    });
    let body = table(&["collection", "records", "time in ms", "inputs"], cells);
    Ok(html::page("Collections", &body).into_response())
}
