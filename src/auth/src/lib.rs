//! Authentication of callers by certificates, tokens or trusted peers (P07, X19).
//!
//! A port has a chain of [`Authenticator`]s. They are called in order, and the first that authenticates the caller decides.
//! The rights of a caller follow from its [`Caller::identities`] alone, never from what its node claims.

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
use sluice_model::{Identity, Text};

pub use caller::{Caller, CallerKey, IdentityMismatch, PodName};
pub use certificate::{CertificateCheck, ClientCertificates};
pub use forwarded::{FORWARDED_HEADER, ForwardedCertificates};
pub use review::{ReviewLimits, ReviewMetrics, ReviewedTokens, WaitingLimits};
pub use token::{ClusterKeys, FileKeys, KeySet, KeySource, KeysError, NotKeySet, RemoteKeys, SignedTokens};
pub use trust_domain::{TrustDomain, is_in_trust_domain};
pub use viewer::{Viewer, ViewerRules};

/// The parts of a request that authenticate its caller.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Address of the caller, if known.
    pub peer: Option<SocketAddr>,
    /// Certificate chain of the caller, verified by TLS; empty without a client certificate.
    pub certificates: &'a [CertificateDer<'static>],
}

/// The result of one authenticator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The call has no credentials of the kind that this authenticator reads.
    NoCredentials,
    /// The credentials are invalid. The reason is a lower-case fragment that never quotes them.
    Rejected(String),
    /// The credentials cannot be checked now, because too many callers wait for that. The reason is such a fragment too.
    Overloaded(String),
    /// The caller has each of these identities.
    Identified(Vec<Identity>),
    /// The caller is a pod of this service account.
    Pod(Identity, PodName),
    /// The caller is this service account, authenticated by this cluster.
    Account(Identity, Text),
}

/// One kind of credentials.
pub trait Authenticator: Send + Sync + 'static {
    /// Its name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Checks the credentials of a call.
    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict>;

    /// Expiry of the credentials of a call that the authenticator accepts, in seconds since the Unix epoch; `None` if they do
    /// not expire, or if the expiry is that of the connection.
    fn expiry(&self, _: &Call<'_>) -> Option<i64> {
        None
    }
}

/// The authenticators of a port.
#[derive(Clone, Default)]
pub struct Authenticators {
    chain: Arc<[Arc<dyn Authenticator>]>,
    required: bool,
}

impl Authenticators {
    /// A chain of authenticators, in order. A caller without valid credentials is rejected if authentication is
    /// `required`, and is anonymous otherwise.
    #[must_use]
    pub fn new(chain: Vec<Arc<dyn Authenticator>>, required: bool) -> Self {
        Self { chain: chain.into(), required }
    }

    /// Authenticates a caller.
    ///
    /// # Errors
    /// No authenticator accepts the caller, and authentication is required.
    pub async fn caller(&self, call: &Call<'_>) -> Result<Caller, Unauthenticated> {
        let (mut reasons, mut is_overloaded) = (Vec::new(), false);
        for authenticator in &*self.chain {
            match authenticator.authenticate(call).await {
                Verdict::NoCredentials => {}
                Verdict::Rejected(reason) => reasons.push(format!("{}: {reason}", authenticator.name())),
                Verdict::Overloaded(reason) => {
                    is_overloaded = true;
                    reasons.push(format!("{}: {reason}", authenticator.name()));
                }
                Verdict::Identified(identities) => {
                    let (authenticator, expiry) = (Some(authenticator.name()), authenticator.expiry(call));
                    return Ok(Caller { peer: call.peer, authenticator, identities, expiry, ..Caller::default() });
                }
                Verdict::Pod(identity, pod) => {
                    let (authenticator, expiry) = (Some(authenticator.name()), authenticator.expiry(call));
                    let identities = vec![identity];
                    return Ok(Caller {
                        peer: call.peer,
                        authenticator,
                        identities,
                        cluster: Some(pod.cluster.clone()),
                        pod: Some(pod),
                        expiry,
                        ..Caller::default()
                    });
                }
                Verdict::Account(identity, cluster) => {
                    let (authenticator, expiry) = (Some(authenticator.name()), authenticator.expiry(call));
                    let (identities, cluster) = (vec![identity], Some(cluster));
                    let peer = call.peer;
                    return Ok(Caller { peer, authenticator, identities, cluster, expiry, ..Caller::default() });
                }
            }
        }
        let reason = if reasons.is_empty() { "it presents no credentials".to_owned() } else { reasons.join("; ") };
        let caller = Caller { anonymous_reason: reason, ..Caller::anonymous(call.peer) };
        if self.required { Err(Unauthenticated { caller, is_overloaded }) } else { Ok(caller) }
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

/// A caller without valid credentials where they are required.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the caller from {} is not authenticated: {}", .caller.address(), .caller.anonymous_reason)]
pub struct Unauthenticated {
    /// The caller.
    pub caller: Caller,
    /// Its credentials were not checked, because too many callers wait for that. It may try again later.
    pub is_overloaded: bool,
}

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
    async fn first_authenticator_that_accepts_the_caller_decides() {
        let (one, two) = (Identity::new("td", "shop", "one"), Identity::new("td", "shop", "two"));
        let refused = || Fixed("token", Verdict::Rejected("it has expired".into()));
        let chain = |list: Vec<Fixed>, required: bool| {
            let list = list.into_iter().map(|fixed| Arc::new(fixed) as Arc<dyn Authenticator>);
            Authenticators::new(list.collect(), required)
        };
        let headers = HeaderMap::new();
        let call = Call { headers: &headers, peer: None, certificates: &[] };

        let known = vec![
            Fixed("certificate", Verdict::NoCredentials),
            refused(),
            Fixed("forwarded", Verdict::Identified(vec![one.clone()])),
            Fixed("last", Verdict::Identified(vec![two])),
        ];
        let caller = chain(known, true).caller(&call).await.expect("known");
        assert_eq!((caller.authenticator, caller.identities.as_slice()), (Some("forwarded"), [one].as_slice()));

        let anonymous = chain(vec![refused()], false).caller(&call).await.expect("optional");
        assert_eq!((anonymous.authenticator, anonymous.identities.len()), (None, 0));
        let error = chain(vec![Fixed("certificate", Verdict::NoCredentials), refused()], true).caller(&call).await;
        let error = error.expect_err("required").to_string();
        assert_eq!(error, "the caller from unknown is not authenticated: token: it has expired");
        assert!(chain(Vec::new(), true).caller(&call).await.is_err());
    }

    #[tokio::test]
    async fn caller_whose_credentials_were_not_checked_may_try_again() {
        let headers = HeaderMap::new();
        let call = Call { headers: &headers, peer: None, certificates: &[] };
        let overloaded = || Verdict::Overloaded("too many callers wait".into());
        let identified = Verdict::Identified(vec![Identity::new("td", "shop", "one")]);
        for (verdicts, is_overloaded) in [
            (vec![overloaded(), Verdict::NoCredentials], Some(true)),
            (vec![Verdict::Rejected("it has expired".into())], Some(false)),
            (vec![overloaded(), identified], None),
        ] {
            let chain = verdicts.into_iter().map(|verdict| Arc::new(Fixed("token", verdict)) as Arc<dyn Authenticator>);
            let refused = Authenticators::new(chain.collect(), true).caller(&call).await.err();
            assert_eq!(refused.map(|refused| refused.is_overloaded), is_overloaded);
        }
    }
}
