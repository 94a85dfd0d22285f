//! The groups, versions and resources that the server has.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::Shared;
use super::fault::wrong_answer;
use super::response::{json_response, status, text_response};

/// The resources without a namespace.
const CLUSTER_SCOPED: [&str; 8] = [
    "certificatesigningrequests",
    "clustertrustbundles",
    "customresourcedefinitions",
    "ingressclasses",
    "mutatingwebhookconfigurations",
    "namespaces",
    "nodes",
    "validatingwebhookconfigurations",
];

/// The answer to a request for discovery or for health; `None` for other paths.
pub(super) async fn answer(shared: &Shared, path: &[&str]) -> Option<Response<Body>> {
    match path {
        ["livez"] => Some(match wrong_answer(shared, "livez").await {
            Some(answer) => answer,
            None => text_response(StatusCode::OK, "ok".to_owned()),
        }),
        ["version"] => Some(json_response(StatusCode::OK, &json!({"gitVersion": "v1.34.0"}))),
        ["apis"] | ["apis", _] | ["apis", _, _] | ["api", _] => Some(match wrong_answer(shared, "discovery").await {
            Some(answer) => answer,
            None => discovery(shared, path),
        }),
        _ => None,
    }
}

fn discovery(shared: &Shared, path: &[&str]) -> Response<Body> {
    let state = shared.state();
    let group_object = |group: &str| {
        let version = |version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
        let versions: Vec<Value> = state.store.versions(group).into_iter().map(version).collect();
        (!versions.is_empty()).then(|| json!({"name": group, "versions": versions}))
    };
    let object = match path {
        ["apis"] => {
            let groups: Vec<Value> = state.store.groups().into_iter().filter_map(group_object).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] => group_object(group).map(|mut object| {
            object["kind"] = "APIGroup".into();
            object["apiVersion"] = "v1".into();
            object
        }),
        ["api", version] => resources(&state.store.resources("", version), version),
        ["apis", group, version] => resources(&state.store.resources(group, version), &format!("{group}/{version}")),
        _ => None,
    };
    match object {
        Some(object) => json_response(StatusCode::OK, &object),
        None => status(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource"),
    }
}

fn resources(resources: &[(&str, &str)], group_version: &str) -> Option<Value> {
    let resource = |(plural, kind): &(&str, &str)| json!({"name": plural, "kind": kind, "namespaced": !CLUSTER_SCOPED.contains(plural)});
    let list: Vec<Value> = resources.iter().map(resource).collect();
    let object =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list});
    (!list.is_empty()).then_some(object)
}
