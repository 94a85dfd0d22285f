//! Requests for one object: get, create, update, patch, delete; TokenReviews and SubjectAccessReviews.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::response::{json_response, status};
use super::{ReceivedRequest, Shared};

/// The verb and the object of a request.
#[derive(Clone, Debug)]
pub(super) struct WriteTarget {
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
}

impl WriteTarget {
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
        [resource, name, "approval"] if *method == Method::PUT => ("", *resource, *name),
        ["namespaces", namespace, resource, name, "status"] if *method == Method::PUT => (*namespace, *resource, *name),
        _ => return None,
    };
    let part = match path {
        [.., part @ ("approval" | "status")] if path.len() != 2 => format!("/{part}"),
        _ => String::new(),
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
        resource: format!("{resource}{part}"),
        namespace: namespace.to_owned(),
    };
    *shared.state().requests.entry(received).or_default() += 1;
    Some(WriteTarget { verb, resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
}

pub(super) async fn answer(shared: &Shared, group: &str, target: WriteTarget, body: Body) -> Response<Body> {
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let mut sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = {
        let mut state = shared.state();
        if state.faults.forbidden.contains(&target.resource) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "forbidden by the test");
        }
        if target.resource == "tokenreviews" {
            let token = sent.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
            let review = state.reviews.get(token).cloned().unwrap_or_else(|| json!({"user": {}}));
            return json_response(StatusCode::CREATED, &json!({"kind": "TokenReview", "status": review}));
        }
        if target.resource == "subjectaccessreviews" {
            let allowed = may_list_secrets(&sent, &state.readers);
            let review = json!({"kind": "SubjectAccessReview", "status": {"allowed": allowed}});
            return json_response(StatusCode::CREATED, &review);
        }
        // A webhook for validation that the server trusts refuses the object by which the control plane tests that.
        let marked = sent.pointer("/metadata/annotations/internal.istio.io~1webhook-always-reject").is_some();
        if target.verb == "create" && marked {
            let configurations =
                state.store.list("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", |_| true);
            let is_trusted =
                |object: &Value| object.pointer("/webhooks/0/clientConfig/caBundle").is_some_and(Value::is_string);
            if configurations.objects.iter().any(|stored| is_trusted(&stored.object)) {
                let message = "admission webhook denied the request: configuration is invalid: \
                               \"internal.istio.io/webhook-always-reject\" annotation found, rejecting";
                return status(StatusCode::BAD_REQUEST, "BadRequest", message);
            }
            return json_response(StatusCode::CREATED, &sent);
        }
        if target.verb == "create"
            && let Some(prefix) = sent.pointer("/metadata/generateName").and_then(Value::as_str)
        {
            sent["metadata"]["name"] = state.store.new_name(prefix).into();
        }
        let sent_name = sent.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let name = if target.name.is_empty() { sent_name } else { &target.name };
        let old = state.store.get(group, &target.resource, &target.namespace, name);
        match (target.verb, old) {
            ("get", Some(old)) => Ok(old),
            ("delete", Some(_)) => {
                let deleted = state.store.delete_if_present(group, &target.resource, &target.namespace, name);
                Ok(deleted.unwrap_or_default())
            }
            ("create", None) => Ok(state.store.apply_and_get(sent.clone())),
            ("create", Some(_)) => Err((StatusCode::CONFLICT, "AlreadyExists")),
            (_, None) => Err((StatusCode::NOT_FOUND, "NotFound")),
            ("update", Some(old)) => {
                let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
                match version(&sent).is_some_and(|sent| Some(sent) != version(&old)) {
                    true => Err((StatusCode::CONFLICT, "Conflict")),
                    false => Ok(state.store.apply_and_get(sent.clone())),
                }
            }
            (_, Some(mut old)) => {
                merge(&mut old, &sent);
                Ok(state.store.apply_and_get(old))
            }
        }
    };
    match result {
        Ok(object) => {
            if target.verb != "get" {
                shared.changed.send_modify(|count| *count += 1);
            }
            json_response(StatusCode::OK, &object)
        }
        Err((code, reason)) => status(code, reason, reason),
    }
}

/// A merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in fields {
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
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
