//! Clusters of a workload's own ports (N01, N21).

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::cluster::{ClusterProfile, ClusterSettings, InboundInputs, InboundTarget, build_inbound};
use sluice_model::{
    DestinationRule, Host, InboundPolicy, IpFamilies, Layer, ObjectKey, Proxy, ProxyType, Resource, ResourceKey,
    Service, ServiceKey, ServicePort, SidecarScope, Text,
};

use super::{ClusterInputs, row};
use crate::content_names::profile_text;
use crate::outputs::derive_envoy_profiles;
use crate::proxies::workloads::{Workload, WorkloadName};
use crate::traffic::destination_rules::{RuleClient, RuleLookup, RulePolicy, select_rule};
use crate::traffic::sidecars::{SidecarInbound, SidecarLookup, ingress_endpoint, synthetic_host};

/// The fields of a profile that change inbound clusters.
pub(super) fn profile(proxy: &Proxy) -> ClusterProfile {
    let ClusterProfile { proxy_type, ip_families, preserve_header_case, .. } = ClusterProfile::of(proxy);
    ClusterProfile { proxy_type, ip_families, preserve_header_case, ..ClusterProfile::default() }
}

/// Clusters of the ports of workloads: one for each port, for all services of the port, or those that a Sidecar
/// declares.
pub(super) fn derive_inbound<'s>(
    inputs: &ClusterInputs<'_, 's>,
    settings: &Collection<'s, (), ClusterSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let profiles = derive_envoy_profiles(inputs.proxies, "inbound_cluster_profiles", profile);
    inputs.workloads.derive_many("clusters/inbound", |deps| {
        let own = WorkloadPorts {
            services: deps.on(inputs.destinations.services),
            sidecars: deps.on(&inputs.destinations.sidecars.inbound),
            lookup: SidecarLookup::on(deps, inputs.destinations.sidecars),
            rules: RuleLookup::on(deps, inputs.destinations.rules_by_host),
            policy: deps.on(inputs.destinations.rule_policy),
        };
        let (settings, profiles) = (deps.on(settings), deps.on(&profiles));
        move |cx, name, workload| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let profiles = cx.all(&profiles);
            let sidecars = profiles.iter().filter(|(profile, _)| profile.proxy_type == ProxyType::Sidecar);
            sidecars.flat_map(|(profile, _)| own.rows(cx, &settings, profile, name, workload)).collect()
        }
    })
}

/// Looks up the services of a workload's ports.
#[derive(Clone, Copy)]
struct WorkloadPorts {
    services: Dep<ServiceKey, Service>,
    sidecars: Dep<ObjectKey, SidecarInbound>,
    lookup: SidecarLookup,
    rules: RuleLookup,
    policy: Dep<(), RulePolicy>,
}

impl WorkloadPorts {
    fn rows(
        &self,
        cx: &Context,
        settings: &ClusterSettings,
        profile: &ClusterProfile,
        name: &WorkloadName,
        workload: &Workload,
    ) -> Vec<(ResourceKey, Resource)> {
        let layer = Layer { view: name.view(), profile: profile_text(profile) };
        let mut by_port: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for target in &workload.targets {
            if let Some(service) = cx.get(&self.services, &target.service) {
                by_port.entry(target.target_port).or_default().push((service, target));
            }
        }
        for targets in by_port.values_mut() {
            // The oldest service decides the protocol of its port.
            targets.sort_by_key(|(service, _)| (service.created, service.host.clone()));
        }
        let own = workload.sidecar.as_ref();
        let declared = own.and_then(|own| cx.get(&self.sidecars, &own.scope.sidecar));
        if let (Some(own), Some(declared)) = (own, &declared)
            && !declared.ingress.is_empty()
        {
            let clusters = declared.ingress.iter().filter_map(|listener| {
                let number = u32::from(listener.port.number);
                let found =
                    by_port.get(&number).and_then(|targets| targets.first()).map(|(service, _)| service.clone());
                let placeholder = found.is_none();
                let rule = found.as_ref().and_then(|service| self.rule(cx, workload, service));
                let service = found.unwrap_or_else(|| Arc::new(service_of_sidecar(&own.scope)));
                let port = ServicePort {
                    port: listener.port.number,
                    name: listener.port.name.clone(),
                    protocol: listener.port.protocol,
                    target_port: Text::default(),
                };
                let endpoint = ingress_endpoint(listener, own, profile.ip_families);
                build_inbound(&InboundInputs {
                    settings,
                    profile,
                    port: number,
                    endpoint: endpoint.as_ref().map(|(address, port)| (address.as_str(), *port)),
                    targets: &[InboundTarget { service: &service, port: &port }],
                    rule: rule.as_ref(),
                    connection_pool: declared.connection_pool(number),
                    placeholder,
                })
            });
            return clusters.map(|cluster| row(&layer, &cluster)).collect();
        }
        let local = if profile.ip_families == IpFamilies::V6 { "::1" } else { "127.0.0.1" };
        let mut rows = Vec::new();
        for (port, targets) in by_port {
            let rule = targets.first().and_then(|(service, _)| self.rule(cx, workload, service));
            let found: Vec<InboundTarget<'_>> =
                targets.iter().map(|(service, target)| InboundTarget { service, port: &target.port }).collect();
            let cluster = build_inbound(&InboundInputs {
                settings,
                profile,
                port,
                endpoint: (settings.inbound_policy == InboundPolicy::Localhost).then_some((local, port)),
                targets: &found,
                rule: rule.as_ref(),
                connection_pool: declared.as_ref().and_then(|declared| declared.connection_pool(port)),
                placeholder: false,
            });
            rows.extend(cluster.map(|cluster| row(&layer, &cluster)));
        }
        rows
    }

    /// The rule that the workload itself follows for one of its services.
    fn rule(&self, cx: &Context, workload: &Workload, service: &Service) -> Option<DestinationRule> {
        let rules = self.rules.covering(cx, &service.host);
        if rules.is_empty() {
            return None;
        }
        // A workload that cannot reach its own service does not follow its rules either.
        let limits = workload.sidecar.as_ref().filter(|sidecar| sidecar.limits);
        if limits.is_some_and(|sidecar| !self.lookup.host(cx, &service.host).reaches(&sidecar.scope)) {
            return None;
        }
        let policy = cx.get(&self.policy, &())?;
        let client = RuleClient { namespace: &workload.namespace, labels: None };
        select_rule(&rules, &policy, &service.host, &service.namespace, client)
    }
}

/// The service of a port that only a Sidecar declares.
fn service_of_sidecar(scope: &SidecarScope) -> Service {
    Service {
        namespace: scope.namespace.clone(),
        host: Host(synthetic_host(scope)),
        name: scope.sidecar.name.clone(),
        mesh_external: true,
        ..Service::default()
    }
}
