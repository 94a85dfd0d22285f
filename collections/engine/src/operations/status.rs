//! `derive_with_status`: outputs, and a status of each object that made them (K03, K14).

use std::sync::Arc;

use serde::Serialize;

use crate::collection::Collection;
use crate::operations::derive::Deps;
use crate::operators::lookup::Context;
use crate::value::{Key, Value};

/// An object, and the status that it should have. It changes when either of them changes, so that a writer of statuses
/// sees each change of the object, also of the status that it has now.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ObjectWithStatus<V, S> {
    /// The object.
    pub object: Arc<V>,
    /// The status that it should have.
    pub status: S,
}

/// A status that an object should have instead of the one that it has.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct StatusChange<S> {
    /// The status that it has.
    pub is: Option<S>,
    /// The status that it should have; `None` if it should have none.
    pub wanted: Option<S>,
}

/// What the closure returned for an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct StatusAndOutputs<V, S, O> {
    object: Arc<V>,
    status: Option<S>,
    outputs: O,
}

/// A collection of statuses by object, and the collection of outputs.
pub type StatusAndOutput<'s, K, V, S, K2, V2> = (Collection<'s, K, ObjectWithStatus<V, S>>, Collection<'s, K2, V2>);

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// As [`Self::derive`], with a status of each object besides its output. An object without a status is not in the
    /// first collection, and an object without an output not in the second. They are named `NAME/status` and `NAME`. If
    /// the closure discards its result, the object keeps its last status, too.
    pub fn derive_with_status<S: Value, V2: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> StatusAndOutput<'s, K, V, S, K, V2>
    where
        F: Fn(&Context, &K, &V) -> (Option<S>, Option<V2>) + 'static,
    {
        let both = self.with_both(name, setup);
        let outputs = both.filter_map(name, |_, both| both.outputs.clone());
        (statuses(name, &both), outputs)
    }

    /// As [`Self::derive_many`], with a status of each object besides its outputs, as in [`Self::derive_with_status`].
    pub fn derive_many_with_status<S: Value, K2: Key, V2: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> StatusAndOutput<'s, K, V, S, K2, V2>
    where
        F: Fn(&Context, &K, &V) -> (Option<S>, Vec<(K2, V2)>) + 'static,
    {
        let both = self.with_both(name, setup);
        let outputs = both.flat_map(name, |_, both| both.outputs.clone());
        (statuses(name, &both), outputs)
    }

    /// The statuses to write: those of the objects of this collection that differ from what `statuses` has. An object whose
    /// status is as it should be is not in it, nor is a deleted one.
    ///
    /// `is` returns the status that an object has now, and must return `None` for a status that another controller wrote:
    /// it is removed from objects that are not in `statuses`.
    pub fn status_changes<S: Value>(
        &self,
        name: &str,
        statuses: &Collection<'s, K, ObjectWithStatus<V, S>>,
        is: impl Fn(&K, &V) -> Option<S> + 'static,
    ) -> Collection<'s, K, StatusChange<S>> {
        self.derive(name, |deps| {
            let statuses = deps.on(statuses);
            move |cx, key, object| {
                let wanted = cx.get(&statuses, key).map(|it| it.status.clone());
                let is = is(key, object);
                (is != wanted).then_some(StatusChange { is, wanted })
            }
        })
    }

    fn with_both<S: Value, O: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> Collection<'s, K, StatusAndOutputs<V, S, O>>
    where
        F: Fn(&Context, &K, &V) -> (Option<S>, O) + 'static,
    {
        self.derive_shared(&format!("{name}/with-status"), |deps| {
            let f = setup(deps);
            move |cx: &Context, key: &K, object: &Arc<V>| {
                let (status, outputs) = f(cx, key, object);
                Some(StatusAndOutputs { object: object.clone(), status, outputs })
            }
        })
    }
}

fn statuses<'s, K: Key, V: Value, S: Value, O: Value>(
    name: &str,
    both: &Collection<'s, K, StatusAndOutputs<V, S, O>>,
) -> Collection<'s, K, ObjectWithStatus<V, S>> {
    both.filter_map(&format!("{name}/status"), |_, both| {
        let status = both.status.clone()?;
        Some(ObjectWithStatus { object: both.object.clone(), status })
    })
}
