//! The DestinationRule that clients follow for a service.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sluice_model::{ClientTls, ClientTlsMode, DestinationRule, Kind, Labels, ObjectKey, Service, Text, match_labels};

use super::MeshFacts;
use crate::answers::objects::ObjectVersion;

/// A DestinationRule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleDescription {
    object: ObjectVersion,
    host: String,
    /// Subsets that select one of the pods.
    matching_subsets: Vec<Text>,
    other_subsets: Vec<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyDescription>,
    /// Policies of single ports, by the port of the service.
    ports: BTreeMap<u32, PolicyDescription>,
    /// Policies of subsets.
    subsets: BTreeMap<Text, PolicyDescription>,
}

/// What a traffic policy sets.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyDescription {
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_mode: Option<&'static str>,
    /// `load balancer`, `connection pool`, `outlier detection` and others.
    settings: Vec<&'static str>,
}

impl RuleDescription {
    pub(super) fn matches(&self, subset: &str) -> bool {
        self.matching_subsets.iter().any(|it| it.as_str() == subset)
    }

    pub(super) fn declares(&self, subset: &str) -> bool {
        self.matches(subset) || self.other_subsets.iter().any(|it| it.as_str() == subset)
    }
}

/// The rule that clients in a namespace with these labels follow. `pods` are the labels of the pods of the service.
pub(super) fn describe(
    facts: &MeshFacts<'_>,
    service: &Service,
    client: (&str, &Labels),
    pods: &[&Labels],
) -> Option<RuleDescription> {
    let rules = facts.collection::<DestinationRule>("destination_rules/all");
    let rules: Vec<_> = rules.into_iter().map(|(_, rule)| Arc::new(rule)).collect();
    let rule = sluice_graph::followed_rule(&rules, &facts.mesh, service, client)?;
    let matches = |labels: &Labels| pods.iter().any(|pod| match_labels(labels, pod));
    let (matching, others): (Vec<_>, Vec<_>) = rule.subsets.iter().partition(|subset| matches(&subset.labels));
    let names = |subsets: Vec<&sluice_model::Subset>| subsets.into_iter().map(|subset| subset.name.clone()).collect();
    let key = ObjectKey::new(facts.state.options.cluster.clone(), rule.namespace.clone(), rule.name.clone());
    let policy = rule.traffic_policy.as_ref();
    let with_policy = rule.subsets.iter().filter_map(|it| Some((it.name.clone(), it.traffic_policy.as_deref()?)));
    Some(RuleDescription {
        object: facts.object(Kind::DestinationRule, &key),
        host: rule.host.to_string(),
        matching_subsets: names(matching),
        other_subsets: names(others),
        policy: policy.map(|policy| {
            let more = [
                ("tunnel", policy.tunnel.is_some()),
                ("PROXY protocol", policy.proxy_protocol.is_some()),
                ("retry budget", policy.retry_budget.is_some()),
            ];
            of_policy(&policy.for_port(0).0, &more)
        }),
        ports: policy
            .into_iter()
            .flat_map(|policy| &policy.port_level)
            .map(|level| (level.port, of_policy(&policy_of_port(policy, level.port), &[])))
            .collect(),
        subsets: with_policy.map(|(name, policy)| (name, of_policy(policy, &[]))).collect(),
    })
}

fn policy_of_port(policy: Option<&sluice_model::TrafficPolicy>, port: u32) -> sluice_model::TrafficPolicy {
    let port = u16::try_from(port).unwrap_or_default();
    policy.map(|policy| policy.for_port(port).0).unwrap_or_default()
}

fn of_policy(policy: &sluice_model::TrafficPolicy, more: &[(&'static str, bool)]) -> PolicyDescription {
    let usual = [
        ("load balancer", policy.load_balancer.is_some()),
        ("connection pool", policy.connection_pool.is_some()),
        ("outlier detection", policy.outlier_detection.is_some()),
    ];
    let settings = usual.iter().chain(more).filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    PolicyDescription { tls_mode: policy.tls.as_ref().map(tls_mode), settings }
}

fn tls_mode(tls: &ClientTls) -> &'static str {
    match tls.mode {
        ClientTlsMode::Disable => "DISABLE",
        ClientTlsMode::Simple => "SIMPLE",
        ClientTlsMode::Mutual => "MUTUAL",
        ClientTlsMode::IstioMutual => "ISTIO_MUTUAL",
    }
}
