//! What a client sees, for explanations: the rules that the collections follow, on values that the caller has read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_model::{
    DestinationRule, ExportTo, Host, Labels, MeshConfig, ObjectKey, Service, Sidecar, SidecarScope, Text,
    VirtualService,
};

use crate::registry::services::HostServices;
use crate::traffic::destination_rules::{self, MergedRule, RuleClient, RulePolicy, select_rule};
use crate::traffic::sidecars::{EgressScope, reached_service as sidecar_service};
use crate::traffic::virtual_services::{self, precedence};

/// The hosts that a Sidecar imports for the proxies of a namespace.
pub struct SidecarImports(EgressScope);

impl SidecarImports {
    /// Compiles the egress listeners of a Sidecar.
    #[must_use]
    pub fn new(scope: SidecarScope, sidecar: &Sidecar) -> Self {
        Self(EgressScope::new(scope, &sidecar.egress, None))
    }

    /// Whether a listener lists the service.
    #[must_use]
    pub fn lists(&self, service: &Service) -> bool {
        self.0.listeners.iter().any(|listener| listener.imports(&service.namespace, &service.host))
    }

    /// Whether a listener that lists the service has this port.
    #[must_use]
    pub fn lists_port(&self, service: &Service, port: u16) -> bool {
        let lists = |listener: &&crate::traffic::sidecars::EgressListener| {
            listener.imports(&service.namespace, &service.host) && listener.only_port().is_none_or(|only| only == port)
        };
        self.0.listeners.iter().any(|listener| lists(&listener))
    }

    /// Whether a VirtualService of sidecars, with its visibility resolved, applies to a listener.
    #[must_use]
    pub fn imports_route(&self, virtual_service: &VirtualService) -> bool {
        self.0.imports_route(virtual_service)
    }

    /// As [`Self::imports_route`], for the listener of this number, in declared order.
    #[must_use]
    pub fn listener_imports_route(&self, listener: usize, virtual_service: &VirtualService) -> bool {
        let found = self.0.listeners.get(listener);
        found.is_some_and(|listener| listener.imports_route(virtual_service, self.0.namespace()))
    }

    /// The service that the listener of this number lists, out of the services of one host, with the ports that it reaches.
    #[must_use]
    pub fn listed_service(&self, listener: usize, services: &[Arc<Service>]) -> Option<Arc<Service>> {
        self.0.listeners.get(listener)?.service(&HostServices::new(services.to_vec()), self.0.namespace())
    }

    /// The service that proxies reach at a host, with the ports that they reach: a listener lists it, or one of `routes` has it
    /// as a destination. `routes` have their visibility resolved; `reaches_best` is that of the options of the graph.
    #[must_use]
    pub fn reached_service(
        &self,
        host: &Host,
        services: &[Arc<Service>],
        routes: &[Arc<VirtualService>],
        reaches_best: bool,
    ) -> Option<Arc<Service>> {
        let services = HostServices::new(services.to_vec());
        let seen = sidecar_service(&self.0, host, &services, (routes, reaches_best), &mut false)?;
        services.iter().find(|service| service.key() == seen.service).map(|service| seen.of(service))
    }
}

/// The hosts of the destinations of a VirtualService.
#[must_use]
pub fn destination_hosts(virtual_service: &VirtualService) -> BTreeSet<&Host> {
    virtual_services::destination_hosts(virtual_service, "")
}

/// DestinationRules of which clients follow one for a service: those of several objects, merged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CandidateRule {
    /// Namespace and name of the objects, the oldest first.
    pub from: Vec<(Text, Text)>,
    /// The namespaces that the rule is exported to; empty is the default.
    pub export_to: BTreeSet<Text>,
}

/// DestinationRules by host.
#[derive(Default)]
pub struct RulesByHost {
    exact: BTreeMap<Host, Vec<Arc<DestinationRule>>>,
    wildcards: Vec<Arc<DestinationRule>>,
}

impl RulesByHost {
    /// Adds a rule.
    pub fn add(&mut self, rule: Arc<DestinationRule>) {
        match rule.host.is_wildcard() {
            true => self.wildcards.push(rule),
            false => self.exact.entry(rule.host.clone()).or_default().push(rule),
        }
    }

