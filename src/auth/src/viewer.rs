//! What of the debug pages somebody may see (O09).

use std::collections::BTreeSet;

use sluice_model::{Identity, Text};

/// How much somebody may see.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Viewer {
    /// Everything.
    All,
    /// What proxies of this namespace were sent.
    Namespace(Text),
}

impl Viewer {
    /// Whether he may see what is of a namespace.
    #[must_use]
    pub fn sees(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(own) => own.as_str() == namespace,
        }
    }

    /// Whether he may open the page `/debug/NAME`; on it, he finds what he may see.
    #[must_use]
    pub fn may_open(&self, name: &str) -> bool {
        *self == Self::All || matches!(name, "config_dump" | "edsz" | "ndsz")
    }
}

/// Who may see how much.
#[derive(Clone, Debug, Default)]
pub struct ViewerRules {
    /// Identities are told apart (`ENABLE_DEBUG_ENDPOINT_AUTH`); else whoever is anybody sees everything.
    pub tells_apart: bool,
    /// Namespaces whose service accounts see everything.
    pub namespaces: BTreeSet<Text>,
}

impl ViewerRules {
    /// What a caller sees who is proven to be these, in a mesh of a trust domain and a root namespace; nothing if he is
    /// nobody of it.
    #[must_use]
    pub fn viewer(&self, identities: &[Identity], trust_domain: &str, root_namespace: &str) -> Option<Viewer> {
        let own = Identity::new(trust_domain, "", "").trust_domain;
        let namespace = &identities.iter().find(|identity| identity.trust_domain == own)?.namespace;
        let sees_all = !self.tells_apart || namespace.as_str() == root_namespace || self.namespaces.contains(namespace);
        Some(if sees_all { Viewer::All } else { Viewer::Namespace(namespace.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_namespaces_of_operators_see_everything() {
        let rules = ViewerRules { tells_apart: true, namespaces: ["ops".into(), "control".into()].into() };
        let see = |trust_domain: &str, namespace: &str| {
            rules.viewer(&[Identity::new(trust_domain, namespace, "a")], "td", "istio-system")
        };
        for namespace in ["ops", "control", "istio-system"] {
            assert_eq!(see("td", namespace), Some(Viewer::All), "{namespace}");
            assert_eq!(see("other", namespace), None, "{namespace} of another mesh");
        }
        let shop = see("td", "shop").expect("somebody");
        assert_eq!(shop, Viewer::Namespace("shop".into()));
        assert!(shop.sees("shop") && !shop.sees("bank") && !shop.sees(""));
        assert!(shop.may_open("config_dump") && shop.may_open("edsz") && shop.may_open("ndsz"));
        for page in ["syncz", "registryz", "config_dump/", "collections/config_dump", "log", ""] {
            assert!(!shop.may_open(page) && Viewer::All.may_open(page), "{page}");
        }
        assert_eq!(rules.viewer(&[], "td", "istio-system"), None, "nobody of the mesh");
        let open = ViewerRules { tells_apart: false, ..rules };
        assert_eq!(open.viewer(&[Identity::new("td", "shop", "a")], "td", "istio-system"), Some(Viewer::All));
    }
}
