//! Whoever opened a stream.

use std::fmt;
use std::net::SocketAddr;

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
    /// What tells it from others that had its name.
    pub uid: Text,
}

/// Whoever opened a stream, and who he is proven to be.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Caller {
    /// Where he comes from, if that is known.
    pub peer: Option<SocketAddr>,
    /// How he was authenticated; `None` if he was not.
    pub means: Option<&'static str>,
    /// Whom he may speak for.
    pub identities: Vec<Identity>,
    /// The pod he is, if that is proven.
    pub pod: Option<PodName>,
    /// Why he is nobody, where he is not authenticated.
    pub doubt: String,
}

impl Caller {
    /// Someone from there of whom nothing else is known.
    #[must_use]
    pub fn anonymous(peer: Option<SocketAddr>) -> Self {
        Self { peer, ..Self::default() }
    }

    /// Where he comes from, as text.
    #[must_use]
    pub fn address(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
    }

    /// Which of his identities a proxy has that says this of itself (X20); none if he was not authenticated.
    ///
    /// # Errors
    /// He is authenticated, but as nobody who is this proxy.
    pub fn identity_of(&self, proxy: &Proxy) -> Result<Option<Identity>, Impostor> {
        if self.means.is_none() {
            return Ok(None);
        }
        let is = |said: &str, proven: &str| said.is_empty() || said == proven;
        let found = self.identities.iter().find(|identity| {
            is(&proxy.namespace, &identity.namespace) && is(&proxy.service_account, &identity.service_account)
        });
        found.cloned().map(Some).ok_or_else(|| Impostor {
            identities: self.identities.clone(),
            said: format!("{}/{}", proxy.namespace, proxy.service_account),
        })
    }
}

/// A caller that says it is a proxy of somebody else.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Impostor {
    /// Who it is proven to be.
    pub identities: Vec<Identity>,
    /// Namespace and service account of whom it says to be.
    pub said: String,
}

impl fmt::Display for Impostor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace and service account {} are not those of ", self.said)?;
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
    fn a_proxy_is_of_whom_the_caller_is_proven_to_be() {
        let proxy = |namespace: &str, account: &str| Proxy {
            namespace: namespace.into(),
            service_account: account.into(),
            ..Proxy::default()
        };
        let edge = Identity::new("cluster.local", "edge", "gateway");
        let other = Identity::new("cluster.local", "shop", "cart");
        let caller = Caller {
            means: Some("forwarded certificate"),
            identities: vec![other.clone(), edge.clone()],
            ..Caller::default()
        };
        assert_eq!(caller.identity_of(&proxy("edge", "gateway")), Ok(Some(edge)));
        assert_eq!(caller.identity_of(&proxy("shop", "")), Ok(Some(other)));
        for (namespace, account) in [("edge", "cart"), ("shop", "gateway"), ("bank", "gateway"), ("bank", "")] {
            let refused = caller.identity_of(&proxy(namespace, account)).expect_err("somebody else");
            assert!(
                refused.to_string().starts_with(&format!("namespace and service account {namespace}/{account} are"))
            );
        }

        let nobody = Caller { identities: Vec::new(), ..caller.clone() };
        assert!(nobody.identity_of(&proxy("", "")).is_err(), "authenticated, but as nobody of the mesh");
        let anonymous = Caller { means: None, ..caller };
        assert_eq!(anonymous.identity_of(&proxy("edge", "gateway")), Ok(None), "nothing is proven");
    }
}
