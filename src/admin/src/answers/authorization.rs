//! `authorization`: how the policies of a workload decide about a request (I08, P14, P16).

mod waypoints;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;
use sluice_graph::{
    COLLECTORS, Collector, ExplainedWorkload, PolicyDecision, PolicyEffect, PolicyHttpRequest, PolicyRequest,
    PolicyStep,
};
use sluice_model::{AuthorizationPolicy, Kind, ObjectKey, ProviderService, SPIFFE_SCHEME, Text};

use super::AnswerError;
use super::describe::{
    DISABLE, DescribedPod, STRICT, action_text, applied_authorization, find_pod, peer_description, target_port,
};
use super::mesh_facts::MeshFacts;
use super::objects::ObjectVersion;
use crate::AdminState;
use crate::answer::Parameters;
use waypoints::{WaypointDecision, through_waypoints};

/// A request to a pod, as it is described on the command line. Absent parts are empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthorizationQuestion {
    pub(crate) pod: String,
    pub(crate) namespace: String,
    /// `None` for a connection whose protocol is not HTTP.
    pub(crate) http: Option<PolicyHttpRequest>,
    /// Identity of the client without `spiffe://`; empty without mutual TLS.
    pub(crate) principal: String,
    /// Namespace of the client, if no identity is given.
    pub(crate) source_namespace: String,
    /// Service account of the client in that namespace; `default` if empty.
    pub(crate) source_account: String,
    pub(crate) source_ip: Option<IpAddr>,
    pub(crate) remote_ip: Option<IpAddr>,
    /// Port of the service or of the pod; the only port of the pod if absent.
    pub(crate) port: Option<u16>,
    pub(crate) server_name: String,
    /// Claims of a validated token.
    pub(crate) claims: BTreeMap<Vec<String>, Vec<String>>,
}

impl AuthorizationQuestion {
    /// Reads the parameters of the page. Headers and claims are lines of `NAME: VALUE`; a claim may have several lines, and the
    /// names of a nested one are separated by `][`.
    pub(crate) fn parse(parameters: &Parameters) -> Result<Self, AnswerError> {
        let text = |name: &str| parameters.get(name).map(|value| value.trim().to_owned()).unwrap_or_default();
        let invalid =
            |name: &str, expected: &str| AnswerError::BadRequest(format!("{name}={:?} is not {expected}", text(name)));
        let address = |name: &str| match text(name).as_str() {
            "" => Ok(None),
            value => value.parse().map(Some).map_err(|_| invalid(name, "an IP address")),
        };
        let lines = |name: &'static str| {
            let text = text(name);
            let lines = text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
                let (name, value) = line.split_once(':').ok_or_else(|| invalid(name, "a line NAME: VALUE"))?;
                Ok((name.trim().to_owned(), value.trim().to_owned()))
            });
            lines.collect::<Result<Vec<_>, AnswerError>>()
        };
        let pod = text("pod");
        if pod.is_empty() {
            return Err(AnswerError::BadRequest("parameter pod is missing".to_owned()));
        }
        let http = match (text("method").as_str(), text("path").as_str()) {
            ("", "") => None,
            (method, path) if path.starts_with('/') => Some(PolicyHttpRequest {
                method: if method.is_empty() { "GET".to_owned() } else { method.to_owned() },
                path: path.to_owned(),
                host: Some(text("host")).filter(|host| !host.is_empty()),
                headers: lines("headers")?.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect(),
            }),
            _ => return Err(invalid("path", "a path: it begins with a slash")),
        };
        let mut claims: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
        for (name, value) in lines("claims")? {
            claims.entry(name.split("][").map(str::to_owned).collect()).or_default().push(value);
        }
        let port = match text("port").as_str() {
            "" => None,
            port => Some(port.parse().map_err(|_| invalid("port", "a port"))?),
        };
        Ok(Self {
            pod,
            namespace: text("namespace"),
            http,
            principal: text("principal"),
            source_namespace: text("sourceNamespace"),
            source_account: text("sourceAccount"),
            source_ip: address("sourceIP")?,
            remote_ip: address("remoteIP")?,
            port,
            server_name: text("serverName"),
            claims,
        })
    }
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuthorizationAnswer {
    epoch: u64,
    /// `NAME.NAMESPACE`.
    pod: String,
    /// Port of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The identity of the client; absent without mutual TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    decision: Decision,
    /// Why, a sentence.
    reason: String,
    /// The rule that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    decided_by: Option<RuleAnswer>,
    /// All rules that match, or that may match, in the order in which they are evaluated.
    matched: Vec<RuleAnswer>,
    /// External authorizers that decide, too.
    providers: Vec<Text>,
    /// What the decision depends on, and the question does not state.
    depends_on: BTreeSet<&'static str>,
    mutual_tls: MutualTls,
    /// Number of policies that apply to the pod.
    policies: usize,
    /// Decisions about the same request to the services of the pod that have a waypoint, and to a pod that has one. With a host, only
    /// those of this service, which is then the decision of the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waypoints: Vec<WaypointDecision>,
    notes: Vec<String>,
}

