//! Proxies, and the services they are part of (S08).

mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index};
use sluice_model::{Labels, Locality, Node, ObjectKey, Pod, Proxy, ProxyKey, SidecarScope, Text, View};

use crate::content::content_hash;
use crate::sidecars::{SidecarChoice, SidecarHeads};
use crate::workloads::{pod_locality, with_topology};
use crate::{GraphOptions, Objects};

pub use targets::ServiceTarget;
pub(crate) use targets::{TargetInputs, derive_service_targets};

/// Names the content of a [`Workload`]: proxies with the same name share their inbound side.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct WorkloadName(pub Text);

impl WorkloadName {
    /// The view of this workload's own resources.
    #[must_use]
    pub fn view(&self) -> View {
        View::Workload(self.0.clone())
    }
}

/// What of a proxy its inbound side depends on, its technical profile apart.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Workload {
    /// Namespace whose policies apply.
    pub namespace: Text,
    /// Its labels, as far as a policy that may apply to it selects on them.
    pub labels: Labels,
    /// The services' ports it stands behind.
    pub targets: Vec<ServiceTarget>,
    /// Its Sidecar, if that changes anything inbound.
    pub sidecar: Option<WorkloadSidecar>,
}

/// The Sidecar of a workload.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct WorkloadSidecar {
    /// Which.
    pub scope: SidecarScope,
    /// It says what the workload sees, so which rules it follows itself.
    pub limits: bool,
    /// Addresses of the only replica, where what the Sidecar says depends on them.
    pub addresses: Vec<Text>,
}

impl WorkloadSidecar {
    fn of(proxy: &Proxy) -> Option<Self> {
        let sidecar = proxy.sidecar.as_ref().filter(|sidecar| sidecar.inbound || sidecar.limits)?;
        let addresses = if sidecar.own_address { proxy.ips.clone() } else { Vec::new() };
        Some(Self { scope: sidecar.scope.clone(), limits: sidecar.limits, addresses })
    }
}

impl Workload {
    /// Its name: a hash of everything in it, with the namespace in front for the reader.
    #[must_use]
    pub fn name(&self) -> WorkloadName {
        WorkloadName(format!("{}#{}", self.namespace, content_hash(self)).into())
    }
}

/// Labels that selectors mention, with their values: those that no selector mentions do not tell proxies apart.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SelectedLabels {
    /// On the inbound side, by namespace; those of the root namespace concern every namespace.
    inbound: BTreeMap<Text, BTreeSet<Label>>,
    /// On the outbound side, by the client's namespace; those under the empty name concern every namespace.
    outbound: BTreeMap<Text, BTreeSet<Label>>,
    root: Text,
}

/// A label: key and value.
type Label = (Text, Text);

impl SelectedLabels {
    fn inbound(&self, proxy: &Proxy) -> Labels {
        project(proxy, [self.inbound.get(&proxy.namespace), self.inbound.get(&self.root)])
    }

    /// The labels of a client that some rule it may see selects on.
    pub(crate) fn outbound(&self, proxy: &Proxy) -> Labels {
        project(proxy, [self.outbound.get(&proxy.namespace), self.outbound.get("")])
    }
}

fn project(proxy: &Proxy, mentioned: [Option<&BTreeSet<Label>>; 2]) -> Labels {
    let labels = proxy.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    labels.filter(|label| mentioned.iter().flatten().any(|mentioned| mentioned.contains(label))).collect()
}

/// The pod of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct ProxyPods {
    pods: Dep<ObjectKey, Pod>,
}

impl ProxyPods {
    fn get(self, cx: &Context, proxy: &Proxy, options: &GraphOptions) -> Option<(ObjectKey, Arc<Pod>)> {
        let cluster = if proxy.cluster.is_empty() { &options.cluster } else { &proxy.cluster };
        let key = ObjectKey::new(cluster.clone(), proxy.namespace.clone(), proxy.name.clone());
        let pod = cx.get(&self.pods, &key)?;
        Some((key, pod))
    }
}

/// Connected proxies as the registry knows them: labels of their pod and locality of its node where there are any, else
/// as they say themselves; and with their Sidecar.
/// Key: `ProxyKey`. From: `connected_proxies`, `pods`, `nodes`, `sidecars`, `mesh_config`.
/// Changes when: a proxy connects, leaves or says something else; labels of its pod or place of its node change; it gets
/// another Sidecar, or one that tells its proxies apart in another way.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_proxies<'s>(
    connected: &Collection<'s, ProxyKey, Proxy>,
    objects: &Objects<'s>,
    sidecars: &SidecarHeads<'s>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, Proxy> {
    let options = options.clone();
    connected.derive("proxies", |deps| {
        let sidecars = SidecarChoice::on(deps, sidecars);
        let pods = ProxyPods { pods: deps.on(&objects.pods) };
        let nodes: Dep<ObjectKey, Node> = deps.on(&objects.nodes);
        move |cx, _, connected| {
            let mut proxy = connected.clone();
            // Addresses that a status tells are for everybody who captures DNS.
            proxy.dns_auto_allocate |= options.allocates_addresses;
            let found = pods.get(cx, connected, &options);
            if let Some((key, pod)) = &found {
                let node = cx.get(&nodes, &ObjectKey::new(key.cluster.clone(), "", pod.node.clone()));
                let locality = pod_locality(&pod.labels, node.as_deref());
                proxy.labels = pod.labels.clone();
                if !locality.is_empty() {
                    proxy.locality = locality;
                }
            } else if let locality = pod_locality(&proxy.labels, None)
                && locality != Locality::default()
            {
                proxy.locality = locality;
            }
            let node = if proxy.node_name.is_empty() { found.map(|(_, pod)| pod.node.clone()) } else { None };
            let node = node.unwrap_or_else(|| proxy.node_name.clone());
            proxy.labels = with_topology(&proxy.labels, &proxy.cluster, &proxy.locality, &node, &proxy.network);
            proxy.virtual_hosts &= options.virtual_hosts;
            proxy.sidecar = sidecars.get(cx, &proxy);
            Some(proxy)
        }
    })
}

