//! `/debug/sidecarz` (O08): what a proxy can reach, in istiod's form.
//!
//! The services and DestinationRules are those of the proxy's Sidecar, or of its namespace without one, whether or not the proxy
//! was sent them. Beyond istiod's form, `egressListeners` has the listeners as they are declared, with the VirtualServices that
//! apply to each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use sluice_auth::Viewer;
use sluice_graph::{CandidateRule, Inputs, RulesByHost, SidecarImports, destination_hosts, reached_service};
use sluice_model::{
    DestinationRule, Host, Kind, MeshConfig, ObjectKey, OutboundPolicy, Proxy, ProxyKey, Service, Sidecar, Text,
    VirtualService,
};

use crate::AdminState;
use crate::answer::{self, Parameters};
use crate::services::{in_registry_order, service_json};

/// The name of the scope of proxies without a Sidecar.
const DEFAULT_SCOPE: &str = "default-sidecar";

/// The page.
pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    Extension(viewer): Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(proxy) = parameters.get("proxyID").filter(|proxy| !proxy.is_empty()) else {
        return answer::missing_proxy_id();
    };
    let Some(key) = state.status.find(proxy, &viewer) else { return answer::not_connected() };
    answer::stream_json(ScopePage { state, key }, &parameters)
}

/// The page of a proxy. It is read when it is written, on a blocking thread.
struct ScopePage {
    state: Arc<AdminState>,
    key: ProxyKey,
}

impl Serialize for ScopePage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ScopeReader::new(&self.state, &self.key).read().serialize(serializer)
    }
}

/// A scope, in istiod's form.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScopeRow {
    destination_rules: BTreeMap<String, Vec<RuleRow>>,
    egress_listener_services: Vec<Services>,
    egress_listeners: Vec<ListenerRow>,
    name: Text,
    namespace: Text,
    outbound_traffic_policy: Value,
    services: Services,
    services_by_hostname: ServicesByHost,
    sidecar: Value,
    version: String,
}

/// Services, converted one at a time.
struct Services(Vec<Arc<Service>>);

impl Serialize for Services {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|service| service_json(service)))
    }
}

/// The service that is reached at each host, converted one at a time.
struct ServicesByHost(Vec<Arc<Service>>);

impl Serialize for ServicesByHost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|service| (service.host.to_string(), service_json(service))))
    }
}

/// An egress listener: as it is declared, and the VirtualServices that apply to it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListenerRow {
    listener: Value,
    virtual_services: Vec<RouteRow>,
}

#[derive(Serialize)]
struct RouteRow {
    name: Text,
    namespace: Text,
    hosts: Vec<Host>,
}

/// DestinationRules of one host for the same clients, merged.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleRow {
    export_to: BTreeMap<Text, Value>,
    from: Vec<NamePair>,
    rule: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NamePair {
    name: Text,
    namespace: Text,
}

/// Reads a scope, at one epoch of the services.
struct ScopeReader<'a> {
    state: &'a AdminState,
    proxy: Arc<Proxy>,
    mesh: Arc<MeshConfig>,
    epoch: u64,
    services: BTreeMap<Host, Vec<Arc<Service>>>,
    /// VirtualServices of sidecars, with their delegates and with resolved visibility.
    routes: Vec<Arc<VirtualService>>,
}

impl<'a> ScopeReader<'a> {
    fn new(state: &'a AdminState, key: &ProxyKey) -> Self {
        let snapshot = state.engine.snapshot();
        let handles = &state.handles;
        let mut services: BTreeMap<Host, Vec<Arc<Service>>> = BTreeMap::new();
        for (key, _) in snapshot.iter(&handles.services) {
            services.entry(key.host.clone()).or_default().extend(snapshot.get(&handles.services, key));
        }
        let merged = state.engine.dump("virtual_services/merged");
        let merged = merged.iter().flat_map(|dump| dump.typed::<ObjectKey, VirtualService>());
        Self {
            state,
            proxy: snapshot.get(&handles.proxies, key).unwrap_or_default(),
            mesh: snapshot.get(&handles.mesh, &()).unwrap_or_default(),
            epoch: snapshot.epoch().0,
            services,
            routes: merged.filter(|(_, route)| route.is_mesh()).map(|(_, route)| Arc::new(route.clone())).collect(),
        }
    }

