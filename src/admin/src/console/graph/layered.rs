//! A layered layout of a directed graph: each node is in a column to the right of its predecessors, and columns are ordered so that few
//! edges cross.
//!
//! The steps are those of Sugiyama's method: edges that close a circle are turned around, nodes get columns by the longest path, edges
//! over several columns get a waypoint in each, columns are sorted by the mean position of neighbours, and rows are placed as close to
//! these as the order permits.

use std::collections::BTreeSet;

/// Passes over all columns that sort them.
const SORT_PASSES: usize = 8;
/// Passes over all columns that place their rows.
const PLACE_PASSES: usize = 8;

/// Sizes of a layout in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spacing {
    /// Height of a node.
    pub(super) node_height: f64,
    /// Distance between the left sides of columns.
    pub(super) column: f64,
    /// Distance between nodes of a column.
    pub(super) gap: f64,
    /// Height of the place of a waypoint.
    pub(super) waypoint: f64,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layout {
    /// Left side and centre of each node.
    pub(super) nodes: Vec<(f64, f64)>,
    /// Of each edge, the left side and the height of its waypoints, from its start to its end.
    pub(super) waypoints: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Places nodes `0..count`. An edge of a node to itself has no effect on the layout.
pub(super) fn layout(count: usize, edges: &[(usize, usize)], spacing: Spacing) -> Layout {
    let directed = without_circles(count, edges);
    let columns = columns_by_longest_path(count, &directed);
    let mut grid = Grid::new(&columns, &directed);
    grid.sort();
    let heights = grid.place(spacing);
    let left = |item: usize| grid.column_of[item] as f64 * spacing.column;
    let nodes: Vec<(f64, f64)> = (0..count).map(|node| (left(node), heights[node])).collect();
    let waypoints = edges.iter().zip(&directed).zip(&grid.waypoints).map(|((edge, directed), waypoints)| {
        let mut places: Vec<(f64, f64)> = waypoints.iter().map(|item| (left(*item), heights[*item])).collect();
        if edge != directed {
            places.reverse();
        }
        places
    });
    let last = columns.iter().max().map_or(0, |column| column + 1);
    let bottom = heights.iter().copied().fold(0.0, f64::max);
    Layout {
        nodes,
        waypoints: waypoints.collect(),
        width: last as f64 * spacing.column,
        height: bottom + spacing.node_height / 2.0,
    }
}

/// The edges, with those turned around that close a circle.
fn without_circles(count: usize, edges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        Before,
        Open,
        Done,
    }
    let mut outgoing = vec![Vec::new(); count];
    for (number, (from, to)) in edges.iter().enumerate() {
        outgoing[*from].push((number, *to));
    }
    let mut turned = BTreeSet::new();
    let mut visits = vec![Visit::Before; count];
    for start in 0..count {
        // Each entry is a node, and how many of its edges are followed.
        let mut path = vec![(start, 0)];
        if visits[start] != Visit::Before {
            continue;
        }
        visits[start] = Visit::Open;
        while let Some((node, followed)) = path.last_mut() {
            let Some((number, to)) = outgoing[*node].get(*followed).copied() else {
                visits[*node] = Visit::Done;
                path.pop();
                continue;
            };
            *followed += 1;
            match visits[to] {
                Visit::Open => {
                    turned.insert(number);
                }
                Visit::Before => {
                    visits[to] = Visit::Open;
                    path.push((to, 0));
                }
                Visit::Done => {}
            }
        }
    }
    let direct = |(number, (from, to)): (usize, &(usize, usize))| match turned.contains(&number) {
        true => (*to, *from),
        false => (*from, *to),
    };
    edges.iter().enumerate().map(direct).collect()
}

