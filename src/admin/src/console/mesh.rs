//! `/console/mesh`: services, and where routes of hosts and gateways send their requests; policies are marks.

mod objects;
mod policies;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use axum::response::{Html, IntoResponse};
use maud::{Markup, html};
use sluice_engine::Snapshot;
use sluice_model::{Kind, Labels, Service, ServiceKey, Text};

use super::blocking;
use super::collections::record_path;
use super::graph::{GraphEdge, GraphNode, drawing};
use super::layout::{self, Selection};
use crate::AdminState;
use crate::answer::Parameters;
use objects::{ObjectLink, declared_routes, json};
use policies::{MARKS, MeshPolicy, policies};
use topology::{NodeId, NodeKind, RouteEdge, Share, Topology};

const PATH: &str = "/console/mesh";
/// Nodes and edges of the graph.
const MAX_NODES: usize = 200;
const MAX_EDGES: usize = 600;
/// Shares that the label of an edge lists.
const MAX_SHARES: usize = 3;
/// Hosts and objects that a cell lists.
const MAX_IN_CELL: usize = 8;

pub(super) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let namespace = parameters.get("namespace").map(|namespace| Text::from(namespace.trim())).unwrap_or_default();
    match Selection::read(&parameters) {
        Ok(selection) => blocking(state, move |state| render(state, &namespace, &selection).into_response()).await,
        Err(refused) => *refused,
    }
}

/// The part of the graph that is shown.
struct Shown<'a> {
    nodes: Vec<&'a NodeId>,
    edges: Vec<(&'a (NodeId, NodeId), &'a RouteEdge)>,
    nodes_left_out: usize,
    edges_left_out: usize,
}

impl<'a> Shown<'a> {
    /// The nodes of a namespace, or of all if it is empty, that match the search, and the nodes at the other end of their edges.
    fn select(topology: &'a Topology, namespace: &Text, selection: &Selection) -> Self {
        let is_wanted = |node: &NodeId| {
            (namespace.is_empty() || node.namespace == *namespace)
                && (selection.matches(&node.name) || selection.matches(&node.subset))
        };
        let edges: Vec<_> = topology.edges.iter().filter(|((from, to), _)| is_wanted(from) || is_wanted(to)).collect();
        let connected: BTreeSet<&NodeId> = edges.iter().flat_map(|(ends, _)| [&ends.0, &ends.1]).collect();
        // Nodes without edges are left out first.
        let alone = topology.nodes.iter().filter(|node| is_wanted(node) && !connected.contains(node));
        let all: Vec<&NodeId> = connected.iter().copied().chain(alone).collect();
        let nodes: Vec<&NodeId> = all.iter().take(MAX_NODES).copied().collect();
        let has: BTreeSet<&NodeId> = nodes.iter().copied().collect();
        let shown: Vec<_> = edges
            .iter()
            .filter(|((from, to), _)| has.contains(from) && has.contains(to))
            .take(MAX_EDGES)
            .copied()
            .collect();
        Self { nodes_left_out: all.len() - nodes.len(), edges_left_out: edges.len() - shown.len(), nodes, edges: shown }
    }
}

/// The policies of a node by kind.
type NodePolicies = BTreeMap<Kind, BTreeSet<ObjectLink>>;

