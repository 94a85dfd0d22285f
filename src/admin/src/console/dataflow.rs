//! `/console/dataflow`: the collections and what they derive from, with their sizes and update rates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use axum::response::{Html, IntoResponse};
use maud::{Markup, html};

use super::blocking;
use super::collections::path;
use super::graph::{GraphEdge, GraphNode, drawing};
use super::layout::{self, Selection};
use crate::AdminState;
use crate::answer::Parameters;
use crate::findings::{CollectionSummary, collection_summaries};

const PATH: &str = "/console/dataflow";
/// Collections of the graph.
const MAX_NODES: usize = 400;

pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| render(state, &selection).into_response()).await,
        Err(refused) => *refused,
    }
}

/// A collection with its rate.
struct Node<'a> {
    summary: &'a CollectionSummary,
    /// Updates per second.
    rate: f64,
}

fn render(state: &AdminState, selection: &Selection) -> Html<String> {
    let all = collection_summaries(&state.engine);
    let updates = |it: &CollectionSummary| it.metrics.as_ref().map_or(0, |metrics| metrics.records_out);
    let rates = state.update_rates.of(all.iter().map(updates).collect(), Instant::now());
    let selected = selected(&all, selection);
    let rated = all.iter().zip(&rates.per_second).filter(|(summary, _)| selected.contains(summary.info.name.as_str()));
    let nodes: Vec<Node<'_>> = rated.map(|(summary, rate)| Node { summary, rate: *rate }).take(MAX_NODES).collect();
    let content = html! {
        (layout::search(PATH, selection.query(), "name of a collection", &[]))
        p {
            (nodes.len()) " collections. Rates are those of the last " (format!("{:.0} s", rates.period.as_secs_f64())) "."
            @if selected.len() > nodes.len() { " " b { (selected.len() - nodes.len()) " more are left out" } ": search for a name." }
        }
        @if nodes.is_empty() { p.empty { "None." } } @else { (drawing("Collections and their inputs", &graph_nodes(&nodes), &graph_edges(&nodes))) }
        h2 { "Collections" }
        (table(&nodes))
    };
    layout::page(PATH, "Dataflow", false, &content)
}

/// The collections that match the search, with those that they derive from and those that derive from them.
fn selected<'a>(all: &'a [CollectionSummary], selection: &Selection) -> BTreeSet<&'a str> {
    let mut selected: BTreeSet<&str> = BTreeSet::new();
    for CollectionSummary { info, .. } in all {
        let is_match = selection.matches(&info.name);
        if is_match || info.parents.iter().any(|parent| selection.matches(parent)) {
            selected.insert(&info.name);
        }
        if is_match {
            selected.extend(info.parents.iter().map(String::as_str));
        }
    }
    selected
}

fn size(node: &Node<'_>) -> Option<i64> {
    node.summary.metrics.as_ref().map(|metrics| metrics.size)
}

fn rate_text(rate: f64) -> String {
    if rate < 0.005 { "0/s".to_owned() } else { format!("{rate:.2}/s") }
}

fn graph_nodes(nodes: &[Node<'_>]) -> Vec<GraphNode> {
    let graph_node = |node: &Node<'_>| {
        let info = &node.summary.info;
        let size = size(node).map(|size| format!(" · {size} records")).unwrap_or_default();
        let detail = format!("{}{size} · {}", info.kind, rate_text(node.rate));
        GraphNode {
            title: format!("{}: {detail}", info.name),
            name: info.name.clone(),
            detail,
            class: if info.parents.is_empty() { "gateway" } else { "derived" },
            address: path(&info.name),
        }
    };
    nodes.iter().map(graph_node).collect()
}

fn graph_edges(nodes: &[Node<'_>]) -> Vec<GraphEdge> {
    let numbers: BTreeMap<&str, usize> =
        nodes.iter().enumerate().map(|(number, node)| (node.summary.info.name.as_str(), number)).collect();
    let mut edges = Vec::new();
    for (to, node) in nodes.iter().enumerate() {
        let parents: BTreeSet<&str> = node.summary.info.parents.iter().map(String::as_str).collect();
        let from = parents.into_iter().filter_map(|parent| numbers.get(parent).copied());
        edges.extend(from.map(|from| GraphEdge { from, to, label: String::new(), class: "" }));
    }
    edges
}

fn table(nodes: &[Node<'_>]) -> Markup {
    let row = |node: &Node<'_>| {
        let info = &node.summary.info;
        html! {
            tr {
                td.short { a href=(path(&info.name)) { (info.name) } }
                td { (info.kind) }
                td.number { @if let Some(size) = size(node) { (size) } }
                td.number { (rate_text(node.rate)) }
                td.words { (info.parents.join(", ")) }
            }
        }
    };
    let rows: Vec<Markup> = nodes.iter().map(row).collect();
    layout::table(
        "Collections of the graph",
        &["Collection", "Operation", "Records", "Updates per second", "Derived from"],
        &rows,
    )
}
