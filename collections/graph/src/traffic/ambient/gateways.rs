//! Gateways to other networks (A09): Gateways of class `istio-remote` of the config cluster and, with several networks,
//! east-west gateways of remote clusters.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_envoy::ztunnel::{WorkloadInputs, build_workload};
use sluice_model::gateway_api::{EAST_WEST_CLASS, Gateway, Listener, ListenerTlsMode, REMOTE_CLASS};
use sluice_model::{HBONE_PORT, HboneAddress, HboneDestination, Host, ObjectKey, ServiceKey, Text, label};

use super::{AmbientSettings, AmbientWorkload};
use crate::options::GraphOptions;

/// An address of a gateway to another network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct RemoteGateway {
    /// The Gateway.
    pub(super) gateway: ObjectKey,
    /// The network that it leads into.
    pub(super) network: Text,
    pub(super) address: Text,
    /// The declared HBONE port; 0 for gateways of remote clusters, which do not declare the port of their load balancer.
    port: u32,
    /// Its service account.
    account: Text,
}

/// What identifies an address of a gateway in all clusters: namespace and name of the Gateway, and the address.
type GatewayAddressKey = (Text, Text, Text);

impl RemoteGateway {
    fn ip(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }

    fn key(&self) -> GatewayAddressKey {
        (self.gateway.namespace.clone(), self.gateway.name.clone(), self.address.clone())
    }

    /// Where it accepts HBONE.
    pub(super) fn hbone(&self) -> HboneAddress {
        let destination = match self.ip() {
            Some(address) => HboneDestination::Address { network: self.network.clone(), address },
            None => HboneDestination::Service(ServiceKey {
                namespace: self.gateway.namespace.clone(),
                host: Host::new(&self.address),
            }),
        };
        HboneAddress { destination, port: if self.port == 0 { u32::from(HBONE_PORT) } else { self.port } }
    }

    /// Its uid as a workload.
    fn uid(&self) -> Text {
        format!("NetworkGateway/{}/{}/{}", self.network, self.address, self.port).into()
    }
}

/// Gateways to other networks.
pub(super) struct RemoteGateways<'s> {
    by_network: Index<'s, Text, GatewayAddressKey, RemoteGateway>,
    /// Each as a workload, so that node proxies get its identity.
    pub(super) workloads: Collection<'s, Text, AmbientWorkload>,
}

/// Gateways to other networks, and each of them as a workload.
/// Key: uid. From: `kubernetes_gateways`, `remote_gateways`, `mesh_config`. Changes when: the Gateway does. Size: their addresses.
/// Rejects: none.
pub(super) fn derive_gateways<'s>(
    known: &Collection<'s, ObjectKey, Gateway>,
    settings: &Collection<'s, (), AmbientSettings>,
    options: &GraphOptions,
) -> RemoteGateways<'s> {
    let cluster = options.cluster.clone();
    let declared = known.flat_map("ambient_gateways/declared", move |key, gateway| {
        let found = addresses(key, gateway, key.cluster == cluster).into_iter();
        found.map(|gateway| ((key.clone(), gateway.address.clone()), gateway)).collect::<Vec<_>>()
    });
    let cluster = options.cluster.clone();
    let same =
        declared.index("ambient_gateways/by-address", |_, gateway: &RemoteGateway| [(gateway.key(), gateway.clone())]);
    let gateways = same.group("ambient_gateways", move |_, gateways| {
        // Of several clusters that declare the same gateway, the config cluster has precedence.
        let first = gateways.iter().min_by_key(|((key, _), _)| (key.cluster != cluster, key));
        first.map(|(_, gateway)| (*gateway).clone())
    });
    let by_network = gateways.index("ambient_gateways/by-network", |_, gateway: &RemoteGateway| {
        [(gateway.network.clone(), gateway.clone())]
    });
    let trust_domain = settings.map("ambient_gateways/trust-domain", |(), settings| settings.trust_domain.clone());
    let by_uid = gateways.index("ambient_gateways/by-uid", |_, gateway| [(gateway.uid(), gateway.clone())]);
    let each = by_uid.group("ambient_gateways/each", |_, gateways| gateways.first().map(|(_, first)| (*first).clone()));
    let workloads = each.derive("ambient_workloads/gateways", |deps| {
        let trust_domain = deps.on(&trust_domain);
        move |cx, uid, gateway: &RemoteGateway| {
            let ip = gateway.ip();
            let made = build_workload(WorkloadInputs {
                uid,
                name: uid,
                namespace: &gateway.gateway.namespace,
                service_account: &gateway.account,
                network: &gateway.network,
                trust_domain: &cx.get(&trust_domain, &())?,
                addresses: ip.into_iter().collect(),
                hostname: if ip.is_some() { "" } else { &gateway.address },
                ..WorkloadInputs::default()
            });
            Some(made.into())
        }
    });
    RemoteGateways { by_network, workloads }
}

/// The addresses of a Gateway, if it is a gateway to another network.
fn addresses(key: &ObjectKey, gateway: &Gateway, is_local: bool) -> Vec<RemoteGateway> {
    let class = if is_local { REMOTE_CLASS } else { EAST_WEST_CLASS };
    let network = gateway.meta.labels.get(label::NETWORK).filter(|network| !network.is_empty());
    let is_terminated =
        |listener: &Listener| listener.tls.as_ref().is_some_and(|tls| tls.mode == Some(ListenerTlsMode::Terminate));
    let mut listeners = gateway.listeners.iter().filter(|listener| *listener.protocol == *"HBONE");
    let hbone = listeners.find(|listener| is_local || is_terminated(listener));
    let (true, Some(network), Some(hbone)) = (*gateway.class == *class, network, hbone) else {
        return Vec::new();
    };
    let named = gateway.meta.annotations.get(label::GATEWAY_SERVICE_ACCOUNT).filter(|name| !name.is_empty());
    let default = || if is_local { format!("{}-{class}", key.name).into() } else { key.name.clone() };
    let account = named.cloned().unwrap_or_else(default);
    let all = gateway.assigned_addresses.iter();
    let made = all.filter(|address| address.is_network_address()).map(|address| RemoteGateway {
        gateway: key.clone(),
        network: network.clone(),
        address: address.value.clone(),
        port: if is_local { u32::from(hbone.port) } else { 0 },
        account: account.clone(),
    });
    made.collect()
}

/// Looks up gateways, inside a `derive`.
pub(super) struct GatewayReads(IndexDep<Text, GatewayAddressKey, RemoteGateway>);

impl GatewayReads {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, gateways: &RemoteGateways<'s>) -> Self {
        Self(deps.by(&gateways.by_network))
    }

    /// The gateway into a network.
    pub(super) fn gateway_of(&self, cx: &Context, network: &Text) -> Option<Arc<RemoteGateway>> {
        cx.by(&self.0, network).into_iter().map(|(_, gateway)| gateway).next()
    }

    /// The address at which a network is reached from others, if it is declared with its port.
    pub(super) fn to(&self, cx: &Context, network: &Text) -> Option<HboneAddress> {
        if network.is_empty() {
            return None;
        }
        let mut gateways = cx.by(&self.0, network).into_iter().map(|(_, gateway)| gateway);
        gateways.find(|gateway| gateway.port > 0).map(|gateway| gateway.hbone())
    }
}
