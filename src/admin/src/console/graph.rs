//! Directed graphs as SVG, rendered on the server. Each graph has a table with the same content beside it.

mod layered;

use maud::{Markup, html};

use super::layout::beginning;
use layered::{Spacing, layout};

const SPACING: Spacing = Spacing { node_height: 40.0, column: 300.0, gap: 16.0, waypoint: 12.0 };
/// Width of a node in pixels.
const NODE_WIDTH: f64 = 216.0;
/// Space around the graph, and for edges of a node to itself.
const MARGIN: f64 = 24.0;
/// Characters of a text that fit into a node.
const MAX_NAME_CHARACTERS: usize = 26;
const MAX_DETAIL_CHARACTERS: usize = 36;

/// A node.
#[derive(Clone, Debug)]
pub(super) struct GraphNode {
    pub(super) name: String,
    /// The second line.
    pub(super) detail: String,
    /// Class of the style sheet.
    pub(super) class: &'static str,
    /// What it links to.
    pub(super) address: String,
    /// The whole text, for a pointer and for assistive technology.
    pub(super) title: String,
}

/// An edge between two nodes, by their numbers.
#[derive(Clone, Debug)]
pub(super) struct GraphEdge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Text at its end.
    pub(super) label: String,
    /// Class of the style sheet.
    pub(super) class: &'static str,
}

/// The graph in a region that can be scrolled with the keyboard.
pub(super) fn drawing(label: &str, nodes: &[GraphNode], edges: &[GraphEdge]) -> Markup {
    let pairs: Vec<(usize, usize)> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
    let placed = layout(nodes.len(), &pairs, SPACING);
    let (width, height) = (placed.width + 2.0 * MARGIN, placed.height + 2.0 * MARGIN);
    let at = |(left, centre): (f64, f64)| (left + MARGIN, centre + MARGIN);
    html! {
        div.scroll.graph role="region" aria-label=(label) tabindex="0" {
            svg role="group" aria-label=(label) width=(number(width)) height=(number(height)) viewBox={ "0 0 " (number(width)) " " (number(height)) } {
                defs {
                    marker #arrow viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse" {
                        path d="M0 0L8 4L0 8z" {}
                    }
                }
                @for (edge, waypoints) in edges.iter().zip(&placed.waypoints) {
                    @let (from, to) = (at(placed.nodes[edge.from]), at(placed.nodes[edge.to]));
                    @let waypoints: Vec<(f64, f64)> = waypoints.iter().map(|place| at(*place)).collect();
                    path class={ "edge " (edge.class) } d=(line(from, to, &waypoints)) marker-end="url(#arrow)" {}
                    @if !edge.label.is_empty() {
                        @let (x, y) = label_place(from, to);
                        text.label x=(number(x)) y=(number(y)) { (edge.label) }
                    }
                }
                @for (node, place) in nodes.iter().zip(&placed.nodes) {
                    @let (left, centre) = at(*place);
                    @let top = centre - SPACING.node_height / 2.0;
                    a href=(node.address) {
                        title { (node.title) }
                        rect class={ "node " (node.class) } x=(number(left)) y=(number(top)) width=(NODE_WIDTH) height=(SPACING.node_height) rx="5" {}
                        text.name x=(number(left + 10.0)) y=(number(centre - 3.0)) { (beginning(&node.name, MAX_NAME_CHARACTERS)) }
                        text.detail x=(number(left + 10.0)) y=(number(centre + 13.0)) { (beginning(&node.detail, MAX_DETAIL_CHARACTERS)) }
                    }
                }
            }
        }
    }
}

/// A number without a long fraction.
fn number(value: f64) -> String {
    format!("{value:.0}")
}

/// The path of an edge from the right side of a node to the left side of another, over its waypoints.
fn line(from: (f64, f64), to: (f64, f64), waypoints: &[(f64, f64)]) -> String {
    let (mut x, mut y) = (from.0 + NODE_WIDTH, from.1);
    let mut path = format!("M{x:.0} {y:.0}");
    if from == to {
        let above = y - SPACING.node_height * 1.2;
        let (right, left) = (x + MARGIN, from.0 - MARGIN);
        return path + &format!("C{right:.0} {above:.0} {left:.0} {above:.0} {:.0} {y:.0}", from.0);
    }
    let is_back = to.0 <= from.0;
    let bend = (SPACING.column - NODE_WIDTH) / 2.0;
    // An edge passes its waypoint at the place of a node, in the direction of the edge.
    let passed = waypoints.iter().map(|(left, centre)| match is_back {
        true => (left + NODE_WIDTH, *centre, *left),
        false => (*left, *centre, left + NODE_WIDTH),
    });
    let end = (to.0, to.1, to.0);
    for (number, (enter, centre, leave)) in passed.chain([end]).enumerate() {
        // An edge back leaves its start, and enters its end, in an arc.
        let out = if is_back && number > 0 { -bend } else { bend };
        let into = if is_back && number < waypoints.len() { -bend } else { bend };
        let (one, other) = (x + out, enter - into);
        path += &format!("C{one:.0} {y:.0} {other:.0} {centre:.0} {enter:.0} {centre:.0}");
        if leave != enter {
            path += &format!("H{leave:.0}");
        }
        (x, y) = (leave, centre);
    }
    path
}

/// Where the label of an edge is: before the left side of its target, on the side from which the edge comes, so that the labels of
/// edges with the same target are apart.
fn label_place(from: (f64, f64), to: (f64, f64)) -> (f64, f64) {
    let towards = ((from.1 - to.1) * 0.3).clamp(-MARGIN, MARGIN);
    // The text stands on its place.
    let below = if towards > 1.0 { 10.0 } else { -4.0 };
    (to.0 - 12.0, to.1 + towards + below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_link_to_their_page_and_texts_are_escaped() {
        let node = |name: &str| GraphNode {
            name: name.to_owned(),
            detail: "x".repeat(100),
            class: "service",
            address: "/console?a=1&b=2".to_owned(),
            title: "<title>".to_owned(),
        };
        let edge = |from, to| GraphEdge { from, to, label: "90 %".to_owned(), class: "" };
        let text = drawing("Mesh", &[node("a"), node("<b>")], &[edge(0, 1), edge(1, 0), edge(1, 1)]).into_string();
        assert!(text.contains("href=\"/console?a=1&amp;b=2\""), "{text}");
        assert!(text.contains("&lt;b&gt;") && text.contains("&lt;title&gt;") && !text.contains("<b>"), "{text}");
        assert_eq!((text.matches("<path class=\"edge").count(), text.matches("<a ").count()), (3, 2), "{text}");
        assert!(!text.contains("NaN") && !text.contains("style="), "{text}");
        assert!(text.contains(&format!("{}…", "x".repeat(MAX_DETAIL_CHARACTERS))), "{text}");
    }
}
