//! Unions and counts: operators that keep the rows of a key themselves.
//!
//! Nobody else wants those rows by key, so an arrangement of them, another of the results and the operators in between
//! would only cost memory and time.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::flow::{Core, NodeId};
use crate::network::EpochLogic;
use crate::rows::Rows;
use crate::spines::size_change;
use crate::store::{StoreRef, apply, by_key};
use crate::value::Dyn;
use crate::why::Provenance;

/// Makes the value of a key from those of several parents, in their order.
pub(crate) type Pick = Box<dyn Fn(&Dyn, &[&Dyn]) -> Option<Dyn>>;

/// What the parents have under a key: which parent, its value, how often. Most keys have one.
type Placed = SmallVec<[(u32, Dyn, isize); 1]>;

/// The keys any of the parents has.
pub(crate) fn merged((name, kind): (&str, &'static str), parents: &[&Rc<Core>], pick: Pick) -> Rc<Core> {
    let flow = &parents[0].flow;
    let ids: Vec<NodeId> = parents.iter().map(|parent| parent.id).collect();
    let (id, gauge) = flow.node(name, kind, ids, Provenance::SameKey);
    let store = StoreRef::default();
    let mut kept: Rows<Placed> = Rows::default();
    let (made, meter, mut counted) = (store.clone(), gauge.clone(), 0);
    let logic: EpochLogic = Box::new(move |time, deltas, out| {
        let mut dirty: Vec<Dyn> = Vec::new();
        for (place, changes) in (0..).zip(deltas.iter_mut()) {
            for ((key, value), _, diff) in changes.drain(..) {
                claim(&mut kept, &key, (place, value, diff));
                dirty.push(key);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        let rows = &mut made.borrow_mut().rows;
        meter.timed(dirty.len(), || {
            for key in &dirty {
                let values = kept.get(key).map(first_of_each).unwrap_or_default();
                let value = if values.is_empty() { Some(None) } else { meter.contain(key, || pick(key, &values)) };
                if let Some(value) = value {
                    apply(rows, key, value, time, out);
                }
            }
        });
        meter.count_stored(&mut counted, rows.len() + kept.len());
        meter.made(size_change(out), out.len());
    });
    let stream = flow.operator(parents.iter().map(|parent| parent.stream()).collect(), logic);
    flow.core_with_store(id, gauge, stream, store)
}

/// A value for each key of the parent, an index, made of the number of its rows.
pub(crate) fn tallied(
    (name, kind): (&str, &'static str),
    parent: &Rc<Core>,
    value: impl Fn(isize) -> Dyn + 'static,
) -> Rc<Core> {
    let flow = &parent.flow;
    let (id, gauge) = flow.node(name, kind, vec![parent.id], Provenance::Grouped);
    let store = StoreRef::default();
    let mut counts: Rows<isize> = Rows::default();
    let (made, meter, mut counted) = (store.clone(), gauge.clone(), 0);
    let logic: EpochLogic = Box::new(move |time, deltas, out| {
        let rows = &mut made.borrow_mut().rows;
        meter.took_in(deltas[0].len());
        for changes in by_key(&deltas[0]) {
            let key = &changes[0].0.0;
            let count = counts.get(key).copied().unwrap_or(0) + size_change(changes);
            match count {
                0 => counts.remove(key),
                _ => counts.insert(key.clone(), count),
            };
            apply(rows, key, (count > 0).then(|| value(count)), time, out);
        }
        meter.count_stored(&mut counted, rows.len() + counts.len());
        meter.made(size_change(out), out.len());
    });
    let stream = flow.operator(vec![parent.stream()], logic);
    flow.core_with_store(id, gauge, stream, store)
}

/// Takes a change into what a key has.
fn claim(kept: &mut Rows<Placed>, key: &Dyn, (place, value, diff): (u32, Dyn, isize)) {
    let Some(claims) = kept.get_mut(key) else {
        kept.insert(key.clone(), SmallVec::from_buf([(place, value, diff)]));
        return;
    };
    match claims.iter_mut().find(|(at, known, _)| *at == place && *known == value) {
        Some((.., count)) => *count += diff,
        None => claims.push((place, value, diff)),
    }
    claims.retain(|(.., count)| *count != 0);
    if claims.is_empty() {
        kept.remove(key);
    }
}

/// One value of each parent that has any, in their order: the smallest by content, should it have a conflict.
fn first_of_each(claims: &Placed) -> Vec<&Dyn> {
    let mut placed: Vec<(u32, &Dyn)> =
        claims.iter().filter(|(.., count)| *count > 0).map(|(place, value, _)| (*place, value)).collect();
    placed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.by_content(b.1)));
    placed.dedup_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, value)| value).collect()
}
