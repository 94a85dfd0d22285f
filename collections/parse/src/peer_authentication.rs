//! PeerAuthentication (P14).
//!
//! An invalid policy still applies as far as its modes can be read: an invalid value must not make the mesh more permissive.

use sluice_model::{Object, PeerAuthentication, PeerMtls};

use crate::{Fields, Findings, Item, attachment};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let selector = attachment::workload_selector(&fields).unwrap_or_default();
    let before = findings.error_count();
    let mtls = fields.object("mtls").map(|mtls| mode(&mtls)).unwrap_or_default();
    let entries = fields.entries("portLevelMtls");
    let declared: Vec<_> = entries
        .into_iter()
        .map(|(port, value, path)| {
            (port, Fields::new(value, path, findings).map(|mtls| mode(&mtls)).unwrap_or_default())
        })
        .collect();
    let readable = findings.error_count() == before;
    if declared.is_empty() && fields.has("portLevelMtls") {
        fields.refuse("portLevelMtls", "at least one port is required");
    }
    let mut ports = std::collections::BTreeMap::new();
    for (port, mode) in declared {
        match port.parse::<u32>().ok().filter(|port| (1..=65535).contains(port)) {
            Some(number) => drop(ports.insert(number, mode)),
            None => fields.refuse(
                &format!("portLevelMtls[{port}]"),
                format!("`{port}` is not a port number: expected 1 to 65535"),
            ),
        }
    }
    if selector.is_empty() && !ports.is_empty() {
        fields.refuse("portLevelMtls", "`portLevelMtls` requires a selector");
    }
    drop(fields);
    readable.then_some(Object::PeerAuthentication(PeerAuthentication {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        selector,
        mtls,
        ports,
    }))
}

fn mode(fields: &Fields<'_>) -> PeerMtls {
    let modes = [
        ("UNSET", PeerMtls::Unset),
        ("DISABLE", PeerMtls::Disable),
        ("PERMISSIVE", PeerMtls::Permissive),
        ("STRICT", PeerMtls::Strict),
    ];
    fields.choice("mode", &modes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_model::{Object, PeerAuthentication, PeerMtls};

    use crate::parse_object;

    fn parse(spec: serde_json::Value) -> (Option<PeerAuthentication>, usize) {
        let object = json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "PeerAuthentication",
            "metadata": {"namespace": "orchard", "name": "p"},
            "spec": spec,
        });
        let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("known kind");
        match parsed.object {
            Some(Object::PeerAuthentication(policy)) => (Some(policy), parsed.rejects.len()),
            _ => (None, parsed.rejects.len()),
        }
    }

    #[test]
    fn port_modes_are_read_with_a_selector() {
        let spec = json!({
            "selector": {"matchLabels": {"app": "a"}},
            "mtls": {"mode": "STRICT"},
            "portLevelMtls": {"8080": {"mode": "DISABLE"}, "9000": {}},
        });
        let policy = parse(spec).0.expect("applies");
        assert_eq!(policy.mtls, PeerMtls::Strict);
        assert_eq!(policy.ports, [(8080, PeerMtls::Disable), (9000, PeerMtls::Unset)].into());
    }

    #[test]
    fn invalid_fields_are_reported() {
        let strict = json!({"mode": "STRICT"});
        for spec in [
            json!({"mtls": strict, "portLevelMtls": {"80": strict}}),
            json!({"mtls": strict, "portLevelMtls": {}}),
            json!({"mtls": strict, "selector": {"matchLabels": {"app": "a"}}, "portLevelMtls": {"0": strict}}),
            json!({"mtls": strict, "selector": {"matchLabels": {"app": "a*"}}}),
        ] {
            let (policy, rejects) = parse(spec.clone());
            assert_eq!(rejects, 1, "{spec}");
            assert_eq!(policy.expect("it counts all the same").mtls, PeerMtls::Strict, "{spec}");
        }
        assert_eq!(parse(json!({"mtls": {"mode": "SOMETIMES"}})), (None, 1));
        assert_eq!(parse(json!({})).1, 0);
    }
}
