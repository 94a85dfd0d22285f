//! Split horizon (A09): clients of one network know the workloads of another as its gateway, once for each service.

use std::collections::BTreeSet;

use ipnet::IpNet;
use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::ztunnel::{SplitHorizonInputs, build_split_horizon_workload};
use sluice_model::{AmbientService, Identity, ServiceKey, Text};

use super::gateways::GatewayReads;
use super::services::ClusterService;
use super::{AmbientSettings, AmbientWorkload, FoundWorkload, WorkloadContext};
use crate::options::GraphOptions;

/// What is known of a workload in another network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct RemoteWorkload {
    /// Its network.
    network: Text,
    /// Its services.
    services: Vec<ServiceKey>,
    /// Its share of the requests.
    capacity: u32,
    /// Its identity, if it has one.
    identity: Option<Text>,
}

impl RemoteWorkload {
    /// `account`: namespace and name of its service account. `weight`: 0 if unset.
    pub(super) fn of(
        settings: &AmbientSettings,
        network: &Text,
        account: (&Text, &Text),
        services: impl Iterator<Item = ServiceKey>,
        weight: u32,
    ) -> Self {
        let (namespace, name) = account;
        let identity = || Identity::new(&settings.trust_domain, namespace.clone(), name.clone());
        Self {
            network: network.clone(),
            services: services.collect(),
            capacity: weight.max(1),
            identity: (!name.is_empty()).then(|| identity().to_string().into()),
        }
    }
}

/// What clients know of all networks.
pub(super) struct SplitHorizon<'s> {
    /// Services, merged over clusters.
    pub(super) services: Collection<'s, ServiceKey, AmbientService>,
    /// The gateways of other networks, each as a workload of a service in that network.
    pub(super) workloads: Collection<'s, Text, AmbientWorkload>,
}

/// Services of all networks, and the workloads that stand for those of other networks.
/// Key: uid for workloads. From: `found_workloads`, `ambient_services/local`, `ambient_services/remote`,
/// `ambient_gateways`, `mesh_config`.
/// Changes when: the service does, the number of its workloads in a network or their identities, or the gateway.
/// Size: services, and global services times other networks. Rejects: none.
pub(super) fn derive_split_horizon<'s>(
    context: &WorkloadContext<'s>,
    found: &[Collection<'s, Text, FoundWorkload>],
    local: &Collection<'s, ServiceKey, AmbientService>,
    remote: &Collection<'s, ClusterService, AmbientService>,
    options: &GraphOptions,
) -> SplitHorizon<'s> {
    let merged = derive_merged(local, remote, options);
    let each: Vec<_> = found.iter().map(remote_workloads).collect();
    let none = context.settings.flat_map("split_horizon/none", |(), _| None);
    let workloads = none.union_disjoint("split_horizon/remote", &each);
    let by_service = workloads.index("split_horizon/by-service", |_, workload: &RemoteWorkload| {
        let identity = || workload.identity.clone().into_iter();
        let rows = workload.services.iter().flat_map(|service| identity().map(|identity| (service.clone(), identity)));
        rows.collect::<Vec<_>>()
    });
    let identities = by_service.group("split_horizon/identities", |_, rows| {
        Some(rows.iter().map(|(_, identity)| (*identity).clone()).collect::<BTreeSet<Text>>())
    });
    let services = merged.derive("ambient_services", |deps| {
        let identities = deps.on(&identities);
        move |cx, key, service: &AmbientService| {
            let mut service = service.clone();
            // Clients of the gateway verify the workloads behind it.
            if let Some(identities) = service.global.then(|| cx.get(&identities, key)).flatten() {
                let declared = std::mem::take(&mut service.subject_alt_names);
                let all: BTreeSet<Text> = declared.into_iter().chain(identities.iter().cloned()).collect();
                service.subject_alt_names = all.into_iter().collect();
            }
            Some(service)
        }
    });
    let by_network = workloads.index("split_horizon/by-network", |_, workload: &RemoteWorkload| {
        let row = |service: &ServiceKey| ((workload.network.clone(), service.clone()), workload.capacity);
        workload.services.iter().map(row).collect::<Vec<_>>()
    });
    let capacities = by_network.group("split_horizon/capacities", |_, rows| {
        Some(rows.iter().fold(0_u32, |sum, (_, capacity)| sum.saturating_add(**capacity)))
    });
    let trust_domain = context.settings.map("split_horizon/trust-domain", |(), settings| settings.trust_domain.clone());
    let workloads = capacities.derive_many("ambient_workloads/split-horizon", |deps| {
        let (services, trust_domain) = (deps.on(&merged), deps.on(&trust_domain));
        let gateways = GatewayReads::on(deps, &context.gateways);
        move |cx, (network, key): &(Text, ServiceKey), capacity: &u32| {
            let service = cx.get(&services, key).filter(|service| service.global);
            let gateway = gateways.gateway_of(cx, network);
            let (Some(service), Some(gateway), Some(trust_domain)) = (service, gateway, cx.get(&trust_domain, &()))
            else {
                return Vec::new();
            };
            let at = &gateway.gateway;
            let uid: Text = format!(
                "{network}/SplitHorizonWorkload/{}/{}/{}/{}",
                at.namespace,
                at.name,
                gateway.address,
                service.resource_name()
            )
            .into();
            let made = build_split_horizon_workload(&SplitHorizonInputs {
                uid: &uid,
                cluster: &at.cluster,
                network,
                gateway: &gateway.hbone(),
                trust_domain: &trust_domain,
                service: &service,
                capacity: *capacity,
            });
            vec![(uid, made.into())]
        }
    });
    SplitHorizon { services, workloads }
}

