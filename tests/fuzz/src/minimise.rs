//! Minimises a failing input.

use std::time::{Duration, Instant};

use crate::mesh::{EpochChange, FuzzedMesh};
use crate::mutate::{paths, remove};
use crate::seeds::CaseMesh;

/// Whether the change still causes that finding, in a fresh graph.
fn reproduces(case: &CaseMesh, change: &EpochChange, signature: &str) -> bool {
    let (mut mesh, mut findings) = FuzzedMesh::start(case);
    findings.extend(mesh.apply(change));
    findings.extend(mesh.revert());
    findings.iter().any(|finding| finding.signature == signature)
}

/// A smaller case and change with the same finding, within the time limit. A finding that does not reproduce is returned
/// unchanged.
#[must_use]
pub fn minimise(
    mut case: CaseMesh,
    mut change: EpochChange,
    signature: &str,
    limit: Duration,
) -> (CaseMesh, EpochChange, bool) {
    let deadline = Instant::now() + limit;
    if !reproduces(&case, &change, signature) {
        return (case, change, false);
    }
    let is_in_time = || Instant::now() < deadline;
    let reproduces_with = |case: &CaseMesh, change: &EpochChange| is_in_time() && reproduces(case, change, signature);
    let rest = change.clone();
    shrink(&mut change.nodes, |nodes| reproduces_with(&case, &EpochChange { nodes: nodes.to_vec(), ..rest.clone() }));
    let rest = change.clone();
    shrink(&mut change.deletes, |deletes| {
        reproduces_with(&case, &EpochChange { deletes: deletes.to_vec(), ..rest.clone() })
    });
    let rest = change.clone();
    shrink(&mut change.objects, |objects| {
        reproduces_with(&case, &EpochChange { objects: objects.to_vec(), ..rest.clone() })
    });
    let rest = case.clone();
    shrink(&mut case.objects, |objects| {
        reproduces_with(&CaseMesh { objects: objects.to_vec(), ..rest.clone() }, &change)
    });
    let rest = case.clone();
    shrink(&mut case.nodes, |nodes| reproduces_with(&CaseMesh { nodes: nodes.to_vec(), ..rest.clone() }, &change));
    for index in 0..change.objects.len() {
        // Larger values are tried first, because a removed value needs no tries for its parts.
        let mut tried = 1;
        while is_in_time() {
            let all = paths(&change.objects[index].object);
            let Some(path) = all.get(tried) else { break };
            let mut smaller = change.clone();
            let identity = path.len() < 2 || all[tried].len() == 2 && format!("{path:?}").contains("\"name");
            if !identity
                && remove(&mut smaller.objects[index].object, path).is_some()
                && reproduces(&case, &smaller, signature)
            {
                change = smaller;
                continue;
            }
            tried += 1;
        }
    }
    (case, change, true)
}

/// Removes items that are not needed: halves first, then single items.
pub(crate) fn shrink<T: Clone>(items: &mut Vec<T>, mut reproduces_with: impl FnMut(&[T]) -> bool) {
    let mut chunk = items.len().div_ceil(2);
    while chunk > 0 && !items.is_empty() {
        let mut from = 0;
        while from < items.len() {
            let mut rest = items.clone();
            rest.drain(from..(from + chunk).min(rest.len()));
            if reproduces_with(&rest) {
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