/// What happens with the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Decision {
    Allow,
    Deny,
    /// An external authorizer decides.
    Custom,
    Undecided,
}

/// A rule of a policy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleAnswer {
    #[serde(flatten)]
    object: ObjectVersion,
    action: &'static str,
    step: PolicyStep,
    /// `spec.rules[0]`.
    rule: String,
    dry_run: bool,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    depends_on: BTreeSet<&'static str>,
}

/// Mutual TLS at the port.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MutualTls {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<ObjectVersion>,
}

/// Answers the question. Waits for the dataflow thread.
pub(crate) fn authorization(
    state: &AdminState,
    question: &AuthorizationQuestion,
) -> Result<AuthorizationAnswer, AnswerError> {
    let facts = MeshFacts::new(state);
    let found = find_pod(&facts, &question.pod, &question.namespace)?;
    let port = port(&facts, &found, question.port)?;
    let policies = applied_authorization(&facts, &found.pod.namespace, found.labels());
    let mut notes = Vec::new();
    let sent = request(&facts, &found, question, port);
    let mut request = sent.clone();
    if found.is_ambient() && request.http.take().is_some() {
        notes.push("ztunnel enforces the policies of the pod: HTTP attributes are not known to it".to_owned());
    }
    let peers = peer_description(&facts, &found.pod.namespace, found.labels());
    let mode = port.and_then(|port| peers.ports.get(&u32::from(port)).copied()).unwrap_or(peers.mode);
    if mode == DISABLE && !found.is_ambient() && request.principal.take().is_some() {
        notes.push("the port does not accept mutual TLS: the proxy does not see the identity of the client".to_owned());
    }
    let mutual_tls = MutualTls { mode, source: peers.source };
    let workload = ExplainedWorkload {
        namespace: &found.pod.namespace,
        labels: found.labels(),
        mesh: &facts.mesh,
        options: &state.graph,
    };
    let decide = |request: &PolicyRequest| workload.decide(&policies, collectors(&facts), request);
    let decision = decide(&request);
    let matched: Vec<RuleAnswer> = decision.matched.iter().map(|rule| rule_answer(&facts, &policies, rule)).collect();
    let decided_by = decision.decided_by.and_then(|at| matched.get(at).cloned());
    let waypoints = through_waypoints(&facts, &found, question, &sent, &decide);
    let of_host = waypoints.first().filter(|_| sent.http.as_ref().is_some_and(|http| http.host.is_some()));
    let is_refused = mode == STRICT && request.principal.is_none();
    let (decision_text, reason) = if is_refused {
        let reason = "the port accepts mutual TLS only, and the client has no identity: the connection is refused";
        (Decision::Deny, reason.to_owned())
    } else {
        (outcome(decision.effect), reason(&decision, decided_by.as_ref()))
    };
    let decided_by = decided_by.filter(|_| !is_refused);
    let (decision_text, reason, decided_by) = match of_host {
        Some(path) => (path.decision, path.reason.clone(), path.decided_by.clone()),
        None => (decision_text, reason, decided_by),
    };
    Ok(AuthorizationAnswer {
        epoch: facts.epoch(),
        pod: found.name(),
        port,
        principal: request.principal.clone(),
        decision: decision_text,
        reason,
        decided_by,
        matched,
        providers: decision.providers,
        depends_on: decision.depends_on,
        mutual_tls,
        policies: policies.len(),
        waypoints,
        notes,
    })
}