fn render(state: &AdminState, namespace: &Text, selection: &Selection) -> Html<String> {
    let snapshot = state.engine.snapshot();
    let services = || snapshot.iter(&state.handles.services).map(|(_, service)| service);
    let topology = Topology::new(services(), &declared_routes(&state.engine));
    let shown = Shown::select(&topology, namespace, selection);
    let policies = policies(&state.engine);
    let root_namespace = snapshot.get(&state.handles.mesh, &()).unwrap_or_default().root_namespace.clone();
    let marked: Vec<NodePolicies> = shown
        .nodes
        .iter()
        .map(|node| policies_of(state, &snapshot, &topology, node, (&policies, &root_namespace)))
        .collect();
    let namespaces: BTreeSet<&Text> = topology.nodes.iter().map(|node| &node.namespace).collect();
    let wide: Vec<&MeshPolicy> = policies
        .iter()
        .filter(|policy| policy.is_wide())
        .filter(|policy| {
            namespace.is_empty() || policy.key.namespace == *namespace || policy.key.namespace == root_namespace
        })
        .collect();
    let content = html! {
        (form(&namespaces, namespace, selection))
        p {
            (shown.nodes.len()) " nodes and " (shown.edges.len()) " edges."
            @if shown.nodes_left_out + shown.edges_left_out > 0 {
                " " b { (shown.nodes_left_out) " nodes and " (shown.edges_left_out) " edges are left out" }
                ": choose a namespace, or search for a name."
            }
        }
        @if shown.nodes.is_empty() { p.empty { "None." } } @else {
            (drawing("Services and routes", &graph_nodes(&shown, &marked), &graph_edges(&shown)))
            p.soft { "Marks: " @for (kind, mark) in MARKS { (mark) " " (kind.name()) ". " } "A dashed edge is a mirror." }
        }
        h2 { "Nodes" }
        (nodes_table(&shown, &marked))
        h2 { "Routes" }
        (edges_table(&shown))
        h2 { "Policies of all workloads of a namespace" }
        (wide_table(&wide, &root_namespace))
    };
    layout::page(PATH, "Mesh", false, &content)
}

fn form(namespaces: &BTreeSet<&Text>, selected: &Text, selection: &Selection) -> Markup {
    html! {
        form.search role="search" action=(PATH) method="get" {
            label for="namespace" { "Namespace" }
            select #namespace name="namespace" {
                option value="" selected[selected.is_empty()] { "all" }
                @for namespace in namespaces.iter().filter(|namespace| !namespace.is_empty()) {
                    option value=(namespace) selected[*namespace == selected] { (namespace) }
                }
            }
            label for="q" { "Name" }
            input #q type="search" name="q" value=(selection.query()) placeholder="host, gateway or subset" autocomplete="off";
            button type="submit" { "Show" }
        }
    }
}

/// The policies that apply to a node.
fn policies_of(
    state: &AdminState,
    snapshot: &Snapshot,
    topology: &Topology,
    node: &NodeId,
    (policies, root_namespace): (&[MeshPolicy], &Text),
) -> NodePolicies {
    let mut found = NodePolicies::new();
    if let Some(routed) = topology.routed.get(node) {
        found.insert(Kind::VirtualService, routed.clone());
    }
    let key = ServiceKey { namespace: node.namespace.clone(), host: node.name.as_str().into() };
    let service = (node.kind == NodeKind::Service).then(|| snapshot.get(&state.handles.services, &key)).flatten();
    let workloads = service.as_ref().map(|service| workload_labels(state, snapshot, service)).unwrap_or_default();
    for policy in policies {
        let of_service =
            service.as_ref().is_some_and(|service| policy.selects_service(service, &workloads, root_namespace));
        if of_service || policy.targets_gateway(node) {
            found.entry(policy.kind).or_default().insert(policy.link());
        }
    }
    found
}

/// The labels of the workloads of a service. Without known endpoints, and for a large service, those that the service selects.
fn workload_labels(state: &AdminState, snapshot: &Snapshot, service: &Service) -> BTreeSet<Labels> {
    let endpoints = snapshot.get(&state.handles.endpoints, &service.key());
    let mut labels: BTreeSet<Labels> =
        endpoints.iter().flat_map(|endpoints| endpoints.iter()).map(|endpoint| endpoint.labels.clone()).collect();
    if labels.is_empty() && !service.selector.is_empty() {
        labels.insert(service.selector.clone());
    }
    labels
}