fn remote_workloads<'s>(found: &Collection<'s, Text, FoundWorkload>) -> Collection<'s, Text, RemoteWorkload> {
    let name = found.name().replace("found_workloads/", "split_horizon/");
    found.filter_map(&name, |_, workload| match workload {
        FoundWorkload::Remote(workload) => Some(workload.clone()),
        FoundWorkload::Local(_) => None,
    })
}

/// Services, merged over clusters.
/// Key: `ServiceKey`. From: `ambient_services/local`, `ambient_services/remote`. Changes when: one of the services does.
/// Size: services. Rejects: none.
fn derive_merged<'s>(
    local: &Collection<'s, ServiceKey, AmbientService>,
    remote: &Collection<'s, ClusterService, AmbientService>,
    options: &GraphOptions,
) -> Collection<'s, ServiceKey, AmbientService> {
    let cluster = options.cluster.clone();
    let of_config_cluster = local.flat_map("ambient_services/of-config-cluster", move |key, service| {
        [(ClusterService { cluster: cluster.clone(), service: key.clone() }, service.clone())]
    });
    let all = of_config_cluster.union_disjoint("ambient_services/of-clusters", &[remote]);
    let cluster = options.cluster.clone();
    all.index("ambient_services/by-key", |key: &ClusterService, service| [(key.service.clone(), service.clone())])
        .group("ambient_services/merged", move |_, services| merge(&cluster, services))
}

/// The service of the config cluster, or of the first other one, with the addresses and accepted names of all. A service of
/// the config cluster that is not global is not merged.
fn merge(cluster: &Text, services: &[(&ClusterService, &AmbientService)]) -> Option<AmbientService> {
    let (base_key, base) = services.iter().min_by_key(|(key, _)| (key.cluster != *cluster, *key))?;
    let mut merged = (*base).clone();
    if !base.global {
        return Some(merged);
    }
    let others = || services.iter().filter(|(key, _)| key != base_key).map(|(_, service)| *service);
    let own: BTreeSet<IpNet> = base.addresses.iter().copied().collect();
    let addresses =
        others().flat_map(|service| service.addresses.iter().map(|block| (service.network.clone(), *block)));
    let addresses: BTreeSet<(Text, IpNet)> =
        addresses.filter(|(network, block)| *network != base.network || !own.contains(block)).collect();
    merged.other_addresses = addresses.into_iter().collect();
    let names = services.iter().flat_map(|(_, service)| service.subject_alt_names.iter().cloned());
    merged.subject_alt_names = names.collect::<BTreeSet<Text>>().into_iter().collect();
    Some(merged)
}