    fn read(&self) -> ScopeRow {
        let sidecar = self.sidecar();
        let spec = self.proxy.sidecar.as_ref().map_or(Value::Null, |chosen| {
            let object = self.original(Kind::Sidecar, &chosen.scope.sidecar);
            object.map_or(Value::Null, |mut object| object["spec"].take())
        });
        let imports = sidecar.as_ref().map(|(_, imports)| imports);
        let (services, listeners) = match imports {
            None => (self.exported(), vec![self.exported()]),
            Some(imports) => {
                let listeners = sidecar.as_ref().map_or(0, |(sidecar, _)| sidecar.egress.len());
                (self.reached(imports), (0..listeners).map(|at| self.listed(imports, at)).collect())
            }
        };
        let by_host = match imports {
            None => self.services.values().filter_map(|of_host| self.reached_by_namespace(of_host)).collect(),
            Some(_) => services.clone(),
        };
        let declared = match spec["egress"].as_array() {
            Some(declared) if imports.is_some() => declared.clone(),
            _ => vec![json!({"hosts": ["*/*"]})],
        };
        let rows = declared.into_iter().enumerate();
        let egress_listeners = rows
            .map(|(at, listener)| ListenerRow { listener, virtual_services: self.listener_routes(imports, at) })
            .collect();
        ScopeRow {
            destination_rules: self.rules(&by_host),
            egress_listener_services: listeners.into_iter().map(Services).collect(),
            egress_listeners,
            name: self.proxy.sidecar.as_ref().map_or_else(|| DEFAULT_SCOPE.into(), |it| it.scope.sidecar.name.clone()),
            namespace: self.proxy.namespace.clone(),
            outbound_traffic_policy: self.outbound_policy(&spec),
            services: Services(services),
            services_by_hostname: ServicesByHost(by_host),
            sidecar: spec,
            version: self.epoch.to_string(),
        }
    }

    /// The Sidecar, if it limits what the proxy reaches.
    fn sidecar(&self) -> Option<(Sidecar, SidecarImports)> {
        let chosen = self.proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits)?;
        let dump = self.state.engine.dump(Inputs::collection(Kind::Sidecar)?)?;
        let (_, sidecar) = dump.typed::<ObjectKey, Sidecar>().find(|(key, _)| **key == chosen.scope.sidecar)?;
        Some((sidecar.clone(), SidecarImports::new(chosen.scope.clone(), sidecar)))
    }

    fn original(&self, kind: Kind, key: &ObjectKey) -> Option<Value> {
        serde_json::from_str(&self.state.originals.get(kind, key)?).ok()
    }

    fn outbound_policy(&self, spec: &Value) -> Value {
        let own = &spec["outboundTrafficPolicy"];
        let mode = match self.mesh.outbound_policy {
            OutboundPolicy::RegistryOnly => "REGISTRY_ONLY",
            OutboundPolicy::AllowAny => "ALLOW_ANY",
            OutboundPolicy::AllowAnyDynamicDns => "ALLOW_ANY_DYNAMIC_DNS",
        };
        if own.is_null() { json!({"mode": mode}) } else { own.clone() }
    }

    /// All services that are exported to the proxy's namespace.
    fn exported(&self) -> Vec<Arc<Service>> {
        let all = self.services.values().flatten();
        in_registry_order(all.filter(|service| service.export_to.allows(&self.proxy.namespace)).cloned().collect())
    }

    fn reached_by_namespace(&self, of_host: &[Arc<Service>]) -> Option<Arc<Service>> {
        reached_service(of_host.to_vec(), &self.proxy.namespace)
    }

    /// The services that a listener of the Sidecar lists.
    fn listed(&self, imports: &SidecarImports, listener: usize) -> Vec<Arc<Service>> {
        let found = self.services.values().filter_map(|of_host| imports.listed_service(listener, of_host));
        in_registry_order(found.collect())
    }

    /// The services that the proxies of the Sidecar reach: those that listeners list, and destinations of VirtualServices.
    fn reached(&self, imports: &SidecarImports) -> Vec<Arc<Service>> {
        let mut routes: BTreeMap<&Host, Vec<Arc<VirtualService>>> = BTreeMap::new();
        for route in self.routes.iter().filter(|route| imports.imports_route(route)) {
            for host in destination_hosts(route) {
                routes.entry(host).or_default().push(route.clone());
            }
        }
        let best = self.state.graph.reaches_best_service;
        let found = self.services.iter().filter_map(|(host, of_host)| {
            let to_host = routes.get(host).map(Vec::as_slice).unwrap_or_default();
            imports.reached_service(host, of_host, to_host, best)
        });
        in_registry_order(found.collect())
    }

    /// The VirtualServices that apply to a listener.
    fn listener_routes(&self, imports: Option<&SidecarImports>, listener: usize) -> Vec<RouteRow> {
        let applies = |route: &VirtualService| match imports {
            Some(imports) => imports.listener_imports_route(listener, route),
            None => route.export_to.as_ref().is_none_or(|export_to| export_to.allows(&self.proxy.namespace)),
        };
        let row = |route: &Arc<VirtualService>| RouteRow {
            name: route.name.clone(),
            namespace: route.namespace.clone(),
            hosts: route.hosts.clone(),
        };
        self.routes.iter().filter(|route| applies(route)).map(row).collect()
    }

    /// The DestinationRules of each service.
    fn rules(&self, services: &[Arc<Service>]) -> BTreeMap<String, Vec<RuleRow>> {
        let mut by_host = RulesByHost::default();
        let dump = self.state.engine.dump("destination_rules/all");
        for (_, rule) in dump.iter().flat_map(|dump| dump.typed::<ObjectKey, DestinationRule>()) {
            by_host.add(Arc::new(rule.clone()));
        }
        let of_service = |service: &Arc<Service>| {
            let candidates = by_host.candidates(&self.mesh, service, &self.proxy.namespace);
            let rows: Vec<RuleRow> = candidates.iter().map(|candidate| self.rule(candidate)).collect();
            (!rows.is_empty()).then(|| (service.host.to_string(), rows))
        };
        services.iter().filter_map(of_service).collect()
    }

    fn rule(&self, candidate: &CandidateRule) -> RuleRow {
        let cluster = &self.state.options.cluster;
        let objects = candidate.from.iter().filter_map(|(namespace, name)| {
            let key = ObjectKey::new(cluster.clone(), namespace.clone(), name.clone());
            self.original(Kind::DestinationRule, &key)
        });
        let name = |(namespace, name): &(Text, Text)| NamePair { name: name.clone(), namespace: namespace.clone() };
        RuleRow {
            export_to: candidate.export_to.iter().map(|word| (word.clone(), json!({}))).collect(),
            from: candidate.from.iter().map(name).collect(),
            // Rules that are derived of policies of the Gateway API have no object of their own.
            rule: merged_object(objects, &self.state.graph.domain).unwrap_or(Value::Null),
        }
    }
}

