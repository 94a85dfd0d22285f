//! Workloads of WorkloadEntries, and of addresses that ServiceEntries list.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_engine::{Collection, Context};
use sluice_envoy::ztunnel::{WorkloadDetails, WorkloadInputs, build_workload, entry_ports};
use sluice_model::{
    AmbientService, Labels, Locality, ObjectKey, ObjectMeta, Resolution, ServiceEntry, ServiceSource, Text,
    WorkloadAddress,
};

use super::split_horizon::RemoteWorkload;
use super::waypoints::WorkloadWaypoint;
use super::{AmbientInputs, AmbientSettings, FoundWorkload, WorkloadContext, WorkloadReads};
use crate::options::GraphOptions;
use crate::registry::workloads::entry_workload_name;

/// Workloads of WorkloadEntries.
/// Key: uid. From: `workload_entries`, `ambient_services`, `ambient_policies`, `waypoints`, `ambient_gateways`, `namespaces`, `mesh_config`.
/// Changes when: the entry does, a service or policy that selects it, or its waypoint.
/// Size: WorkloadEntries. Rejects: none.
pub(super) fn derive_workload_entries<'s>(
    inputs: &AmbientInputs<'_, 's>,
    context: &WorkloadContext<'s>,
    options: &GraphOptions,
) -> Collection<'s, Text, FoundWorkload> {
    let services_select_entries = options.services_select_entries;
    inputs.objects.workload_entries.derive_many("found_workloads/entries", |deps| {
        let reads = context.read(deps);
        move |cx, key, entry| {
            let Some(settings) = cx.get(&reads.settings, &()) else { return Vec::new() };
            let labels = &entry.workload.labels;
            let mut services = reads.services.selecting(cx, &reads.services.cluster, &key.namespace, labels);
            services.retain(|_, service| services_select_entries || service.source == ServiceSource::ServiceEntry);
            let services: Vec<Arc<AmbientService>> = services.into_values().collect();
            let uid = format!("{}/networking.istio.io/WorkloadEntry/{}/{}", key.cluster, key.namespace, key.name);
            let through = reads.waypoints.of_workload(cx, key, labels);
            let declared = DeclaredAddress {
                key,
                labels,
                annotations: &entry.meta.annotations,
                workload_name: entry_workload_name(&entry.meta),
                address: &entry.workload,
                services: &services,
            };
            vec![(uid.as_str().into(), workload(cx, &reads, &settings, &uid, &declared, &through))]
        }
    })
}

/// Workloads of the addresses that ServiceEntries list, or of hosts that are resolved if none are listed.
/// Key: uid. From: `service_entries`, `ambient_services`, `ambient_policies`, `waypoints`, `ambient_gateways`, `namespaces`, `mesh_config`.
/// Changes when: the ServiceEntry does, a policy that selects it, or the waypoint of an address.
/// Size: such addresses. Rejects: none.
pub(super) fn derive_service_entries<'s>(
    inputs: &AmbientInputs<'_, 's>,
    context: &WorkloadContext<'s>,
    _: &GraphOptions,
) -> Collection<'s, Text, FoundWorkload> {
    let by_entry = context.services.local.index("ambient_services/by-entry", |_, service| {
        let entry = service.source == ServiceSource::ServiceEntry;
        entry.then(|| (service.object.clone(), service.clone()))
    });
    inputs.objects.service_entries.derive_many("found_workloads/addresses", |deps| {
        let (reads, by_entry) = (context.read(deps), deps.by(&by_entry));
        move |cx, key, entry: &ServiceEntry| {
            let resolved = entry.resolution.is_dns() || entry.resolution == Resolution::DynamicDns;
            let implied = entry.endpoints.is_empty() && entry.workload_selector.is_none() && resolved;
            if entry.endpoints.is_empty() && !implied {
                return Vec::new();
            }
            let Some(settings) = cx.get(&reads.settings, &()) else { return Vec::new() };
            let services: Vec<Arc<AmbientService>> =
                cx.by(&by_entry, key).into_iter().map(|(_, service)| service).collect();
            if services.is_empty() {
                return Vec::new();
            }
            let mut made = BTreeMap::new();
            let mut add = |address: &WorkloadAddress, services: &[Arc<AmbientService>], through: WorkloadWaypoint| {
                let uid = format!(
                    "{}/networking.istio.io/ServiceEntry/{}/{}/{}",
                    key.cluster, key.namespace, key.name, address.address
                );
                let ObjectMeta { labels, annotations, name, .. } = &entry.meta;
                let declared = DeclaredAddress { key, labels, annotations, workload_name: name, address, services };
                made.insert(Text::from(uid.as_str()), workload(cx, &reads, &settings, &uid, &declared, &through));
            };
            if implied {
                // Each host is a workload of its own.
                for service in &services {
                    let address = WorkloadAddress { address: service.host.0.clone(), ..WorkloadAddress::default() };
                    add(&address, std::slice::from_ref(service), WorkloadWaypoint::default());
                }
            }
            for address in &entry.endpoints {
                add(address, &services, reads.waypoints.of_workload(cx, key, &address.labels));
            }
            made.into_iter().collect()
        }
    })
}

/// An address that an object declares.
struct DeclaredAddress<'a> {
    key: &'a ObjectKey,
    /// Labels of the object, which policies select.
    labels: &'a Labels,
    annotations: &'a Labels,
    workload_name: &'a Text,
    address: &'a WorkloadAddress,
    services: &'a [Arc<AmbientService>],
}

fn workload(
    cx: &Context,
    reads: &WorkloadReads,
    settings: &AmbientSettings,
    uid: &str,
    declared: &DeclaredAddress<'_>,
    through: &WorkloadWaypoint,
) -> FoundWorkload {
    let DeclaredAddress { key, labels, address, .. } = declared;
    let network = if address.network.is_empty() { settings.network() } else { &address.network };
    if reads.multi_network && settings.is_remote(network) {
        let services = declared.services.iter().map(|service| service.key());
        let account = (&key.namespace, &address.service_account);
        return FoundWorkload::Remote(RemoteWorkload::of(settings, network, account, services, address.weight));
    }
    let mut policies = reads.policies.of_workload(cx, &settings.root_namespace, &key.namespace, labels);
    let services = declared.services.iter().map(AsRef::as_ref);
    policies.extend(reads.policies.of_waypoints(cx, &reads.waypoints, through.waypoint.as_ref(), services));
    let ip = address.address.parse::<IpAddr>().ok();
    let ports = |service: &Arc<AmbientService>| (service.resource_name(), entry_ports(service, &address.ports));
    let network_gateway = reads.gateways.to(cx, network);
    let made = build_workload(WorkloadInputs {
        uid,
        name: &key.name,
        namespace: &key.namespace,
        cluster: &key.cluster,
        network,
        network_gateway: network_gateway.as_ref(),
        addresses: ip.into_iter().collect(),
        hostname: if ip.is_some() { "" } else { &address.address },
        trust_domain: &settings.trust_domain,
        service_account: &address.service_account,
        known: Some(WorkloadDetails {
            workload_name: declared.workload_name,
            labels,
            annotations: declared.annotations,
        }),
        services: declared.services.iter().map(ports).collect(),
        policies: &policies,
        waypoint: through.waypoint.as_ref().and_then(|waypoint| waypoint.address.as_ref()),
        binding: through.binding,
        locality: Locality::parse(&address.locality),
        weight: address.weight,
        ..WorkloadInputs::default()
    });
    made.into()
}
