//! Objects of an installation that files rarely contain.

use serde_json::json;

use crate::{AnalyzedObject, Origin};

/// The Service and a pod of the ingress gateway. An analysis without a cluster has them, so that a Gateway with the selector
/// `istio: ingressgateway` refers to something.
#[must_use]
pub fn default_resources(istio_namespace: &str) -> Vec<AnalyzedObject> {
    let labels = json!({ "istio": "ingressgateway", "app": "istio-ingressgateway" });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "istio-ingressgateway", "namespace": istio_namespace },
        "spec": {
            "selector": labels,
            "ports": [
                { "name": "http2", "port": 80, "protocol": "TCP", "targetPort": 8080 },
                { "name": "https", "port": 443, "protocol": "TCP", "targetPort": 8443 },
                { "name": "tcp", "port": 31400, "protocol": "TCP", "targetPort": 31400 },
                { "name": "tls", "port": 15443, "protocol": "TCP", "targetPort": 15443 },
            ],
        },
    });
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "istio-ingressgateway", "namespace": istio_namespace, "labels": labels },
        "spec": { "containers": [{ "name": "istio-proxy", "image": "proxyv2" }] },
    });
    [service, pod].map(|value| AnalyzedObject::new(value, Origin::Default, istio_namespace)).into()
}
