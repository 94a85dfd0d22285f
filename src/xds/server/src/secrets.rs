//! The reasons why secrets are not served, for the log (P17).

use std::collections::BTreeSet;

use sluice_auth::Caller;
use sluice_model::{CredentialKind, CredentialName, Identity, ResourceType, Scope, Text};

/// Maximum number of secrets named in one log line; further ones are only counted.
const MAX_NAMED_SECRETS: usize = 3;

/// The reason for each of these secrets why it is not served to a proxy with this identity.
pub(crate) fn explain(
    names: &BTreeSet<Text>,
    identity: Option<&Identity>,
    caller: &Caller,
    scope: Option<&Scope>,
) -> String {
    let Some(identity) = identity else {
        let reason =
            if caller.anonymous_reason.is_empty() { "identities are not checked" } else { &caller.anonymous_reason };
        return format!("the proxy's identity is not verified: {reason}");
    };
    let may_read = scope.and_then(|scope| scope.layers.get(&ResourceType::Secret)).is_some_and(|layers| {
        // Certificates have a layer besides the layer of roots.
        layers.iter().filter(|layer| identity.namespace == layer.view.namespace()).count() > 1
    });
    let mut text: Vec<String> = names
        .iter()
        .take(MAX_NAMED_SECRETS)
        .map(|name| format!("{name:?} {}", reason(name, identity, may_read)))
        .collect();
    if names.len() > MAX_NAMED_SECRETS {
        text.push(format!("and {} more", names.len() - MAX_NAMED_SECRETS));
    }
    text.join(", ")
}

fn reason(resource: &str, identity: &Identity, may_read: bool) -> &'static str {
    let Some(name) = CredentialName::parse(resource) else { return "is not the name of a secret" };
    let other_namespace = name.namespace.as_ref().is_some_and(|namespace| *namespace != identity.namespace);
    match name.kind {
        CredentialKind::Secret if other_namespace => "is in another namespace",
        CredentialKind::Secret if !may_read && !name.is_roots() => {
            "is not served because the proxy's service account may not list Secrets"
        }
        CredentialKind::GatewaySecret => "does not exist, is not valid, or no Gateway may refer to it",
        CredentialKind::Secret | CredentialKind::ConfigMap => "does not exist or is not valid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_the_cause() {
        let identity = Identity::new("td", "edge", "gateway");
        let check = |resource: &str, may_read: bool, expect: &str| {
            let reason = reason(resource, &identity, may_read);
            assert!(reason.contains(expect), "{resource}: {reason}");
        };
        check("kubernetes://bank/cert", true, "another namespace");
        check("kubernetes://cert", false, "may not list");
        check("kubernetes://cert", true, "does not exist");
        check("kubernetes://edge/cert-cacert", false, "does not exist");
        check("kubernetes-gateway://bank/cert", true, "no Gateway");
        check("configmap://bank/roots", false, "does not exist");
        check("invalid://", true, "not the name");
    }
}
