//! Keys that an issuer serves over HTTPS.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sluice_jwks::{FetchError, JwksClient};
use sluice_model::JwksKey;
use tokio::sync::Mutex;

use super::keys::KeySet;
use super::{KeySource, KeysError};

/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Age after which keys are fetched again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(20 * 60);
/// Age after which keys are no longer used, while fetches fail: a key may have been withdrawn since.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest time between two fetches. Tokens with invented key ids must not cause a fetch each.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);

/// Keys at a URL, or at the one that the OIDC discovery of the issuer names.
pub struct RemoteKeys {
    client: JwksClient,
    key: JwksKey,
    /// The cached keys.
    cache: Mutex<KeyCache>,
}

#[derive(Default)]
struct KeyCache {
    /// The keys, and when they were fetched.
    keys: Option<(Arc<KeySet>, Instant)>,
    /// When the last fetch began.
    tried: Option<Instant>,
}

impl KeyCache {
    /// Drops keys that are too old to be used.
    fn drop_old(&mut self, now: Instant) {
        if self.keys.as_ref().is_some_and(|(_, at)| now.saturating_duration_since(*at) >= MAX_AGE) {
            self.keys = None;
        }
    }
}

impl RemoteKeys {
    /// Keys of an issuer. They are fetched when the first token is verified.
    #[must_use]
    pub fn new(client: JwksClient, issuer: &str, uri: &str) -> Self {
        Self { client, key: JwksKey { issuer: issuer.into(), uri: uri.into() }, cache: Mutex::default() }
    }

    async fn get(&self, refresh: bool) -> Result<Arc<KeySet>, KeysError> {
        let mut cache = self.cache.lock().await;
        cache.drop_old(Instant::now());
        let cached = cache.keys.clone();
        let is_fresh = cached.as_ref().is_some_and(|(_, at)| !refresh && at.elapsed() < REFRESH_INTERVAL);
        if is_fresh || cache.tried.is_some_and(|at| at.elapsed() < MIN_FETCH_INTERVAL) {
            return cached.map(|(keys, _)| keys).ok_or(KeysError::NotFetched);
        }
        cache.tried = Some(Instant::now());
        let text = self.client.fetch(&self.key, FETCH_TIMEOUT).await;
        let new = text.and_then(|text| {
            KeySet::parse(&text).map_err(|_| FetchError::Content("the document is not a JSON web key set"))
        });
        match (new, cached) {
            (Ok(keys), _) => {
                let keys = Arc::new(keys);
                cache.keys = Some((keys.clone(), Instant::now()));
                Ok(keys)
            }
            (Err(error), Some((keys, _))) => {
                tracing::warn!(target: "serverca", issuer = %self.key.issuer, %error, "failed to fetch keys, using the previous ones");
                Ok(keys)
            }
            (Err(error), None) => Err(KeysError::Fetch(error)),
        }
    }
}

impl KeySource for RemoteKeys {
    fn keys(&self, refresh: bool) -> BoxFuture<'_, Result<Arc<KeySet>, KeysError>> {
        Box::pin(self.get(refresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_dropped_when_fetches_fail_for_too_long() {
        let now = Instant::now();
        let mut cache = KeyCache { keys: Some((Arc::default(), now)), tried: None };
        cache.drop_old(now + MAX_AGE - Duration::from_secs(1));
        assert!(cache.keys.is_some());
        cache.drop_old(now + MAX_AGE);
        assert!(cache.keys.is_none());
    }
}