/// The column of each node: one more than that of its last predecessor.
fn columns_by_longest_path(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut outgoing = vec![Vec::new(); count];
    let mut missing = vec![0_usize; count];
    for (from, to) in edges.iter().filter(|(from, to)| from != to) {
        outgoing[*from].push(*to);
        missing[*to] += 1;
    }
    let mut columns = vec![0; count];
    let mut ready: Vec<usize> = (0..count).filter(|node| missing[*node] == 0).collect();
    while let Some(node) = ready.pop() {
        for to in &outgoing[node] {
            columns[*to] = columns[*to].max(columns[node] + 1);
            missing[*to] -= 1;
            if missing[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    columns
}

/// Nodes and waypoints in columns. Items below the number of nodes are nodes.
struct Grid {
    nodes: usize,
    column_of: Vec<usize>,
    /// The items of each column, from top to bottom.
    columns: Vec<Vec<usize>>,
    /// Neighbours in the columns before and after.
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
    /// The waypoints of each edge, from left to right.
    waypoints: Vec<Vec<usize>>,
}

impl Grid {
    fn new(columns: &[usize], edges: &[(usize, usize)]) -> Self {
        let mut grid = Self {
            nodes: columns.len(),
            column_of: columns.to_vec(),
            columns: vec![Vec::new(); columns.iter().max().map_or(0, |column| column + 1)],
            before: vec![Vec::new(); columns.len()],
            after: vec![Vec::new(); columns.len()],
            waypoints: Vec::new(),
        };
        for (node, column) in columns.iter().enumerate() {
            grid.columns[*column].push(node);
        }
        for (from, to) in edges {
            let mut waypoints = Vec::new();
            let mut last = *from;
            for column in columns[*from] + 1..columns[*to] {
                let item = grid.column_of.len();
                grid.column_of.push(column);
                grid.columns[column].push(item);
                grid.before.push(Vec::new());
                grid.after.push(Vec::new());
                grid.connect(last, item);
                waypoints.push(item);
                last = item;
            }
            if from != to {
                grid.connect(last, *to);
            }
            grid.waypoints.push(waypoints);
        }
        grid
    }

    fn connect(&mut self, from: usize, to: usize) {
        self.after[from].push(to);
        self.before[to].push(from);
    }

    /// Neighbours on one side.
    fn neighbours(&self, is_forward: bool) -> &[Vec<usize>] {
        if is_forward { &self.before } else { &self.after }
    }

    /// The columns in the order of a pass.
    fn pass(&self, is_forward: bool) -> Vec<usize> {
        let columns = 0..self.columns.len();
        if is_forward { columns.collect() } else { columns.rev().collect() }
    }

    fn sort(&mut self) {
        for pass in 0..SORT_PASSES {
            let is_forward = pass % 2 == 0;
            let mut rank = vec![0.0; self.column_of.len()];
            for items in &self.columns {
                for (row, item) in items.iter().enumerate() {
                    rank[*item] = row as f64;
                }
            }
            for column in self.pass(is_forward) {
                let mut items = std::mem::take(&mut self.columns[column]);
                let wanted = |item: &usize| mean(&self.neighbours(is_forward)[*item], &rank).unwrap_or(rank[*item]);
                let mut keyed: Vec<(f64, usize)> = items.iter().map(|item| (wanted(item), *item)).collect();
                keyed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
                items.clear();
                items.extend(keyed.into_iter().map(|(_, item)| item));
                for (row, item) in items.iter().enumerate() {
                    rank[*item] = row as f64;
                }
                self.columns[column] = items;
            }
        }
    }

    /// The centre of each item.
    fn place(&self, spacing: Spacing) -> Vec<f64> {
        let height = |item: usize| if item < self.nodes { spacing.node_height + spacing.gap } else { spacing.waypoint };
        let mut centres = vec![0.0; self.column_of.len()];
        // The least distance of each item from the first of its column.
        let mut offsets = vec![0.0; self.column_of.len()];
        for items in &self.columns {
            for pair in items.windows(2) {
                offsets[pair[1]] = offsets[pair[0]] + f64::midpoint(height(pair[0]), height(pair[1]));
            }
            items.iter().for_each(|item| centres[*item] = offsets[*item]);
        }
        for pass in 0..PLACE_PASSES {
            let is_forward = pass % 2 == 0;
            for column in self.pass(is_forward) {
                let items = &self.columns[column];
                let wanted =
                    |item: &usize| mean(&self.neighbours(is_forward)[*item], &centres).unwrap_or(centres[*item]);
                let free: Vec<f64> = items.iter().map(|item| wanted(item) - offsets[*item]).collect();
                for (item, free) in items.iter().zip(ascending(&free)) {
                    centres[*item] = free + offsets[*item];
                }
            }
        }
        let top = (0..centres.len()).map(|item| centres[item]).fold(f64::INFINITY, f64::min);
        let top = if top.is_finite() { top - spacing.node_height / 2.0 } else { 0.0 };
        centres.iter_mut().for_each(|centre| *centre -= top);
        centres
    }
}

fn mean(items: &[usize], values: &[f64]) -> Option<f64> {
    let sum: f64 = items.iter().map(|item| values[*item]).sum();
    (!items.is_empty()).then(|| sum / items.len() as f64)
}

/// The ascending values that are closest to these, by the sum of squares: neighbours that descend get their common mean.
fn ascending(values: &[f64]) -> Vec<f64> {
    // Mean and number of the values of each block.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for value in values {
        let mut block = (*value, 1);
        while let Some((mean, size)) = blocks.pop_if(|(mean, _)| *mean > block.0) {
            let total = size + block.1;
            block = ((mean * size as f64 + block.0 * block.1 as f64) / total as f64, total);
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|(mean, size)| std::iter::repeat_n(mean, size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: Spacing = Spacing { node_height: 30.0, column: 100.0, gap: 10.0, waypoint: 10.0 };

    #[test]
    fn node_is_right_of_its_predecessors_and_long_edges_have_waypoints() {
        let placed = layout(4, &[(0, 1), (1, 2), (0, 2), (3, 2)], SPACING);
        let columns: Vec<f64> = placed.nodes.iter().map(|(left, _)| left / SPACING.column).collect();
        assert_eq!(columns, [0.0, 1.0, 2.0, 0.0]);
        let waypoints: Vec<usize> = placed.waypoints.iter().map(Vec::len).collect();
        assert_eq!(waypoints, [0, 0, 1, 1]);
        assert_eq!(placed.width, 300.0);
    }

    #[test]
    fn circles_and_edges_to_the_node_itself_are_placed() {
        let placed = layout(3, &[(0, 1), (1, 2), (2, 0), (1, 1)], SPACING);
        let columns: Vec<f64> = placed.nodes.iter().map(|(left, _)| left / SPACING.column).collect();
        assert_eq!(columns, [0.0, 1.0, 2.0]);
        // The waypoint of the edge that was turned around is listed from its start.
        assert_eq!(placed.waypoints[2].len(), 1);
        assert!(placed.waypoints[3].is_empty());
        assert_eq!(layout(0, &[], SPACING), Layout { height: 15.0, ..Layout::default() });
    }

    #[test]
    fn nodes_of_a_column_do_not_overlap_and_edges_that_can_be_parallel_do_not_cross() {
        // Declared in the opposite order.
        let edges: Vec<(usize, usize)> = (0..10).map(|n| (n, 19 - n)).collect();
        let placed = layout(20, &edges, SPACING);
        for (from, to) in &edges {
            let distance = placed.nodes[*from].1 - placed.nodes[*to].1;
            assert!(distance.abs() < 1e-6, "{from} and {to} are at the same height: {distance}");
        }
        let mut heights: Vec<f64> = placed.nodes[..10].iter().map(|(_, centre)| *centre).collect();
        heights.sort_by(f64::total_cmp);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > 39.9), "{heights:?}");
        assert!((placed.height - 390.0).abs() < 1e-6, "{}", placed.height);
    }

    #[test]
    fn descending_values_get_their_mean() {
        assert_eq!(ascending(&[1.0, 5.0, 3.0, 4.0, 9.0]), [1.0, 4.0, 4.0, 4.0, 9.0]);
        assert!(ascending(&[]).is_empty());
    }
}
