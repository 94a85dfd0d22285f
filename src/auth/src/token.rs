//! Tokens of service accounts that are verified with the keys of their issuer (P07): of one that `JWT_RULE` names, or,
//! where there is no Kubernetes API, with keys from files.

mod claims;
mod file;
mod keys;
mod remote;

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use http::{HeaderMap, header};

pub use file::FileKeys;
pub use remote::RemoteKeys;

use crate::{Authenticator, Call, TrustDomain, Verdict};
use claims::{Claims, Parts};
use keys::KeySet;

/// Header that names the cluster of a caller.
const CLUSTER: &str = "clusterid";

/// Why a token proves nothing. No text holds a part of the token.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token is malformed")]
    Malformed,
    #[error("the token is signed by no key of its issuer")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token is not of the issuer it has to be of")]
    Issuer,
    #[error("the token is not meant for {}", .0.join(" or "))]
    Audience(Vec<String>),
    #[error("the token is not that of a service account")]
    Subject,
    #[error("{0}")]
    Keys(String),
}

/// Where keys come from.
pub trait KeySource: Send + Sync + 'static {
    /// The keys of the moment; with `anew`, those that a key was missing from are old.
    fn keys(&self, anew: bool) -> BoxFuture<'_, Result<std::sync::Arc<KeySet>, String>>;
}

/// Verifies tokens with keys.
pub struct SignedTokens {
    name: &'static str,
    /// By cluster; what is under the empty name is for callers that name none, or one that is not here.
    keys: BTreeMap<String, Box<dyn KeySource>>,
    any_cluster: bool,
    /// Empty is anybody.
    issuer: String,
    audiences: Vec<String>,
    trust_domain: TrustDomain,
}

impl SignedTokens {
    /// Tokens of an issuer, whatever cluster the caller says to be of.
    #[must_use]
    pub fn of_issuer(keys: impl KeySource, issuer: &str, audiences: &[String], trust_domain: TrustDomain) -> Self {
        Self {
            name: "token of the issuer",
            keys: BTreeMap::from([(String::new(), Box::new(keys) as Box<dyn KeySource>)]),
            any_cluster: true,
            issuer: issuer.to_owned(),
            audiences: audiences.to_vec(),
            trust_domain,
        }
    }

    /// Tokens of clusters, each with keys of its own; what is under the empty name is for callers that name no cluster.
    #[must_use]
    pub fn of_clusters(
        keys: BTreeMap<String, FileKeys>,
        issuer: &str,
        audiences: &[String],
        trust_domain: TrustDomain,
    ) -> Self {
        let keys = keys.into_iter().map(|(cluster, keys)| (cluster, Box::new(keys) as Box<dyn KeySource>));
        Self {
            name: "token of a cluster",
            keys: keys.collect(),
            any_cluster: false,
            issuer: issuer.to_owned(),
            audiences: audiences.to_vec(),
            trust_domain,
        }
    }

    async fn verdict(&self, call: &Call<'_>) -> Verdict {
        let Some(token) = bearer(call.headers) else { return Verdict::NotMine };
        let cluster = if self.any_cluster { "" } else { cluster(call.headers) };
        let Some(keys) = self.keys.get(cluster) else {
            return Verdict::Refused(format!("the caller says it is of cluster {cluster:?}, which has no keys here"));
        };
        match self.verify(token, &**keys).await {
            Ok(claims) => match claims.service_account() {
                Some((namespace, name)) => Verdict::Identified(vec![self.trust_domain.identity(namespace, name)]),
                None => Verdict::Refused(TokenError::Subject.to_string()),
            },
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }

    async fn verify(&self, token: &str, source: &dyn KeySource) -> Result<Claims, TokenError> {
        let parts = Parts::split(token)?;
        let mut keys = source.keys(false).await.map_err(TokenError::Keys)?;
        if !keys.has(parts.key_id()) {
            keys = source.keys(true).await.map_err(TokenError::Keys)?;
        }
        let claims = parts.verify(&keys)?;
        claims.check(sluice_telemetry::unix_seconds(), &self.issuer, &self.audiences)?;
        Ok(claims)
    }
}

impl Authenticator for SignedTokens {
    fn name(&self) -> &'static str {
        self.name
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(self.verdict(call))
    }
}

/// The token a call brings.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| value.to_str().ok());
    values.filter_map(|value| value.strip_prefix("Bearer ")).map(str::trim).find(|token| !token.is_empty())
}

/// The cluster a caller says it is of; empty if it says none, or several.
pub(super) fn cluster(headers: &HeaderMap) -> &str {
    let mut values = headers.get_all(CLUSTER).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        _ => "",
    }
}

#[cfg(test)]
mod tests;
