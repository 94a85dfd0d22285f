//! Requests for one object: read, created, replaced, merged, deleted; and reviews of tokens.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::response::{json_answer, status};
use super::{ReceivedRequest, Shared};

/// What is wanted of which object.
#[derive(Clone, Debug)]
pub(super) struct WriteTarget {
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
}

/// A request for one object; nothing if it is for others.
pub(super) fn route(shared: &Shared, group: &str, path: &[&str], method: &Method) -> Option<WriteTarget> {
    let (namespace, resource, name) = match path {
        ["namespaces", namespace, resource, name] => (*namespace, *resource, *name),
        ["namespaces", namespace, resource] if *method == Method::POST => (*namespace, *resource, ""),
        [resource] if *method == Method::POST => ("", *resource, ""),
        [resource, name] => ("", *resource, *name),
        [resource, name, "approval"] if *method == Method::PUT => ("", *resource, *name),
        _ => return None,
    };
    let part = path.get(2).filter(|part| **part == "approval").map(|part| format!("/{part}")).unwrap_or_default();
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    let asked = ReceivedRequest {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: format!("{resource}{part}"),
        namespace: namespace.to_owned(),
    };
    *shared.state().asked.entry(asked).or_default() += 1;
    Some(WriteTarget { verb, resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
}

pub(super) async fn answer(shared: &Shared, group: &str, wanted: WriteTarget, body: Body) -> Response<Body> {
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let mut sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let answered = {
        let mut state = shared.state();
        if state.faults.forbidden.contains(&wanted.resource) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "no right to do that");
        }
        if wanted.resource == "tokenreviews" {
            let token = sent.pointer("/spec/token").and_then(Value::as_str).unwrap_or_default();
            let review = state.reviews.get(token).cloned().unwrap_or_else(|| json!({"user": {}}));
            return json_answer(StatusCode::CREATED, &json!({"kind": "TokenReview", "status": review}));
        }
        if wanted.resource == "subjectaccessreviews" {
            let allowed = may_list_secrets(&sent, &state.readers);
            let review = json!({"kind": "SubjectAccessReview", "status": {"allowed": allowed}});
            return json_answer(StatusCode::CREATED, &review);
        }
        if wanted.verb == "create"
            && let Some(prefix) = sent.pointer("/metadata/generateName").and_then(Value::as_str)
        {
            sent["metadata"]["name"] = state.store.new_name(prefix).into();
        }
        let sent_name = sent.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let name = if wanted.name.is_empty() { sent_name } else { &wanted.name };
        let old = state.store.get(group, &wanted.resource, &wanted.namespace, name);
        match (wanted.verb, old) {
            ("get", Some(old)) => Ok(old),
            ("delete", Some(_)) => {
                let gone = state.store.take_away(group, &wanted.resource, &wanted.namespace, name);
                Ok(gone.unwrap_or_default())
            }
            ("create", None) => Ok(state.store.read(sent.clone())),
            ("create", Some(_)) => Err((StatusCode::CONFLICT, "AlreadyExists")),
            (_, None) => Err((StatusCode::NOT_FOUND, "NotFound")),
            ("update", Some(old)) => {
                let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
                match version(&sent).is_some_and(|sent| Some(sent) != version(&old)) {
                    true => Err((StatusCode::CONFLICT, "Conflict")),
                    false => Ok(state.store.read(sent.clone())),
                }
            }
            (_, Some(mut old)) => {
                merge(&mut old, &sent);
                Ok(state.store.read(old))
            }
        }
    };
    match answered {
        Ok(object) => {
            if wanted.verb != "get" {
                shared.changed.send_modify(|count| *count += 1);
            }
            json_answer(StatusCode::OK, &object)
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

/// Whether a review asks about one of these users, and whether that user may list the Secrets of its own namespace.
fn may_list_secrets(review: &Value, readers: &BTreeSet<String>) -> bool {
    let text = |path: &str| review.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let user = text("/spec/user");
    let namespace = text("/spec/resourceAttributes/namespace");
    text("/spec/resourceAttributes/verb") == "list"
        && text("/spec/resourceAttributes/resource") == "secrets"
        && user.starts_with(&format!("system:serviceaccount:{namespace}:"))
        && readers.contains(user)
}