fn graph_nodes(shown: &Shown<'_>, marked: &[NodePolicies]) -> Vec<GraphNode> {
    let node = |(node, policies): (&&NodeId, &NodePolicies)| {
        let marks = MARKS.iter().filter_map(|(kind, mark)| Some((mark, policies.get(kind)?.len())));
        let marks: Vec<String> = marks.map(|(mark, count)| format!("{mark} {count}")).collect();
        let title: Vec<&str> = policies.values().flatten().map(|object| object.text.as_str()).collect();
        GraphNode {
            name: if node.subset.is_empty() { short_name(node) } else { node.subset.to_string() },
            detail: [detail(node), marks.join(" · ")]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(" · "),
            class: class(node.kind),
            address: address(node),
            title: format!("{} {}\n{}", kind_text(node.kind), full_name(node), title.join("\n")).trim_end().to_owned(),
        }
    };
    shown.nodes.iter().zip(marked).map(node).collect()
}

fn graph_edges(shown: &Shown<'_>) -> Vec<GraphEdge> {
    let numbers: BTreeMap<&NodeId, usize> =
        shown.nodes.iter().enumerate().map(|(number, node)| (*node, number)).collect();
    let edge = |((from, to), edge): &(&(NodeId, NodeId), &RouteEdge)| {
        let is_mirror = edge.shares.iter().all(|share| *share == Share::Mirror);
        let (from, to) = (*numbers.get(from)?, *numbers.get(to)?);
        Some(GraphEdge { from, to, label: shares_text(edge), class: if is_mirror { "mirror" } else { "" } })
    };
    shown.edges.iter().filter_map(edge).collect()
}

/// The host without what all hosts of the namespace have in common.
fn short_name(node: &NodeId) -> String {
    let end = format!(".{}.svc", node.namespace);
    match node.name.find(&end) {
        Some(at) => node.name[..at].to_owned(),
        None => node.name.to_string(),
    }
}

fn full_name(node: &NodeId) -> String {
    match (node.kind, node.subset.is_empty()) {
        (NodeKind::Gateway, _) => format!("{}/{}", node.namespace, node.name),
        (_, true) => node.name.to_string(),
        (_, false) => format!("{} subset {}", node.name, node.subset),
    }
}

fn detail(node: &NodeId) -> String {
    match node.kind {
        NodeKind::Subset => format!("of {}.{}", short_name(node), node.namespace),
        _ => node.namespace.to_string(),
    }
}

const fn kind_text(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Gateway => "Gateway",
        NodeKind::Host => "Host without a service",
        NodeKind::Service => "Service",
        NodeKind::Subset => "Subset",
    }
}

const fn class(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Gateway => "gateway",
        NodeKind::Host => "host",
        NodeKind::Service => "service",
        NodeKind::Subset => "subset",
    }
}

/// What a node links to: the record of its service, or the part of the graph around it.
fn address(node: &NodeId) -> String {
    match node.kind {
        NodeKind::Service | NodeKind::Subset => {
            let key = ServiceKey { namespace: node.namespace.clone(), host: node.name.as_str().into() };
            record_path("services", &json(&key))
        }
        NodeKind::Gateway | NodeKind::Host => layout::href(PATH, &[("namespace", &node.namespace), ("q", &node.name)]),
    }
}

fn shares_text(edge: &RouteEdge) -> String {
    let text = |share: &Share| match share {
        Share::Percent(percent) => format!("{percent} %"),
        Share::Mirror => "mirror".to_owned(),
    };
    let mut texts: Vec<String> = edge.shares.iter().take(MAX_SHARES).map(text).collect();
    if edge.shares.len() > MAX_SHARES {
        texts.push("…".to_owned());
    }
    texts.join(", ")
}

/// Objects as links.
fn links<'a>(objects: impl IntoIterator<Item = &'a ObjectLink>) -> Markup {
    let objects: Vec<&ObjectLink> = objects.into_iter().collect();
    html! {
        @for object in objects.iter().take(MAX_IN_CELL) { div { a href=(object.address) { (object.text) } } }
        @if objects.len() > MAX_IN_CELL { div.soft { "and " (objects.len() - MAX_IN_CELL) " more" } }
    }
}

