//! The values of gateways: from the names of Istio's charts `istio-ingress` and `istio-egress` to those of the chart `gateway`.

use serde_json::{Map, Value as Json, json};

use super::Component;
use crate::error::InstallError;
use crate::values::{merge, parse_path, set};

/// The keys in `values.gateways` with the values of all gateways of a kind.
pub(super) const ROOTS: [&str; 2] = ["istio-ingressgateway", "istio-egressgateway"];

/// The key of a kind of gateways, which is the name of its first gateway.
pub(super) fn root(component: Component) -> &'static str {
    ROOTS[usize::from(component == Component::EgressGateway)]
}

/// Values of Istio's charts, and their places in the chart `gateway`.
const PLACES: [(&str, &str); 26] = [
    ("additionalContainers", "additionalContainers"),
    ("affinity", "affinity"),
    ("autoscaleEnabled", "autoscaling.enabled"),
    ("autoscaleMax", "autoscaling.maxReplicas"),
    ("autoscaleMin", "autoscaling.minReplicas"),
    ("cpu.targetAverageUtilization", "autoscaling.targetCPUUtilizationPercentage"),
    ("env", "env"),
    ("envVarFrom", "envVarFrom"),
    ("externalTrafficPolicy", "service.externalTrafficPolicy"),
    ("ipFamilies", "service.ipFamilies"),
    ("ipFamilyPolicy", "service.ipFamilyPolicy"),
    ("labels", "labels"),
    ("loadBalancerIP", "service.loadBalancerIP"),
    ("loadBalancerSourceRanges", "service.loadBalancerSourceRanges"),
    ("memory.targetAverageUtilization", "autoscaling.targetMemoryUtilizationPercentage"),
    ("nodeSelector", "nodeSelector"),
    ("podAnnotations", "podAnnotations"),
    ("ports", "service.ports"),
    ("replicaCount", "replicaCount"),
    ("resources", "resources"),
    ("rollingMaxSurge", "strategy.rollingUpdate.maxSurge"),
    ("rollingMaxUnavailable", "strategy.rollingUpdate.maxUnavailable"),
    ("serviceAccount.annotations", "serviceAccount.annotations"),
    ("serviceAnnotations", "service.annotations"),
    ("tolerations", "tolerations"),
    ("type", "service.type"),
];

/// The values of the chart for a gateway.
pub(super) fn values(
    component: Component,
    shared: &Json,
    labels: &Map<String, Json>,
    revision: Option<&str>,
    global: &Json,
) -> Result<Json, InstallError> {
    let root = root(component);
    // Gateways of a kind have its labels, whatever their name, so that the selectors of Gateway objects match.
    let mut values = json!({"labels": {"app": root, "istio": root.trim_start_matches("istio-")}});
    if component == Component::EgressGateway {
        values["service"] = json!({"type": "ClusterIP"});
    }
    if let Some(revision) = revision {
        values["revision"] = revision.into();
    }
    if let Some(policy) = global.get("networkPolicy") {
        values["global"] = json!({"networkPolicy": policy});
    }
    for name in ["imagePullPolicy", "priorityClassName"] {
        if let Some(value) = global.get(name) {
            values[name] = value.clone();
        }
    }
    if let Some(secrets) = global.get("imagePullSecrets").and_then(Json::as_array) {
        values["imagePullSecrets"] = secrets.iter().map(|name| json!({"name": name})).collect();
    }
    let path = format!("spec.values.gateways.{root}");
    match shared {
        Json::Null => {}
        Json::Object(shared) => translate(&mut values, shared, "", &path)?,
        _ => return Err(InstallError::input(path, "a map is expected")),
    }
    merge(&mut values["labels"], &Json::Object(labels.clone()));
    Ok(values)
}

fn translate(out: &mut Json, own: &Map<String, Json>, prefix: &str, path: &str) -> Result<(), InstallError> {
    for (name, value) in own {
        let (full, at) = (format!("{prefix}{name}"), format!("{path}.{name}"));
        if full == "enabled" {
            continue;
        }
        if let Some((_, place)) = PLACES.iter().find(|(known, _)| *known == full) {
            let steps = parse_path(place).map_err(|reason| InstallError::input(at.as_str(), reason))?;
            let mut tree = Json::Null;
            set(&mut tree, &steps, value.clone()).map_err(|reason| InstallError::input(at, reason))?;
            merge(out, &tree);
        } else if PLACES.iter().any(|(known, _)| known.starts_with(&format!("{full}.")))
            && let Json::Object(inner) = value
        {
            translate(out, inner, &format!("{full}."), &at)?;
        } else {
            return Err(InstallError::input(at, "this value has no effect here"));
        }
    }
    Ok(())
}
