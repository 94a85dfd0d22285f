//! A graph with its present inputs, and the comparison with a fresh graph.

use std::collections::{BTreeMap, BTreeSet};

use sluice_engine::{Engine, EngineOptions, Feed, Origin, Snapshot, Transaction};
use sluice_graph::{AddressPools, AmbientOptions, GatewayApiOptions, GraphOptions, Handles, build};
use sluice_model::{Identity, Kind, Object, ObjectKey, ParsedObject, Proxy, ProxyKey, Text, TunnelSwitches};

use super::input_change::InputChange;
use super::replica::Replica;
use crate::mesh::{difference, parse, proxy, record_panics, take_locations};
use crate::rng::FuzzRng;
use crate::violation::Violation;

/// A set of options of the graph.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GraphVariant {
    /// The defaults.
    Default,
    /// Ambient mode, HBONE, and allocated addresses.
    Ambient,
    /// Ambient mode with a remote cluster in a network of its own.
    Networks,
    /// The switches of gateways, VHDS, LEDS, clusters on demand, and both families of addresses.
    Gateways,
}

impl GraphVariant {
    /// All variants, with their names in failures.
    pub(super) const ALL: [(&str, Self); 4] = [
        ("default", Self::Default),
        ("ambient", Self::Ambient),
        ("networks", Self::Networks),
        ("gateways", Self::Gateways),
    ];

    pub(super) fn choose(rng: &mut FuzzRng) -> Self {
        rng.choose(&Self::ALL).map_or(Self::Default, |(_, variant)| *variant)
    }

    fn options(self) -> GraphOptions {
        let options = GraphOptions { reviews_secrets: self == Self::Ambient, ..GraphOptions::default() };
        match self {
            Self::Default => options,
            Self::Ambient => GraphOptions {
                address_pools: Some(AddressPools::default()),
                sends_hbone: true,
                ambient: Some(AmbientOptions::default()),
                ..options
            },
            Self::Networks => GraphOptions {
                sends_hbone: true,
                ambient: Some(AmbientOptions {
                    tunnels: TunnelSwitches { multi_network: true, ingress: true, ..TunnelSwitches::default() },
                    ..AmbientOptions::default()
                }),
                gateway_api: GatewayApiOptions { waypoints: true, east_west: true, ..GatewayApiOptions::default() },
                ..options
            },
            Self::Gateways => GraphOptions {
                dual_stack: true,
                http3: true,
                scope_gateways: true,
                filter_gateway_clusters: true,
                virtual_hosts: true,
                on_demand_clusters: true,
                endpoints_by_locality: true,
                address_pools: Some(AddressPools::default()),
                gateway_api: GatewayApiOptions {
                    experimental: true,
                    inference: true,
                    agentgateway: true,
                    ..GatewayApiOptions::default()
                },
                ..options
            },
        }
    }
}

/// The inputs that a graph has after some changes.
#[derive(Clone, Default)]
struct PresentInputs {
    objects: BTreeMap<(Kind, ObjectKey), ParsedObject>,
    proxies: BTreeMap<ProxyKey, Proxy>,
    secret_clients: BTreeSet<ProxyKey>,
    resolved_names: BTreeMap<Text, Vec<Text>>,
    trust_bundle: Option<Vec<Text>>,
}

/// A write to the inputs of a graph.
enum InputWrite {
    Object(Box<ParsedObject>),
    Proxy(ProxyKey, Box<Proxy>),
    SecretClient(ProxyKey),
    Name(Text, Vec<Text>),
    Trust(Vec<Text>),
}

impl InputWrite {
    fn apply(self, tx: &mut Transaction, handles: &Handles) {
        let inputs = &handles.inputs;
        match self {
            Self::Object(parsed) => inputs.apply(tx, *parsed, Origin::default()),
            Self::Proxy(key, proxy) => tx.set(&inputs.proxies, key, *proxy),
            Self::SecretClient(key) => tx.set(&inputs.secret_clients, key, ()),
            Self::Name(name, addresses) => tx.set(&inputs.resolved_names, name, addresses),
            Self::Trust(roots) => tx.set(&inputs.trust_bundle, (), roots),
        }
    }
}

/// A graph, its present inputs, and the sum of its published changes.
pub(super) struct MeshHistory {
    variant: GraphVariant,
    engine: Engine,
    handles: Handles,
    feed: Feed,
    inputs: PresentInputs,
    replica: Replica,
    has_changed: bool,
}

fn start(variant: GraphVariant) -> (Engine, Handles) {
    let options = variant.options();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |b| build(b, &options));
    engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
    (engine, handles)
}