/// Labels that selectors mention.
/// Key: none, one record. From: `mesh_config` (its root namespace), `destination_rules`, `virtual_services`,
/// `peer_authentications`, `authorization_policies`, `request_authentications`.
/// Changes when: a selector mentions a label for the first time, or no longer.
/// Size: 1. Rejects: none.
pub(crate) fn derive_selected_labels<'s>(
    objects: &Objects<'s>,
    root_namespace: &Collection<'s, (), Text>,
) -> Collection<'s, (), SelectedLabels> {
    // (inbound, namespace, label): distinct, so that only the first and last selector of a label make a change.
    fn rows<'a>(
        inbound: bool,
        namespace: &Text,
        labels: impl IntoIterator<Item = (&'a Text, &'a Text)>,
    ) -> Vec<((bool, Text, Label), ())> {
        let labels = labels.into_iter().map(|(key, value)| (key.clone(), value.clone()));
        labels.collect::<BTreeSet<Label>>().into_iter().map(|label| ((inbound, namespace.clone(), label), ())).collect()
    }
    let rules = objects.destination_rules.index("selected_labels/destination_rules", |key, rule| {
        rows(false, &key.namespace, rule.workload_selector.iter().flatten())
    });
    let routes = objects.virtual_services.index("selected_labels/virtual_services", |_, service| {
        let http = service.http.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        let tls = service.tls.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        let tcp = service.tcp.iter().flat_map(|route| &route.matches).map(|found| &found.source_labels);
        rows(false, &Text::default(), http.chain(tls).chain(tcp).flatten())
    });
    let peers = objects
        .peer_authentications
        .index("selected_labels/peer_authentications", |key, policy| rows(true, &key.namespace, &policy.selector));
    let authorization =
        objects.authorization_policies.index("selected_labels/authorization_policies", |key, policy| {
            rows(true, &key.namespace, policy.attachment.labels())
        });
    let requests = objects.request_authentications.index("selected_labels/request_authentications", |key, policy| {
        rows(true, &key.namespace, policy.attachment.labels())
    });
    let rules = rules.distinct("selected_labels/of-destination-rules");
    let others = [
        routes.distinct("selected_labels/of-virtual-services"),
        peers.distinct("selected_labels/of-peer-authentications"),
        authorization.distinct("selected_labels/of-authorization-policies"),
        requests.distinct("selected_labels/of-request-authentications"),
    ];
    let all = rules.union("selected_labels/labels", &others);
    root_namespace.derive("selected_labels", |deps| {
        let all = deps.on(&all);
        move |cx, (), root| {
            let mut selected = SelectedLabels { root: root.clone(), ..SelectedLabels::default() };
            for ((inbound, namespace, label), _) in cx.all(&all) {
                let side = if inbound { &mut selected.inbound } else { &mut selected.outbound };
                side.entry(namespace).or_default().insert(label);
            }
            Some(selected)
        }
    })
}

/// What each proxy is a replica of.
/// Key: `ProxyKey`. From: `proxies`, `service_targets`, `selected_labels`.
/// Changes when: the services of the proxy do, or a label of it that is selected on.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_proxy_workloads<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    targets: &Collection<'s, ProxyKey, Vec<ServiceTarget>>,
    labels: &Collection<'s, (), SelectedLabels>,
) -> Collection<'s, ProxyKey, Workload> {
    proxies.derive("proxy_workloads", |deps| {
        let (targets, labels) = (deps.on(targets), deps.on(labels));
        move |cx, key, proxy| {
            let targets = cx.get(&targets, key).map(|targets| (*targets).clone()).unwrap_or_default();
            let labels = cx.get(&labels, &()).map(|labels| labels.inbound(proxy)).unwrap_or_default();
            Some(Workload { namespace: proxy.namespace.clone(), labels, targets, sidecar: WorkloadSidecar::of(proxy) })
        }
    })
}

/// Names of the workloads of proxies.
/// Key: `ProxyKey`. From: `proxy_workloads`. Changes when: they do. Size: connected proxies. Rejects: none.
pub(crate) fn derive_workload_names<'s>(
    workloads: &Collection<'s, ProxyKey, Workload>,
) -> Collection<'s, ProxyKey, WorkloadName> {
    workloads.map("workload_names", |_, workload| workload.name())
}

/// Distinct workloads of connected proxies.
/// Key: `WorkloadName`. From: `proxy_workloads`.
/// Changes when: the first proxy of a workload connects or the last one leaves; never in place.
/// Size: workloads, not replicas. Rejects: none.
pub(crate) fn derive_workloads<'s>(
    workloads: &Collection<'s, ProxyKey, Workload>,
) -> Collection<'s, WorkloadName, Workload> {
    let by_name: Index<'s, WorkloadName, ProxyKey, Workload> =
        workloads.index("workloads/by-name", |_, workload| [(workload.name(), workload.clone())]);
    by_name.group("workloads", |_, replicas| replicas.first().map(|(_, workload)| (*workload).clone()))
}
