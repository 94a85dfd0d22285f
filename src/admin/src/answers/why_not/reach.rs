//! The service that a proxy reaches at a host, and the DestinationRule that it follows for it.

use std::sync::Arc;

use sluice_graph::reached_service;
use sluice_model::{DestinationRule, ExportTo, Host, ObjectKey, Service};

use super::facts::Facts;

/// The service that the proxy reaches, out of those of one host.
pub(super) fn reached(facts: &Facts<'_>, services: &[Arc<Service>]) -> Option<Arc<Service>> {
    let mut candidates = services.to_vec();
    if let Some(imports) = &facts.imports {
        candidates.retain(|service| imports.lists(service));
    }
    reached_service(candidates, facts.namespace())
}

/// The export of an object, as text.
pub(super) fn exported(export_to: &ExportTo) -> String {
    match export_to {
        ExportTo::All => "all namespaces".to_owned(),
        ExportTo::None => "no namespace".to_owned(),
        ExportTo::Namespaces(namespaces) => {
            let names: Vec<&str> = namespaces.iter().map(|namespace| namespace.as_str()).collect();
            format!("namespace {} only", names.join(", "))
        }
    }
}

/// The DestinationRules whose host covers a host, of discovered namespaces.
pub(super) fn rules_of_host(facts: &Facts<'_>, host: &Host) -> Vec<(ObjectKey, Arc<DestinationRule>)> {
    let rules = facts.snapshot.iter(&facts.state.handles.destination_rules);
    let covering = rules.filter(|(_, rule)| rule.host.contains(host));
    covering.map(|(key, rule)| (key.clone(), Arc::new(rule.clone()))).collect()
}

/// The rule that the proxy follows for a service.
pub(super) fn followed_rule(facts: &Facts<'_>, service: &Service) -> Option<DestinationRule> {
    let rules: Vec<_> = rules_of_host(facts, &service.host).into_iter().map(|(_, rule)| rule).collect();
    sluice_graph::followed_rule(&rules, &facts.mesh, service, (facts.namespace(), &facts.proxy.labels))
}
