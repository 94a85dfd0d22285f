//! PeerAuthentication (P14).

use sluice_model::{Object, PeerAuthentication, PeerMtls};

use crate::admission::check_selector;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let selector = fields.read("selector", |selector| {
        let labels = selector.text_map("matchLabels");
        check_selector(selector, "matchLabels", &labels);
        labels
    });
    let selector = selector.unwrap_or_default();
    if selector.values().any(|value| value.contains('*')) {
        fields.reject("selector.matchLabels", "values have no wildcards");
    }
    if fields.value("portLevelMtls").and_then(|ports| ports.as_object()).is_some_and(|ports| ports.is_empty()) {
        fields.refuse("portLevelMtls", "at least one port is needed");
    }
    let mtls = fields.object("mtls").map(|mtls| mode(&mtls)).unwrap_or_default();
    let mut ports = std::collections::BTreeMap::new();
    for (port, value, path) in fields.entries("portLevelMtls") {
        let number = port.parse::<u32>().ok().filter(|port| (1..=65535).contains(port));
        let declared = Fields::new(value, path, findings).map(|mtls| mode(&mtls)).unwrap_or_default();
        match number {
            Some(number) => drop(ports.insert(number, declared)),
            None => fields.reject(&format!("portLevelMtls[{port}]"), format!("`{port}` is no port number")),
        }
    }
    if selector.is_empty() && !ports.is_empty() {
        fields.reject("portLevelMtls", "ports are told apart only for selected workloads");
    }
    drop(fields);
    (!findings.has_errors()).then_some(Object::PeerAuthentication(PeerAuthentication {
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

    use crate::{ObjectError, parse_object};

    fn parse(spec: serde_json::Value) -> Result<Option<PeerAuthentication>, ObjectError> {
        let object = json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "PeerAuthentication",
            "metadata": {"namespace": "orchard", "name": "p"},
            "spec": spec,
        });
        Ok(match parse_object(&"Kubernetes".into(), "cluster.local", &object)?.object {
            Some(Object::PeerAuthentication(policy)) => Some(policy),
            _ => None,
        })
    }

    #[test]
    fn ports_are_read_for_selected_workloads() {
        let spec = json!({
            "selector": {"matchLabels": {"app": "a"}},
            "mtls": {"mode": "STRICT"},
            "portLevelMtls": {"8080": {"mode": "DISABLE"}, "9000": {}},
        });
        let policy = parse(spec).unwrap().expect("applies");
        assert_eq!(policy.mtls, PeerMtls::Strict);
        assert_eq!(policy.ports, [(8080, PeerMtls::Disable), (9000, PeerMtls::Unset)].into());
    }

    #[test]
    fn what_cannot_mean_anything_is_refused() {
        for spec in [
            json!({"mtls": {"mode": "SOMETIMES"}}),
            json!({"portLevelMtls": {"80": {"mode": "STRICT"}}}),
            json!({"selector": {"matchLabels": {"app": "a"}}, "portLevelMtls": {"0": {"mode": "STRICT"}}}),
            json!({"selector": {"matchLabels": {"app": "a*"}}}),
        ] {
            assert_eq!(parse(spec.clone()).unwrap(), None, "{spec}");
        }
        assert!(parse(json!({})).unwrap().is_some());
    }
}
