//! `why-not`: why a host, a cluster, a route, an endpoint or the effect of an object is absent at a proxy.

mod delivery;
mod destination_rule;
mod endpoints;
mod facts;
mod found_resource;
mod reach;
mod routes;
mod rules;
mod services;
mod subject;
mod used;

use serde::Serialize;
use sluice_model::{Kind, ObjectKey, ProxyType, Text};

use super::AnswerError;
use super::names::{did_you_mean, similar};
use super::objects::ObjectVersion;
use super::proxies::{self, pod_name};
use crate::AdminState;
use facts::Facts;
use subject::Subject;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct WhyNotQuestion {
    pub(crate) proxy: String,
    pub(crate) namespace: String,
    /// `host`, `cluster`, `route`, `endpoint`, `object`, or a resource type.
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyNotAnswer {
    /// `pod.namespace`.
    proxy: String,
    proxies_of_workload: usize,
    /// What was asked for, as it was understood.
    subject: String,
    epoch: u64,
    /// Whether the proxy should have it, so that nothing is absent.
    present: bool,
    /// The resources of the proxy that are or contain it.
    resources: Vec<String>,
    /// Why it is absent, or why the proxy does not use it yet.
    findings: Vec<AbsenceReason>,
}

/// A reason.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AbsenceReason {
    pub(crate) reason: ReasonCode,
    /// The object that causes it, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<ObjectVersion>,
    /// The explanation, a sentence.
    pub(crate) text: String,
}

/// The kind of a reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReasonCode {
    /// No object declares it.
    NotDeclared,
    /// The namespace of the object is not one that `discoverySelectors` select.
    NamespaceNotDiscovered,
    /// The object is invalid and does not apply.
    Rejected,
    /// It is not exported to the namespace of the proxy.
    NotExported,
    /// The Sidecar of the proxy does not import it.
    NotImported,
    /// The object does not select the proxy.
    NotSelected,
    /// Another object has precedence.
    Shadowed,
    /// A port, subset or protocol does not fit.
    Mismatch,
    /// The service has no endpoints.
    NoEndpoints,
    /// The service has endpoints, and none is ready.
    NoReadyEndpoints,
    /// The proxy does not subscribe to the resource.
    NotSubscribed,
    /// The proxy was not sent the resource, or has not acknowledged it.
    NotAcknowledged,
    /// The proxy rejected the last response.
    RejectedByProxy,
    /// No reason was found.
    Unknown,
}

impl AbsenceReason {
    pub(crate) fn new(reason: ReasonCode, text: String) -> Self {
        Self { reason, object: None, text }
    }

    pub(crate) fn of(reason: ReasonCode, object: ObjectVersion, text: String) -> Self {
        Self { reason, object: Some(object), text }
    }
}

/// Answers the question. Waits for the dataflow thread.
pub(crate) fn why_not(state: &AdminState, question: &WhyNotQuestion) -> Result<WhyNotAnswer, AnswerError> {
    let found = proxies::find(&state.status.proxies(), &question.proxy, &question.namespace)?;
    let facts = Facts::new(state, &found.key)
        .ok_or_else(|| AnswerError::NotFound(format!("{} is not in the dataflow yet", pod_name(&found.proxy))))?;
    let subject = Subject::parse(&facts, &question.kind, &question.name, &question.namespace)?;
    let mut resources = subject.resources(&facts);
    let mut findings = Vec::new();
    if resources.is_empty() {
        check(&facts, &subject, &mut findings);
        if let (Subject::Object { kind, key }, true) = (&subject, findings.is_empty()) {
            resources = used::resources(&facts, *kind, key);
        }
    } else {
        subject.check_present(&facts, &mut findings);
    }
    let present = !resources.is_empty();
    delivery::check(&facts, &resources, &mut findings);
    if findings.is_empty() && !present {
        let text =
            "no reason was found; `sluicectl why` of a resource that should contain it shows what it was made of";
        findings.push(AbsenceReason::new(ReasonCode::Unknown, text.to_owned()));
    }
    Ok(WhyNotAnswer {
        proxy: pod_name(&found.proxy),
        proxies_of_workload: found.of,
        subject: subject.to_string(),
        epoch: facts.epoch(),
        present,
        resources: resources.iter().map(ToString::to_string).collect(),
        findings,
    })
}

/// Adds the reasons why the subject is absent.
fn check(facts: &Facts<'_>, subject: &Subject, findings: &mut Vec<AbsenceReason>) {
    match subject {
        Subject::Host { host, port, subset, .. } => {
            services::check(facts, host, *port, subset.as_deref(), findings);
            if facts.proxy.proxy_type == ProxyType::Router {
                routes::check_router(facts, host, findings);
            }
        }
        Subject::Route { host, port } => {
            services::check(facts, host, *port, None, findings);
            routes::check(facts, host, *port, findings);
        }
        Subject::Endpoint { address, host } => endpoints::check(facts, address, host.as_ref(), findings),
        Subject::Object { kind, key } => check_object(facts, *kind, key, findings),
        Subject::Resource { kind, name } => {
            let known = facts.state.status.names(facts.key, *kind);
            let similar = similar(name, known.iter().map(Text::as_str));
            let text = format!("no layer of the proxy has a resource of this name{}", did_you_mean(&similar));
            findings.push(AbsenceReason::new(ReasonCode::NotDeclared, text));
        }
    }
}

/// Adds the reasons why an object has no effect at the proxy.
fn check_object(facts: &Facts<'_>, kind: Kind, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    if !facts.check_read(kind, key, findings) {
        return;
    }
    match kind {
        Kind::VirtualService => routes::check_virtual_service(facts, key, findings),
        Kind::DestinationRule => destination_rule::check(facts, key, findings),
        Kind::Gateway => routes::check_gateway(facts, key, findings),
        Kind::Sidecar => rules::check_sidecar(facts, key, findings),
        Kind::Service => {
            let host = facts.host_of_service(key);
            services::check(facts, &host, None, None, findings);
        }
        Kind::ServiceEntry => {
            for host in facts.hosts_of_entry(key) {
                services::check(facts, &host, None, None, findings);
            }
        }
        _ => rules::check_selector(facts, kind, key, findings),
    }
}
