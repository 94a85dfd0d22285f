//! The rules for ports that are not HTTP: VirtualServices with TCP or TLS routes, and DestinationRules.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::listener::{DestinationFacts, Destinations};
use sluice_model::{
    DestinationRule, ExportTo, Host, Labels, ObjectKey, RouteSemantics, Service, Text, View, VirtualService,
};

use crate::host_patterns::covering_hosts;
use crate::traffic::destination_rules::{
    RuleClient, RuleLookup, RulePolicy, select_rule, selects_clients, special_namespaces,
};
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::virtual_services::{is_visible, precedence};

/// VirtualServices of sidecars that route connections, by host as declared.
pub(super) fn index_connection_routes<'s>(
    virtual_services: &Collection<'s, ObjectKey, VirtualService>,
) -> Index<'s, Host, ObjectKey, ()> {
    virtual_services.index("listeners/virtual-services-by-host", |_, service| {
        let routes = service.is_mesh() && !(service.tcp.is_empty() && service.tls.is_empty());
        let hosts = if routes { service.hosts.as_slice() } else { &[] };
        hosts.iter().map(|host| (host.clone(), ())).collect::<Vec<_>>()
    })
}

/// Inputs of [`ConnectionRules`].
pub(super) struct ConnectionRuleInputs<'a, 's> {
    pub(super) destinations: DestinationInputs<'a, 's>,
    pub(super) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// Those of them that route connections, by host.
    pub(super) connection_routes: &'a Index<'s, Host, ObjectKey, ()>,
}

/// Looks up the rules, inside a `derive`.
#[derive(Clone, Copy)]
pub(super) struct ConnectionRules {
    rules: RuleLookup,
    policy: Dep<(), RulePolicy>,
    virtual_services: Dep<ObjectKey, VirtualService>,
    by_host: IndexDep<Host, ObjectKey, ()>,
}

impl ConnectionRules {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, inputs: &ConnectionRuleInputs<'_, 's>) -> Self {
        Self {
            rules: RuleLookup::on(deps, inputs.destinations.rules_by_host),
            policy: deps.on(inputs.destinations.rule_policy),
            virtual_services: deps.on(inputs.virtual_services),
            by_host: deps.by(inputs.connection_routes),
        }
    }

    /// VirtualServices of sidecars that route connections to the host, for all clients.
    fn routing_to(&self, cx: &Context, host: &Host) -> Vec<Arc<VirtualService>> {
        let mut keys: BTreeSet<ObjectKey> = BTreeSet::new();
        for covering in covering_hosts(host) {
            keys.extend(cx.by(&self.by_host, &covering).into_iter().map(|(key, _)| key));
        }
        keys.iter().filter_map(|key| cx.get(&self.virtual_services, key)).collect()
    }

    /// Those that a client in `namespace` follows, in order of precedence.
    pub(super) fn virtual_services(&self, cx: &Context, host: &Host, namespace: &str) -> Vec<Arc<VirtualService>> {
        let mut found = self.routing_to(cx, host);
        found.retain(|service| is_visible(service, namespace));
        found.sort_by(|a, b| precedence(a, namespace).cmp(&precedence(b, namespace)));
        found
    }

    /// The rule that a client follows for a service.
    pub(super) fn rule(&self, cx: &Context, service: &Service, view: &View) -> Option<Arc<DestinationRule>> {
        let policy = cx.get(&self.policy, &())?;
        let rules = self.rules.covering(cx, &service.host);
        let nothing = Labels::new();
        let client = RuleClient { namespace: view.namespace(), labels: view.labels().or(Some(&nothing)) };
        select_rule(&rules, &policy, &service.host, &service.namespace, client).map(Arc::new)
    }

    /// The destinations of these VirtualServices, for clients of the view; `seen` gives the service of a host.
    pub(super) fn destinations(
        &self,
        cx: &Context,
        seen: &dyn Fn(&Host) -> Option<Arc<Service>>,
        services: &[Arc<VirtualService>],
        view: &View,
    ) -> Destinations {
        let facts = |host: &Host| {
            let service = seen(host);
            let rule = service.as_ref().and_then(|service| self.rule(cx, service, view));
            DestinationFacts { service, rule }
        };
        destination_hosts(services).into_iter().map(|host| (host.clone(), facts(host))).collect()
    }

    /// Namespaces whose clients may follow other rules than the base, and whether labels of clients matter.
    pub(super) fn special(&self, cx: &Context, host: &Host) -> (BTreeSet<Text>, bool) {
        let virtual_services = self.routing_to(cx, host);
        let mut namespaces = BTreeSet::new();
        let mut labelled = false;
        for service in &virtual_services {
            if let Some(ExportTo::Namespaces(listed)) = &service.export_to {
                namespaces.extend(listed.iter().cloned());
            }
            if service.semantics == RouteSemantics::GatewayApi {
                namespaces.insert(service.namespace.clone());
            }
            let tls =
                service.tls.iter().flat_map(|route| &route.matches).map(|m| (&m.source_namespace, &m.source_labels));
            let tcp =
                service.tcp.iter().flat_map(|route| &route.matches).map(|m| (&m.source_namespace, &m.source_labels));
            for (namespace, labels) in tls.chain(tcp) {
                namespaces.insert(namespace.clone());
                labelled |= !labels.is_empty();
            }
        }
        let destinations = destination_hosts(&virtual_services);
        for host in destinations.into_iter().chain([host]) {
            let rules = self.rules.covering(cx, host);
            let named = special_namespaces(&rules);
            labelled |= named.iter().any(|namespace| selects_clients(&rules, namespace));
            namespaces.extend(named);
        }
        namespaces.remove("");
        (namespaces, labelled)
    }
}

fn destination_hosts(services: &[Arc<VirtualService>]) -> BTreeSet<&Host> {
    let tls = services.iter().flat_map(|service| &service.tls).flat_map(|route| &route.route);
    let tcp = services.iter().flat_map(|service| &service.tcp).flat_map(|route| &route.route);
    tls.chain(tcp).map(|route| &route.destination.host).collect()
}
