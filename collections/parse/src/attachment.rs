//! Attachment of a policy to workloads: `selector`, `targetRef` and `targetRefs`.

use sluice_model::gateway_api::GROUP;
use sluice_model::{Attachment, Labels, NETWORKING_GROUP, TargetRef};

use crate::Fields;
use crate::admission::check_selector;
use crate::fields::one_of;

/// Group and kind of the objects that a policy can target.
const TARGETS: [(&str, &str); 4] =
    [("", "Service"), (NETWORKING_GROUP, "ServiceEntry"), (GROUP, "Gateway"), (GROUP, "GatewayClass")];

/// Reads the attachment of a policy from its `spec`.
pub(crate) fn attachment(fields: &Fields<'_>) -> Attachment {
    let selector = workload_selector(fields);
    let before = fields.findings().unreadable_count();
    let single = fields.read("targetRef", target_ref);
    let mut targets = fields.list("targetRefs", target_ref);
    let any_gateway = fields.findings().unreadable_count() != before;
    if [selector.is_some(), single.is_some(), !targets.is_empty()].into_iter().filter(|set| *set).count() > 1 {
        fields.refuse("", "only one of `selector`, `targetRef` and `targetRefs` may be set");
    }
    if targets.is_empty() {
        targets.extend(single);
    }
    Attachment { selector: selector.unwrap_or_default(), targets, any_gateway }
}

/// Reads the attachment of a security policy, and whether all of it is readable. Otherwise it holds for everything that
/// the policy may be attached to, so the policy must not allow anything by it.
pub(crate) fn security_attachment(fields: &Fields<'_>) -> (Attachment, bool) {
    let before = fields.findings().unreadable_count();
    let attachment = attachment(fields);
    let readable = fields.findings().unreadable_count() == before;
    (attachment, readable)
}

/// The labels of `selector`, if there is one.
pub(crate) fn workload_selector(fields: &Fields<'_>) -> Option<Labels> {
    fields.read("selector", |selector| {
        let labels = selector.labels("matchLabels");
        check_selector(selector, "matchLabels", &labels);
        labels
    })
}

/// A target of a policy.
pub(crate) fn target_ref(fields: &Fields<'_>) -> TargetRef {
    let target = TargetRef {
        group: fields.text("group"),
        kind: fields.text("kind"),
        name: fields.text("name"),
        namespace: fields.text("namespace"),
    };
    if target.name.is_empty() {
        fields.refuse("name", "the name of the target is required");
    }
    if !target.namespace.is_empty() {
        fields.refuse("namespace", "a target must be in the namespace of the policy: leave `namespace` empty");
    }
    if !TARGETS.iter().any(|(group, kind)| target.is_kind(group, kind)) {
        fields.refuse(
            "kind",
            format!(
                "`{}/{}` cannot be a target; expected {}",
                target.group,
                target.kind,
                one_of(TARGETS.map(|(group, kind)| format!("{group}/{kind}")).iter().map(String::as_str)),
            ),
        );
    }
    target
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::Attachment;

    use super::{attachment, security_attachment};
    use crate::{Fields, Findings};

    fn read(spec: &Value) -> (Attachment, Vec<String>) {
        let findings = Findings::default();
        let read = attachment(&Fields::new(spec, "spec", &findings).expect("an object"));
        (read, findings.into_vec().iter().map(|finding| finding.field_path.to_string()).collect())
    }

    #[test]
    fn a_policy_has_one_kind_of_attachment() {
        let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"});
        let (read_single, findings) = read(&json!({"targetRef": gateway}));
        assert_eq!((read_single.targets.len(), findings), (1, vec![]));
        let (read_list, findings) = read(&json!({"targetRefs": [gateway]}));
        assert_eq!((read_list, findings), (read_single, vec![]));
        assert_eq!(read(&json!({"selector": {"matchLabels": {"a": "b"}}, "targetRefs": [gateway]})).1, ["spec"]);
    }

    #[test]
    fn invalid_targets_and_selectors_are_reported() {
        let path = |spec: &Value| read(spec).1;
        assert_eq!(path(&json!({"targetRefs": [{"kind": "Service"}]})), ["spec.targetRefs[0].name"]);
        assert_eq!(path(&json!({"targetRef": {"kind": "Pod", "name": "p"}})), ["spec.targetRef.kind"]);
        let far = json!({"targetRef": {"kind": "Service", "name": "s", "namespace": "n"}});
        assert_eq!(path(&far), ["spec.targetRef.namespace"]);
        assert_eq!(path(&json!({"selector": {"matchLabels": {"a": "b*"}}})), ["spec.selector.matchLabels[a]"]);
        assert_eq!(path(&json!({"selector": {}})), ["spec.selector.matchLabels"]);
    }

    #[test]
    fn unreadable_attachment_is_what_it_may_be() {
        let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"});
        let read = |spec: Value| {
            let findings = Findings::default();
            security_attachment(&Fields::new(&spec, "spec", &findings).expect("an object"))
        };
        for spec in [
            json!({"targetRef": 5}),
            json!({"targetRefs": "door"}),
            json!({"targetRefs": [5, gateway]}),
            json!({"targetRefs": [gateway, {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": 5}]}),
        ] {
            let (attachment, readable) = read(spec.clone());
            assert!(attachment.any_gateway && !readable, "{spec}");
        }
        let (attachment, readable) = read(json!({"selector": {"matchLabels": {"app": "a", "version": 1}}}));
        assert_eq!((attachment.selector, readable), ([("app".into(), "a".into())].into(), false));
        for spec in [json!({"selector": 5}), json!({"selector": {"matchExpressions": []}})] {
            assert_eq!(read(spec.clone()), (Attachment::default(), false), "{spec}");
        }
        assert_eq!(read(json!({})), (Attachment::default(), true));
    }
}