/// The port of the pod: a service port is translated.
fn port(facts: &MeshFacts<'_>, found: &DescribedPod, asked: Option<u16>) -> Result<Option<u16>, AnswerError> {
    let pod = &found.pod;
    let own: BTreeSet<u16> = pod.ports.iter().map(|(_, port, _)| *port).collect();
    let Some(asked) = asked else {
        return Ok(if own.len() == 1 { own.first().copied() } else { None });
    };
    if own.contains(&asked) {
        return Ok(Some(asked));
    }
    let services = facts.snapshot.iter(&facts.state.handles.services).map(|(_, service)| service);
    let of_pod = services.filter(|service| {
        service.namespace == pod.namespace
            && !service.selector.is_empty()
            && sluice_model::match_labels(&service.selector, &pod.labels)
    });
    let targets: BTreeSet<u16> = of_pod
        .flat_map(|service| service.ports.iter().filter(|port| port.port == asked))
        .filter_map(|port| target_port(port, pod))
        .collect();
    match targets.iter().copied().collect::<Vec<_>>()[..] {
        [] => Ok(Some(asked)),
        [only] => Ok(Some(only)),
        _ => {
            let ports: Vec<String> = targets.iter().map(ToString::to_string).collect();
            let text = format!("port {asked} of the services of the pod has several targets: {}", ports.join(", "));
            Err(AnswerError::BadRequest(text))
        }
    }
}

/// The request as the client sends it.
fn request(
    facts: &MeshFacts<'_>,
    found: &DescribedPod,
    question: &AuthorizationQuestion,
    port: Option<u16>,
) -> PolicyRequest {
    let principal = match (question.principal.as_str(), question.source_namespace.as_str()) {
        ("", "") => None,
        ("", namespace) => {
            let account = if question.source_account.is_empty() { "default" } else { &question.source_account };
            Some(format!("{SPIFFE_SCHEME}{}/ns/{namespace}/sa/{account}", facts.mesh.trust_domain))
        }
        (principal, _) => {
            Some(format!("{SPIFFE_SCHEME}{}", principal.strip_prefix(SPIFFE_SCHEME).unwrap_or(principal)))
        }
    };
    PolicyRequest {
        http: question.http.clone(),
        principal,
        source_ip: question.source_ip,
        remote_ip: question.remote_ip.or(question.source_ip),
        destination_ip: found.pod.ips.first().and_then(|address| address.parse().ok()),
        port,
        server_name: (!question.server_name.is_empty()).then(|| question.server_name.clone()),
        claims: question.claims.clone(),
    }
}

/// The services of extension providers.
fn collectors(facts: &MeshFacts<'_>) -> BTreeMap<ProviderService, Collector> {
    let dump = facts.state.engine.dump(COLLECTORS);
    let mut rows = dump.iter().flat_map(|dump| dump.typed::<(), BTreeMap<ProviderService, Collector>>());
    rows.next().map(|(_, collectors)| collectors.clone()).unwrap_or_default()
}

fn rule_answer(
    facts: &MeshFacts<'_>,
    policies: &[(ObjectKey, AuthorizationPolicy)],
    matched: &sluice_graph::MatchedRule,
) -> RuleAnswer {
    let (key, policy) = &policies[matched.policy];
    RuleAnswer {
        object: facts.object(Kind::AuthorizationPolicy, key),
        action: action_text(policy.action),
        step: matched.step,
        rule: format!("spec.rules[{}]", matched.rule),
        dry_run: matched.dry_run,
        depends_on: matched.depends_on.clone(),
    }
}

fn outcome(effect: PolicyEffect) -> Decision {
    match effect {
        PolicyEffect::Allowed => Decision::Allow,
        PolicyEffect::Denied => Decision::Deny,
        PolicyEffect::Provider => Decision::Custom,
        PolicyEffect::Undecided => Decision::Undecided,
    }
}

fn reason(decision: &PolicyDecision, decided_by: Option<&RuleAnswer>) -> String {
    let open: Vec<&str> = decision.depends_on.iter().copied().collect();
    let rule = decided_by.map(|rule| format!("{} of {}", rule.rule, rule.object.object)).unwrap_or_default();
    match (decision.effect, decided_by) {
        (PolicyEffect::Denied, Some(by)) if by.step == PolicyStep::Custom => {
            format!("{rule} matches, and its external authorizer cannot be called")
        }
        (PolicyEffect::Denied, Some(_)) => format!("{rule} matches and denies the request"),
        (PolicyEffect::Denied, None) => "there are ALLOW policies, and no rule of them matches".to_owned(),
        (PolicyEffect::Allowed, Some(_)) => format!("{rule} matches and allows the request"),
        (PolicyEffect::Allowed, None) => "no DENY policy matches, and there is no ALLOW policy".to_owned(),
        (PolicyEffect::Provider, _) => {
            let names: Vec<&str> = decision.providers.iter().map(Text::as_str).collect();
            format!("{rule} matches: the external authorizer {} decides", names.join(", "))
        }
        (PolicyEffect::Undecided, _) => format!("it depends on what the question does not state: {}", open.join(", ")),
    }
}
