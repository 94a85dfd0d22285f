//! Gateways to other networks (A09): Gateways of class `istio-remote`.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_envoy::ztunnel::{WorkloadInputs, build_workload};
use sluice_model::gateway_api::{AddressKind, Gateway, REMOTE_CLASS};
use sluice_model::{HboneAddress, HboneDestination, Host, ObjectKey, ServiceKey, Text, label};

use super::{AmbientInputs, AmbientSettings, AmbientWorkload};
use crate::options::GraphOptions;

/// An address of a gateway to another network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct RemoteGateway {
    /// The network that it leads into.
    network: Text,
    address: Text,
    port: u32,
    /// Namespace and name of its service account.
    namespace: Text,
    account: Text,
}

impl RemoteGateway {
    fn ip(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }

    fn hbone(&self) -> HboneAddress {
        let destination = match self.ip() {
            Some(address) => HboneDestination::Address { network: self.network.clone(), address },
            None => HboneDestination::Service(ServiceKey {
                namespace: self.namespace.clone(),
                host: Host::new(&self.address),
            }),
        };
        HboneAddress { destination, port: self.port }
    }

    /// Its uid as a workload.
    fn uid(&self) -> Text {
        format!("NetworkGateway/{}/{}/{}", self.network, self.address, self.port).into()
    }
}

/// Gateways to other networks.
pub(super) struct RemoteGateways<'s> {
    by_network: Index<'s, Text, (ObjectKey, Text), HboneAddress>,
    /// Each as a workload, so that node proxies get its identity.
    pub(super) workloads: Collection<'s, Text, AmbientWorkload>,
}

/// Gateways to other networks, and each of them as a workload.
/// Key: uid. From: `kubernetes_gateways`, `mesh_config`. Changes when: the Gateway does. Size: their addresses.
/// Rejects: none.
pub(super) fn derive_gateways<'s>(
    inputs: &AmbientInputs<'_, 's>,
    settings: &Collection<'s, (), AmbientSettings>,
    options: &GraphOptions,
) -> RemoteGateways<'s> {
    let cluster = options.cluster.clone();
    let gateways = inputs.objects.kubernetes_gateways.flat_map("ambient_gateways", move |key, gateway| {
        let found = if key.cluster == cluster { addresses(gateway) } else { Vec::new() };
        found.into_iter().map(|gateway| ((key.clone(), gateway.address.clone()), gateway)).collect::<Vec<_>>()
    });
    let by_network = gateways.index("ambient_gateways/by-network", |_, gateway: &RemoteGateway| {
        [(gateway.network.clone(), gateway.hbone())]
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
                namespace: &gateway.namespace,
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

fn addresses(gateway: &Gateway) -> Vec<RemoteGateway> {
    let network = gateway.meta.labels.get(label::NETWORK).filter(|network| !network.is_empty());
    let hbone = gateway.listeners.iter().find(|listener| *listener.protocol == *"HBONE");
    let (true, Some(network), Some(hbone)) = (*gateway.class == *REMOTE_CLASS, network, hbone) else {
        return Vec::new();
    };
    let named = gateway.meta.annotations.get(label::GATEWAY_SERVICE_ACCOUNT).filter(|name| !name.is_empty());
    let account = named.cloned().unwrap_or_else(|| format!("{}-{REMOTE_CLASS}", gateway.meta.name).into());
    let all = gateway.assigned_addresses.iter();
    let usable = all.filter(|address| matches!(address.kind, AddressKind::Ip | AddressKind::Hostname));
    let made = usable.map(|address| RemoteGateway {
        network: network.clone(),
        address: address.value.clone(),
        port: u32::from(hbone.port),
        namespace: gateway.meta.namespace.clone(),
        account: account.clone(),
    });
    made.collect()
}

/// Looks up gateways, inside a `derive`.
pub(super) struct GatewayReads(IndexDep<Text, (ObjectKey, Text), HboneAddress>);

impl GatewayReads {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, gateways: &RemoteGateways<'s>) -> Self {
        Self(deps.by(&gateways.by_network))
    }

    /// The address at which a network is reached from others.
    pub(super) fn to(&self, cx: &Context, network: &Text) -> Option<Arc<HboneAddress>> {
        if network.is_empty() {
            return None;
        }
        cx.by(&self.0, network).into_iter().map(|(_, gateway)| gateway).find(|gateway| gateway.port > 0)
    }
}
