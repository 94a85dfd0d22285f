//! Minimises a failing input.

use std::time::{Duration, Instant};

use crate::mesh::{EpochChange, FuzzedMesh};
use crate::mutate::{places, remove};
use crate::seeds::CaseMesh;

/// Whether the change still causes that finding, in a fresh graph.
#[must_use]
pub fn reproduces(world: &CaseMesh, change: &EpochChange, signature: &str) -> bool {
    let (mut mesh, mut findings) = FuzzedMesh::start(world);
    findings.extend(mesh.apply(change));
    findings.extend(mesh.revert());
    findings.iter().any(|finding| finding.signature == signature)
}

/// A smaller world and change with the same finding, as far as time allows; what does not reproduce stays as it is.
#[must_use]
pub fn minimise(
    mut world: CaseMesh,
    mut change: EpochChange,
    signature: &str,
    limit: Duration,
) -> (CaseMesh, EpochChange, bool) {
    let deadline = Instant::now() + limit;
    if !reproduces(&world, &change, signature) {
        return (world, change, false);
    }
    let in_time = || Instant::now() < deadline;
    let holds = |world: &CaseMesh, change: &EpochChange| in_time() && reproduces(world, change, signature);
    let rest = change.clone();
    shrink(&mut change.nodes, |nodes| holds(&world, &EpochChange { nodes: nodes.to_vec(), ..rest.clone() }));
    let rest = change.clone();
    shrink(&mut change.deletes, |deletes| holds(&world, &EpochChange { deletes: deletes.to_vec(), ..rest.clone() }));
    let rest = change.clone();
    shrink(&mut change.objects, |objects| holds(&world, &EpochChange { objects: objects.to_vec(), ..rest.clone() }));
    let rest = world.clone();
    shrink(&mut world.objects, |objects| holds(&CaseMesh { objects: objects.to_vec(), ..rest.clone() }, &change));
    let rest = world.clone();
    shrink(&mut world.nodes, |nodes| holds(&CaseMesh { nodes: nodes.to_vec(), ..rest.clone() }, &change));
    for index in 0..change.objects.len() {
        // Deepest first would try every leaf of what goes as a whole.
        let mut tried = 1;
        while in_time() {
            let all = places(&change.objects[index].object);
            let Some(path) = all.get(tried) else { break };
            let mut smaller = change.clone();
            let identity = path.len() < 2 || all[tried].len() == 2 && format!("{path:?}").contains("\"name");
            if !identity
                && remove(&mut smaller.objects[index].object, path).is_some()
                && reproduces(&world, &smaller, signature)
            {
                change = smaller;
                continue;
            }
            tried += 1;
        }
    }
    (world, change, true)
}

/// Leaves out what is not needed: halves first, then one by one.
pub(crate) fn shrink<T: Clone>(items: &mut Vec<T>, mut holds: impl FnMut(&[T]) -> bool) {
    let mut chunk = items.len().div_ceil(2);
    while chunk > 0 && !items.is_empty() {
        let mut from = 0;
        while from < items.len() {
            let mut rest = items.clone();
            rest.drain(from..(from + chunk).min(rest.len()));
            if holds(&rest) {
                *items = rest;
            } else {
                from += chunk;
            }
        }
        chunk = if chunk == 1 { 0 } else { chunk / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimising_keeps_only_what_fails() {
        let mut items: Vec<u32> = (0..50).collect();
        shrink(&mut items, |rest| rest.contains(&7) && rest.contains(&31));
        assert_eq!(items, [7, 31]);
    }
}
