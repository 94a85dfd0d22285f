//! Workloads of addresses in EndpointSlices that are not pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use sluice_engine::Collection;
use sluice_envoy::ztunnel::{WorkloadInputs, build_workload, slice_ports};
use sluice_model::{EndpointSlice, ServiceKey, ServiceSource, Text};

use super::split_horizon::RemoteWorkload;
use super::{AmbientInputs, FoundWorkload, WorkloadContext};
use crate::inputs::discovery::is_read;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// Workloads of addresses in slices that do not belong to pods. Their other properties are unknown.
/// Key: uid. From: `endpoint_slices`, `ambient_services`, `mesh_config`.
/// Changes when: the slice does, or the ports of its Service.
/// Size: such addresses. Rejects: none.
pub(super) fn derive_slices<'s>(
    inputs: &AmbientInputs<'_, 's>,
    context: &WorkloadContext<'s>,
    options: &GraphOptions,
) -> Collection<'s, Text, FoundWorkload> {
    // Most slices hold only pods, and change often.
    let bare = inputs.objects.endpoint_slices.filter_map("found_workloads/bare", |_, slice| {
        let mut slice = slice.clone();
        slice.endpoints.retain(|endpoint| endpoint.target_pod.is_none() && !endpoint.addresses.is_empty());
        let counts = !slice.service.is_empty() && slice.address_type != "FQDN" && !slice.endpoints.is_empty();
        counts.then_some(slice)
    });
    let (cluster, domain) = (options.cluster.clone(), options.domain.clone());
    let multi_network = context.switches.tunnels.multi_network;
    bare.derive_many("found_workloads/slices", |deps| {
        let reads = context.read(deps);
        let discovery = deps.on(inputs.discovery);
        move |cx, key, slice: &EndpointSlice| {
            let exists = (key.cluster == cluster || multi_network) && is_read(cx, &discovery, key);
            let host = service_host(&slice.service, &key.namespace, &domain);
            let service = reads.services.get(cx, &key.cluster, &ServiceKey { namespace: key.namespace.clone(), host });
            let service = service.filter(|service| service.source == ServiceSource::Kubernetes);
            let (true, Some(service), Some(settings)) = (exists, service, cx.get(&reads.settings, &())) else {
                return Vec::new();
            };
            let network = settings.networks.of(&key.cluster);
            let is_remote = multi_network && settings.is_remote(network);
            let services = BTreeMap::from([(service.resource_name(), slice_ports(&service, slice))]);
            let mut known = BTreeSet::new();
            let mut made = Vec::new();
            for endpoint in &slice.endpoints {
                let addresses = endpoint.addresses.iter().map(|address| address.parse::<IpAddr>());
                let Some(first) = endpoint.addresses.first().filter(|first| known.insert(*first)) else { continue };
                let Ok(addresses) = addresses.collect::<Result<Vec<_>, _>>() else { continue };
                let uid =
                    format!("{}/discovery.k8s.io/EndpointSlice/{}/{}/{first}", key.cluster, key.namespace, key.name);
                if is_remote {
                    let account = (&key.namespace, &Text::default());
                    let remote = RemoteWorkload::of(&settings, network, account, [service.key()].into_iter(), 0);
                    made.push((uid.into(), FoundWorkload::Remote(remote)));
                    continue;
                }
                let workload = build_workload(WorkloadInputs {
                    uid: &uid,
                    name: &key.name,
                    namespace: &key.namespace,
                    cluster: &key.cluster,
                    network,
                    addresses,
                    trust_domain: &settings.trust_domain,
                    services: services.clone(),
                    unhealthy: !endpoint.ready,
                    // The address may belong to any host.
                    shared_address: true,
                    ..WorkloadInputs::default()
                });
                made.push((Text::from(uid), workload.into()));
            }
            made
        }
    })
}
