//! Why a secret is not served, for the log (P17).

use std::collections::BTreeSet;

use sluice_model::{CredentialKind, CredentialName, Identity, ResourceType, Scope, Text};

use crate::xds::hub::Seat;

/// Secrets named in one line of the log; of more only the number is told.
const NAMED: usize = 3;

/// Why each of these is not served to the proxy.
pub(crate) fn explain(names: &BTreeSet<Text>, seat: &Seat, scope: Option<&Scope>) -> String {
    let Some(identity) = &seat.proxy.identity else {
        let doubt = if seat.caller.doubt.is_empty() { "nobody was asked" } else { &seat.caller.doubt };
        return format!("the proxy's identity is not verified: {doubt}");
    };
    let reads = scope.and_then(|scope| scope.layers.get(&ResourceType::Secret)).is_some_and(|layers| {
        // Certificates have a layer beside that of roots.
        layers.iter().filter(|layer| identity.namespace == layer.view.namespace()).count() > 1
    });
    let mut text: Vec<String> =
        names.iter().take(NAMED).map(|name| format!("{name:?} {}", reason(name, identity, reads))).collect();
    if names.len() > NAMED {
        text.push(format!("and {} more", names.len() - NAMED));
    }
    text.join(", ")
}

fn reason(resource: &str, identity: &Identity, reads: bool) -> &'static str {
    let Some(name) = CredentialName::parse(resource) else { return "is no name of a secret" };
    let elsewhere = name.namespace.as_ref().is_some_and(|namespace| *namespace != identity.namespace);
    match name.kind {
        CredentialKind::Secret if elsewhere => "is of another namespace",
        CredentialKind::Secret if !reads && !name.is_roots() => {
            "is not for its service account, which may not list Secrets"
        }
        CredentialKind::GatewaySecret => "is not there, is not valid, or no Gateway may refer to it",
        CredentialKind::Secret | CredentialKind::ConfigMap => "is not there or is not valid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_tell_what_to_mend() {
        let identity = Identity::new("td", "edge", "gateway");
        let check = |resource: &str, reads: bool, expect: &str| {
            let reason = reason(resource, &identity, reads);
            assert!(reason.contains(expect), "{resource}: {reason}");
        };
        check("kubernetes://bank/cert", true, "another namespace");
        check("kubernetes://cert", false, "may not list");
        check("kubernetes://cert", true, "not there");
        check("kubernetes://edge/cert-cacert", false, "not there");
        check("kubernetes-gateway://bank/cert", true, "no Gateway");
        check("configmap://bank/roots", false, "not there");
        check("invalid://", true, "no name");
    }
}
