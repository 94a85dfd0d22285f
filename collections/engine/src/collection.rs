//! Typed handles of collections and indexes. The operations on them are in `operations/`.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

use crate::build::CollectionCore;
use crate::output::{Published, PublishedCollection};
use crate::value::{Key, TypeMarker, Value};

/// A keyed set of values, kept up to date: an input, or derived from others by pure closures. A key has at most one
/// value. Clones are handles to the same collection. Closures must be pure functions of their arguments: they run again
/// for old values, and a result that depends on anything else cannot be retracted.
pub struct Collection<'s, K, V> {
    pub(crate) core: Rc<CollectionCore>,
    types: TypeMarker<(&'s (), K, V)>,
}

impl<K, V> Clone for Collection<'_, K, V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), types: PhantomData }
    }
}

impl<'s, K, V> AsRef<Collection<'s, K, V>> for Collection<'s, K, V> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<K: Key, V: Value> Collection<'_, K, V> {
    pub(crate) fn of(core: Rc<CollectionCore>) -> Self {
        Self { core, types: PhantomData }
    }

    /// Name of the collection, unique in the engine.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Attaches a fact that the graph listing and the dump show, such as the kind of object in the collection.
    #[must_use]
    pub fn with_metadata(self, key: &str, value: &str) -> Self {
        self.core.dataflow.build.nodes.borrow_mut()[self.core.id].metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Makes the collection readable from outside the graph: in snapshots and feeds.
    #[must_use]
    pub fn publish(&self) -> Published<K, V> {
        let core = &self.core;
        let build = &core.dataflow.build;
        let known = build.nodes.borrow()[core.id].published;
        let slot = known.unwrap_or_else(|| {
            let buffer = Rc::new(RefCell::new(Vec::new()));
            let mut published = build.published.borrow_mut();
            published.push(PublishedCollection::new(core.id, buffer.clone()));
            let slot = published.len() - 1;
            build.nodes.borrow_mut()[core.id].published = Some(slot);
            core.dataflow.add_sink(core.stream(), move |updates| buffer.borrow_mut().append(updates));
            slot
        });
        Published::new(slot, core.id, core.name())
    }
}

/// The rows `R` of records with keys `K`, found by index keys `I`. One store serves every `derive` that looks it up.
pub struct Index<'s, I, K, R> {
    pub(crate) core: Rc<CollectionCore>,
    types: TypeMarker<(&'s (), I, K, R)>,
}

impl<I, K, R> Clone for Index<'_, I, K, R> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), types: PhantomData }
    }
}

impl<I: Key, K: Key, R: Value> Index<'_, I, K, R> {
    pub(crate) fn of(core: Rc<CollectionCore>) -> Self {
        Self { core, types: PhantomData }
    }

    /// Name of the index, unique in the engine.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }
}