impl MeshHistory {
    /// A graph without objects.
    pub(super) fn start(variant: GraphVariant) -> Self {
        record_panics();
        take_locations();
        let (engine, handles) = start(variant);
        let mut replica = Replica::default();
        let mut feed = engine.feed();
        if let Some(batch) = feed.try_next() {
            // The state at the start. A violation is found by the first comparison.
            let _ = replica.apply(&batch, &handles);
        }
        Self { variant, engine, handles, feed, inputs: PresentInputs::default(), replica, has_changed: false }
    }

    /// Whether the last epoch changed a published resource.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Applies the changes as one epoch.
    pub(super) fn apply(&mut self, changes: &[InputChange]) -> Result<(), Violation> {
        let mut findings = Vec::new();
        let (handles, inputs) = (&self.handles, &mut self.inputs);
        self.engine.transaction(|tx| {
            for change in changes {
                inputs.change(change, tx, handles, &mut findings);
            }
        });
        if let Some(finding) = findings.into_iter().next() {
            return Err(finding);
        }
        if let Some(panic) = self.engine.panics().first() {
            let place = take_locations().into_iter().next().unwrap_or_default();
            let message = format!("{} of {}: {}", panic.collection, panic.key, panic.message);
            return Err(Violation::new(format!("panic in {} at {place}", panic.collection), message));
        }
        self.has_changed = false;
        if let Some(batch) = self.feed.try_next() {
            self.has_changed = self.replica.apply(&batch, &self.handles)?;
        }
        if changes.contains(&InputChange::Copy) {
            self.continue_with_copy()?;
        }
        Ok(())
    }

    fn continue_with_copy(&mut self) -> Result<(), Violation> {
        let options = self.variant.options();
        let copy = self.engine.start_copy(EngineOptions::default(), move |b| build(b, &options));
        let (engine, handles) = copy.map_err(|error| Violation::new("no copy".to_owned(), error.to_string()))?;
        (self.feed, self.replica) = (engine.feed(), Replica::default());
        (self.engine, self.handles) = (engine, handles);
        if let Some(batch) = self.feed.try_next() {
            self.replica.apply(&batch, &self.handles)?;
        }
        Ok(())
    }

    /// Compares the published state with that of a fresh graph with the same inputs, and with the sum of the changes.
    pub(super) fn compare(&self, rng: &mut FuzzRng) -> Result<(), Violation> {
        let now = self.engine.snapshot();
        self.replica.compare(&now, &self.handles)?;
        if let Some(collection) = self.engine.metrics().collections.into_iter().find(|it| it.conflicts > 0) {
            let signature = format!("keys with several values in {}", collection.name);
            return Err(Violation::new(signature, format!("{} keys", collection.conflicts)));
        }
        let (fresh, handles) = start(self.variant);
        let mut writes = self.inputs.writes();
        rng.shuffle(&mut writes);
        fresh.transaction(|tx| writes.into_iter().for_each(|write| write.apply(tx, &handles)));
        match difference(&self.handles, &fresh.snapshot(), &now) {
            None => Ok(()),
            Some((collection, key)) => {
                let shown = format!("{key}\n{}", self.describe(&collection, &key, &fresh.snapshot(), &now));
                Err(Violation::new(format!("differs from a fresh graph in {collection}"), shown))
            }
        }
    }

    /// Both values of a key, without the bytes of resources.
    fn describe(&self, collection: &str, key: &str, fresh: &Snapshot, now: &Snapshot) -> String {
        let resources = self.handles.resources.iter().filter(|of| of.name() == collection);
        let both = [("fresh", fresh), ("incremental", now)].map(|(name, snapshot)| {
            let mut values: Vec<String> = Vec::new();
            for of in resources.clone() {
                let found = snapshot.iter(of).filter(|(k, _)| format!("Some({k:?})") == key || format!("{k:?}") == key);
                values.extend(found.map(|(_, value)| format!("{value:?}")));
            }
            let scopes = snapshot.iter(&self.handles.scopes).filter(|_| collection == self.handles.scopes.name());
            let scopes = scopes.filter(|(k, _)| format!("Some({k:?})") == key || format!("{k:?}") == key);
            values.extend(scopes.map(|(_, scope)| format!("{scope:?}")));
            format!("{name}: {}", values.join(" "))
        });
        both.join("\n")
    }
}

