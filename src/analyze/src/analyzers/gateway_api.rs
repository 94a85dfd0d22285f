//! The Gateway API: selectors of policies, and versions of CRDs (IST0166, IST0176).

use std::collections::HashMap;

use crate::codes::{INEFFECTIVE_SELECTOR, OLD_GATEWAY_API_CRD};
use crate::resource::{
    AUTHORIZATION_POLICY, CUSTOM_RESOURCE_DEFINITION, POD, REQUEST_AUTHENTICATION, TELEMETRY, WASM_PLUGIN,
};
use crate::selector;
use crate::value::{has, map};
use crate::{AnalyzedObject, MeshObjects, MessageList};

const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// The lowest version whose objects are read, by CRD.
const MINIMUM_VERSIONS: [(&str, [u64; 3]); 4] = [
    ("backendtlspolicies.gateway.networking.k8s.io", [1, 4, 0]),
    ("grpcroutes.gateway.networking.k8s.io", [1, 1, 0]),
    ("tcproutes.gateway.networking.k8s.io", [1, 6, 0]),
    ("tlsroutes.gateway.networking.k8s.io", [1, 5, 0]),
];

/// Policies that select pods of a Gateway by labels. They apply by `targetRefs` only.
pub(crate) fn selectors<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut pods: HashMap<&str, Vec<&AnalyzedObject>> = HashMap::new();
    for pod in mesh.all(POD).iter().filter(|pod| pod.label(GATEWAY_NAME).is_some()) {
        pods.entry(pod.namespace()).or_default().push(pod);
    }
    for kind in [AUTHORIZATION_POLICY, REQUEST_AUTHENTICATION, TELEMETRY, WASM_PLUGIN] {
        for policy in mesh.all(kind) {
            if has(policy.spec(), "targetRef") || !has(policy.spec(), "selector") {
                continue;
            }
            let labels = map(policy.spec(), "selector.matchLabels");
            for pod in pods.get(policy.namespace()).into_iter().flatten() {
                if selector::matches(&labels, &pod.labels()) {
                    let gateway = pod.label(GATEWAY_NAME).unwrap_or_default();
                    let text = format!("the selector has no effect on Gateway {gateway}; use targetRefs");
                    report.add(&INEFFECTIVE_SELECTOR, policy, "spec.selector", text);
                }
            }
        }
    }
}

/// CRDs whose objects are not read.
pub(crate) fn crd_version<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for definition in mesh.all(CUSTOM_RESOURCE_DEFINITION) {
        let Some((name, minimum)) = MINIMUM_VERSIONS.iter().find(|(name, _)| *name == definition.name()) else {
            continue;
        };
        let Some(installed) = definition.annotation("gateway.networking.k8s.io/bundle-version") else { continue };
        if version(installed).is_some_and(|version| version < *minimum) {
            let minimum = minimum.map(|part| part.to_string()).join(".");
            let text = format!(
                "version {installed} of CRD {name} is lower than {minimum}: its objects are not read until the CRDs are upgraded"
            );
            report.add(&OLD_GATEWAY_API_CRD, definition, "metadata.annotations", text);
        }
    }
}

/// Major, minor and patch version, without what follows. Parts that are left out are 0.
fn version(text: &str) -> Option<[u64; 3]> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut version = [0; 3];
    for (n, part) in text.split(['-', '+']).next()?.split('.').enumerate() {
        *version.get_mut(n)? = part.parse().ok()?;
    }
    Some(version)
}
