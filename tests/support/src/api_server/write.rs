//! Requests for one object: get, create, update, patch, delete; TokenReviews and SubjectAccessReviews.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::patch;
use super::response::{json_response, status};
use super::store::ObjectStore;
use super::versions::{self, Part};
use super::{ReceivedRequest, Shared, State};

/// The verb and the object of a request.
#[derive(Clone, Debug)]
pub(super) struct WriteTarget {
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
    part: Part,
    /// A server-side apply: it creates what does not exist.
    is_apply: bool,
}

impl WriteTarget {
    pub(super) fn applying(self, is_apply: bool) -> Self {
        Self { is_apply, ..self }
    }

    /// The verb and the resource.
    pub(super) fn names(&self) -> (&str, &String) {
        (self.verb, &self.resource)
    }
}

/// The target of a request for one object; none for other requests.
pub(super) fn route(shared: &Shared, group: &str, path: &[&str], method: &Method) -> Option<WriteTarget> {
    let (namespace, resource, name) = match path {
        ["namespaces", namespace, resource, name] => (*namespace, *resource, *name),
        ["namespaces", namespace, resource] if *method == Method::POST => (*namespace, *resource, ""),
        [resource] if *method == Method::POST => ("", *resource, ""),
        [resource, name] => ("", *resource, *name),
        [resource, name, "approval" | "status"] if *method == Method::PUT => ("", *resource, *name),
        ["namespaces", namespace, resource, name, "status"] if *method == Method::PUT => (*namespace, *resource, *name),
        _ => return None,
    };
    let part = match path {
        [.., "approval"] if path.len() != 2 => Part::Approval,
        [.., "status"] if path.len() != 2 => Part::Status,
        _ => Part::Whole,
    };
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    let received = ReceivedRequest {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: format!("{resource}{}", part.suffix()),
        namespace: namespace.to_owned(),
    };
    *shared.state().requests.entry(received).or_default() += 1;
    Some(WriteTarget {
        verb,
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        part,
        is_apply: false,
    })
}

pub(super) async fn answer(shared: &Shared, group: &str, target: WriteTarget, body: Body) -> Response<Body> {
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = {
        let mut state = shared.state();
        if state.faults.forbidden.contains(&target.resource) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "forbidden by the test");
        }
        match unstored(&state, &target, &sent) {
            Some(answer) => return answer,
            None => write(&mut state.store, group, &target, sent),
        }
    };
    match result {
        Ok((code, object)) => {
            if target.verb != "get" {
                shared.changed.send_modify(|count| *count += 1);
            }
            json_response(code, &object)
        }
        Err((code, reason)) => status(code, reason, reason),
    }
}

/// The answer to a request that stores nothing: a review, or a dry run that a webhook refuses.
fn unstored(state: &State, target: &WriteTarget, sent: &Value) -> Option<Response<Body>> {
    if target.resource == "tokenreviews" {
        let token = sent.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
        let review =
            state.reviews.get(token).cloned().unwrap_or_else(|| json!({"user": {}, "error": "[invalid bearer token]"}));
        return Some(json_response(StatusCode::CREATED, &json!({"kind": "TokenReview", "status": review})));
    }
    if target.resource == "subjectaccessreviews" {
        let allowed = may_list_secrets(sent, &state.readers);
        let review = json!({"kind": "SubjectAccessReview", "status": {"allowed": allowed}});
        return Some(json_response(StatusCode::CREATED, &review));
    }
    // A webhook for validation that the server trusts refuses the object by which the control plane tests that.
    let marked = sent.pointer("/metadata/annotations/internal.istio.io~1webhook-always-reject").is_some();
    if target.verb != "create" || !marked {
        return None;
    }
    let configurations =
        state.store.list("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", |_| true);
    let is_trusted = |object: &Value| object.pointer("/webhooks/0/clientConfig/caBundle").is_some_and(Value::is_string);
    Some(match configurations.objects.iter().any(|stored| is_trusted(&stored.object)) {
        true => {
            let message = "admission webhook denied the request: configuration is invalid: \
                           \"internal.istio.io/webhook-always-reject\" annotation found, rejecting";
            status(StatusCode::BAD_REQUEST, "BadRequest", message)
        }
        false => json_response(StatusCode::CREATED, sent),
    })
}

fn replaced(object: Option<Value>) -> Result<(StatusCode, Value), (StatusCode, &'static str)> {
    object.map(|object| (StatusCode::OK, object)).ok_or((StatusCode::UNPROCESSABLE_ENTITY, "Invalid"))
}

/// Reads or writes an object. The error is a status code with its reason.
fn write(
    store: &mut ObjectStore,
    group: &str,
    target: &WriteTarget,
    mut sent: Value,
) -> Result<(StatusCode, Value), (StatusCode, &'static str)> {
    if target.verb == "create"
        && let Some(prefix) = sent.pointer("/metadata/generateName").and_then(Value::as_str)
    {
        sent["metadata"]["name"] = store.new_name(prefix).into();
    }
    let sent_name = sent.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = if target.name.is_empty() { &sent_name } else { &target.name };
    let traits = store.traits(group, &target.resource);
    match (target.verb, store.get(group, &target.resource, &target.namespace, name)) {
        ("get", Some(old)) => Ok((StatusCode::OK, old)),
        ("delete", Some(_)) => {
            let deleted = store.delete_if_present(group, &target.resource, &target.namespace, name);
            Ok((StatusCode::OK, deleted.unwrap_or_default()))
        }
        ("create", None) | ("patch", None) if target.verb == "create" || target.is_apply => {
            let uid = store.new_name("uid-");
            Ok((StatusCode::CREATED, store.apply_and_get(versions::created(sent, &uid, traits))))
        }
        ("create", Some(_)) => Err((StatusCode::CONFLICT, "AlreadyExists")),
        (_, None) => Err((StatusCode::NOT_FOUND, "NotFound")),
        ("update", Some(old)) => {
            let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
            match version(&sent).is_some_and(|sent| Some(sent) != version(&old)) {
                true => Err((StatusCode::CONFLICT, "Conflict")),
                false => replaced(versions::replace(store, old, sent, target.part, traits)),
            }
        }
        (_, Some(old)) => {
            let new = patch::merged(&old, &sent);
            replaced(versions::replace(store, old, new, target.part, traits))
        }
    }
}

/// Whether a SubjectAccessReview is about a user of `readers` that lists the Secrets of its own namespace.
fn may_list_secrets(review: &Value, readers: &BTreeSet<String>) -> bool {
    let text = |path: &str| review.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let user = text("/spec/user");
    let namespace = text("/spec/resourceAttributes/namespace");
    text("/spec/resourceAttributes/verb") == "list"
        && text("/spec/resourceAttributes/resource") == "secrets"
        && user.starts_with(&format!("system:serviceaccount:{namespace}:"))
        && readers.contains(user)
}
