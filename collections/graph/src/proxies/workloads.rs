//! Workloads of connected proxies: what their inbound sides depend on.

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{Labels, Proxy, ProxyKey, SidecarScope, Text, View};

use super::selected_labels::SelectedLabels;
use super::targets::ServiceTarget;
use crate::content_names::content_hash;

/// Names the content of a [`Workload`]: proxies with the same name share their inbound side.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadName(pub(crate) Text);

impl WorkloadName {
    /// The view of this workload's own resources.
    #[must_use]
    pub(crate) fn view(&self) -> View {
        View::Workload(self.0.clone())
    }
}

/// What of a proxy its inbound side depends on, its technical profile apart.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Workload {
    /// Namespace whose policies apply.
    pub(crate) namespace: Text,
    /// Its labels, as far as a policy that may apply to it selects on them.
    pub(crate) labels: Labels,
    /// The services' ports it stands behind.
    pub(crate) targets: Vec<ServiceTarget>,
    /// Its Sidecar, if that changes anything inbound.
    pub(crate) sidecar: Option<WorkloadSidecar>,
}

/// The Sidecar of a workload.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct WorkloadSidecar {
    /// Which.
    pub(crate) scope: SidecarScope,
    /// It says what the workload sees, so which rules it follows itself.
    pub(crate) limits: bool,
    /// Addresses of the only replica, where what the Sidecar says depends on them.
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
    /// Its name: a hash of everything in it, with the namespace in front for the reader.
    #[must_use]
    pub(crate) fn name(&self) -> WorkloadName {
        WorkloadName(format!("{}#{}", self.namespace, content_hash(self)).into())
    }
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
