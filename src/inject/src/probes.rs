//! Probes and lifecycle handlers of the application: the kubelet sends them to the agent, which forwards them (W08).

use serde_json::{Map, Value as Json, json};

use crate::annotations::{REWRITE_PROBES, STATUS, STATUS_PORT, parse_bool};
use crate::pod::{PROXY, containers, containers_mut, find_in_pod_mut, meta_text, name_of};

/// The variable with the original probes.
const PROBERS: &str = "ISTIO_KUBE_APP_PROBERS";
/// Field of the container, and last part of the path. All are below `/app-health/CONTAINER`.
const PROBES: [(&str, &str); 3] =
    [("readinessProbe", "readyz"), ("livenessProbe", "livez"), ("startupProbe", "startupz")];
/// Field of `lifecycle`, and last part of the path. All are below `/app-lifecycle/CONTAINER`.
const HANDLERS: [(&str, &str); 2] = [("preStop", "prestopz"), ("postStart", "poststartz")];

/// A probe or handler, with its path at the agent.
struct Action {
    pointer: String,
    path: String,
    is_probe: bool,
}

fn actions(container: &Json) -> Vec<Action> {
    let name = name_of(container);
    let probes = PROBES.iter().map(|(field, last)| Action {
        pointer: format!("/{field}"),
        path: format!("/app-health/{name}/{last}"),
        is_probe: true,
    });
    let handlers = HANDLERS.iter().map(|(field, last)| Action {
        pointer: format!("/lifecycle/{field}"),
        path: format!("/app-lifecycle/{name}/{last}"),
        is_probe: false,
    });
    probes.chain(handlers).collect()
}

/// Rewrites the probes of a pod with a proxy, unless the annotation or the values say otherwise.
pub(crate) fn rewrite(pod: &mut Json, by_default: bool, status_port: i32) {
    if find_in_pod_mut(pod, PROXY).is_none() {
        return;
    }
    let annotated = meta_text(pod, "annotations", REWRITE_PROBES).and_then(|value| parse_bool(value).ok());
    if !annotated.unwrap_or(by_default) {
        return;
    }
    let probers = original_probes(pod, status_port);
    if !probers.is_empty() {
        let was_injected = meta_text(pod, "annotations", STATUS).is_some();
        if let Some(proxy) = find_in_pod_mut(pod, PROXY) {
            pass_to_agent(proxy, probers, was_injected);
        }
    }
    let port = match meta_text(pod, "annotations", STATUS_PORT) {
        Some(port) => port.parse().unwrap_or_default(),
        None => status_port,
    };
    for list in ["containers", "initContainers"] {
        for container in containers_mut(pod, list).iter_mut().filter(|container| name_of(container) != PROXY) {
            for action in actions(container) {
                if let Some(probe) = container.pointer_mut(&action.pointer).and_then(Json::as_object_mut) {
                    redirect(probe, &action, port);
                }
            }
        }
    }
}

/// The original probes by their path at the agent, with port names resolved.
fn original_probes(pod: &Json, status_port: i32) -> Map<String, Json> {
    let mut out = Map::new();
    let all = containers(pod, "initContainers").iter().chain(containers(pod, "containers"));
    for container in all.filter(|container| name_of(container) != PROXY) {
        for action in actions(container) {
            let probe = container.pointer(&action.pointer).unwrap_or(&Json::Null);
            if let Some(prober) = prober(probe, container, &action, status_port) {
                out.insert(action.path, prober);
            }
        }
    }
    out
}

fn prober(probe: &Json, container: &Json, action: &Action, status_port: i32) -> Option<Json> {
    let kinds: &[&str] = if action.is_probe { &["httpGet", "tcpSocket", "grpc"] } else { &["httpGet", "tcpSocket"] };
    let kind = kinds.iter().find(|kind| probe[**kind].is_object())?;
    let mut handler = probe[*kind].clone();
    if *kind != "grpc" {
        let port = match &handler["port"] {
            Json::String(name) => {
                let mut ports = container["ports"].as_array().into_iter().flatten();
                // The last port of a name counts.
                let port = ports.rfind(|port| port["name"].as_str() == Some(name))?;
                port["containerPort"].as_i64().unwrap_or_default()
            }
            port => port.as_i64().unwrap_or_default(),
        };
        if handler["port"].is_number() && port == i64::from(status_port) {
            // It is already rewritten.
            return None;
        }
        handler["port"] = json!(port);
    }
    let mut prober = json!({*kind: handler});
    if let Some(timeout) = probe["timeoutSeconds"].as_i64().filter(|timeout| *timeout != 0) {
        prober["timeoutSeconds"] = json!(timeout);
    }
    Some(prober)
}

/// Adds the variable to the proxy. A pod that is injected again keeps the probes that were rewritten before.
fn pass_to_agent(proxy: &mut Json, mut probers: Map<String, Json>, was_injected: bool) {
    let Some(proxy) = proxy.as_object_mut() else { return };
    let Some(env) = proxy.entry("env").or_insert_with(|| json!([])).as_array_mut() else { return };
    let known = env.iter_mut().find(|variable| was_injected && variable["name"].as_str() == Some(PROBERS));
    let Some(known) = known else {
        env.push(json!({"name": PROBERS, "value": Json::Object(probers).to_string()}));
        return;
    };
    let earlier = known["value"].as_str().and_then(|value| serde_json::from_str(value).ok());
    if let Some(Json::Object(earlier)) = earlier {
        probers.extend(earlier);
        *known = json!({"name": PROBERS, "value": Json::Object(probers).to_string()});
    }
}

/// Makes a probe an HTTP request to the agent.
fn redirect(probe: &mut Map<String, Json>, action: &Action, port: i32) {
    let is_http = probe.get("httpGet").is_some_and(Json::is_object);
    if !is_http {
        let other = ["tcpSocket", "grpc"].into_iter().find(|kind| probe.get(*kind).is_some_and(Json::is_object));
        match other {
            Some(kind) if action.is_probe || kind == "tcpSocket" => probe.remove(kind),
            _ => return,
        };
        probe.insert("httpGet".to_owned(), json!({}));
    }
    if let Some(http) = probe.get_mut("httpGet").and_then(Json::as_object_mut) {
        http.insert("port".to_owned(), json!(port));
        http.insert("path".to_owned(), json!(action.path));
        // The agent connects to the application with TLS.
        if http.get("scheme").and_then(Json::as_str) == Some("HTTPS") {
            http.insert("scheme".to_owned(), json!("HTTP"));
        }
    }
}
