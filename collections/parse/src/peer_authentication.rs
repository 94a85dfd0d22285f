//! PeerAuthentication (P14).
//!
//! An invalid policy still applies: an invalid value must not make the mesh more permissive. A mode that cannot be read
//! counts as `STRICT`, as does the mode of every port if the ports cannot be read.

use sluice_model::{Attachment, Object, ObjectMeta, PeerAuthentication, PeerMtls};

use crate::{Fields, Findings, Item, attachment};

/// The effect of a mode that cannot be read.
const STRICT_INSTEAD: &str = "the mode cannot be read: it counts as STRICT";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let meta = item.meta(findings);
    let mut policy = match Fields::new(item.spec(), "spec", findings) {
        Some(fields) => spec(&fields),
        None => {
            PeerAuthentication { mtls: PeerMtls::Strict, selector_unreadable: true, ..PeerAuthentication::default() }
        }
    };
    (policy.namespace, policy.name, policy.created) = (meta.namespace, meta.name, meta.created);
    Some(Object::PeerAuthentication(policy))
}

/// A policy in place of one whose parser panics: it denies all that the policy could have denied. `attachment` is `None` if
/// its workloads cannot be read.
pub(crate) fn most_restrictive(meta: ObjectMeta, attachment: Option<Attachment>) -> Object {
    let selector_unreadable = attachment.is_none();
    Object::PeerAuthentication(PeerAuthentication {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        selector: attachment.unwrap_or_default().selector,
        mtls: PeerMtls::Strict,
        selector_unreadable,
        ..PeerAuthentication::default()
    })
}

fn spec(fields: &Fields<'_>) -> PeerAuthentication {
    let findings = fields.findings();
    let before = findings.unreadable_count();
    let selector = attachment::workload_selector(fields).unwrap_or_default();
    let selector_unreadable = findings.unreadable_count() != before;
    let mut policy = PeerAuthentication { selector, selector_unreadable, ..PeerAuthentication::default() };
    if fields.has("mtls") {
        policy.mtls = mode(fields.object("mtls").as_ref()).unwrap_or_else(|| {
            fields.warn("mtls", STRICT_INSTEAD);
            PeerMtls::Strict
        });
    }
    ports(fields, &mut policy);
    if selector_unreadable {
        fields.warn(
            "selector",
            "the selector cannot be read: the policy requires mutual TLS wherever it may apply, and permits nothing",
        );
        if policy.mtls != PeerMtls::Strict {
            policy.mtls = PeerMtls::Unset;
        }
    }
    policy
}

/// Reads the modes by port.
fn ports(fields: &Fields<'_>, policy: &mut PeerAuthentication) {
    let entries: Vec<_> = fields.entries("portLevelMtls").collect();
    if entries.is_empty() && fields.has("portLevelMtls") {
        if fields.value("portLevelMtls").is_some_and(serde_json::Value::is_object) {
            fields.refuse("portLevelMtls", "at least one port is required");
        } else {
            fields.warn("portLevelMtls", "the modes of ports cannot be read: mutual TLS is required on all ports");
            policy.mtls = PeerMtls::Strict;
        }
    }
    for (port, value, path) in entries {
        let mode = mode(Fields::new(value, path.clone(), fields.findings()).as_ref()).unwrap_or_else(|| {
            fields.findings().warning(&path, STRICT_INSTEAD);
            PeerMtls::Strict
        });
        let number = port.parse::<u32>();
        match number {
            Ok(number @ 1..=65535) => drop(policy.ports.insert(number, mode)),
            _ => fields.refuse(
                &format!("portLevelMtls[{port}]"),
                format!("`{port}` is not a port number: expected 1 to 65535"),
            ),
        }
        if number.is_err() && mode == PeerMtls::Strict {
            // It may be any port that is not listed.
            policy.mtls = PeerMtls::Strict;
        }
    }
    if policy.selector.is_empty() && !policy.selector_unreadable && !policy.ports.is_empty() {
        fields.refuse("portLevelMtls", "`portLevelMtls` requires a selector");
    }
}

/// Reads a mode; `None` if it cannot be read.
fn mode(fields: Option<&Fields<'_>>) -> Option<PeerMtls> {
    let modes = [
        ("UNSET", PeerMtls::Unset),
        ("DISABLE", PeerMtls::Disable),
        ("PERMISSIVE", PeerMtls::Permissive),
        ("STRICT", PeerMtls::Strict),
    ];
    let fields = fields?;
    let declared = fields.choice("mode", &modes);
    if declared.is_none() && (fields.has("mode") || fields.has_unread()) {
        return None;
    }
    Some(declared.unwrap_or_default())
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
        assert_eq!(parse(json!({})).1, 0);
    }

    #[test]
    fn unreadable_mode_is_strict_and_its_neighbours_are_kept() {
        use PeerMtls::{Disable, Permissive, Strict, Unset};
        let selector = json!({"matchLabels": {"app": "a"}});
        let read = |mut spec: serde_json::Value| {
            spec["selector"] = selector.clone();
            let policy = parse(spec).0.expect("it applies");
            (policy.mtls, policy.ports.into_iter().collect::<Vec<_>>())
        };
        for bad in [json!({"mode": "SOMETIMES"}), json!({"mode": ["STRICT"]}), json!(5), json!({"mood": "STRICT"})] {
            let permissive = json!({"mode": "PERMISSIVE"});
            assert_eq!(
                read(json!({"mtls": bad, "portLevelMtls": {"80": permissive}})),
                (Strict, vec![(80, Permissive)])
            );
            assert_eq!(
                read(json!({"mtls": permissive, "portLevelMtls": {"80": bad, "81": {"mode": "DISABLE"}}})),
                (Permissive, vec![(80, Strict), (81, Disable)])
            );
        }
        let permissive = json!({"mode": "PERMISSIVE"});
        assert_eq!(read(json!({"mtls": permissive, "portLevelMtls": 5})), (Strict, vec![]));
        let named = |mode: &str| read(json!({"mtls": permissive, "portLevelMtls": {"http": {"mode": mode}}}));
        assert_eq!((named("STRICT").0, named("DISABLE").0), (Strict, Permissive));
        assert_eq!(read(json!({"mtls": null})), (Unset, vec![]));
        assert_eq!(parse(json!("STRICT")).0.map(|policy| policy.mtls), Some(Strict));
    }

    #[test]
    fn policy_with_an_unreadable_selector_permits_nothing() {
        use PeerMtls::{Disable, Strict, Unset};
        let read = |mode: &str| {
            let ports = json!({"80": {"mode": "DISABLE"}, "81": {"mode": "STRICT"}});
            let selector = json!({"matchLabels": {"app": "a", "version": 1}});
            let spec = json!({"selector": selector, "mtls": {"mode": mode}, "portLevelMtls": ports});
            let policy = parse(spec).0.expect("it applies");
            assert!(policy.selector_unreadable && policy.selector.len() == 1);
            (policy.mtls, policy.ports.into_iter().collect::<Vec<_>>())
        };
        let ports = vec![(80, Disable), (81, Strict)];
        assert_eq!(read("PERMISSIVE"), (Unset, ports.clone()));
        assert_eq!(read("STRICT"), (Strict, ports));
    }
}
