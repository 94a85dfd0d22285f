//! The Services that serve a Gateway: whether they have endpoints for its ports, and their addresses.

use std::collections::BTreeSet;

use sluice_engine::{Context, Dep, Deps, IndexDep};
use sluice_model::gateway_api::{AddressKind, Gateway};
use sluice_model::{Endpoint, Host, KubernetesService, ObjectKey, Service, ServiceKey, ServiceType, Text, label};

use super::super::listeners::is_managed;
use super::StatusInputs;
use crate::options::GraphOptions;
use crate::registry::endpoints::{FactLookup, FactsOfEndpoints, ServiceEndpoints};
use crate::statuses::{StatusCondition, StatusProblem};

/// The ports of the endpoints of services: the name of the service's port, and the port of the endpoint.
pub(super) type InstancePorts<'s> = FactsOfEndpoints<'s, BTreeSet<(Text, u32)>>;

/// The ports of the endpoints of services.
pub(super) fn derive_instance_ports<'s>(endpoints: &ServiceEndpoints<'s>) -> InstancePorts<'s> {
    let of = |endpoints: &[Endpoint]| -> BTreeSet<(Text, u32)> {
        endpoints.iter().map(|endpoint| (endpoint.port_name.clone(), endpoint.port)).collect()
    };
    endpoints.facts("gateway_api/instance_ports", of, |all, more| all.extend(more.iter().cloned()), Some)
}

/// Looks up the Services of Gateways.
pub(super) struct InstanceLookup {
    services: Dep<ServiceKey, Service>,
    by_host: IndexDep<Host, ServiceKey, ()>,
    ports: FactLookup<BTreeSet<(Text, u32)>>,
    kubernetes: Dep<ObjectKey, KubernetesService>,
    cluster: Text,
}

/// What is found about the Services of a Gateway.
#[derive(Default)]
pub(super) struct GatewayInstances {
    /// Hosts with ports that have endpoints.
    internal: BTreeSet<(Host, u16)>,
    internal_addresses: BTreeSet<Text>,
    external_addresses: BTreeSet<Text>,
    /// Hosts whose load balancer has no address yet.
    pending: BTreeSet<Host>,
    warnings: Vec<String>,
    has_unusable: bool,
    /// The Gateway names a Service, or one is deployed for it.
    has_services: bool,
}

impl InstanceLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, inputs: &StatusInputs<'_, 's>, ports: &InstancePorts<'s>) -> Self {
        Self {
            services: deps.on(inputs.services),
            by_host: deps.by(inputs.by_host),
            ports: ports.on(deps),
            kubernetes: deps.on(&inputs.objects.kubernetes_services),
            cluster: inputs.options.cluster.clone(),
        }
    }

    /// Finds the Services with these hosts, in the namespace of a Gateway, for the ports of its listeners.
    pub(super) fn find(
        &self,
        cx: &Context,
        namespace: &Text,
        hosts: &[Host],
        ports: &BTreeSet<u16>,
    ) -> GatewayInstances {
        let mut found = GatewayInstances { has_services: !hosts.is_empty(), ..GatewayInstances::default() };
        for host in hosts {
            let key = ServiceKey { namespace: namespace.clone(), host: host.clone() };
            let Some(service) = cx.get(&self.services, &key) else {
                found.has_unusable = true;
                found.warnings.push(self.not_found(cx, host, namespace));
                continue;
            };
            let endpoints = self.ports.get(cx, &key).map(|ports| (*ports).clone()).unwrap_or_default();
            for port in ports {
                self.find_port(cx, &service, &endpoints, *port, &mut found);
            }
        }
        found.warnings.sort();
        found
    }

    fn not_found(&self, cx: &Context, host: &Host, namespace: &Text) -> String {
        let elsewhere: BTreeSet<String> =
            cx.by(&self.by_host, host).into_iter().map(|(key, _)| format!("\"{}\"", key.namespace)).collect();
        if elsewhere.is_empty() {
            return format!("hostname \"{host}\" not found");
        }
        let elsewhere = elsewhere.into_iter().collect::<Vec<_>>().join(", ");
        format!(
            "hostname \"{host}\" not found in namespace \"{namespace}\", but it was found in namespace(s) {elsewhere}"
        )
    }

    fn find_port(
        &self,
        cx: &Context,
        service: &Service,
        endpoints: &BTreeSet<(Text, u32)>,
        port: u16,
        found: &mut GatewayInstances,
    ) {
        let host = &service.host;
        let declared = service.port(port);
        if declared.is_some_and(|declared| endpoints.iter().any(|(name, _)| *name == declared.name)) {
            found.internal.insert((host.clone(), port));
            let own = service.addresses_for(&self.cluster).iter().chain(&service.auto_allocated_addresses);
            found.internal_addresses.extend(own.cloned());
            let external: Vec<&Text> = service.external_addresses.values().flatten().collect();
            if !external.is_empty() {
                found.external_addresses.extend(external.into_iter().cloned());
            } else if self.is_load_balancer(cx, service) && found.pending.insert(host.clone()) {
                found.warnings.push(format!("address pending for hostname \"{host}\""));
            }
        } else if endpoints.is_empty() {
            found.warnings.push(format!("no instances found for hostname \"{host}\""));
        } else {
            let of_workload = |name: &Text| endpoints.contains(&(name.clone(), port.into()));
            let hints: BTreeSet<String> =
                service.ports.iter().filter(|it| of_workload(&it.name)).map(|it| it.port.to_string()).collect();
            if !hints.is_empty() {
                let hints = hints.into_iter().collect::<Vec<_>>().join(" ");
                found.has_unusable = true;
                found.warnings.push(format!(
                    "port {port} not found for hostname \"{host}\" (hint: the service port should be specified, not the \
                     workload port. Did you mean one of these ports: [{hints}]?)"
                ));
            } else if declared.is_none() || !service.labels.contains_key(label::GATEWAY_MANAGED) {
                // The endpoints of a port that a deployed Service has may arrive late.
                found.has_unusable = true;
                found.warnings.push(format!("port {port} not found for hostname \"{host}\""));
            }
        }
    }

    fn is_load_balancer(&self, cx: &Context, service: &Service) -> bool {
        let key = ObjectKey::new(service.cluster.clone(), service.namespace.clone(), service.name.clone());
        cx.get(&self.kubernetes, &key).is_some_and(|service| service.service_type == ServiceType::LoadBalancer)
    }
}

