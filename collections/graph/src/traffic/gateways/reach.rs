//! The hosts that routers send to, where routers get only the clusters of those
//! (`PILOT_FILTER_GATEWAY_CLUSTER_CONFIG`).
//!
//! Routers that send to the same hosts in the same view share the view of these clusters, which overlays nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_envoy::listener_settings::collector_services;
use sluice_model::{
    Attachment, Host, JwtKeys, Labels, MESH_GATEWAY, MeshConfig, ObjectKey, Proxy, ProxyKey, ProxyType, Text, View,
    VirtualService,
};

use super::routers::{Router, Routers};
use crate::content_names::content_hash;
use crate::inputs::ObjectCollections;
use crate::options::{GraphOptions, JwksFetch};
use crate::proxies::envoy_filters::Patches;
use crate::proxies::selected_labels::SelectedLabels;
use crate::traffic::virtual_services::destination_hosts;

/// Hosts, each with the namespaces of its services; an empty set is any namespace.
type ReachedHosts = BTreeMap<Host, BTreeSet<Text>>;

/// The facts of a router that its clusters depend on.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct ReachClient {
    router: Router,
    namespace: Text,
    /// Its labels that rules for clients select.
    labels: Labels,
    /// Hosts that EnvoyFilters for it refer to.
    patched: BTreeSet<Text>,
    /// It is a waypoint.
    pub(crate) is_waypoint: bool,
}

impl ReachClient {
    /// A waypoint of this namespace.
    pub(crate) fn waypoint(waypoint: &Router, namespace: &Text) -> Self {
        let (router, labels) = (waypoint.clone(), waypoint.labels.clone());
        Self { router, namespace: namespace.clone(), labels, patched: BTreeSet::new(), is_waypoint: true }
    }

    /// The view of the clusters it gets.
    pub(crate) fn view(&self) -> View {
        View::Workload(format!("reach#{}", content_hash(self)).into())
    }

    /// The view in which services and rules are looked up.
    pub(crate) fn sees_as(&self) -> View {
        let namespace = self.namespace.clone();
        if self.labels.is_empty() {
            View::Namespace(namespace)
        } else {
            View::Selected { namespace, labels: self.labels.clone() }
        }
    }
}

/// The hosts that routers send to.
#[derive(Clone)]
pub(crate) struct Reach<'s> {
    /// The view of the clusters of each router.
    pub(crate) views: Collection<'s, ProxyKey, View>,
    /// The routers that send to a host, and the namespaces of the services that they send to; an empty set is any.
    pub(crate) by_host: Index<'s, Host, (ReachClient, Host), BTreeSet<Text>>,
}

/// Inputs of this derivation.
pub(crate) struct ReachInputs<'a, 's> {
    pub(crate) objects: &'a ObjectCollections<'s>,
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    pub(crate) root_namespace: &'a Collection<'s, (), Text>,
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    pub(crate) routers: &'a Routers<'s>,
    pub(crate) selected: &'a Collection<'s, (), SelectedLabels>,
    pub(crate) patches: &'a Patches<'s>,
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
}

/// Derives the hosts that routers send to.
pub(crate) fn derive_reach<'s>(inputs: &ReachInputs<'_, 's>, options: &GraphOptions) -> Reach<'s> {
    let clients = derive_clients(inputs);
    let reached = derive_reached(inputs, &clients, options);
    let by_host = reached.index("reach/by-host", |(_, host), namespaces| [(host.clone(), namespaces.clone())]);
    Reach { views: clients.map("reach/views", |_, client| client.view()), by_host }
}

/// The facts of routers that their clusters depend on; those of east-west gateways are those of waypoints.
/// Key: `ProxyKey`. From: `routers`, `proxies`, `selected_labels`, `proxy_patches`, `envoy_filters`.
/// Changes when: a router connects or leaves, its labels change, or the hosts in EnvoyFilters for it.
/// Size: connected routers. Rejects: none.
fn derive_clients<'s>(inputs: &ReachInputs<'_, 's>) -> Collection<'s, ProxyKey, ReachClient> {
    let named = inputs.objects.envoy_filters.filter_map("reach/patched", |_, filter| {
        (!filter.referenced_services.is_empty()).then(|| filter.referenced_services.clone())
    });
    inputs.routers.proxies.derive("reach/clients", |deps| {
        let (proxies, selected) = (deps.on(inputs.proxies), deps.on(inputs.selected));
        let (patches, named) = (deps.on(&inputs.patches.of_proxies), deps.on(&named));
        move |cx, key, router| {
            let proxy = cx.get(&proxies, key).filter(|proxy| proxy.proxy_type == ProxyType::Router)?;
            let labels = cx.get(&selected, &()).map(|selected| selected.outbound(&proxy)).unwrap_or_default();
            let patches = cx.get(&patches, key);
            let filters = patches.iter().flat_map(|patches| patches.filters()).collect::<BTreeSet<_>>();
            let patched = filters.into_iter().filter_map(|filter| cx.get(&named, filter));
            let patched = patched.flat_map(|names| (*names).clone()).collect();
            Some(ReachClient {
                router: router.clone(),
                namespace: proxy.namespace.clone(),
                labels,
                patched,
                is_waypoint: false,
            })
        }
    })
}