    /// The rules of which clients of a namespace follow one for a service, by their labels.
    #[must_use]
    pub fn candidates(&self, mesh: &MeshConfig, service: &Service, namespace: &str) -> Vec<CandidateRule> {
        let exact = self.exact.get(&service.host).into_iter().flatten();
        let covering = exact.chain(self.wildcards.iter().filter(|rule| rule.host.contains(&service.host)));
        let covering: Vec<_> = covering.cloned().collect();
        let found = destination_rules::candidates(&covering, &RulePolicy::new(mesh), &service.namespace, namespace);
        let candidate = |found: &MergedRule<'_>| CandidateRule {
            from: found.from.iter().map(|rule| (rule.namespace.clone(), rule.name.clone())).collect(),
            export_to: found.words.clone(),
        };
        found.iter().map(candidate).collect()
    }
}

/// A VirtualService with its visibility resolved.
#[must_use]
pub fn with_visibility(virtual_service: &VirtualService, mesh: &MeshConfig) -> VirtualService {
    let default = || mesh.virtual_service_export_to(&virtual_service.namespace);
    let export_to: ExportTo = virtual_service.export_to.clone().unwrap_or_else(default);
    VirtualService { export_to: Some(export_to), ..virtual_service.clone() }
}

/// Of several VirtualServices of one host, with their visibility resolved: in order of precedence for clients of a namespace.
/// The first one that has routes for a request applies.
pub fn sort_by_precedence(virtual_services: &mut [(ObjectKey, VirtualService)], namespace: &str) {
    virtual_services.sort_by(|(_, one), (_, other)| precedence(one, namespace).cmp(&precedence(other, namespace)));
}

/// The service that clients of a namespace without a Sidecar reach, out of the services of one host.
#[must_use]
pub fn reached_service(services: Vec<Arc<Service>>, namespace: &str) -> Option<Arc<Service>> {
    HostServices::new(services).visible_to(namespace).cloned()
}

/// The DestinationRule that a client follows for a service, merged of all rules whose host covers the service's.
#[must_use]
pub fn followed_rule(
    rules: &[Arc<DestinationRule>],
    mesh: &MeshConfig,
    service: &Service,
    (namespace, labels): (&str, &Labels),
) -> Option<DestinationRule> {
    let covering = |rule: &&Arc<DestinationRule>| rule.host.contains(&service.host);
    let mut covering: Vec<_> = rules.iter().filter(covering).cloned().collect();
    // The most specific host first, as the collections look them up.
    covering.sort_by_key(|rule| (rule.host.is_wildcard(), std::cmp::Reverse(rule.host.as_str().len())));
    let client = RuleClient { namespace, labels: Some(labels) };
    select_rule(&covering, &RulePolicy::new(mesh), &service.host, &service.namespace, client)
}

/// A host as people write it: `web` of a namespace, `web.shop`, or a whole name.
#[must_use]
pub fn host_candidates(text: &str, namespace: &str, domain: &str) -> Vec<Host> {
    let text = text.trim_end_matches('.');
    let whole = Host::new(text);
    match text.split('.').count() {
        1 if !whole.is_wildcard() => vec![Host::new(&format!("{text}.{namespace}.svc.{domain}")), whole],
        2 if !whole.is_wildcard() => vec![Host::new(&format!("{text}.svc.{domain}")), whole],
        3 if text.ends_with(".svc") => vec![Host::new(&format!("{text}.{domain}")), whole],
        _ => vec![whole],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_completed_as_in_kubernetes() {
        let first = |text: &str| host_candidates(text, "shop", "cluster.local")[0].to_string();
        assert_eq!(first("web"), "web.shop.svc.cluster.local");
        assert_eq!(first("web.bank"), "web.bank.svc.cluster.local");
        assert_eq!(first("web.bank.svc"), "web.bank.svc.cluster.local");
        assert_eq!(first("web.bank.svc.cluster.local"), "web.bank.svc.cluster.local");
        assert_eq!(first("*.com"), "*.com");
        assert_eq!(first("api.example.com"), "api.example.com");
    }
}