impl PresentInputs {
    /// Applies a change to the graph, and records it.
    fn change(&mut self, change: &InputChange, tx: &mut Transaction, handles: &Handles, findings: &mut Vec<Violation>) {
        match change {
            InputChange::Set(seed) => {
                let Some(parsed) = parse(seed, findings) else { return };
                InputWrite::Object(Box::new(parsed.clone())).apply(tx, handles);
                self.record(parsed);
            }
            InputChange::Delete(seed) => {
                let Some(parsed) = parse(seed, findings) else { return };
                self.objects.remove(&(parsed.kind, parsed.key.clone()));
                handles.inputs.delete(tx, parsed.kind, parsed.key, Origin::default());
            }
            InputChange::Connect(node, reads_secrets) => {
                let Some(mut proxy) = proxy(node, findings) else { return };
                let (namespace, account) = (proxy.namespace.clone(), proxy.service_account.clone());
                proxy.identity = Some(Identity::new("cluster.local", namespace, account));
                let key = ProxyKey(proxy.id.clone());
                if *reads_secrets {
                    InputWrite::SecretClient(key.clone()).apply(tx, handles);
                    self.secret_clients.insert(key.clone());
                }
                InputWrite::Proxy(key.clone(), Box::new(proxy.clone())).apply(tx, handles);
                self.proxies.insert(key, proxy);
            }
            InputChange::Disconnect(id) => {
                let key = ProxyKey(id.as_str().into());
                tx.delete(&handles.inputs.secret_clients, key.clone());
                tx.delete(&handles.inputs.proxies, key.clone());
                self.secret_clients.remove(&key);
                self.proxies.remove(&key);
            }
            InputChange::Resolve(name, addresses) => {
                let name = Text::from(name.as_str());
                if addresses.is_empty() {
                    tx.delete(&handles.inputs.resolved_names, name.clone());
                    self.resolved_names.remove(&name);
                    return;
                }
                let addresses: Vec<Text> = addresses.iter().map(|address| address.as_str().into()).collect();
                InputWrite::Name(name.clone(), addresses.clone()).apply(tx, handles);
                self.resolved_names.insert(name, addresses);
            }
            InputChange::Trust(roots) => {
                if roots.is_empty() {
                    tx.delete(&handles.inputs.trust_bundle, ());
                    self.trust_bundle = None;
                    return;
                }
                let roots: Vec<Text> = roots.iter().map(|root| root.as_str().into()).collect();
                InputWrite::Trust(roots.clone()).apply(tx, handles);
                self.trust_bundle = Some(roots);
            }
            InputChange::Copy => {}
        }
    }

    /// Records an object. If a ConfigMap of the mesh does not parse, the last valid one stays in effect.
    fn record(&mut self, mut parsed: ParsedObject) {
        let id = (parsed.kind, parsed.key.clone());
        if parsed.kind == Kind::ConfigMap && parsed.object.is_none() && !parsed.rejects.is_empty() {
            let last = self.objects.remove(&id).and_then(|last| last.object);
            parsed.object = last.filter(|last| !matches!(last, Object::Roots(_)));
        }
        self.objects.insert(id, parsed);
    }

    /// The writes that give another graph these inputs.
    fn writes(&self) -> Vec<InputWrite> {
        let objects = self.objects.values().map(|parsed| InputWrite::Object(Box::new(parsed.clone())));
        let proxies = self.proxies.iter().map(|(key, proxy)| InputWrite::Proxy(key.clone(), Box::new(proxy.clone())));
        let clients = self.secret_clients.iter().map(|key| InputWrite::SecretClient(key.clone()));
        let names = self.resolved_names.iter().map(|(name, to)| InputWrite::Name(name.clone(), to.clone()));
        let trust = self.trust_bundle.iter().map(|roots| InputWrite::Trust(roots.clone()));
        objects.chain(proxies).chain(clients).chain(names).chain(trust).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::seeds::Seed;

    #[test]
    fn a_state_that_depends_on_earlier_inputs_is_a_difference() {
        let object = |value| InputChange::Set(Seed { cluster: "Kubernetes".into(), object: value });
        let service = |name: &str| {
            object(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "shop" },
                "spec": { "clusterIP": "10.0.0.1", "ports": [{ "name": "http", "port": 80 }] },
            }))
        };
        let node = json!({ "id": "sidecar~10.1.0.1~web.shop~shop.svc.cluster.local" });
        let mut history = MeshHistory::start(GraphVariant::Default);
        let epochs = [vec![service("cart"), InputChange::Connect(node, false)], vec![service("menu")]];
        for epoch in &epochs {
            history.apply(epoch).expect("no finding");
            assert!(history.has_changed());
        }
        assert_eq!(history.compare(&mut FuzzRng::new(1, 1)), Ok(()));
        // As if the graph had kept a Service that was deleted.
        history.inputs.objects.retain(|(_, key), _| key.name.as_str() != "menu");
        let finding = history.compare(&mut FuzzRng::new(1, 1)).expect_err("a difference");
        assert!(finding.signature.starts_with("differs from a fresh graph in "), "{finding:?}");
        assert!(finding.message.contains("menu.shop"), "{finding:?}");
    }
}