/// The hosts that routers send to: destinations of the VirtualServices of their Gateways, services of the mesh's
/// extension providers, JWKS servers that proxies fetch from, and hosts in EnvoyFilters.
/// Key: router and host. From: `reach/clients`, `merged_gateways`, `virtual_services`, `mesh_config`,
/// `request_authentications`. Changes when: a destination is added or removed. Size: destinations of distinct routers.
/// Rejects: none.
fn derive_reached<'s>(
    inputs: &ReachInputs<'_, 's>,
    clients: &Collection<'s, ProxyKey, ReachClient>,
    options: &GraphOptions,
) -> Collection<'s, (ReachClient, Host), BTreeSet<Text>> {
    let distinct = clients.index("reach/by-content", |_, client| [(client.clone(), ())]).distinct("reach/distinct");
    let scoped = options.scope_gateways;
    let destinations = inputs.virtual_services.index("reach/destinations", move |_, virtual_service| {
        let gateways = virtual_service.gateways.iter().filter(|gateway| gateway.as_str() != MESH_GATEWAY);
        let row = |gateway: &Text| {
            let namespace = gateway.split_once('/').map_or(&*virtual_service.namespace, |(namespace, _)| namespace);
            let hosts = destination_hosts(virtual_service, if scoped { namespace } else { "" });
            (gateway.clone(), hosts.into_iter().cloned().collect::<BTreeSet<Host>>())
        };
        gateways.map(row).collect::<Vec<_>>()
    });
    let providers = inputs.mesh.map("reach/providers", |(), mesh| provider_services(mesh));
    let servers = index_key_servers("reach/key-servers", inputs.objects, options);
    distinct.derive_many("reach/hosts", |deps| {
        let (merged, providers) = (deps.on(&inputs.routers.merged), deps.on(&providers));
        let root = deps.on(inputs.root_namespace);
        let destinations = deps.by::<Text, ObjectKey, BTreeSet<Host>>(&destinations);
        let servers = deps.by(&servers);
        move |cx, client: &ReachClient, ()| {
            let mut reached = ReachedHosts::new();
            let gateways = cx.get(&merged, &client.router).map(|merged| merged.gateways()).unwrap_or_default();
            let mut hosts: BTreeSet<Host> = BTreeSet::new();
            for gateway in &gateways {
                hosts.extend(cx.by(&destinations, gateway).iter().flat_map(|(_, hosts)| hosts.iter().cloned()));
            }
            let root = cx.get(&root, &()).map(|root| (*root).clone()).unwrap_or_default();
            for namespace in BTreeSet::from([&client.namespace, &root]) {
                let rows = cx.by(&servers, namespace).into_iter();
                let rows = rows.filter(|(key, found)| found.0.is_for(key, &client.namespace, &client.router.labels));
                hosts.extend(rows.flat_map(|(_, found)| found.1.clone()));
            }
            let providers = cx.get(&providers, &()).map(|providers| (*providers).clone()).unwrap_or_default();
            for name in providers.iter().chain(&client.patched) {
                match named_service(name) {
                    (host, Some(namespace)) => drop(reached.entry(host).or_default().insert(namespace)),
                    (host, None) => drop(hosts.insert(host)),
                }
            }
            reached.extend(hosts.into_iter().map(|host| (host, BTreeSet::new())));
            reached.into_iter().map(|(host, namespaces)| ((client.clone(), host), namespaces)).collect()
        }
    })
}

/// The JWKS servers of RequestAuthentications, with their attachment, by namespace.
pub(crate) type KeyServers<'s> = Index<'s, Text, ObjectKey, (Attachment, BTreeSet<Host>)>;

/// The JWKS servers that proxies fetch from.
pub(crate) fn index_key_servers<'s>(
    name: &str,
    objects: &ObjectCollections<'s>,
    options: &GraphOptions,
) -> KeyServers<'s> {
    let fetched = options.jwks_fetch != JwksFetch::ControlPlane;
    objects.request_authentications.index(name, move |_, policy| {
        let server = |keys: &JwtKeys| match keys {
            JwtKeys::Uri { server, .. } => Some(Host::new(&server.service)),
            _ => None,
        };
        let hosts: BTreeSet<Host> = policy.rules.iter().filter_map(|rule| server(&rule.keys)).collect();
        let row = (policy.namespace.clone(), (policy.attachment.clone(), hosts));
        (fetched && !row.1.1.is_empty()).then_some(row)
    })
}

/// The services of the mesh's extension providers: `HOST`, or `NAMESPACE/HOST`.
pub(crate) fn provider_services(mesh: &MeshConfig) -> BTreeSet<Text> {
    let services = mesh.extension_providers.iter().flat_map(|provider| collector_services(&provider.kind));
    services.map(|service| service.service.clone()).collect()
}

/// Host and namespace of `HOST` or `NAMESPACE/HOST`.
pub(crate) fn named_service(name: &str) -> (Host, Option<Text>) {
    match name.split_once('/') {
        Some((namespace, host)) => (Host::new(host), Some(namespace.into())),
        None => (Host::new(name), None),
    }
}
