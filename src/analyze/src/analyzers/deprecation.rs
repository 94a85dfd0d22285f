//! Deprecated fields and kinds (IST0002).

use crate::codes::DEPRECATED;
use crate::resource::{CUSTOM_RESOURCE_DEFINITION, SIDECAR, VIRTUAL_SERVICE};
use crate::value::{has, items, number, text};
use crate::{MeshObjects, MessageList};

/// Groups and kinds that no control plane reads any more.
const REMOVED: [(&str, &str); 4] = [
    ("rbac.istio.io", "ClusterRbacConfig"),
    ("rbac.istio.io", "RbacConfig"),
    ("rbac.istio.io", "ServiceRole"),
    ("rbac.istio.io", "ServiceRoleBinding"),
];

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for vs in mesh.all(VIRTUAL_SERVICE) {
        for (n, rule) in items(vs.spec(), "http").iter().enumerate() {
            if number(rule, "fault.delay.percent").is_some_and(|percent| percent > 0) {
                let text = "field percent of a delay is deprecated; use percentage";
                report.add(&DEPRECATED, vs, format!("spec.http[{n}].fault.delay.percent"), text);
            }
        }
    }
    for sidecar in mesh.all(SIDECAR) {
        if has(sidecar.spec(), "outboundTrafficPolicy.egressProxy") {
            let text = "field egressProxy of outboundTrafficPolicy is ignored";
            report.add(&DEPRECATED, sidecar, "spec.outboundTrafficPolicy.egressProxy", text);
        }
    }
    for definition in mesh.all(CUSTOM_RESOURCE_DEFINITION) {
        let kind = (text(definition.spec(), "group"), text(definition.spec(), "names.kind"));
        if REMOVED.contains(&kind) {
            let text = format!("kind {} of {} is no longer read", kind.1, kind.0);
            report.add(&DEPRECATED, definition, "spec.names.kind", text);
        }
    }
}
