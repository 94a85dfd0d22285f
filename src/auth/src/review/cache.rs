//! Limits TokenReviews: how many run at a time, for how long, and how often the same token is reviewed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::{hmac, rand};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_model::Text;
use sluice_telemetry::{Count, PeriodicLog, register_counts, unix_seconds};
use tokio::sync::{OnceCell, Semaphore};
use tracing::warn;

use super::waiting::{WaitingCallers, WaitingLimits};
use super::{ReviewError, Reviewed};
use crate::token::expiry;

/// How long results are used again. A revoked token is accepted for no longer.
const ACCEPTED_LIFETIME: Duration = Duration::from_secs(10);
const REJECTED_LIFETIME: Duration = Duration::from_secs(2);
/// Maximum number of results. Further tokens are reviewed at each use.
const MAX_RESULTS: usize = 10_000;

/// Limits of TokenReviews.
#[derive(Clone, Copy, Debug)]
pub struct ReviewLimits {
    /// Maximum number of reviews by a cluster at a time. Further ones wait, and those of other clusters do not.
    pub max_reviews: usize,
    /// Time limit of a review, the wait for it included.
    pub timeout: Duration,
    /// Maximum numbers of callers that wait for the results of reviews.
    pub waiting: WaitingLimits,
}

impl Default for ReviewLimits {
    fn default() -> Self {
        Self { max_reviews: 64, timeout: Duration::from_secs(10), waiting: WaitingLimits::default() }
    }
}

/// Metrics of TokenReviews. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ReviewMetrics {
    running: Gauge,
    reviews: Count,
    cached: Count,
    timeouts: Count,
    refused: Count,
}

impl ReviewMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("sluice_token_reviews_running", "TokenReviews in progress", self.running.clone());
        register_counts(
            registry,
            [
                ("sluice_token_reviews", "TokenReviews sent", &self.reviews),
                (
                    "sluice_token_reviews_cached",
                    "Tokens that were accepted or rejected by the result of a recent TokenReview",
                    &self.cached,
                ),
                (
                    "sluice_token_review_timeouts",
                    "Tokens that were rejected because they were not reviewed in time",
                    &self.timeouts,
                ),
                (
                    "sluice_token_reviews_refused",
                    "Tokens that were not reviewed because too many callers wait for reviews",
                    &self.refused,
                ),
            ],
        );
    }
}

/// The key of a token: a keyed hash, from which the token cannot be derived.
type TokenKey = [u8; 32];
type ReviewResult = Result<Reviewed, ReviewError>;

/// The result of a review, with the time until which it is used again.
type CachedResult = OnceCell<(ReviewResult, Option<Instant>)>;

/// Results of recent reviews, and those in progress.
pub(super) struct ReviewCache {
    limits: ReviewLimits,
    metrics: ReviewMetrics,
    hash_key: hmac::Key,
    /// By cluster: a cluster that does not answer must not delay the reviews of others.
    permits: Mutex<HashMap<Text, Arc<Semaphore>>>,
    results: Mutex<HashMap<TokenKey, Arc<CachedResult>>>,
    waiting: WaitingCallers,
    /// Limits messages about callers that are refused.
    log: PeriodicLog,
}

impl ReviewCache {
    pub(super) fn new(limits: ReviewLimits, metrics: ReviewMetrics) -> Self {
        let mut secret = [0; 32];
        // If the system has no randomness, the keys are still hashes: a key has no other use than to tell tokens apart.
        let _ = rand::fill(&mut secret);
        Self {
            permits: Mutex::default(),
            waiting: WaitingCallers::new(limits.waiting),
            log: PeriodicLog::default(),
            limits,
            metrics,
            hash_key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            results: Mutex::default(),
        }
    }

    fn results(&self) -> MutexGuard<'_, HashMap<TokenKey, Arc<CachedResult>>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The permits of a cluster.
    fn permits(&self, cluster: &Text) -> Arc<Semaphore> {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = permits.get(cluster) {
            return permits.clone();
        }
        // Clusters come and go: permits that no review uses are those of a cluster without callers.
        permits.retain(|_, permits| Arc::strong_count(permits) > 1);
        let new = Arc::new(Semaphore::new(self.limits.max_reviews.min(Semaphore::MAX_PERMITS)));
        permits.insert(cluster.clone(), new.clone());
        new
    }

