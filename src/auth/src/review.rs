//! Tokens of service accounts, verified by a TokenReview of the Kubernetes API (P07).

mod cache;
mod waiting;

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use http::{Request, header};
use kube::Client;
use serde::Deserialize;
use serde_json::json;
use sluice_kube::{Clients, RequestError};
use sluice_model::Text;

use crate::token::{bearer, cluster, expiry, service_account};
use cache::ReviewCache;
pub use cache::{ReviewLimits, ReviewMetrics};
pub use waiting::WaitingLimits;

use crate::{Authenticator, Call, PodName, TrustDomain, Verdict};

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// A name that a caller chose is quoted up to this length.
const MAX_QUOTED_BYTES: usize = 128;

/// Authenticates a caller by a TokenReview of the API server of the cluster that the caller names.
pub struct ReviewedTokens {
    clusters: Clients,
    /// The local cluster, for callers that do not name one.
    own: Text,
    aliases: BTreeMap<Text, Text>,
    audiences: Vec<String>,
    trust_domain: TrustDomain,
    cache: ReviewCache,
}

/// The response to a TokenReview.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Review {
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    error: String,
    audiences: Vec<String>,
    user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// The subject of a token.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Reviewed {
    namespace: String,
    service_account: String,
    /// Name and UID, if the token is bound to a pod.
    pod: Option<(String, String)>,
}

/// Why a reviewed token does not authenticate a service account.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum ReviewError {
    /// The API server does not answer, or reports a failure.
    #[error("cluster {0} cannot review the token: {1}")]
    Unavailable(Text, String),
    /// The review, or the wait for it, takes too long.
    #[error("the token was not reviewed in time")]
    Timeout,
    /// Too many other callers wait for the results of reviews.
    #[error("too many callers wait for the review of their tokens")]
    Overloaded,
    /// The API server reports an error instead of a result.
    #[error("the Kubernetes API rejects the token")]
    Rejected,
    /// The token is expired or revoked, or its signature is wrong.
    #[error("the token is not authenticated")]
    NotAuthenticated,
    /// The token has none of these audiences.
    #[error("the token does not have the audience {}", .0.join(" or "))]
    Audience(Vec<String>),
    /// The token is that of a user or of a node.
    #[error("the token is not that of a service account")]
    NotServiceAccount,
}

impl ReviewedTokens {
    /// `clusters` are clients by cluster id, with the local cluster `own` among them. A token must have one of the
    /// `audiences`.
    #[must_use]
    pub fn new(
        clusters: Clients,
        own: Text,
        aliases: BTreeMap<Text, Text>,
        audiences: &[String],
        trust_domain: TrustDomain,
    ) -> Self {
        let cache = ReviewCache::new(ReviewLimits::default(), ReviewMetrics::default());
        Self { clusters, own, aliases, audiences: audiences.to_vec(), trust_domain, cache }
    }

    /// The same with other limits of TokenReviews.
    #[must_use]
    pub fn with_limits(self, limits: ReviewLimits, metrics: ReviewMetrics) -> Self {
        Self { cache: ReviewCache::new(limits, metrics), ..self }
    }

    /// The cluster of an id or alias, and its client.
    fn client(&self, id: &str) -> Option<(Text, Client)> {
        let get = |id: &Text| self.clusters.get(id).map(|client| (id.clone(), client));
        if id.is_empty() { get(&self.own) } else { get(&id.into()).or_else(|| get(self.aliases.get(id)?)) }
    }

    async fn verdict(&self, call: &Call<'_>) -> Verdict {
        let Some(token) = bearer(call.headers) else { return Verdict::NoCredentials };
        let id = cluster(call.headers);
        let Some((cluster, client)) = self.client(id) else {
            let known = self.clusters.ids();
            let id = &id[..id.floor_char_boundary(MAX_QUOTED_BYTES)];
            return Verdict::Rejected(format!("the caller names cluster {id:?}; known clusters are {known:?}"));
        };
        let address = call.peer.map(|peer| peer.ip());
        let reviewed = self.cache.reviewed(&cluster, address, token, self.review(&cluster, client, token)).await;
        match reviewed {
            Ok(Reviewed { namespace, service_account, pod }) => {
                let identity = self.trust_domain.identity(&namespace, &service_account);
                match pod {
                    Some((name, uid)) => {
                        let (name, uid) = (name.into(), uid.into());
                        let pod = PodName { cluster, namespace: identity.namespace.clone(), name, uid };
                        Verdict::Pod(identity, pod)
                    }
                    None => Verdict::Account(identity, cluster),
                }
            }
            Err(error @ ReviewError::Overloaded) => Verdict::Overloaded(error.to_string()),
            Err(error) => Verdict::Rejected(error.to_string()),
        }
    }

