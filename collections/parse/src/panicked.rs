//! Objects whose parser panics, which is a bug. Such an object is rejected, and no other object is affected. A security
//! policy still applies, in a form that permits nothing that the policy could have denied.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_model::{Kind, Object};

use crate::attachment::security_attachment;
use crate::{Fields, Findings, Item, authorization_policy, peer_authentication, request_authentication};

/// Runs a parser on an object. If it panics, the result is the [`replacement`] of the object, with an error.
pub(crate) fn catch(
    kind: Kind,
    item: &Item<'_>,
    parse: impl FnOnce(&Item<'_>, &Findings) -> Option<Object>,
) -> (Option<Object>, Findings) {
    let findings = Findings::default();
    match catch_unwind(AssertUnwindSafe(|| parse(item, &findings))) {
        Ok(object) => (object, findings),
        Err(_) => {
            // The findings of the parser are incomplete. The message of the panic may quote a Secret.
            let findings = Findings::default();
            let replacement = replacement(kind, item);
            let instead = match (&replacement, kind) {
                (Some(_), _) => "the policy denies all that it could have denied",
                (None, Kind::ConfigMap) => "the last valid version stays in effect",
                (None, _) => "the object does not apply",
            };
            let reason = format!("the parser of this kind panicked, which is a bug: please report it; {instead}");
            findings.error("", reason);
            (replacement, findings)
        }
    }
}

/// A security policy that denies all that the policy could have denied. It is for the same workloads, or, if these cannot
/// be read, for all workloads of its namespace, or of the mesh in the root namespace.
fn replacement(kind: Kind, item: &Item<'_>) -> Option<Object> {
    let unused = Findings::only_counted();
    let attachment = read(|| {
        let fields = Fields::new(item.spec(), "spec", &unused)?;
        Some(security_attachment(&fields, &item.key.namespace).0)
    });
    let attachment = attachment.flatten();
    let mut meta = read(|| item.meta(&unused)).unwrap_or_default();
    meta.namespace = item.key.namespace.clone();
    meta.name = item.key.name.clone();
    match kind {
        Kind::AuthorizationPolicy => authorization_policy::most_restrictive(item, meta, attachment.unwrap_or_default()),
        Kind::PeerAuthentication => Some(peer_authentication::most_restrictive(meta, attachment)),
        Kind::RequestAuthentication => {
            Some(request_authentication::most_restrictive(item, meta, attachment.unwrap_or_default()))
        }
        _ => None,
    }
}

/// A part of an object; `None` if its parser panics.
fn read<T>(parse: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(parse)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::{JwtKeys, ObjectKey, PeerMtls, PolicyAction, Severity};

    use super::*;

    /// The result for an object whose parser panics.
    fn panicked(kind: Kind, spec: &Value) -> Option<Object> {
        let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec});
        let key = ObjectKey::new("c", "orchard", "broken");
        let item = Item { key: &key, object: &object, domain: "cluster.local" };
        let (object, findings) = catch(kind, &item, |item, findings| {
            let fields = Fields::new(item.spec(), "spec", findings);
            assert!(fields.is_none(), "the value of a secret");
            None
        });
        let findings = findings.into_vec();
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.reason.contains("panicked") && !finding.reason.contains("secret"), "{finding:?}");
        object
    }

    fn authorization(spec: &Value) -> Option<(PolicyAction, usize)> {
        match panicked(Kind::AuthorizationPolicy, spec)? {
            Object::AuthorizationPolicy(policy) => {
                assert_eq!((policy.name.as_str(), policy.namespace.as_str()), ("broken", "orchard"));
                assert!(
                    policy.rules.iter().all(|rule| rule.from.is_empty() && rule.to.is_empty() && rule.when.is_empty())
                );
                Some((policy.action, policy.rules.len()))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn object_whose_parser_panics_is_rejected() {
        assert_eq!(panicked(Kind::VirtualService, &json!({"hosts": ["a"]})), None);
        assert_eq!(panicked(Kind::ConfigMap, &json!({})), None);
    }

    #[test]
    fn security_policy_whose_parser_panics_denies_all_that_it_could_have_denied() {
        let rules = json!([{"from": [{"source": {"namespaces": ["a"]}}]}]);
        let with = |action: &str| json!({"action": action, "rules": rules});
        assert_eq!(authorization(&json!({"rules": rules})), Some((PolicyAction::Allow, 0)), "it allows nothing");
        assert_eq!(authorization(&with("DENY")), Some((PolicyAction::Deny, 1)), "it denies everything");
        assert_eq!(authorization(&with("CUSTOM")), Some((PolicyAction::Custom, 1)), "the provider decides everything");
        assert_eq!(authorization(&with("AUDIT")), None, "it denies nothing");

        let selector = json!({"matchLabels": {"app": "kettle"}});
        let strict = panicked(Kind::PeerAuthentication, &json!({"selector": selector, "mtls": {"mode": "DISABLE"}}));
        let Some(Object::PeerAuthentication(strict)) = strict else { panic!("{strict:?}") };
        assert_eq!((strict.mtls, strict.selector.len(), strict.ports.len()), (PeerMtls::Strict, 1, 0));
        assert!(strict.created > 0, "its precedence stays");

        let tokens =
            panicked(Kind::RequestAuthentication, &json!({"selector": selector, "jwtRules": [{"issuer": "a"}]}));
        let Some(Object::RequestAuthentication(tokens)) = tokens else { panic!("{tokens:?}") };
        assert_eq!(tokens.attachment.selector.len(), 1);
        assert_eq!(
            tokens.rules.iter().map(|rule| (&*rule.issuer, &rule.keys)).collect::<Vec<_>>(),
            [("", &JwtKeys::Unusable)]
        );
    }
}
