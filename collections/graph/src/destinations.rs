//! What a client means by a host: the service it gets there, and the rule it follows for it.
//!
//! Not a collection: a look-up that clusters and endpoint assignments share, so that both agree on the views of a host.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Context, Dep, DepBy, Deps};
use sluice_model::{DestinationRule, Host, Labels, ObjectKey, Service, Text, View};

use crate::destination_rules::{
    RuleClient, RulePolicy, covering_hosts, select_rule, selects_clients, special_namespaces,
};
use crate::{HostServices, Hosts, Spine};

/// Looks up what clients mean by a host, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(crate) struct Destinations {
    hosts: Hosts,
    rules: DepBy<Host, ObjectKey, DestinationRule>,
    policy: Dep<(), RulePolicy>,
    selections: Dep<(Text, Labels), ()>,
}

impl Destinations {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, spine: &Spine<'s>) -> Self {
        Self {
            hosts: Hosts::on(deps, spine),
            rules: deps.by(&spine.destination_rules_by_host),
            policy: deps.on(&spine.rule_policy),
            selections: deps.on(&spine.selections),
        }
    }

    /// All there is to know of a host.
    pub(crate) fn get(&self, cx: &Context, host: &Host) -> HostDestinations {
        let services = self.hosts.get(cx, host);
        let rules: Vec<Arc<DestinationRule>> =
            covering_hosts(host).flat_map(|covering| cx.by(&self.rules, &covering)).map(|(_, rule)| rule).collect();
        let policy = cx.get(&self.policy, &()).map(|policy| (*policy).clone()).unwrap_or_default();
        let mut namespaces: BTreeSet<Text> = services.special_namespaces().cloned().collect();
        namespaces.extend(special_namespaces(&rules));
        // Selections are only looked at for hosts with rules that select, so that no other host depends on them.
        let selecting: BTreeSet<&Text> =
            namespaces.iter().filter(|namespace| selects_clients(&rules, namespace)).collect();
        let selected = if selecting.is_empty() { Vec::new() } else { cx.all(&self.selections) };
        let selected = selected
            .into_iter()
            .filter(|((namespace, _), _)| selecting.contains(namespace))
            .map(|((namespace, labels), _)| View::Selected { namespace, labels })
            .collect::<Vec<_>>();
        let views = namespaces.iter().cloned().map(View::Namespace).chain(selected).collect();
        HostDestinations { host: host.clone(), services, rules, policy, views }
    }
}

/// A host as its clients see it.
pub(crate) struct HostDestinations {
    host: Host,
    services: HostServices,
    rules: Vec<Arc<DestinationRule>>,
    policy: RulePolicy,
    views: Vec<View>,
}

impl HostDestinations {
    /// Views from which the host may look otherwise than from the base.
    pub(crate) fn special_views(&self) -> impl Iterator<Item = View> {
        self.views.iter().cloned()
    }

    /// The service a view has at the host, and the rule it follows for it.
    pub(crate) fn seen_from(&self, view: &View) -> Option<(&Arc<Service>, Option<DestinationRule>)> {
        let service = self.services.visible_to(view.namespace())?;
        let labels = match view {
            View::Selected { labels, .. } => Some(labels),
            _ => None,
        };
        let client = RuleClient { namespace: view.namespace(), labels };
        Some((service, select_rule(&self.rules, &self.policy, &self.host, &service.namespace, client)))
    }

    /// Namespace of the mesh-wide configuration.
    pub(crate) fn root_namespace(&self) -> &Text {
        &self.policy.root_namespace
    }
}
