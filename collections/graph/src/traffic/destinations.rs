//! The service that a client reaches at a host, and the rule that it follows for it.
//!
//! This is a look-up, not a collection. Clusters, endpoint assignments and name tables share it, so that they have the
//! same views of a host.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index};
use sluice_model::{DestinationRule, Host, Labels, Service, ServiceKey, SidecarScope, Text, View};

use crate::registry::services::{HostServiceLookup, HostServices};
use crate::traffic::destination_rules::{
    RuleClient, RuleIndex, RuleLookup, RulePolicy, select_rule, selects_clients, special_namespaces,
};
use crate::traffic::sidecars::{SidecarHost, SidecarLookup, Sidecars};
use crate::views::sidecar_view;

/// Inputs of the look-up.
#[derive(Clone, Copy)]
pub(crate) struct DestinationInputs<'a, 's> {
    /// Services, merged over clusters.
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    /// Services of each host.
    pub(crate) services_by_host: &'a Index<'s, Host, ServiceKey, ()>,
    /// DestinationRules by host, with the parts that the reader reads; `None` if it reads none.
    pub(crate) rules_by_host: Option<&'a RuleIndex<'s>>,
    /// The fields of the mesh config that decide which DestinationRules apply.
    pub(crate) rule_policy: &'a Collection<'s, (), RulePolicy>,
    /// Combinations of selected labels in use, with their namespace.
    pub(crate) selections: &'a Collection<'s, (Text, Labels), ()>,
    /// Sidecars in use.
    pub(crate) sidecars: &'a Sidecars<'s>,
}

/// Looks up services and rules of hosts, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(crate) struct Destinations {
    hosts: HostServiceLookup,
    rules: RuleLookup,
    policy: Dep<(), RulePolicy>,
    selections: Dep<(Text, Labels), ()>,
    sidecars: SidecarLookup,
}

impl Destinations {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, inputs: &DestinationInputs<'_, 's>) -> Self {
        Self {
            hosts: HostServiceLookup::on(deps, inputs.services_by_host, inputs.services),
            rules: RuleLookup::on(deps, inputs.rules_by_host),
            policy: deps.on(inputs.rule_policy),
            selections: deps.on(inputs.selections),
            sidecars: SidecarLookup::on(deps, inputs.sidecars),
        }
    }

    /// The services, rules and views of a host.
    pub(crate) fn get(&self, cx: &Context, host: &Host) -> HostDestinations {
        let services = self.hosts.get(cx, host);
        let rules = self.rules.covering(cx, host);
        let policy = cx.get(&self.policy, &()).map(|policy| (*policy).clone()).unwrap_or_default();
        let mut namespaces: BTreeSet<Text> = services.special_namespaces().cloned().collect();
        namespaces.extend(special_namespaces(&rules));
        // Selections are only read for hosts with rules that select, so that other hosts do not depend on them.
        let selecting: BTreeSet<&Text> =
            namespaces.iter().filter(|namespace| selects_clients(&rules, namespace)).collect();
        let selected = if selecting.is_empty() { Vec::new() } else { cx.all(&self.selections) };
        let selected = selected
            .into_iter()
            .filter(|((namespace, _), _)| selecting.contains(namespace))
            .map(|((namespace, labels), _)| View::Selected { namespace, labels })
            .collect::<Vec<_>>();
        let sidecars = self.sidecars.host(cx, host);
        let labelled = |scope: &SidecarScope| match selecting.contains(&scope.namespace) {
            true => self.sidecars.labelled(cx, scope),
            false => Vec::new(),
        };
        let of_sidecars =
            sidecars.reaching().flat_map(|scope| [sidecar_view(scope)].into_iter().chain(labelled(scope)));
        let views = namespaces.iter().cloned().map(View::Namespace).chain(selected).chain(of_sidecars).collect();
        HostDestinations { host: host.clone(), services, sidecars: sidecars.clone(), rules, policy, views }
    }

    /// The service that clients in a namespace reach at a host.
    pub(crate) fn service(&self, cx: &Context, host: &Host, namespace: &str) -> Option<Arc<Service>> {
        self.hosts.get(cx, host).visible_to(namespace).cloned()
    }

    /// The rule that clients of a view follow for a service.
    pub(crate) fn rule(&self, cx: &Context, service: &Service, view: &View) -> Option<DestinationRule> {
        let policy = cx.get(&self.policy, &())?;
        let nothing = Labels::new();
        let client = RuleClient { namespace: view.namespace(), labels: view.labels().or(Some(&nothing)) };
        select_rule(&self.rules.covering(cx, &service.host), &policy, &service.host, &service.namespace, client)
    }
}

/// The services, rules and views of a host.
pub(crate) struct HostDestinations {
    host: Host,
    services: HostServices,
    sidecars: Arc<SidecarHost>,
    rules: Vec<Arc<DestinationRule>>,
    policy: RulePolicy,
    views: Vec<View>,
}

impl HostDestinations {
    /// Views in which the host may differ from the base.
    pub(crate) fn special_views(&self) -> impl Iterator<Item = View> {
        self.views.iter().cloned()
    }

    /// The service of a view at the host, and the rule that the view follows for it.
    pub(crate) fn seen_from(&self, view: &View) -> Option<(Arc<Service>, Option<DestinationRule>)> {
        let service = self.service_seen_from(view)?;
        let client = RuleClient { namespace: view.namespace(), labels: view.labels() };
        let rule = select_rule(&self.rules, &self.policy, &self.host, &service.namespace, client);
        Some((service, rule))
    }

    /// The service of a view at the host.
    pub(crate) fn service_seen_from(&self, view: &View) -> Option<Arc<Service>> {
        match view.sidecar() {
            Some(scope) => self.sidecars.service(scope, self.services.iter()),
            None => self.services.visible_to(view.namespace()).cloned(),
        }
    }

    /// Whether services of several namespaces have the host.
    pub(crate) fn has_several_services(&self) -> bool {
        self.services.iter().nth(1).is_some()
    }

    /// Whether a rule for the host names a credential.
    pub(crate) fn name_credentials(&self) -> bool {
        self.rules.iter().any(|rule| rule.names_credentials())
    }

    /// Whether a listener of the view's Sidecar names a service of the host; true for views without a Sidecar.
    pub(crate) fn is_named_in(&self, view: &View) -> bool {
        let listed = |scope: &SidecarScope| self.sidecars.0.get(scope).is_some_and(|interest| interest.listed);
        view.sidecar().is_none_or(listed)
    }

    /// The root namespace of the mesh.
    pub(crate) fn root_namespace(&self) -> &Text {
        &self.policy.root_namespace
    }
}
