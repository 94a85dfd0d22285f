//! Facts about all endpoints of a service, whether they are in one list or in chunks.

use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, Value};
use sluice_model::{Endpoint, ServiceKey};

use super::{EndpointChunkKey, EndpointFacts};

/// The endpoints of all services.
#[derive(Clone)]
pub(crate) struct ServiceEndpoints<'s> {
    /// Endpoints of each service that is not large, sorted.
    pub(crate) listed: Collection<'s, ServiceKey, Vec<Endpoint>>,
    /// Large services.
    pub(crate) large: Collection<'s, ServiceKey, EndpointFacts>,
    /// Their endpoints in chunks, each sorted.
    pub(crate) chunks: Collection<'s, EndpointChunkKey, Arc<[Endpoint]>>,
    /// The chunks of each large service.
    pub(crate) chunks_by_service: Index<'s, ServiceKey, EndpointChunkKey, ()>,
}

impl<'s> ServiceEndpoints<'s> {
    pub(crate) fn new(
        listed: Collection<'s, ServiceKey, Vec<Endpoint>>,
        large: Collection<'s, ServiceKey, EndpointFacts>,
        chunks: Collection<'s, EndpointChunkKey, Arc<[Endpoint]>>,
    ) -> Self {
        let chunks_by_service =
            chunks.index("endpoint_chunks/by-service", |(group, _), _| [(group.service.clone(), ())]);
        Self { listed, large, chunks, chunks_by_service }
    }
}

/// A fact about all endpoints of each service.
pub(crate) struct FactsOfEndpoints<'s, V> {
    listed: Collection<'s, ServiceKey, V>,
    large: Collection<'s, ServiceKey, V>,
}

/// Looks up a fact, inside a `derive`.
pub(crate) struct FactLookup<V> {
    listed: Dep<ServiceKey, V>,
    large: Dep<ServiceKey, V>,
}

impl<V> Clone for FactLookup<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for FactLookup<V> {}

impl<'s> ServiceEndpoints<'s> {
    /// Derives a fact: `of` some endpoints, to which `add` adds that of further endpoints; `finish` makes it of the sum.
    /// To add the same fact again must have no effect.
    /// Key: `ServiceKey`. From: `endpoints`, `endpoint_chunks`.
    /// Changes when: the fact does. Of a large service, only the chunk that changes is read, and the distinct facts of its
    /// chunks if these change.
    /// Size: services with endpoints. Rejects: none.
    pub(crate) fn facts<Sum: Value, V: Value>(
        &self,
        name: &str,
        of: impl Fn(&[Endpoint]) -> Sum + Copy + 'static,
        add: fn(&mut Sum, &Sum),
        finish: fn(Sum) -> Option<V>,
    ) -> FactsOfEndpoints<'s, V> {
        let of_chunks = self.chunks.index(&format!("{name}/of-chunks"), move |(group, _), endpoints| {
            [((group.service.clone(), of(endpoints)), ())]
        });
        // Most chunks of a service have the same fact.
        let distinct = of_chunks.distinct(&format!("{name}/distinct"));
        let by_service =
            distinct.index(&format!("{name}/by-service"), |(service, fact), ()| [(service.clone(), fact.clone())]);
        let large = by_service.group(&format!("{name}/large"), move |_, facts| {
            let mut facts = facts.iter().map(|(_, fact)| *fact);
            let mut sum = facts.next()?.clone();
            facts.for_each(|fact| add(&mut sum, fact));
            finish(sum)
        });
        FactsOfEndpoints { listed: self.listed.filter_map(name, move |_, endpoints| finish(of(endpoints))), large }
    }
}

impl<'s, V: Value> FactsOfEndpoints<'s, V> {
    /// Declares the look-up.
    pub(crate) fn on(&self, deps: &mut Deps<'s>) -> FactLookup<V> {
        FactLookup { listed: deps.on(&self.listed), large: deps.on(&self.large) }
    }
}

impl<V: Value> FactLookup<V> {
    /// The fact about the endpoints of a service.
    pub(crate) fn get(&self, cx: &Context, service: &ServiceKey) -> Option<Arc<V>> {
        cx.get(&self.listed, service).or_else(|| cx.get(&self.large, service))
    }
}
