//! Tests of the whole graph: objects as YAML go in, and the exact changed keys are compared.

mod agentgateway;
mod ambient;
mod attached;
mod cases;
mod changes;
mod credentials;
mod deployments;
mod destinations;
mod envoy_filters;
mod fail_closed;
mod gateway_api;
mod gateways;
mod grpc;
mod inference_pools;
mod ingress_waypoints;
mod large;
mod locality_endpoints;
mod multi_cluster;
mod names;
mod networks;
mod on_demand_clusters;
mod policies;
mod registry;
mod routes;
mod secrets;
mod self_discovery;
mod sidecars;
mod statuses;
mod switches;
mod trust_bundle;
mod udp_routes;
mod virtual_hosts;
mod waypoints;
mod work;
mod written;

use sluice_engine::{Engine, EngineOptions, Feed, Key, Origin, Published, Value};
use sluice_model::{Kind, ObjectKey, Proxy, ProxyKey};
use sluice_parse::{parse_object, yaml};

use crate::{GraphOptions, Handles, build};

/// A running graph whose inputs are written as YAML.
struct TestGraph {
    engine: Engine,
    handles: Handles,
    feed: Feed,
}

impl TestGraph {
    /// A synced graph with the objects of the YAML.
    fn new(text: &str) -> Self {
        Self::with(GraphOptions::default(), text)
    }

    /// As [`Self::new`], with these options.
    fn with(options: GraphOptions, text: &str) -> Self {
        let (engine, handles) = Engine::start(EngineOptions::default(), move |b| build(b, &options));
        let mut feed = engine.feed();
        let mut mesh = {
            feed.try_next();
            Self { engine, handles, feed }
        };
        mesh.apply(text);
        mesh.engine.transaction(|tx| mesh.handles.inputs.mark_all_synced(tx));
        mesh.feed.try_next();
        mesh
    }

    /// Writes all objects of the YAML in one epoch. They must be valid.
    fn apply(&self, text: &str) {
        self.write(text, false);
    }

    /// Writes all objects of the YAML in one epoch. `wrong`: whether they have rejects.
    fn write(&self, text: &str, wrong: bool) {
        self.write_in("Kubernetes", text, wrong);
    }

    /// As [`Self::write`], in a cluster.
    fn write_in(&self, cluster: &str, text: &str, wrong: bool) {
        let documents = yaml::parse_documents(text, &yaml::Limits::default());
        self.engine.transaction(|tx| {
            for document in documents {
                let object = document.expect("yaml").value;
                let parsed = parse_object(&cluster.into(), "cluster.local", &object).expect("known kind");
                assert_eq!(!parsed.rejects.is_empty(), wrong, "{object} {:?}", parsed.rejects);
                self.handles.inputs.apply(tx, parsed, Origin::default());
            }
        });
    }

    fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        let key = ObjectKey::new("Kubernetes", namespace, name);
        self.engine.transaction(|tx| self.handles.inputs.delete(tx, kind, key, Origin::default()));
    }

    fn connect(&self, proxy: Proxy) -> ProxyKey {
        let key = ProxyKey(proxy.id.clone());
        self.engine.transaction(|tx| tx.set(&self.handles.inputs.proxies, key.clone(), proxy));
        key
    }

    fn get<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<V> {
        self.engine.snapshot().get(of, key).map(|value| (*value).clone())
    }

    /// The changes of all published collections since the last call, as `collection key` lines.
    fn changed(&mut self) -> Vec<String> {
        let Some(batch) = self.feed.try_next() else { return Vec::new() };
        let mut lines = Vec::new();
        macro_rules! collect {
            ($($of:expr => $show:expr),* $(,)?) => {
                $(for event in batch.events($of) {
                    let sign = match (&event.old, &event.new) {
                        (None, _) => '+',
                        (_, None) => '-',
                        _ => '~',
                    };
                    lines.push(format!("{sign}{} {}", $of.name(), $show(&event.key)));
                })*
            };
        }
        for resources in &self.handles.resources {
            collect!(resources => |key: &sluice_model::ResourceKey| {
                let layer = key.layer.to_string();
                format!("{} {}", layer.split('[').next().unwrap_or_default(), key.name)
            });
        }
        for segments in &self.handles.segments {
            collect!(segments => |key: &sluice_model::SegmentKey| {
                let layer = key.layer.to_string();
                format!("{} {} {}", layer.split('[').next().unwrap_or_default(), key.name, key.segment)
            });
        }
        collect!(
            &self.handles.services => |key: &sluice_model::ServiceKey| format!("{}/{}", key.namespace, key.host),
            &self.handles.endpoints => |key: &sluice_model::ServiceKey| format!("{}/{}", key.namespace, key.host),
            &self.handles.scopes => |key: &ProxyKey| key.0.clone(),
            &self.handles.service_targets => |key: &ProxyKey| key.0.clone(),
        );
        lines.sort();
        lines
    }
}

/// A sidecar in `namespace` with these labels.
fn sidecar(namespace: &str, name: &str, ip: &str, labels: &[(&str, &str)]) -> Proxy {
    Proxy {
        id: format!("sidecar~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local").into(),
        ips: vec![ip.into()],
        name: name.into(),
        namespace: namespace.into(),
        cluster: "Kubernetes".into(),
        labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        ..Proxy::default()
    }
}

/// The ready endpoints of a service in the namespace `reef`, as a YAML document.
fn endpoint_slice(service: &str, port_name: &str, port: u16, addresses: &[&str]) -> String {
    let endpoints: Vec<String> =
        addresses.iter().map(|ip| format!("{{addresses: [{ip}], conditions: {{ready: true}}}}")).collect();
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-x, namespace: reef, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: {port_name}, port: {port}}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}
