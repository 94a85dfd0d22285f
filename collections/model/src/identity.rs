//! Workload identities (P13).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Scheme of SPIFFE ids.
pub const SPIFFE_SCHEME: &str = "spiffe://";

/// Trust domain of a mesh whose mesh config names none.
pub const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";

/// A service account of a trust domain, written `spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/SERVICE_ACCOUNT`.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Trust domain, such as `cluster.local`.
    pub trust_domain: Text,
    /// Namespace of the service account.
    pub namespace: Text,
    /// Name of the service account.
    pub service_account: Text,
}

impl Identity {
    /// The identity of a service account. `@` in a trust domain is replaced by `.`, as in Istio.
    #[must_use]
    pub fn new(trust_domain: &str, namespace: impl Into<Text>, service_account: impl Into<Text>) -> Self {
        Self {
            trust_domain: trust_domain.replace('@', ".").into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        }
    }
}

/// A text that is not the SPIFFE id of a service account.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ParseIdentityError;

impl fmt::Display for ParseIdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not of the form spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/SERVICE_ACCOUNT")
    }
}

impl std::error::Error for ParseIdentityError {}

impl FromStr for Identity {
    type Err = ParseIdentityError;

    fn from_str(text: &str) -> Result<Self, ParseIdentityError> {
        let path = text.strip_prefix(SPIFFE_SCHEME).ok_or(ParseIdentityError)?;
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            [trust_domain, "ns", namespace, "sa", account] if ![trust_domain, namespace, account].contains(&&"") => {
                Ok(Self {
                    trust_domain: (*trust_domain).into(),
                    namespace: (*namespace).into(),
                    service_account: (*account).into(),
                })
            }
            _ => Err(ParseIdentityError),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SPIFFE_SCHEME}{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_id_survives_the_round_trip() {
        let identity = Identity::new("team@mesh.example", "shop", "cart");
        let text = "spiffe://team.mesh.example/ns/shop/sa/cart";
        assert_eq!(identity.to_string(), text);
        assert_eq!(text.parse(), Ok(identity));
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "shop/cart",
            "spiffe://",
            "https://td/ns/shop/sa/cart",
            "spiffe://td/ns/shop/sa",
            "spiffe://td/ns/shop/sa/",
            "spiffe://td/ns//sa/cart",
            "spiffe:///ns/shop/sa/cart",
            "spiffe://td/ns/shop/sa/cart/",
            "spiffe://td/ns/shop/sa/cart/more",
            "spiffe://td/sa/cart/ns/shop",
            " spiffe://td/ns/shop/sa/cart",
        ] {
            assert_eq!(text.parse::<Identity>(), Err(ParseIdentityError), "{text:?}");
        }
    }
}
