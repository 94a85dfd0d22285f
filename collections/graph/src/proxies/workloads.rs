//! Workloads of connected proxies: what their inbound sides depend on.

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::proxy_metadata::receives_hbone;
use sluice_model::{Labels, Proxy, ProxyKey, ProxyType, SidecarScope, Text, View};

use super::selected_labels::SelectedLabels;
use super::targets::ServiceTarget;
use crate::content_names::content_hash;

/// A name for the content of a [`Workload`]: proxies with the same name share their inbound listeners and clusters.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadName(pub(crate) Text);

impl WorkloadName {
    /// The view of this workload's own resources.
    #[must_use]
    pub(crate) fn view(&self) -> View {
        View::Workload(self.0.clone())
    }
}

/// The facts of a proxy that its inbound side depends on, apart from its profile.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Workload {
    /// Namespace whose policies apply.
    pub(crate) namespace: Text,
    /// Its labels that selectors of policies mention.
    pub(crate) labels: Labels,
    /// The ports of services that it serves.
    pub(crate) targets: Vec<ServiceTarget>,
    /// Its Sidecar, if that changes the inbound side.
    pub(crate) sidecar: Option<WorkloadSidecar>,
    /// Addresses of the only replica, if it receives HBONE (N25). Such replicas share no listeners.
    pub(crate) hbone_addresses: Vec<Text>,
}

/// The Sidecar of a workload.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadSidecar {
    /// The scope of the Sidecar.
    pub(crate) scope: SidecarScope,
    /// It limits which services the workload reaches, so also which rules the workload follows.
    pub(crate) limits: bool,
    /// Addresses of the only replica, if settings of the Sidecar depend on them.
    pub(crate) addresses: Vec<Text>,
}

impl WorkloadSidecar {
    fn of(proxy: &Proxy) -> Option<Self> {
        let sidecar = proxy.sidecar.as_ref().filter(|sidecar| sidecar.inbound || sidecar.limits)?;
        let addresses = if sidecar.own_address { proxy.ips.clone() } else { Vec::new() };
        Some(Self { scope: sidecar.scope.clone(), limits: sidecar.limits, addresses })
    }
}

impl Workload {
    /// Its name: a hash of its content, prefixed with the namespace for readability.
    #[must_use]
    pub(crate) fn name(&self) -> WorkloadName {
        WorkloadName(format!("{}#{}", self.namespace, content_hash(self)).into())
    }
}

/// The workload of each proxy.
/// Key: `ProxyKey`. From: `proxies`, `service_targets`, `selected_labels`.
/// Changes when: the services of the proxy do, or a label of it that is selected; if it receives HBONE, also its addresses.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_proxy_workloads<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    targets: &Collection<'s, ProxyKey, Vec<ServiceTarget>>,
    labels: &Collection<'s, (), SelectedLabels>,
    receives: bool,
) -> Collection<'s, ProxyKey, Workload> {
    proxies.derive("proxy_workloads", |deps| {
        let (targets, labels) = (deps.on(targets), deps.on(labels));
        move |cx, key, proxy| {
            let targets = cx.get(&targets, key).map(|targets| (*targets).clone()).unwrap_or_default();
            // The labels of a waypoint are those of its router. A policy for its Gateway does not rename it.
            let selected = (proxy.proxy_type != ProxyType::Waypoint).then(|| cx.get(&labels, &())).flatten();
            let labels = selected.map(|labels| labels.inbound(proxy)).unwrap_or_default();
            Some(Workload {
                namespace: proxy.namespace.clone(),
                labels,
                targets,
                sidecar: WorkloadSidecar::of(proxy),
                hbone_addresses: if receives && receives_hbone(proxy) { proxy.ips.clone() } else { Vec::new() },
            })
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
/// Key: `WorkloadName`. From: `proxy_workloads`. A replica costs the same however many there are.
/// Changes when: the first proxy of a workload connects or the last one leaves; never in place.
/// Size: workloads, not replicas. Rejects: none.
pub(crate) fn derive_workloads<'s>(
    workloads: &Collection<'s, ProxyKey, Workload>,
) -> Collection<'s, WorkloadName, Workload> {
    // By content, and not by name: a group would read all replicas of a workload each time one connects.
    let distinct = workloads.index("workloads/by-content", |_, workload| [(workload.clone(), ())]);
    distinct.distinct("workloads/distinct").flat_map("workloads", |workload, ()| [(workload.name(), workload.clone())])
}
