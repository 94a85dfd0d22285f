//! `rejects` and `collections`: JSON for tools, tables for browsers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::json;

use crate::AdminState;
use crate::answer::{self, PageResult, Parameters, read};
use crate::html::{self, Cell};

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
    let text = |text: &dyn ToString| Cell::Text(text.to_string());
    let invalid = objects.iter().map(|reject| {
        let object = format!("{}/{}/{}", reject.kind, reject.object.namespace, reject.object.name);
        let severity = format!("{:?}", reject.severity);
        vec![text(&object), text(&reject.field_path), text(&reject.reason), text(&severity)]
    });
    let files = files.iter().map(|(file, problem)| vec![text(file), text(&problem.line), text(&problem.reason)]);
    let unread = collections.iter().map(|row| vec![text(&row["cluster"]), text(&row["collection"])]);
    let declared = duplicates.iter().map(|row| {
        vec![
            text(&format!("{}/{}/{}", row.kind, row.object.namespace, row.object.name)),
            text(&row.files.join(", ")),
            text(&row.used),
        ]
    });
    let sections = [
        ("Objects", html::table(&["object", "field", "reason", "severity"], invalid)),
        ("Objects that are declared more than once", html::table(&["object", "files", "used"], declared)),
        ("Files that cannot be read", html::table(&["file", "line", "reason"], files)),
        ("Collections that cannot be read", html::table(&["cluster", "collection"], unread)),
    ];
    let body: String = sections.iter().map(|(title, table)| format!("<h2>{title}</h2>{table}")).collect();
    Ok(html::page("Rejects", &body).into_response())
}

#[derive(Serialize)]
struct CollectionSummary {
    #[serde(flatten)]
    info: sluice_engine::CollectionInfo,
    metrics: Option<sluice_engine::CollectionMetrics>,
}

/// All collections: size, inputs, cost.
pub(crate) async fn collections(
    State(state): State<Arc<AdminState>>,
    headers: HeaderMap,
    Query(parameters): Query<Parameters>,
) -> PageResult {
    let rows = read(&state.engine, |engine| {
        let metrics = engine.metrics();
        let mut by_name: BTreeMap<_, _> = metrics.collections.into_iter().map(|it| (it.name.clone(), it)).collect();
        let rows = engine
            .graph()
            .iter()
            .map(|info| CollectionSummary { metrics: by_name.remove(&info.name), info: info.clone() });
        rows.collect::<Vec<_>>()
    });
    let rows = rows.await?;
    if !html::is_preferred(&headers) {
        return Ok(answer::json(&rows, &parameters));
    }
    let cells = rows.iter().map(|row| {
        let metrics = row.metrics.as_ref();
        let number = |read: &dyn Fn(&sluice_engine::CollectionMetrics) -> String| {
            Cell::Number(metrics.map(read).unwrap_or_default())
        };
        let name = row.info.name.clone();
        let address = format!("/debug/collections/{}", name.replace('/', "%2F"));
        vec![
            Cell::Link { text: name, address },
            number(&|metrics| metrics.size.to_string()),
            number(&|metrics| format!("{:.1}", metrics.busy.as_secs_f64() * 1e3)),
            Cell::Text(row.info.parents.join(", ")),
        ]
    });
    let table = html::table(&["collection", "records", "time in ms", "inputs"], cells);
    Ok(html::page("Collections", &table).into_response())
}
