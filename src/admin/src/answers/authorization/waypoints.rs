//! How policies decide about requests that reach a pod through a waypoint.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_graph::{ExplainedWorkload, PolicyDecision, PolicyEffect, PolicyRequest, host_candidates};
use sluice_model::{
    AuthorizationPolicy, HboneDestination, Labels, ObjectKey, SPIFFE_SCHEME, Service, ServiceSource, Text, Waypoint,
    label,
};

use super::{AuthorizationQuestion, Decision, RuleAnswer, collectors, outcome, reason, rule_answer};
use crate::answers::describe::{DescribedPod, selecting, short_name, waypoint, waypoint_address, waypoint_text};
use crate::answers::mesh_facts::MeshFacts;

/// The decision about a request that a waypoint forwards to a pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaypointDecision {
    /// `NAMESPACE/NAME` of the waypoint.
    waypoint: String,
    /// `NAME.NAMESPACE` of the service; absent if the request is sent to the pod itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    pub(super) decision: Decision,
    /// Why, a sentence.
    pub(super) reason: String,
    /// The rule of the waypoint that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decided_by: Option<RuleAnswer>,
    /// All rules that match, or that may match, in the order in which they are evaluated.
    matched: Vec<RuleAnswer>,
    /// External authorizers that decide, too.
    providers: Vec<Text>,
    /// What the decision depends on, and the question does not state.
    depends_on: BTreeSet<&'static str>,
    /// Number of policies that the waypoint applies to this traffic.
    policies: usize,
}

/// The decisions about a request to a pod and to its services, where these have a waypoint. With a host, only that of this service.
/// `at_pod` is the decision of the pod. A client without an identity uses no waypoint.
pub(super) fn through_waypoints(
    facts: &MeshFacts<'_>,
    found: &DescribedPod,
    question: &AuthorizationQuestion,
    sent: &PolicyRequest,
    at_pod: &dyn Fn(&PolicyRequest) -> PolicyDecision,
) -> Vec<WaypointDecision> {
    if sent.principal.is_none() {
        return Vec::new();
    }
    let waypoints = facts.collection::<Waypoint>("waypoints");
    let named = |key: &ObjectKey| waypoints.iter().map(|(_, waypoint)| waypoint).find(|it| it.key == *key);
    let host = sent.http.as_ref().and_then(|http| http.host.as_deref());
    let is_asked = |service: &Service| {
        host.is_none_or(|host| {
            let host = host.split_once(':').map_or(host, |(name, _)| name);
            let domain = &facts.state.graph.domain;
            host_candidates(host, &found.pod.namespace, domain).into_iter().any(|candidate| candidate == service.host)
        })
    };
    let mut decisions = Vec::new();
    for service in selecting(facts, &found.pod).iter().filter(|service| is_asked(service)) {
        if let Some(waypoint) = waypoint(facts, service).as_ref().and_then(named) {
            let key = facts.declaring_key(service);
            let only_port = if let [port] = &service.ports[..] { Some(port.port) } else { None };
            let request = PolicyRequest { port: question.port.or(only_port), ..sent.clone() };
            let path = WaypointPath { facts, found, waypoint, service: Some((service.source, &key)), at_pod };
            decisions.push(WaypointDecision { service: Some(short_name(service)), ..path.decide(&request) });
        }
    }
    let of_pod = waypoint_address(facts, &found.key).filter(|_| host.is_none());
    let has_address = |waypoint: &&Waypoint| address_text(waypoint) == of_pod;
    if of_pod.is_some()
        && let Some(waypoint) = waypoints.iter().map(|(_, waypoint)| waypoint).find(has_address)
    {
        decisions.push(WaypointPath { facts, found, waypoint, service: None, at_pod }.decide(sent));
    }
    decisions
}

/// A waypoint on the way to a pod.
struct WaypointPath<'a> {
    facts: &'a MeshFacts<'a>,
    found: &'a DescribedPod,
    waypoint: &'a Waypoint,
    /// The object that declares the service.
    service: Option<(ServiceSource, &'a ObjectKey)>,
    at_pod: &'a dyn Fn(&PolicyRequest) -> PolicyDecision,
}

impl WaypointPath<'_> {
    fn decide(&self, request: &PolicyRequest) -> WaypointDecision {
        let Self { facts, waypoint, .. } = self;
        let labels = Labels::from([(label::GATEWAY_NAME.into(), waypoint.key.name.clone())]);
        let workload = ExplainedWorkload {
            namespace: &waypoint.key.namespace,
            labels: &labels,
            mesh: &facts.mesh,
            options: &facts.state.graph,
        };
        let all = facts.collection::<AuthorizationPolicy>("authorization_policies");
        let policies = workload.applied_as_waypoint(all, self.service);
        let decision = workload.decide(&policies, collectors(facts), request);
        let matched: Vec<RuleAnswer> =
            decision.matched.iter().map(|rule| rule_answer(facts, &policies, rule)).collect();
        let decided_by = decision.decided_by.and_then(|at| matched.get(at).cloned());
        let refused_by_pod = (decision.effect == PolicyEffect::Allowed).then(|| self.refusal_of_pod(request)).flatten();
        let (outcome, reason) = match refused_by_pod {
            Some(reason) => (Decision::Deny, reason),
            None => (outcome(decision.effect), reason(&decision, decided_by.as_ref())),
        };
        WaypointDecision {
            waypoint: waypoint_text(&waypoint.key),
            service: None,
            decision: outcome,
            reason,
            decided_by: decided_by.filter(|_| outcome != Decision::Deny || decision.effect != PolicyEffect::Allowed),
            matched,
            providers: decision.providers,
            depends_on: decision.depends_on,
            policies: policies.len(),
        }
    }

    /// Why the pod refuses what the waypoint forwards. The pod sees the identity of the waypoint.
    fn refusal_of_pod(&self, request: &PolicyRequest) -> Option<String> {
        let Self { facts, found, waypoint, .. } = self;
        let account = waypoint.accounts.first()?;
        let trust_domain = &facts.mesh.trust_domain;
        let identity = format!("{SPIFFE_SCHEME}{trust_domain}/ns/{}/sa/{account}", waypoint.key.namespace);
        let forwarded = PolicyRequest {
            http: request.http.clone().filter(|_| !found.is_ambient()),
            principal: Some(identity.clone()),
            port: None,
            ..request.clone()
        };
        let decision = (self.at_pod)(&forwarded);
        (decision.effect == PolicyEffect::Denied).then(|| {
            format!("the waypoint allows the request, and the policies of the pod deny its identity {identity}")
        })
    }
}

/// The address of a waypoint: `NAMESPACE/HOST`, or an IP address.
fn address_text(waypoint: &Waypoint) -> Option<String> {
    Some(match &waypoint.address.as_ref()?.destination {
        HboneDestination::Service(key) => format!("{}/{}", key.namespace, key.host),
        HboneDestination::Address { address, .. } => address.to_string(),
    })
}
