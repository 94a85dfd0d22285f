//! A running graph, and the checks of its results.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_engine::{Batch, Engine, EngineOptions, Feed, Key, Origin, Published, Snapshot};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_model::{Kind, ObjectKey, ParsedObject, Proxy, ProxyKey, Resource, ResourceType, SlotValues};
use sluice_parse::{parse_object, parse_proxy};
use sluice_proto::envoy::config::core::v3::Node;

use crate::assembled::check_domains;
use crate::decode;
use crate::memory_bound::bounded;
use crate::seeds::{CaseMesh, Seed};
use crate::violation::Violation;

/// Start of the signature of a finding about a validation rule of Envoy.
const ENVOY_REJECTS: &str = "Envoy would reject ";
/// Signature of a finding about the memory that parsing takes.
const PARSING_MEMORY: &str = "memory of parsing";
/// Longest time of one epoch. Debug builds on busy machines are slow; an endless loop takes far longer.
const EPOCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Locations of panics since the last call of [`take_locations`], in order.
static PANIC_LOCATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records panics, which are findings, instead of printing them.
pub(crate) fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
            PANIC_LOCATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(place);
        }));
    });
}

pub(crate) fn take_locations() -> Vec<String> {
    std::mem::take(&mut PANIC_LOCATIONS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The changes of one epoch.
#[derive(Clone, Debug, Default)]
pub struct EpochChange {
    /// Objects written.
    pub objects: Vec<Seed>,
    /// Nodes that connect.
    pub nodes: Vec<Value>,
    /// Objects deleted.
    pub deletes: Vec<Seed>,
}

type ObjectId = (Kind, ObjectKey);

/// The objects of a case in a running graph.
pub struct FuzzedMesh {
    engine: Engine,
    handles: Handles,
    feed: Feed,
    objects: BTreeMap<ObjectId, ParsedObject>,
    proxies: BTreeMap<ProxyKey, Proxy>,
    /// The published state of the unmodified case.
    base: Arc<Snapshot>,
    conflicts: BTreeSet<String>,
    changed: (BTreeSet<ObjectId>, BTreeSet<ProxyKey>),
    /// Rules of Envoy that resources of the unmodified case violate. They are not findings.
    known: BTreeSet<String>,
    /// Whether the last change has no object that admission refuses, no patch and no node, so that every violation is
    /// the control plane's.
    admitted: bool,
    /// Whether the last change has patches, whose additions are sent unchecked.
    patched: bool,
    /// Number of resources and segments that the last change changed.
    pub effect: usize,
}

impl FuzzedMesh {
    /// Starts a graph with a case. Also returns the findings in the unmodified case.
    #[must_use]
    pub fn start(case: &CaseMesh) -> (Self, Vec<Violation>) {
        record_panics();
        take_locations();
        let mut findings = Vec::new();
        let options = GraphOptions::default();
        let (engine, handles) = Engine::start(EngineOptions::default(), move |b| build(b, &options));
        let mut feed = engine.feed();
        feed.try_next();
        let parsed = case.objects.iter().filter_map(|seed| parse(seed, &mut findings));
        let objects: BTreeMap<ObjectId, ParsedObject> = parsed.map(|o| ((o.kind, o.key.clone()), o)).collect();
        let nodes = case.nodes.iter().filter_map(|node| proxy(node, &mut findings));
        let proxies: BTreeMap<ProxyKey, Proxy> = nodes.map(|proxy| (ProxyKey(proxy.id.clone()), proxy)).collect();
        let base = engine.snapshot();
        let mut mesh = Self {
            engine,
            handles,
            feed,
            objects,
            proxies,
            base,
            conflicts: BTreeSet::new(),
            changed: Default::default(),
            known: BTreeSet::new(),
            admitted: true,
            patched: false,
            effect: 0,
        };
        let (objects, proxies) = (mesh.objects.clone(), mesh.proxies.clone());
        mesh.engine.transaction(|tx| {
            for parsed in objects.into_values() {
                mesh.handles.inputs.apply(tx, parsed, Origin::default());
            }
            for (key, proxy) in proxies {
                tx.set(&mesh.handles.inputs.proxies, key, proxy);
            }
            mesh.handles.inputs.mark_all_synced(tx);
        });
        let all = mesh.collect_findings(Instant::now());
        mesh.known =
            all.iter().filter(|f| f.signature.starts_with(ENVOY_REJECTS)).map(|f| f.signature.clone()).collect();
        findings.extend(all.into_iter().filter(|f| !f.signature.starts_with(ENVOY_REJECTS)));
        mesh.base = mesh.engine.snapshot();
        (mesh, findings)
    }

    /// Applies a change and returns the findings.
    pub fn apply(&mut self, change: &EpochChange) -> Vec<Violation> {
        let mut findings = Vec::new();
        take_locations();
        let started = Instant::now();
        let objects: Vec<_> = change.objects.iter().filter_map(|seed| parse(seed, &mut findings)).collect();
        let nodes: Vec<_> = change.nodes.iter().filter_map(|node| proxy(node, &mut findings)).collect();
        let deletes: Vec<_> = change.deletes.iter().filter_map(|seed| parse(seed, &mut findings)).collect();
        if started.elapsed() > EPOCH_TIMEOUT {
            findings.push(Violation::new("slow parse", format!("{:?}", started.elapsed())));
        }
        let is_accepted = |parsed: &ParsedObject| {
            parsed.kind != Kind::EnvoyFilter && !parsed.rejects.iter().any(|reject| reject.severity.is_refusal())
        };
        self.admitted = nodes.is_empty() && objects.iter().all(is_accepted);
        self.patched = objects.iter().any(|parsed| parsed.kind == Kind::EnvoyFilter);
        let started = Instant::now();
        let inputs = &self.handles.inputs;
        self.engine.transaction(|tx| {
            for parsed in deletes {
                self.changed.0.insert((parsed.kind, parsed.key.clone()));
                inputs.delete(tx, parsed.kind, parsed.key, Origin::default());
            }
            for parsed in objects {
                self.changed.0.insert((parsed.kind, parsed.key.clone()));
                inputs.apply(tx, parsed, Origin::default());
            }
            for proxy in nodes {
                let key = ProxyKey(proxy.id.clone());
                self.changed.1.insert(key.clone());
                tx.set(&inputs.proxies, key, proxy);
            }
        });
        findings.extend(self.collect_findings(started));
        findings
    }

    /// Reverts all changes. Returns findings, such as records that are left over.
    pub fn revert(&mut self) -> Vec<Violation> {
        take_locations();
        let started = Instant::now();
        let (ids, keys) = std::mem::take(&mut self.changed);
        let inputs = &self.handles.inputs;
        self.engine.transaction(|tx| {
            for id in ids {
                match self.objects.get(&id) {
                    Some(parsed) => inputs.apply(tx, parsed.clone(), Origin::default()),
                    None => inputs.delete(tx, id.0, id.1, Origin::default()),
                }
            }
            for key in keys {
                match self.proxies.get(&key) {
                    Some(proxy) => tx.set(&inputs.proxies, key, proxy.clone()),
                    None => tx.delete(&inputs.proxies, key),
                }
            }
        });
        let mut findings = self.collect_findings(started);
        let now = self.engine.snapshot();
        if let Some(left) = difference(&self.handles, &self.base, &now) {
            findings.push(Violation::new(format!("left over in {}", left.0), left.1));
        }
        findings
    }

    /// The first difference between the published state and that of `fresh`, which has the same objects.
    #[must_use]
    pub fn differs_from(&self, fresh: &Self) -> Option<Violation> {
        let (collection, key) = difference(&self.handles, &fresh.engine.snapshot(), &self.engine.snapshot())?;
        Some(Violation::new(format!("differs from a fresh graph in {collection}"), key))
    }

    /// The findings in the epochs since the last call.
    fn collect_findings(&mut self, started: Instant) -> Vec<Violation> {
        let mut findings = Vec::new();
        let elapsed = started.elapsed();
        if elapsed > EPOCH_TIMEOUT {
            findings.push(Violation::new("slow epoch", format!("{elapsed:?}")));
        }
        let mut places = take_locations().into_iter();
        for panic in self.engine.panics() {
            let place = places.next().unwrap_or_default();
            let message = format!("{} of {}: {}", panic.collection, panic.key, panic.message);
            findings.push(Violation::new(format!("panic in {} at {place}", panic.collection), message));
        }
        for collection in self.engine.metrics().collections {
            if collection.conflicts > 0 && self.conflicts.insert(collection.name.clone()) {
                let count = format!("{} keys", collection.conflicts);
                findings.push(Violation::new(format!("keys with several values in {}", collection.name), count));
            }
        }
        let batch = self.feed.try_next();
        self.effect = batch.as_ref().map_or(0, |batch| {
            let resources = self.handles.resources.iter().map(|of| batch.events(of).count());
            resources.chain(self.handles.segments.iter().map(|of| batch.events(of).count())).sum()
        });
        if self.effect > 0
            && !self.patched
            && let Err(reason) = check_domains(&self.engine.snapshot(), &self.handles)
        {
            findings.push(Violation::new("a domain twice in a route table", reason));
        }
        if let Some(batch) = batch {
            findings.extend(self.undecodable(&batch));
        }
        findings
    }

    fn undecodable(&self, batch: &Batch) -> Vec<Violation> {
        let now = self.engine.snapshot();
        let mut slots: BTreeSet<&SlotValues> = now.iter(&self.handles.scopes).map(|(_, scope)| &scope.slots).collect();
        let none = SlotValues::new();
        slots.insert(&none);
        let mut findings = Vec::new();
        let mut check = |message: &str, name: &str, resource: &Resource| {
            for slots in &slots {
                match resource.bytes(slots).map(|bytes| decode::check(message, &bytes)) {
                    Some(Err(reason)) => {
                        let signature = format!("bytes that are not a {message}: {reason}");
                        findings.push(Violation::new(signature, format!("{name}: {reason}")));
                    }
                    Some(Ok(rules)) if self.admitted => {
                        let signatures = rules.iter().map(|rule| format!("{ENVOY_REJECTS}{rule}"));
                        let new = signatures.filter(|signature| !self.known.contains(signature));
                        findings.extend(new.map(|signature| Violation::new(signature, name)));
                    }
                    _ => {}
                }
                if matches!(resource, Resource::Encoded(_)) {
                    break;
                }
            }
        };
        for resources in &self.handles.resources {
            for event in batch.events(resources) {
                if let Some(resource) = &event.new {
                    check(message_name(event.key.resource_type), &event.key.name, resource);
                }
            }
        }
        for segments in &self.handles.segments {
            for event in batch.events(segments) {
                let message = match event.key.segment.is_empty() {
                    true => message_name(event.key.resource_type),
                    false => "envoy.config.route.v3.VirtualHost",
                };
                if let Some(segment) = &event.new {
                    check(message, &event.key.segment, segment);
                }
            }
        }
        findings
    }
}

/// The first difference between two published states: the collection and the key.
pub(crate) fn difference(handles: &Handles, left: &Snapshot, right: &Snapshot) -> Option<(String, String)> {
    fn of<K: Key, V: sluice_engine::Value>(
        left: &Snapshot,
        right: &Snapshot,
        of: &Published<K, V>,
    ) -> Option<(String, String)> {
        let (mut a, mut b) = (left.iter(of), right.iter(of));
        loop {
            match (a.next(), b.next()) {
                (None, None) => return None,
                (Some(x), Some(y)) if x == y => {}
                (x, y) => {
                    let key = x.map(|(key, _)| key).or(y.map(|(key, _)| key));
                    return Some((of.name().to_owned(), format!("{key:?}")));
                }
            }
        }
    }
    let resources = handles.resources.iter().find_map(|it| of(left, right, it));
    let segments = || handles.segments.iter().find_map(|it| of(left, right, it));
    resources
        .or_else(segments)
        .or_else(|| of(left, right, &handles.scopes))
        .or_else(|| of(left, right, &handles.services))
        .or_else(|| of(left, right, &handles.endpoints))
        .or_else(|| of(left, right, &handles.endpoint_chunks))
        .or_else(|| of(left, right, &handles.service_targets))
        .or_else(|| of(left, right, &handles.address_updates))
        .or_else(|| of(left, right, &handles.status_updates))
        .or_else(|| of(left, right, &handles.missing_gateway_classes))
        .or_else(|| of(left, right, &handles.gateway_deployments))
        .or_else(|| of(left, right, &handles.gateway_names))
        .or_else(|| of(left, right, &handles.wanted_jwks))
        .or_else(|| of(left, right, &handles.wanted_secret_reviews))
        .or_else(|| of(left, right, &handles.rejects))
}

fn message_name(of: ResourceType) -> &'static str {
    of.type_url().trim_start_matches("type.googleapis.com/")
}

/// Parses an object as a source would. A panic is a finding. An object of an unknown kind is not.
pub(crate) fn parse(seed: &Seed, findings: &mut Vec<Violation>) -> Option<ParsedObject> {
    let object = seed.rendered();
    let parse = || parse_object(&seed.cluster, "cluster.local", &object).ok();
    let parsed = catch_panic(findings, || bounded(object.to_string().len(), parse))?;
    parsed.map_err(|excess| findings.push(Violation::new(PARSING_MEMORY, excess))).ok().flatten()
}

pub(crate) fn proxy(node: &Value, findings: &mut Vec<Violation>) -> Option<Proxy> {
    let read = || {
        let node = sluice_proto::json::decode::<Node>(node).ok()?;
        parse_proxy(&node.message, &BTreeMap::new()).ok()
    };
    let proxy = catch_panic(findings, || bounded(node.to_string().len(), read))?;
    proxy.map_err(|excess| findings.push(Violation::new(PARSING_MEMORY, excess))).ok().flatten()
}

fn catch_panic<T>(findings: &mut Vec<Violation>, work: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(work));
    if let Err(panic) = &result {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let place = take_locations().pop().unwrap_or_default();
        findings.push(Violation::new(format!("panic while parsing at {place}"), message.unwrap_or_default()));
    }
    result.ok()
}
