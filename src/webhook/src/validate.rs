//! `/validate`: judges the object of a review by the rules of admission (W10, W11).

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde_json::{Value as Json, json};
use sluice_inject::{AdmissionReview, ReviewError, denial};
use sluice_model::label;
use sluice_parse::{KINDS, KindInfo, ObjectError, validate_object};
use tracing::{debug, info};

use crate::Webhooks;
use crate::answer::{HttpError, check_request, not_a_review, review_response};
use crate::decision::{DecisionMemory, decide};
use crate::metrics::{FailedLabels, PassedLabels, StatusLabel, WebhookMetrics};

/// Top-level fields of an object.
const TOP_LEVEL: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Maximum length of a text of a request in the log.
const MAX_LOGGED_BYTES: usize = 1024;
/// Label value of everything about a kind that is not known.
const OTHER: &str = "other";

/// Why an object is refused or not judged, as the label `reason` has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reason {
    UnsupportedOperation,
    Decode,
    UnknownType,
    Conversion,
    Invalid,
}

impl Reason {
    fn label(self) -> &'static str {
        match self {
            Self::UnsupportedOperation => "unsupported_operation",
            Self::Decode => "yaml_decode_error",
            Self::UnknownType => "unknown_type",
            Self::Conversion => "crd_conversion_error",
            Self::Invalid => "invalid_resource",
        }
    }
}

/// The judgement of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Judgement {
    Valid { warnings: Vec<String> },
    NotJudged,
    Refused { reason: Reason, message: String },
}

pub(crate) async fn serve(State(webhooks): State<Webhooks>, headers: HeaderMap, body: Bytes) -> Response {
    let metrics = &webhooks.metrics;
    let fail = |error: HttpError| {
        let status = error.status.as_u16();
        metrics.validation_http_errors.get_or_create(&StatusLabel { status }).inc();
        debug!(target: "webhook", status, reason = error.reason, "validation request failed");
        error.into_response()
    };
    if let Err(error) = check_request(&headers, &body) {
        return fail(error);
    }
    let (reviewed, counted) = (body.clone(), webhooks.metrics.clone());
    let decided = decide(&webhooks.deciding, &body, DecisionMemory::VALIDATION, move || review(&reviewed, &counted));
    match decided.await {
        Ok(Ok(response)) => review_response(response),
        Ok(Err(error)) => {
            debug!(target: "webhook", %error, "validation request is no review");
            not_a_review(&error)
        }
        Err(error) => fail(error),
    }
}

/// Answers a review.
///
/// # Errors
/// The body is not a review with a request.
fn review(body: &[u8], metrics: &WebhookMetrics) -> Result<Json, ReviewError> {
    let review = AdmissionReview::parse(body)?;
    let judgement = judge(&review);
    count(&review, &judgement, metrics);
    log(&review, &judgement);
    Ok(review.respond_with(match judgement {
        Judgement::Valid { warnings } if !warnings.is_empty() => json!({"allowed": true, "warnings": warnings}),
        Judgement::Valid { .. } | Judgement::NotJudged => json!({"allowed": true}),
        Judgement::Refused { message, .. } => denial(&message),
    }))
}