    /// The result for a token of a cluster: that of a recent review or of one in progress, or that of `review`. The
    /// caller, with this address, is refused if too many others wait for results.
    pub(super) async fn reviewed(
        &self,
        cluster: &Text,
        address: Option<IpAddr>,
        token: &str,
        review: impl Future<Output = ReviewResult>,
    ) -> ReviewResult {
        let key = self.key(cluster, token);
        let now = Instant::now();
        if let Some(found) = self.recent(&key, now) {
            self.metrics.cached.inc();
            return found;
        }
        let Some(_waiting) = self.waiting.add(cluster, address) else {
            self.metrics.refused.inc();
            if let Some(callers) = self.log.event(now) {
                warn!(
                    %cluster, callers,
                    "refused callers: too many wait for the review of their tokens (logged once a minute)"
                );
            }
            return Err(ReviewError::Overloaded);
        };
        let result = self.entry(key, now);
        let mut is_cached = true;
        let run = async {
            is_cached = false;
            let permits = self.permits(cluster);
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            self.metrics.reviews.inc();
            let _running = Running::new(&self.metrics.running);
            let result = review.await;
            let until = lifetime(&result, token).and_then(|lifetime| Instant::now().checked_add(lifetime));
            (result, until)
        };
        let waited = tokio::time::timeout(self.limits.timeout, result.get_or_init(|| run)).await;
        let found = match waited {
            Ok((found, until)) => {
                if until.is_none() {
                    self.forget(&key, &result);
                }
                found.clone()
            }
            Err(_) => {
                self.metrics.timeouts.inc();
                self.forget(&key, &result);
                Err(ReviewError::Timeout)
            }
        };
        if is_cached && !matches!(found, Err(ReviewError::Timeout)) {
            self.metrics.cached.inc();
        }
        found
    }

    fn key(&self, cluster: &str, token: &str) -> TokenKey {
        let mut context = hmac::Context::with_key(&self.hash_key);
        context.update(&(cluster.len() as u64).to_be_bytes());
        context.update(cluster.as_bytes());
        context.update(token.as_bytes());
        let mut key = TokenKey::default();
        key.copy_from_slice(context.sign().as_ref());
        key
    }

    /// The result of a recent review.
    fn recent(&self, key: &TokenKey, now: Instant) -> Option<ReviewResult> {
        let results = self.results();
        let (result, until) = results.get(key)?.get()?;
        until.is_some_and(|until| now < until).then(|| result.clone())
    }

    /// The entry of a key, without a result if there is no recent one.
    fn entry(&self, key: TokenKey, now: Instant) -> Arc<CachedResult> {
        let is_current = |entry: &CachedResult| match entry.get() {
            Some((_, until)) => until.is_some_and(|until| now < until),
            None => true,
        };
        let mut results = self.results();
        if let Some(entry) = results.get(&key).filter(|entry| is_current(entry)) {
            return entry.clone();
        }
        if results.len() >= MAX_RESULTS {
            // A caller that left while it waited has left an entry that stays without a result.
            results.retain(|_, entry| is_current(entry) && (entry.initialized() || Arc::strong_count(entry) > 1));
        }
        let entry = Arc::new(CachedResult::new());
        if results.len() < MAX_RESULTS {
            results.insert(key, entry.clone());
        }
        entry
    }

    /// Removes an entry, unless another one has replaced it.
    fn forget(&self, key: &TokenKey, entry: &Arc<CachedResult>) {
        let mut results = self.results();
        if results.get(key).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            // Other callers that wait for the review keep the entry.
            results.remove(key);
        }
    }
}

/// How long a result is used again.
fn lifetime(result: &ReviewResult, token: &str) -> Option<Duration> {
    match result {
        Ok(_) => {
            // A token without an expiry is that of a Secret, which is valid until it is revoked.
            let left = expiry(token).map_or(i64::MAX, |expiry| expiry.saturating_sub(unix_seconds()));
            Some(ACCEPTED_LIFETIME.min(Duration::from_secs(u64::try_from(left).unwrap_or_default())))
        }
        Err(ReviewError::Unavailable(..) | ReviewError::Timeout | ReviewError::Overloaded) => None,
        Err(_) => Some(REJECTED_LIFETIME),
    }
}

/// A review in progress, in the metric.
struct Running<'m>(&'m Gauge);

impl<'m> Running<'m> {
    fn new(metric: &'m Gauge) -> Self {
        metric.inc();
        Self(metric)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