fn nodes_table(shown: &Shown<'_>, marked: &[NodePolicies]) -> Markup {
    let row = |(node, policies): (&&NodeId, &NodePolicies)| {
        html! {
            tr {
                td { a href=(address(node)) { (full_name(node)) } }
                td.short { (kind_text(node.kind)) }
                td.short { (node.namespace) }
                td { (links(policies.values().flatten())) }
            }
        }
    };
    let rows: Vec<Markup> = shown.nodes.iter().zip(marked).map(row).collect();
    layout::table("Nodes of the graph", &["Name", "Kind", "Namespace", "Routes and policies"], &rows)
}

fn edges_table(shown: &Shown<'_>) -> Markup {
    let row = |((from, to), edge): &(&(NodeId, NodeId), &RouteEdge)| {
        html! {
            tr {
                td { (full_name(from)) }
                td { (full_name(to)) }
                td.short { (shares_text(edge)) }
                td {
                    @for host in edge.hosts.iter().take(MAX_IN_CELL) { div { (host) } }
                    @if edge.hosts.len() > MAX_IN_CELL { div.soft { "and " (edge.hosts.len() - MAX_IN_CELL) " more" } }
                }
                td { (links(&edge.objects)) }
            }
        }
    };
    let rows: Vec<Markup> = shown.edges.iter().map(row).collect();
    layout::table("Edges of the graph", &["From", "To", "Share", "Hosts at the gateway", "Declared by"], &rows)
}

fn wide_table(wide: &[&MeshPolicy], root_namespace: &Text) -> Markup {
    let row = |policy: &&MeshPolicy| {
        let is_root = policy.key.namespace == *root_namespace && policy.kind != Kind::Sidecar;
        html! {
            tr {
                td { (links([&policy.link()])) }
                td { @if is_root { "the whole mesh" } @else { (policy.key.namespace) } }
            }
        }
    };
    let rows: Vec<Markup> = wide.iter().take(layout::PAGE_ROWS).map(row).collect();
    html! {
        (layout::table("Policies of all workloads of a namespace", &["Policy", "Applies to"], &rows))
        @if wide.len() > layout::PAGE_ROWS { p.soft { "and " (wide.len() - layout::PAGE_ROWS) " more" } }
    }
}

#[cfg(test)]
mod tests {
    use super::topology::service_node;
    use super::*;

    #[test]
    fn graph_is_bounded_and_says_what_is_left_out() {
        let mut topology = Topology::default();
        let node = |n: usize| service_node(&format!("s{n:04}.shop.svc.cluster.local").as_str().into(), &"shop".into());
        topology.nodes = (0..1_000).map(node).collect();
        // The last nodes have edges: they are shown before nodes without.
        topology.edges = (900..950).map(|n| ((node(n), node(n + 50)), RouteEdge::default())).collect();
        let all = Selection::read(&Parameters::new()).expect("a selection");
        let shown = Shown::select(&topology, &Text::default(), &all);
        assert_eq!((shown.nodes.len(), shown.edges.len()), (MAX_NODES, 50));
        assert_eq!((shown.nodes_left_out, shown.edges_left_out), (800, 0));
        let one = Selection::read(&Parameters::from([("q".to_owned(), "s0900".to_owned())])).expect("a selection");
        let shown = Shown::select(&topology, &"shop".into(), &one);
        let names: Vec<String> = shown.nodes.iter().map(|node| short_name(node)).collect();
        assert_eq!((names, shown.edges.len()), (vec!["s0900".to_owned(), "s0950".to_owned()], 1), "with its neighbour");
        let none = Shown::select(&topology, &"bank".into(), &all);
        assert!(none.nodes.is_empty() && none.nodes_left_out == 0);
    }
}