/// The oldest object in istiod's form, with the subsets and the policy that younger ones add.
fn merged_object(mut objects: impl Iterator<Item = Value>, domain: &str) -> Option<Value> {
    let mut oldest = objects.next()?;
    let mut spec = oldest["spec"].take();
    for younger in objects {
        let younger = &younger["spec"];
        let known: BTreeSet<String> = subset_names(&spec).collect();
        let added = younger["subsets"].as_array().into_iter().flatten();
        let added: Vec<Value> =
            added.filter(|subset| !subset["name"].as_str().is_some_and(|name| known.contains(name))).cloned().collect();
        if !added.is_empty() {
            match &mut spec["subsets"] {
                Value::Array(subsets) => subsets.extend(added),
                none => *none = added.into(),
            }
        }
        if spec["trafficPolicy"].is_null() && !younger["trafficPolicy"].is_null() {
            spec["trafficPolicy"] = younger["trafficPolicy"].clone();
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let (group, version) = oldest["apiVersion"].as_str().and_then(|text| text.split_once('/')).unwrap_or_default();
    let mut row = json!({
        "Extra": null, "Spec": spec, "Status": {}, "domain": domain,
        "type": {"group": group, "kind": oldest["kind"], "version": version},
    });
    for field in
        ["annotations", "creationTimestamp", "generation", "labels", "name", "namespace", "resourceVersion", "uid"]
    {
        let value = &oldest["metadata"][field];
        if !value.is_null() {
            row[field] = value.clone();
        }
    }
    Some(row)
}

fn subset_names(spec: &Value) -> impl Iterator<Item = String> {
    let subsets = spec["subsets"].as_array().into_iter().flatten();
    subsets.filter_map(|subset| subset["name"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn younger_rules_add_subsets_and_a_missing_policy() {
        let object = |name: &str, spec: Value| {
            json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
                "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
        };
        let subset = |name: &str, version: u8| json!({"name": name, "labels": {"version": version.to_string()}});
        let objects = [
            object("old", json!({"host": "web", "subsets": [subset("a", 1)]})),
            object(
                "new",
                json!({"host": "web", "subsets": [subset("a", 2), subset("b", 2)], "trafficPolicy": {"tls": {}}}),
            ),
        ];
        let row = merged_object(objects.into_iter(), "cluster.local").expect("an object");
        let spec = json!({"host": "web", "subsets": [subset("a", 1), subset("b", 2)], "trafficPolicy": {"tls": {}}});
        assert_eq!((&row["name"], &row["Spec"]), (&json!("old"), &spec));
        assert_eq!(row["type"], json!({"group": "networking.istio.io", "kind": "DestinationRule", "version": "v1"}));
        assert_eq!(merged_object([].into_iter(), "cluster.local"), None);
    }
}