/// Which addresses a Gateway without external ones reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReportedAddresses {
    /// Host names.
    Hostnames,
    /// IP addresses.
    Ips,
    /// Both.
    All,
}

impl GatewayInstances {
    /// The condition that a Gateway or ListenerSet is served.
    pub(super) fn programmed(&self) -> StatusCondition {
        let internal: Vec<String> = self.internal.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let internal = enumeration(&sorted(internal));
        let programmed = |message: String| StatusCondition::met("Programmed", "Programmed", message);
        let is_internal = !internal.is_empty();
        if !self.has_services {
            let message = "Failed to assign to any requested addresses";
            return StatusCondition::not_met("Programmed", "UnsupportedAddress", message);
        }
        if self.warnings.is_empty() {
            return match is_internal {
                true => programmed(format!("Resource programmed, assigned to service(s) {internal}")),
                false => programmed("Resource programmed".to_owned()),
            };
        }
        let warnings = self.warnings.join("; ");
        let reason = if self.has_unusable { "AddressNotUsable" } else { "AddressNotAssigned" };
        let message = match is_internal {
            true => format!(
                "Assigned to service(s) {internal}, but failed to assign to all requested addresses: {warnings}"
            ),
            false => format!("Failed to assign to any requested addresses: {warnings}"),
        };
        StatusCondition::not_met("Programmed", reason, message)
    }

    /// The addresses to report; none while none are known.
    pub(super) fn addresses(&self, wanted: ReportedAddresses) -> Vec<Text> {
        if !self.external_addresses.is_empty() {
            return self.external_addresses.iter().cloned().collect();
        }
        let mut addresses = Vec::new();
        if wanted != ReportedAddresses::Hostnames {
            addresses.extend(self.internal_addresses.iter().cloned());
        }
        if wanted != ReportedAddresses::Ips {
            for (host, _) in self.internal.iter().filter(|(host, _)| !self.pending.contains(host)) {
                if !addresses.contains(&host.0) {
                    addresses.push(host.0.clone());
                }
            }
        }
        addresses
    }
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

/// Texts as an enumeration in a sentence.
fn enumeration(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [one, other] => format!("{one} and {other}"),
        [others @ .., last] => format!("{}, and {last}", others.join(", ")),
    }
}

/// Why the addresses that a Gateway requests are not used, or not all of them.
pub(super) fn address_problem(gateway: &Gateway, options: &GraphOptions) -> Option<StatusProblem> {
    if is_managed(gateway, options) {
        return None;
    }
    let is_used = |kind: &AddressKind| matches!(kind, AddressKind::Unset | AddressKind::Hostname);
    let ignored: Vec<&str> =
        gateway.addresses.iter().filter(|it| !is_used(&it.kind)).map(|it| it.value.as_str()).collect();
    if !ignored.is_empty() {
        let message = format!("only Hostname is supported, ignoring [{}]", ignored.join(" "));
        return Some(StatusProblem::new("UnsupportedAddress", message));
    }
    gateway.meta.annotations.contains_key(label::SERVICE_TYPE).then(|| {
        let message = format!("annotation {} is deprecated, use Spec.Infrastructure.Routeability", label::SERVICE_TYPE);
        StatusProblem::new("DeprecatedField", message)
    })
}
