//! DestinationRules: verification of servers, hosts and subsets (IST0128, IST0129, IST0173, IST0174).

use std::collections::HashMap;

use serde_json::Value;

use crate::codes::{
    NO_SERVER_VERIFICATION, NO_SERVER_VERIFICATION_PORT, SUBSET_WITHOUT_PODS, UNKNOWN_DESTINATION_RULE_HOST,
};
use crate::resource::{DESTINATION_RULE, NODE};
use crate::selector::{self, Labels};
use crate::value::{at, has, items, map, number, text, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

use super::hosts::Hosts;

/// Labels that the control plane derives from the node of a pod.
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const SUBZONE: &str = "topology.istio.io/subzone";
const HOSTNAME: &str = "kubernetes.io/hostname";

pub(crate) fn ca_certificates<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for rule in mesh.all(DESTINATION_RULE) {
        let verifies_nothing = |policy: &Value| {
            let has_credential = !text(policy, "tls.credentialName").is_empty() && has(rule.spec(), "workloadSelector");
            matches!(text(policy, "tls.mode"), "SIMPLE" | "MUTUAL")
                && text(policy, "tls.caCertificates").is_empty()
                && !has_credential
        };
        let explain = |policy: &Value, port: &str| {
            format!(
                "TLS mode {} for host {}{port} has no caCertificates: certificates of servers are not verified",
                text(policy, "tls.mode"),
                text(rule.spec(), "host")
            )
        };
        let policy = at(rule.spec(), "trafficPolicy");
        if verifies_nothing(policy) {
            report.add(&NO_SERVER_VERIFICATION, rule, "spec.trafficPolicy.tls", explain(policy, ""));
        }
        for (n, settings) in items(policy, "portLevelSettings").iter().enumerate() {
            if verifies_nothing(settings) {
                let port = number(settings, "port.number").map_or_else(String::new, |port| format!(", port {port},"));
                let field = format!("spec.trafficPolicy.portLevelSettings[{n}].tls");
                report.add(&NO_SERVER_VERIFICATION_PORT, rule, field, explain(settings, &port));
            }
        }
    }
}

pub(crate) fn subsets<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let hosts = Hosts::new(mesh);
    let nodes: HashMap<&str, &AnalyzedObject> = mesh.all(NODE).iter().map(|node| (node.name(), *node)).collect();
    for rule in mesh.all(DESTINATION_RULE) {
        let host = text(rule.spec(), "host");
        let Some(owner) = hosts.find(rule.namespace(), &texts(rule.spec(), "exportTo"), host) else {
            let text = format!("no Service or ServiceEntry that namespace {} sees has host {host}", rule.namespace());
            report.add(&UNKNOWN_DESTINATION_RULE_HOST, rule, "spec.host", text);
            continue;
        };
        for (n, subset) in items(rule.spec(), "subsets").iter().enumerate() {
            let mut selector = owner.workload_selector();
            selector.extend(map(subset, "labels"));
            if !has_pod(mesh, &nodes, selector) {
                let text = format!("subset {} selects no pod: requests to it get 503", text(subset, "name"));
                report.add(&SUBSET_WITHOUT_PODS, rule, format!("spec.subsets[{n}].labels"), text);
            }
        }
    }
}

/// Whether a pod has the labels of a selector, of its own or by its node.
fn has_pod(mesh: &MeshObjects<'_>, nodes: &HashMap<&str, &AnalyzedObject>, mut selector: Labels<'_>) -> bool {
    let mut by_node: Labels<'_> = Labels::new();
    for key in [REGION, ZONE, SUBZONE, HOSTNAME] {
        if let Some((key, value)) = selector.remove_entry(key) {
            by_node.insert(key, value);
        }
    }
    let pods = mesh.pods(&selector);
    by_node.is_empty() && !pods.is_empty()
        || pods.iter().any(|pod| {
            let name = text(pod.spec(), "nodeName");
            let mut labels = pod.labels();
            let node = nodes.get(name).map(|node| node.labels()).unwrap_or_default();
            // A subzone is part of a zone.
            let keys =
                if node.get(ZONE).is_some_and(|zone| !zone.is_empty()) { [REGION, ZONE, SUBZONE] } else { [REGION; 3] };
            labels.extend(
                keys.into_iter().filter_map(|key| Some((key, *node.get(key).filter(|value| !value.is_empty())?))),
            );
            if !name.is_empty() {
                labels.insert(HOSTNAME, name);
            }
            selector::matches(&by_node, &labels)
        })
}
