//! The Sidecar of each proxy.

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{
    CaptureMode, Labels, LocalEndpoint, MeshConfig, ObjectKey, OutboundPolicy, OutboundTraffic, Proxy, ProxySidecar,
    ProxyType, Sidecar, SidecarEgress, SidecarScope, Text, Timestamp, match_labels,
};

/// The fields of a Sidecar that decide which proxies have it and what they have in common.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SidecarHead {
    selector: Option<Labels>,
    created: Timestamp,
    limits: bool,
    ingress: bool,
    inbound: bool,
    own_address: bool,
    outbound: Option<OutboundTraffic>,
}

impl SidecarHead {
    fn of(sidecar: &Sidecar) -> Self {
        let own_address = sidecar
            .ingress
            .iter()
            .any(|listener| listener.bind.is_empty() || matches!(listener.endpoint, LocalEndpoint::Instance { .. }));
        Self {
            selector: sidecar.workload_selector.clone(),
            created: sidecar.created,
            limits: !is_everything(&sidecar.egress),
            ingress: !sidecar.ingress.is_empty(),
            inbound: !sidecar.ingress.is_empty() || sidecar.inbound_connection_pool.is_some(),
            own_address,
            outbound: sidecar.outbound.clone(),
        }
    }
}

/// The fields of the mesh config that the choice depends on.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct SidecarDefaults {
    root_namespace: Text,
    outbound: OutboundPolicy,
}

/// Sidecars by namespace, and the defaults of the mesh.
pub(crate) struct SidecarHeads<'s> {
    by_namespace: Index<'s, Text, ObjectKey, SidecarHead>,
    mesh: Collection<'s, (), SidecarDefaults>,
}

impl<'s> SidecarHeads<'s> {
    /// Indexes the Sidecars.
    pub(crate) fn new(sidecars: &Collection<'s, ObjectKey, Sidecar>, mesh: &Collection<'s, (), MeshConfig>) -> Self {
        let heads = sidecars.map("sidecars/heads", |_, sidecar| SidecarHead::of(sidecar));
        let by_namespace = heads.index("sidecars/by-namespace", |key, head| [(key.namespace.clone(), head.clone())]);
        let mesh = mesh.map("sidecars/mesh", |(), mesh| SidecarDefaults {
            root_namespace: mesh.root_namespace.clone(),
            outbound: mesh.outbound_policy,
        });
        Self { by_namespace, mesh }
    }
}

/// Chooses the Sidecar of a proxy, inside a `derive` over proxies.
#[derive(Clone, Copy)]
pub(crate) struct SidecarChoice {
    by_namespace: IndexDep<Text, ObjectKey, SidecarHead>,
    mesh: Dep<(), SidecarDefaults>,
}

impl SidecarChoice {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, heads: &SidecarHeads<'s>) -> Self {
        Self { by_namespace: deps.by(&heads.by_namespace), mesh: deps.on(&heads.mesh) }
    }

    /// The Sidecar of a proxy, whose labels are resolved: the oldest of its namespace that selects it, else the oldest
    /// of its namespace without a selector, else that of the root namespace.
    pub(crate) fn get(&self, cx: &Context, proxy: &Proxy) -> Option<ProxySidecar> {
        if proxy.proxy_type != ProxyType::Sidecar {
            return None;
        }
        let mesh = cx.get(&self.mesh, &())?;
        let in_order = |namespace: &Text| {
            let mut found = cx.by(&self.by_namespace, namespace);
            found.sort_by_key(|(key, head)| (head.selector.is_none(), head.created, key.clone()));
            found
        };
        let selects =
            |head: &SidecarHead| head.selector.as_ref().is_none_or(|labels| match_labels(labels, &proxy.labels));
        let own = in_order(&proxy.namespace).into_iter().find(|(_, head)| selects(head));
        let of_root = || in_order(&mesh.root_namespace).into_iter().find(|(_, head)| head.selector.is_none());
        let (sidecar, head) = own.or_else(of_root)?;
        let as_mesh = OutboundTraffic { policy: mesh.outbound, egress_proxy: None };
        Some(ProxySidecar {
            scope: SidecarScope { namespace: proxy.namespace.clone(), sidecar },
            limits: head.limits,
            ingress: head.ingress,
            inbound: head.inbound,
            own_address: head.own_address,
            outbound: head.outbound.clone().filter(|outbound| *outbound != as_mesh),
        })
    }
}

/// Whether these listeners impose no limit: proxies reach the same services as without a Sidecar.
pub(crate) fn is_everything(egress: &[SidecarEgress]) -> bool {
    match egress {
        [] => true,
        [only] => {
            let plain = only.port.is_none() && only.bind.is_empty() && only.capture != CaptureMode::None;
            let all = only.hosts.iter().any(|host| *host == *"*/*");
            plain && all && !only.hosts.iter().any(|host| host.starts_with('~'))
        }
        _ => false,
    }
}
