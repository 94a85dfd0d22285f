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

/// Reads the attachment of a security policy in that namespace, and whether all of it is readable and may exist. Otherwise
/// it holds for everything that the policy may be attached to, so the policy must not allow anything by it.
pub(crate) fn security_attachment(fields: &Fields<'_>, namespace: &str) -> (Attachment, bool) {
    let before = fields.findings().unreadable_count();
    let mut attachment = attachment(fields);
    let readable = fields.findings().unreadable_count() == before;
    let targets_exist = attachment.targets.iter().all(|target| may_exist(target, namespace));
    if !targets_exist {
        let name = if fields.has("targetRefs") { "targetRefs" } else { "targetRef" };
        fields.warn(name, "a target cannot exist: the policy applies at every gateway of its namespace");
        attachment.any_gateway = true;
    }
    (attachment, readable && targets_exist)
}

/// Whether a policy in that namespace can have the target.
fn may_exist(target: &TargetRef, namespace: &str) -> bool {
    let near = target.namespace.is_empty() || *target.namespace == *namespace;
    near && !target.name.is_empty() && is_known_kind(target)
}

fn is_known_kind(target: &TargetRef) -> bool {
    TARGETS.iter().any(|(group, kind)| target.is_kind(group, kind))
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
    if !is_known_kind(&target) {
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
            security_attachment(&Fields::new(&spec, "spec", &findings).expect("an object"), "east")
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

    #[test]
    fn target_that_cannot_exist_is_every_gateway() {
        let read = |target: Value| {
            let findings = Findings::default();
            let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"});
            let [single, list] = [json!({"targetRef": target}), json!({"targetRefs": [gateway, target]})].map(|spec| {
                let fields = Fields::new(&spec, "spec", &findings).expect("an object");
                let (attachment, readable) = security_attachment(&fields, "east");
                (attachment.any_gateway, readable)
            });
            assert_eq!(single, list, "{target}");
            single
        };
        let gateway = |fields: Value| {
            let mut target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"});
            let target_fields = target.as_object_mut().expect("an object");
            target_fields.extend(fields.as_object().expect("an object").clone());
            target
        };
        for bad in [
            json!({"kind": "Gatway"}),
            json!({"group": "networking.istio.io"}),
            json!({"kind": ""}),
            json!({"name": ""}),
            json!({"namespace": "west"}),
        ] {
            assert_eq!(read(gateway(bad.clone())), (true, false), "{bad}");
        }
        for good in [json!({}), json!({"namespace": "east"}), json!({"kind": "GatewayClass"})] {
            assert_eq!(read(gateway(good.clone())), (false, true), "{good}");
        }
    }
}
