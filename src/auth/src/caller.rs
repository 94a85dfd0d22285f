//! The caller of a request or stream.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use sluice_listen::network_of;
use sluice_model::{Identity, Proxy, Text};

/// A pod of a cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodName {
    /// Its cluster.
    pub cluster: Text,
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// UID, which distinguishes the pod from earlier pods of the same name.
    pub uid: Text,
}

/// The caller of a request or stream, with its authenticated identities.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Caller {
    /// Its address, if known.
    pub peer: Option<SocketAddr>,
    /// The authenticator that accepted it; `None` for an anonymous caller.
    pub authenticator: Option<&'static str>,
    /// The authenticated identities; empty for an anonymous caller.
    pub identities: Vec<Identity>,
    /// The cluster that has authenticated it, if its credentials are those of one cluster.
    pub cluster: Option<Text>,
    /// Its pod, if its credentials name one.
    pub pod: Option<PodName>,
    /// When its credentials expire, in seconds since the Unix epoch, if they do and the connection does not end then.
    pub expiry: Option<i64>,
    /// Why the caller is anonymous; empty for an authenticated caller.
    pub anonymous_reason: String,
}

/// Whom the limits of callers count.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum CallerKey {
    /// All callers of an identity.
    Identity(Identity),
    /// All callers without an identity from one address (IPv6: /64 network), if it is known.
    Address(Option<IpAddr>),
}

impl Caller {
    /// Whom the limits of callers count it as.
    #[must_use]
    pub fn key(&self) -> CallerKey {
        match self.identities.first() {
            Some(identity) => CallerKey::Identity(identity.clone()),
            None => CallerKey::Address(self.peer.map(|peer| network_of(peer.ip()))),
        }
    }

    /// An anonymous caller.
    #[must_use]
    pub fn anonymous(peer: Option<SocketAddr>) -> Self {
        Self { peer, ..Self::default() }
    }

    /// Its address as text, or `unknown`.
    #[must_use]
    pub fn address(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
    }

    /// The identity of the caller that matches the namespace and service account its proxy claims (X20); `None` for an
    /// anonymous caller.
    ///
    /// # Errors
    /// The caller is authenticated, and none of its identities matches.
    pub fn identity_of(&self, proxy: &Proxy) -> Result<Option<Identity>, IdentityMismatch> {
        if self.authenticator.is_none() {
            return Ok(None);
        }
        let matches = |claimed: &str, proven: &str| claimed.is_empty() || claimed == proven;
        let found = self.identities.iter().find(|identity| {
            matches(&proxy.namespace, &identity.namespace) && matches(&proxy.service_account, &identity.service_account)
        });
        found.cloned().map(Some).ok_or_else(|| IdentityMismatch {
            identities: self.identities.clone(),
            claimed: format!("{}/{}", proxy.namespace, proxy.service_account),
        })
    }
}

/// A proxy claims a namespace or service account that its caller does not have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IdentityMismatch {
    /// Identities of the caller.
    pub identities: Vec<Identity>,
    /// Claimed namespace and service account.
    pub claimed: String,
}

impl fmt::Display for IdentityMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace and service account {} are not those of ", self.claimed)?;
        match self.identities.as_slice() {
            [] => f.write_str("a caller without an identity of the mesh"),
            [first, rest @ ..] => {
                write!(f, "{first}")?;
                rest.iter().try_for_each(|identity| write!(f, ", {identity}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_claims_have_to_match_an_identity_of_the_caller() {
        let proxy = |namespace: &str, account: &str| Proxy {
            namespace: namespace.into(),
            service_account: account.into(),
            ..Proxy::default()
        };
        let edge = Identity::new("cluster.local", "edge", "gateway");
        let other = Identity::new("cluster.local", "shop", "cart");
        let caller = Caller {
            authenticator: Some("forwarded certificate"),
            identities: vec![other.clone(), edge.clone()],
            ..Caller::default()
        };
        assert_eq!(caller.identity_of(&proxy("edge", "gateway")), Ok(Some(edge)));
        assert_eq!(caller.identity_of(&proxy("shop", "")), Ok(Some(other)));
        for (namespace, account) in [("edge", "cart"), ("shop", "gateway"), ("bank", "gateway"), ("bank", "")] {
            let refused = caller.identity_of(&proxy(namespace, account)).expect_err("another identity");
            assert!(
                refused.to_string().starts_with(&format!("namespace and service account {namespace}/{account} are"))
            );
        }

        let foreign = Caller { identities: Vec::new(), ..caller.clone() };
        assert!(foreign.identity_of(&proxy("", "")).is_err(), "authenticated, without an identity of the mesh");
        let anonymous = Caller { authenticator: None, ..caller };
        assert_eq!(anonymous.identity_of(&proxy("edge", "gateway")), Ok(None), "anonymous");
    }
}
