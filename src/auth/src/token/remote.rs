//! Keys that an issuer serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sluice_jwks::JwksClient;
use sluice_model::JwksKey;
use tokio::sync::Mutex;

use super::KeySource;
use super::keys::KeySet;

/// Longest time a fetch may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Time after which keys are fetched again.
const REFRESH: Duration = Duration::from_secs(20 * 60);
/// Time between two fetches because a key is missing: whoever sends tokens with made-up names of keys is not to make us
/// ask all the time.
const REST: Duration = Duration::from_secs(10);

/// Keys at an address, or where the issuer says.
pub struct RemoteKeys {
    client: JwksClient,
    key: JwksKey,
    /// The keys, when they were fetched, and when that was tried last.
    fetched: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    keys: Option<(Arc<KeySet>, Instant)>,
    tried: Option<Instant>,
}

impl RemoteKeys {
    /// Fetched when the first token comes.
    #[must_use]
    pub fn new(client: JwksClient, issuer: &str, uri: &str) -> Self {
        Self { client, key: JwksKey { issuer: issuer.into(), uri: uri.into() }, fetched: Mutex::default() }
    }

    async fn get(&self, anew: bool) -> Result<Arc<KeySet>, String> {
        let mut fetched = self.fetched.lock().await;
        let known = fetched.keys.clone();
        let is_fresh = known.as_ref().is_some_and(|(_, at)| !anew && at.elapsed() < REFRESH);
        if is_fresh || fetched.tried.is_some_and(|at| at.elapsed() < REST) {
            return known.map(|(keys, _)| keys).ok_or_else(|| "the keys of the issuer are not there".to_owned());
        }
        fetched.tried = Some(Instant::now());
        let new = match self.client.fetch(&self.key, LIMIT).await {
            Ok(text) => KeySet::parse(&text),
            Err(error) => Err(error.to_string()),
        };
        match (new, known) {
            (Ok(keys), _) => {
                let keys = Arc::new(keys);
                fetched.keys = Some((keys.clone(), Instant::now()));
                Ok(keys)
            }
            (Err(error), Some((keys, _))) => {
                tracing::warn!(target: "serverca", issuer = %self.key.issuer, error, "cannot fetch keys, those from before count");
                Ok(keys)
            }
            (Err(error), None) => Err(format!("cannot fetch the keys of the issuer: {error}")),
        }
    }
}

impl KeySource for RemoteKeys {
    fn keys(&self, anew: bool) -> BoxFuture<'_, Result<Arc<KeySet>, String>> {
        Box::pin(self.get(anew))
    }
}
