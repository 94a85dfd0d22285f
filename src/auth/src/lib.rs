//! Who calls: identities that certificates, tokens or trusted peers vouch for (P07, X19).
//!
//! A door has a chain of [`Authenticator`]s, asked in order; the first that knows the caller decides. What a caller may do
//! follows from its [`Caller::identities`] alone, never from what it says of itself.

mod caller;
mod certificate;
mod forwarded;
mod review;
mod token;
mod trust_domain;
mod viewer;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use sluice_model::Identity;

pub use caller::{Caller, Impostor, PodName};
pub use certificate::ClientCertificates;
pub use forwarded::{FORWARDED_HEADER, ForwardedCertificates};
pub use review::ReviewedTokens;
pub use token::{FileKeys, KeySource, RemoteKeys, SignedTokens};
pub use trust_domain::TrustDomain;
pub use viewer::{Viewer, ViewerRules};

/// What a caller brings.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Where it comes from, if that is known.
    pub peer: Option<SocketAddr>,
    /// Its certificate and what leads to a root, verified by TLS; empty without.
    pub certificates: &'a [CertificateDer<'static>],
}

/// What an authenticator makes of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// There is nothing in it that this authenticator reads.
    NotMine,
    /// What it reads does not prove anything, a lower-case fragment that says why. It never holds what was presented.
    Refused(String),
    /// The caller is proven to be each of these.
    Identified(Vec<Identity>),
    /// The caller is proven to be a pod of this service account.
    Pod(Identity, PodName),
}

/// One way to prove who one is.
pub trait Authenticator: Send + Sync + 'static {
    /// What it is called in logs and metrics.
    fn name(&self) -> &'static str;

    /// Looks at the call.
    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict>;
}

/// The authenticators of a door.
#[derive(Clone, Default)]
pub struct Authenticators {
    chain: Arc<[Arc<dyn Authenticator>]>,
    required: bool,
}

impl Authenticators {
    /// These, in order. Where an identity is `required`, whoever proves none is turned away; elsewhere he is anonymous.
    #[must_use]
    pub fn new(chain: Vec<Arc<dyn Authenticator>>, required: bool) -> Self {
        Self { chain: chain.into(), required }
    }

    /// Who calls.
    ///
    /// # Errors
    /// No authenticator knows the caller, and one has to.
    pub async fn caller(&self, call: &Call<'_>) -> Result<Caller, Unauthenticated> {
        let mut reasons = Vec::new();
        for authenticator in &*self.chain {
            match authenticator.authenticate(call).await {
                Verdict::NotMine => {}
                Verdict::Refused(reason) => reasons.push(format!("{}: {reason}", authenticator.name())),
                Verdict::Identified(identities) => {
                    let means = Some(authenticator.name());
                    return Ok(Caller { peer: call.peer, means, identities, ..Caller::default() });
                }
                Verdict::Pod(identity, pod) => {
                    let (means, identities) = (Some(authenticator.name()), vec![identity]);
                    return Ok(Caller { peer: call.peer, means, identities, pod: Some(pod), ..Caller::default() });
                }
            }
        }
        let doubt = if reasons.is_empty() { "it brings nothing that proves it".to_owned() } else { reasons.join("; ") };
        let caller = Caller { doubt, ..Caller::anonymous(call.peer) };
        if self.required { Err(Unauthenticated(caller)) } else { Ok(caller) }
    }
}

impl fmt::Debug for Authenticators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.chain.iter().map(|authenticator| authenticator.name());
        f.debug_struct("Authenticators")
            .field("chain", &names.collect::<Vec<_>>())
            .field("required", &self.required)
            .finish()
    }
}

/// Nobody vouches for a caller where somebody has to.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("nobody vouches for the caller from {}: {}", .0.address(), .0.doubt)]
pub struct Unauthenticated(pub Caller);

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(&'static str, Verdict);

    impl Authenticator for Fixed {
        fn name(&self) -> &'static str {
            self.0
        }

        fn authenticate<'a>(&'a self, _: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
            let verdict = self.1.clone();
            Box::pin(async move { verdict })
        }
    }

    #[tokio::test]
    async fn the_first_that_knows_the_caller_decides() {
        let (one, two) = (Identity::new("td", "shop", "one"), Identity::new("td", "shop", "two"));
        let refused = || Fixed("token", Verdict::Refused("it has expired".into()));
        let chain = |list: Vec<Fixed>, required: bool| {
            let list = list.into_iter().map(|fixed| Arc::new(fixed) as Arc<dyn Authenticator>);
            Authenticators::new(list.collect(), required)
        };
        let headers = HeaderMap::new();
        let call = Call { headers: &headers, peer: None, certificates: &[] };

        let known = vec![
            Fixed("certificate", Verdict::NotMine),
            refused(),
            Fixed("forwarded", Verdict::Identified(vec![one.clone()])),
            Fixed("last", Verdict::Identified(vec![two])),
        ];
        let caller = chain(known, true).caller(&call).await.expect("known");
        assert_eq!((caller.means, caller.identities.as_slice()), (Some("forwarded"), [one].as_slice()));

        let anonymous = chain(vec![refused()], false).caller(&call).await.expect("optional");
        assert_eq!((anonymous.means, anonymous.identities.len()), (None, 0));
        let error = chain(vec![Fixed("certificate", Verdict::NotMine), refused()], true).caller(&call).await;
        let error = error.expect_err("required").to_string();
        assert_eq!(error, "nobody vouches for the caller from unknown: token: it has expired");
        assert!(chain(Vec::new(), true).caller(&call).await.is_err());
    }
}
