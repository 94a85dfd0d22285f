//! Pods with a sidecar.

use std::path::Path;

use anyhow::{Context as _, Result};
use sluice_redirection::annotations::{SidecarPod, has_ipv6, parse_bool, sidecar};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_redirection::sidecar::{Settings, redirect as write_rules};

use crate::pod::{NodePod, SIDECAR_STATUS};

/// Why the traffic of a pod is not redirected; `None` if it is.
pub(super) fn why_not(pod: &NodePod) -> Option<&'static str> {
    if pod.container("istio-init").is_some() {
        return Some("the container istio-init redirects it");
    }
    let Some(proxy) = pod.proxy() else { return Some("there is no container istio-proxy") };
    if proxy.environment.get("DISABLE_ENVOY").and_then(|text| parse_bool(text)) == Some(true) {
        return Some("DISABLE_ENVOY is set");
    }
    if let [command, role, ..] = proxy.args.as_slice()
        && command == "proxy"
        && role != "sidecar"
    {
        return Some("the proxy is not a sidecar");
    }
    // The label is the newer form.
    let inject = pod.labels.get("sidecar.istio.io/inject").or_else(|| pod.annotations.get("sidecar.istio.io/inject"));
    if inject.and_then(|text| parse_bool(text)) == Some(false) {
        return Some("sidecar.istio.io/inject is false");
    }
    if !pod.annotations.contains_key(SIDECAR_STATUS) {
        return Some("there is no annotation sidecar.istio.io/status");
    }
    None
}

/// Redirects the traffic of a pod whose namespace the container runtime names.
pub(super) fn redirect_path(pod: &NodePod, namespace: &Path) -> Result<()> {
    redirect(pod, &NetworkNamespace::open_pod(namespace, &[])?)
}

/// Redirects the traffic of a pod.
///
/// # Errors
/// An annotation is invalid, or rules cannot be written.
pub(crate) fn redirect(pod: &NodePod, namespace: &NetworkNamespace) -> Result<()> {
    let proxy = pod.proxy().context("there is no container istio-proxy")?;
    let settings = sidecar(SidecarPod {
        annotations: &pod.annotations,
        environment: &proxy.environment,
        user: proxy.user,
        group: proxy.group,
    })?;
    let dual_stack = proxy.environment.get("ISTIO_DUAL_STACK").and_then(|text| parse_bool(text)).unwrap_or(false);
    let write = || write_rules(&Settings { ipv6: has_ipv6(dual_stack), ..settings });
    Ok(namespace.run(write)??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn reason(change: impl FnOnce(&mut Value)) -> Option<&'static str> {
        let mut object = json!({
            "metadata": {"name": "a", "namespace": "b", "uid": "u", "annotations": {"sidecar.istio.io/status": "{}"}},
            "spec": {"containers": [{"name": "istio-proxy", "args": ["proxy", "sidecar"], "env": []}]},
        });
        change(&mut object);
        why_not(&NodePod::read(&object).expect("a pod"))
    }

    #[test]
    fn only_pods_with_an_injected_sidecar_are_redirected() {
        assert_eq!(reason(|_| {}), None);
        let proxy = "/spec/containers/0";
        let cases: [(&str, &str, Value); 6] = [
            ("", "metadata", json!({"name": "a", "namespace": "b", "uid": "u"})),
            ("/metadata", "labels", json!({"sidecar.istio.io/inject": "false"})),
            ("/spec", "initContainers", json!([{"name": "istio-init"}])),
            (proxy, "args", json!(["proxy", "router"])),
            (proxy, "env", json!([{"name": "DISABLE_ENVOY", "value": "true"}])),
            (proxy, "name", json!("app")),
        ];
        for (parent, field, value) in cases {
            let reason = reason(|object| {
                object.pointer_mut(parent).expect("a parent")[field] = value;
            });
            assert!(reason.is_some(), "{parent}/{field}");
        }
    }
}