fn judge(review: &AdmissionReview) -> Judgement {
    if !matches!(review.text("operation"), "CREATE" | "UPDATE") {
        return Judgement::NotJudged;
    }
    let refused = |reason, message: String| Judgement::Refused { reason, message };
    let object = review.field("object");
    let Some(fields) = object.as_object() else {
        return refused(Reason::Decode, "cannot decode configuration: expected an object".to_owned());
    };
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let info = known_kind(group, |info| info.name == kind);
    if info.is_none_or(|info| !info.versions.iter().any(|version| api_version.ends_with(&format!("/{version}")))) {
        return refused(Reason::UnknownType, format!("unrecognized type {api_version}/{kind}"));
    }
    if object["metadata"]["annotations"].get(label::ALWAYS_REJECT).is_some() {
        let annotation = label::ALWAYS_REJECT;
        let message = format!("configuration is invalid: \"{annotation}\" annotation found, rejecting");
        return refused(Reason::Invalid, message);
    }
    // The schemas of the Gateway API have its rules.
    if !group.ends_with(".istio.io") {
        return Judgement::Valid { warnings: Vec::new() };
    }
    let findings = match validate_object(object) {
        Ok(findings) => findings,
        Err(error @ ObjectError::UnknownKind { .. }) => return refused(Reason::UnknownType, error.to_string()),
        Err(error) => return refused(Reason::Conversion, format!("error decoding configuration: {error}")),
    };
    let unknown = fields.keys().find(|name| !TOP_LEVEL.contains(&name.as_str()));
    let is_top_level = |path: &str| fields.contains_key(path) && !TOP_LEVEL.contains(&path);
    let (mut refusals, mut warnings) = (Vec::new(), Vec::new());
    for finding in findings.iter().filter(|finding| !is_top_level(&finding.field_path)) {
        let text = match finding.field_path.as_str() {
            "" => finding.reason.to_string(),
            path => format!("{path}: {}", finding.reason),
        };
        if finding.severity.is_refusal() { refusals.push(text) } else { warnings.push(text) }
    }
    if let Some(message) = joined(&refusals) {
        return refused(Reason::Invalid, format!("configuration is invalid: {message}"));
    }
    if let Some(name) = unknown {
        let of = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
        let namespace = review.text("namespace");
        let message = format!("unknown field \"{name}\" on {kind} resource {namespace}/{}", of("/metadata/name"));
        return refused(Reason::Invalid, message);
    }
    Judgement::Valid { warnings }
}

/// Several errors in the form that istiod has for them.
fn joined(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [error] => Some(error.clone()),
        errors => {
            let lines: Vec<String> = errors.iter().map(|error| format!("\t* {error}")).collect();
            Some(format!("{} errors occurred:\n{}\n\n", errors.len(), lines.join("\n")))
        }
    }
}

/// The entry of a kind of Istio or of the Gateway API.
fn known_kind(group: &str, is: impl Fn(&KindInfo) -> bool) -> Option<&'static KindInfo> {
    KINDS.iter().find(|info| info.group == group && (info.is_istio() || info.is_gateway_api()) && is(info))
}

/// Group, version and resource of the request. They are bounded in number: the caller of the webhook is not known.
fn resource_labels(review: &AdmissionReview) -> PassedLabels {
    let text = |name: &str| review.field("resource")[name].as_str().unwrap_or_default();
    let known = known_kind(text("group"), |info| info.plural == text("resource"));
    let version = known.and_then(|info| info.versions.iter().find(|version| **version == text("version")));
    PassedLabels {
        group: known.map_or(OTHER, |info| info.group),
        version: version.copied().unwrap_or(OTHER),
        resource: known.map_or(OTHER, |info| info.plural),
    }
}

fn is_dry_run(review: &AdmissionReview) -> bool {
    review.field("dryRun").as_bool().unwrap_or_default()
}

/// Counts a judgement. A refusal in a dry run is not counted.
fn count(review: &AdmissionReview, judgement: &Judgement, metrics: &WebhookMetrics) {
    let labels = resource_labels(review);
    let reason = match judgement {
        Judgement::Valid { .. } => return metrics.validation_passed.get_or_create(&labels).inc(),
        Judgement::NotJudged => Reason::UnsupportedOperation,
        Judgement::Refused { reason, .. } => *reason,
    };
    if !is_dry_run(review) {
        let PassedLabels { group, version, resource } = labels;
        let labels = FailedLabels { group, version, resource, reason: reason.label() };
        metrics.validation_failed.get_or_create(&labels).inc();
    }
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOGGED_BYTES)]
}

fn log(review: &AdmissionReview, judgement: &Judgement) {
    let Judgement::Refused { message, .. } = judgement else { return };
    let text = |name: &str| shortened(review.text(name));
    let (namespace, name, dry_run) = (text("namespace"), text("name"), is_dry_run(review));
    let message = shortened(message);
    // The control plane sends such an object itself.
    if message.contains(label::ALWAYS_REJECT) {
        debug!(target: "webhook", namespace, name, dry_run, message, "object refused");
    } else {
        info!(target: "webhook", namespace, name, dry_run, message, "object refused");
    }
}

#[cfg(test)]
mod tests;
