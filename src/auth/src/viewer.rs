//! Access to the debug pages (O09).

use std::collections::BTreeSet;

use sluice_model::{Identity, Text};

use crate::trust_domain::is_in_trust_domain;

/// The access of a caller.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Viewer {
    /// Everything.
    All,
    /// Configuration of proxies in this namespace.
    Namespace(Text),
}

impl Viewer {
    /// Whether the caller may see configuration of proxies in a namespace.
    #[must_use]
    pub fn sees(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(own) => own.as_str() == namespace,
        }
    }

    /// Whether the caller may open the page `/debug/NAME`. The page shows only configuration that the caller may see.
    #[must_use]
    pub fn may_open(&self, name: &str) -> bool {
        *self == Self::All || matches!(name, "config_dump" | "edsz" | "ndsz")
    }
}

/// Rules that give a caller its access.
#[derive(Clone, Debug, Default)]
pub struct ViewerRules {
    /// Access depends on the identity (`ENABLE_DEBUG_ENDPOINT_AUTH`). Otherwise every caller with an identity of the
    /// trust domain sees everything.
    pub by_identity: bool,
    /// Namespaces whose service accounts see everything, in addition to the root namespace.
    pub namespaces: BTreeSet<Text>,
}

impl ViewerRules {
    /// The access of a caller with these identities; `None` if none of them is of the trust domain.
    #[must_use]
    pub fn viewer(&self, identities: &[Identity], trust_domain: &str, root_namespace: &str) -> Option<Viewer> {
        let namespace = &identities.iter().find(|identity| is_in_trust_domain(identity, trust_domain))?.namespace;
        let sees_all = !self.by_identity || namespace.as_str() == root_namespace || self.namespaces.contains(namespace);
        Some(if sees_all { Viewer::All } else { Viewer::Namespace(namespace.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operator_namespaces_see_everything() {
        let rules = ViewerRules { by_identity: true, namespaces: ["ops".into(), "control".into()].into() };
        let see = |trust_domain: &str, namespace: &str| {
            rules.viewer(&[Identity::new(trust_domain, namespace, "a")], "td", "istio-system")
        };
        for namespace in ["ops", "control", "istio-system"] {
            assert_eq!(see("td", namespace), Some(Viewer::All), "{namespace}");
            assert_eq!(see("other", namespace), None, "{namespace} of another mesh");
        }
        let shop = see("td", "shop").expect("an identity of the mesh");
        assert_eq!(shop, Viewer::Namespace("shop".into()));
        assert!(shop.sees("shop") && !shop.sees("bank") && !shop.sees(""));
        assert!(shop.may_open("config_dump") && shop.may_open("edsz") && shop.may_open("ndsz"));
        for page in ["syncz", "registryz", "config_dump/", "collections/config_dump", "log", ""] {
            assert!(!shop.may_open(page) && Viewer::All.may_open(page), "{page}");
        }
        assert_eq!(rules.viewer(&[], "td", "istio-system"), None, "no identity of the mesh");
        let open = ViewerRules { by_identity: false, ..rules };
        assert_eq!(open.viewer(&[Identity::new("td", "shop", "a")], "td", "istio-system"), Some(Viewer::All));
    }
}