    /// The result of a TokenReview.
    async fn review(&self, cluster: &Text, client: Client, token: &str) -> Result<Reviewed, ReviewError> {
        let unavailable = |reason| ReviewError::Unavailable(cluster.clone(), reason);
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": self.audiences},
        });
        let request = Request::post("/apis/authentication.k8s.io/v1/tokenreviews")
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .map_err(|error| unavailable(error.to_string()))?;
        let review = sluice_kube::request::<Review>(&client, request).await;
        review.map_err(|error| unavailable(RequestError::from(error).to_string()))?.status.reviewed(&self.audiences)
    }
}

impl Status {
    fn reviewed(self, audiences: &[String]) -> Result<Reviewed, ReviewError> {
        if !self.error.is_empty() {
            return Err(ReviewError::Rejected);
        }
        if !self.authenticated {
            return Err(ReviewError::NotAuthenticated);
        }
        // A server that supports audiences returns those that match.
        if !self.audiences.is_empty() && !self.audiences.iter().any(|audience| audiences.contains(audience)) {
            return Err(ReviewError::Audience(audiences.to_vec()));
        }
        if !self.user.groups.iter().any(|group| group == "system:serviceaccounts") {
            return Err(ReviewError::NotServiceAccount);
        }
        let (namespace, name) = service_account(&self.user.username).ok_or(ReviewError::NotServiceAccount)?;
        let extra = |key: &str| self.user.extra.get(key).and_then(|values| values.first()).cloned();
        let pod = extra(POD_NAME).zip(extra(POD_UID));
        Ok(Reviewed { namespace: namespace.to_owned(), service_account: name.to_owned(), pod })
    }
}

impl Authenticator for ReviewedTokens {
    fn name(&self) -> &'static str {
        "token review"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(self.verdict(call))
    }

    fn expiry(&self, call: &Call<'_>) -> Option<i64> {
        expiry(bearer(call.headers)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review(change: impl Fn(&mut Value)) -> Result<Reviewed, ReviewError> {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["istio-ca"],
            "user": {
                "username": "system:serviceaccount:shop:cart",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/pod-name": ["cart-1"], "authentication.kubernetes.io/pod-uid": ["u"]},
            },
        });
        change(&mut status);
        let review: Review = serde_json::from_value(json!({"status": status})).expect("a review");
        review.status.reviewed(&["istio-ca".to_owned()])
    }

    #[test]
    fn only_service_account_tokens_with_the_audience_are_accepted() {
        let good = review(|_| {}).expect("good");
        assert_eq!((good.namespace.as_str(), good.service_account.as_str()), ("shop", "cart"));
        assert_eq!(good.pod, Some(("cart-1".to_owned(), "u".to_owned())));
        assert!(review(|status| status["audiences"] = json!([])).is_ok(), "an old server");
        assert_eq!(review(|status| status["user"]["extra"] = json!({})).expect("good").pod, None);
        let refuse = |change: fn(&mut Value)| review(change).expect_err("refused").to_string();
        assert_eq!(refuse(|status| status["authenticated"] = json!(false)), "the token is not authenticated");
        assert_eq!(
            refuse(|status| status["audiences"] = json!(["api"])),
            "the token does not have the audience istio-ca"
        );
        assert_eq!(refuse(|status| status["error"] = json!("no")), "the Kubernetes API rejects the token");
        let no_account = "the token is not that of a service account";
        assert_eq!(refuse(|status| status["user"]["groups"] = json!(["system:masters"])), no_account);
        for name in
            ["alice", "system:serviceaccount:shop", "system:serviceaccount:shop:cart:x", "system:serviceaccount::"]
        {
            let error = review(|status| status["user"]["username"] = json!(name)).expect_err("refused");
            assert_eq!(error.to_string(), no_account);
        }
    }
}
