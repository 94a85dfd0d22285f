//! The clients for which a host may have other virtual hosts than for the base.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_model::{ExportTo, Host, RouteSemantics, Text, VirtualService};

use super::RouteContext;
use crate::host_patterns::covering_hosts;

/// Namespaces whose clients may have other virtual hosts than the base.
#[must_use]
pub(crate) fn special_namespaces(mesh: &dyn RouteContext, host: &Host) -> BTreeSet<Text> {
    let mut namespaces = BTreeSet::new();
    let mut add = |export_to: &ExportTo| {
        if let ExportTo::Namespaces(exported) = export_to {
            namespaces.extend(exported.iter().cloned());
        }
    };
    let services = mesh.services(host);
    for service in services.iter().chain(&mesh.aliases(host)) {
        add(&service.export_to);
    }
    let virtual_services = virtual_services_over(mesh, host);
    for virtual_service in &virtual_services {
        if let Some(export_to) = &virtual_service.export_to {
            add(export_to);
        }
    }
    let of_clients = virtual_services.iter().filter(|vs| vs.semantics == RouteSemantics::GatewayApi);
    namespaces.extend(of_clients.map(|vs| vs.namespace.clone()));
    namespaces.extend(services.iter().map(|service| service.namespace.clone()));
    let matches = virtual_services.iter().flat_map(|vs| vs.http.iter()).flat_map(|route| route.matches.iter());
    namespaces.extend(matches.map(|matched| matched.source_namespace.clone()));
    namespaces.extend(mesh.destination_rule_namespaces(host));
    let destinations: BTreeSet<&Host> = virtual_services
        .iter()
        .flat_map(|vs| vs.http.iter())
        .flat_map(|route| route.route.iter().map(|to| &to.destination.host))
        .collect();
    for destination in destinations {
        namespaces.extend(mesh.destination_rule_namespaces(destination));
    }
    namespaces.remove("");
    namespaces
}

/// Whether some rule for the host matches labels of the client.
#[must_use]
pub(crate) fn uses_labels(mesh: &dyn RouteContext, host: &Host) -> bool {
    let virtual_services = virtual_services_over(mesh, host);
    let mut destinations = virtual_services.iter().flat_map(|vs| vs.http.iter()).flat_map(|route| route.route.iter());
    if mesh.rules_use_labels(host) || destinations.any(|to| mesh.rules_use_labels(&to.destination.host)) {
        return true;
    }
    let mut matches = virtual_services.iter().flat_map(|vs| vs.http.iter()).flat_map(|route| route.matches.iter());
    matches.any(|matched| !matched.source_labels.is_empty())
}

/// VirtualServices that may route the host: those with the host or with a wildcard that covers it.
fn virtual_services_over(mesh: &dyn RouteContext, host: &Host) -> Vec<Arc<VirtualService>> {
    covering_hosts(host).flat_map(|covering| mesh.virtual_services(&covering)).collect()
}
