//! Tokens of service accounts, verified with the keys of their issuer (P07): the issuer that `JWT_RULE` names, or, without
//! the Kubernetes API, keys from files.

mod claims;
mod file;
mod keys;
mod remote;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{HeaderMap, header};
use sluice_jwks::FetchError;
use sluice_model::Text;

pub use file::FileKeys;
pub use keys::{KeySet, NotKeySet};
pub use remote::RemoteKeys;

use crate::{Authenticator, Call, TrustDomain, Verdict};
use claims::{Claims, UnverifiedToken};

/// Header that names the cluster of a caller.
const CLUSTER_HEADER: &str = "clusterid";

/// A token that is not valid. No text quotes the token. Only [`TokenError::Keys`] is retryable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token is malformed")]
    Malformed,
    #[error("no key of the issuer verifies the signature of the token")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token has another issuer than the configured one")]
    Issuer,
    #[error("the token does not have the audience {}", .0.join(" or "))]
    Audience(Vec<String>),
    #[error("the token is not that of a service account")]
    Subject,
    #[error(transparent)]
    Keys(#[from] KeysError),
}

/// Why the keys of an issuer are not available. All are retryable: files and servers change.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file holds no key set.
    #[error("{}: {error}", .file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        error: NotKeySet,
    },
    /// The last fetch failed, and the next one is not due yet.
    #[error("the keys of the issuer have not been fetched")]
    NotFetched,
    /// The fetch fails.
    #[error("cannot fetch the keys of the issuer: {0}")]
    Fetch(FetchError),
}

/// Provides the keys of an issuer.
pub trait KeySource: Send + Sync + 'static {
    /// The current keys. With `refresh`, newer keys are fetched if possible, because the cached ones lack a key.
    fn keys(&self, refresh: bool) -> BoxFuture<'_, Result<Arc<KeySet>, KeysError>>;
}

/// The keys of tokens of a cluster.
pub struct ClusterKeys {
    /// Id of the cluster, which a token with a signature by these keys proves.
    pub cluster: Text,
    /// The keys.
    pub keys: FileKeys,
}

/// The keys that verify tokens.
enum TokenKeys {
    /// Keys of an issuer, whose tokens prove no cluster.
    Issuer(Box<dyn KeySource>),
    /// Keys by the name of a cluster. The empty name is for callers that do not name a cluster.
    Clusters(BTreeMap<String, ClusterKeys>),
}

/// Verifies tokens with the keys of their issuers.
pub struct SignedTokens {
    name: &'static str,
    keys: TokenKeys,
    /// Empty accepts any issuer.
    issuer: String,
    audiences: Vec<String>,
    trust_domain: TrustDomain,
}

impl SignedTokens {
    /// Tokens of an issuer, for callers of any cluster.
    #[must_use]
    pub fn of_issuer(keys: impl KeySource, issuer: &str, audiences: &[String], trust_domain: TrustDomain) -> Self {
        Self {
            name: "token of the issuer",
            keys: TokenKeys::Issuer(Box::new(keys)),
            issuer: issuer.to_owned(),
            audiences: audiences.to_vec(),
            trust_domain,
        }
    }

    /// Tokens of clusters, each with its own keys, by the names of the clusters. The empty name is for callers that do not name
    /// a cluster. A token proves the cluster whose keys verify it.
    #[must_use]
    pub fn of_clusters(
        keys: BTreeMap<String, ClusterKeys>,
        issuer: &str,
        audiences: &[String],
        trust_domain: TrustDomain,
    ) -> Self {
        Self {
            name: "token of a cluster",
            keys: TokenKeys::Clusters(keys),
            issuer: issuer.to_owned(),
            audiences: audiences.to_vec(),
            trust_domain,
        }
    }

    async fn verdict(&self, call: &Call<'_>) -> Verdict {
        let Some(token) = bearer(call.headers) else { return Verdict::NoCredentials };
        let (keys, proven) = match &self.keys {
            TokenKeys::Issuer(keys) => (&**keys, None),
            TokenKeys::Clusters(keys) => {
                let cluster = cluster(call.headers);
                let Some(ClusterKeys { cluster, keys }) = keys.get(cluster) else {
                    return Verdict::Rejected(format!(
                        "the caller names cluster {cluster:?}, for which no keys are configured"
                    ));
                };
                (keys as &dyn KeySource, Some(cluster))
            }
        };
        let claims = match self.verify(token, keys).await {
            Ok(claims) => claims,
            Err(error) => return Verdict::Rejected(error.to_string()),
        };
        let Some((namespace, name)) = claims.service_account() else {
            return Verdict::Rejected(TokenError::Subject.to_string());
        };
        let identity = self.trust_domain.identity(namespace, name);
        match proven {
            Some(cluster) => Verdict::Account(identity, cluster.clone()),
            None => Verdict::Identified(vec![identity]),
        }
    }

    async fn verify(&self, token: &str, source: &dyn KeySource) -> Result<Claims, TokenError> {
        let unverified = UnverifiedToken::split(token)?;
        let mut keys = source.keys(false).await?;
        if !keys.has(unverified.key_id()) {
            keys = source.keys(true).await?;
        }
        let claims = unverified.verify(&keys)?;
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

    fn expiry(&self, call: &Call<'_>) -> Option<i64> {
        expiry(bearer(call.headers)?)
    }
}

/// The expiry that a token states, in seconds since the Unix epoch. It is to be trusted only if the token is accepted.
pub(super) fn expiry(token: &str) -> Option<i64> {
    UnverifiedToken::split(token).ok()?.expiry()
}

/// The bearer token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| value.to_str().ok());
    values.filter_map(|value| value.strip_prefix("Bearer ")).map(str::trim).find(|token| !token.is_empty())
}

/// The cluster that a caller names; empty for none or several.
pub(super) fn cluster(headers: &HeaderMap) -> &str {
    let mut values = headers.get_all(CLUSTER_HEADER).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        _ => "",
    }
}

/// Namespace and name of the service account in `system:serviceaccount:NAMESPACE:NAME`.
pub(super) fn service_account(subject: &str) -> Option<(&str, &str)> {
    let (namespace, name) = subject.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_name = |text: &str| !text.is_empty() && !text.contains([':', '/']);
    (is_name(namespace) && is_name(name)).then_some((namespace, name))
}

#[cfg(test)]
mod tests;
