use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};

use super::*;

fn limits(max_reviews: usize, timeout: Duration) -> ReviewLimits {
    ReviewLimits { max_reviews, timeout, ..ReviewLimits::default() }
}

fn cache(max_reviews: usize) -> ReviewCache {
    ReviewCache::new(limits(max_reviews, Duration::from_millis(200)), ReviewMetrics::default())
}

fn cart() -> ReviewResult {
    Ok(Reviewed { namespace: "shop".into(), service_account: "cart".into(), pod: None })
}

/// A token with an expiry.
fn token(expires_in: i64) -> String {
    let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
    format!(
        "{}.{}.c2lnbmF0dXJl",
        encode(r#"{"alg":"RS256"}"#.to_owned()),
        encode(format!(r#"{{"exp":{}}}"#, unix_seconds() + expires_in))
    )
}

#[tokio::test]
async fn a_token_is_reviewed_once_even_by_concurrent_callers() {
    let (cache, reviews, token) = (cache(8), AtomicUsize::new(0), token(600));
    let review = || async {
        reviews.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        cart()
    };
    let local = Text::from("local");
    let results = join_all((0..100).map(|_| cache.reviewed(&local, None, &token, review()))).await;
    assert!(results.iter().all(|result| *result == cart()));
    assert_eq!((reviews.load(Ordering::Relaxed), cache.metrics.cached.get()), (1, 99));
    // The same text as a token of another cluster is another token.
    let remote = Text::from("remote");
    cache.reviewed(&remote, None, &token, review()).await.expect("accepted");
    assert_eq!(reviews.load(Ordering::Relaxed), 2);
    let is_hidden = !format!("{:?}", cache.results().keys().collect::<Vec<_>>()).contains(&token);
    assert!(is_hidden, "the cache has no tokens");
}

#[tokio::test]
async fn results_are_used_for_seconds_and_never_beyond_the_expiry_of_the_token() {
    assert_eq!(lifetime(&cart(), &token(600)), Some(ACCEPTED_LIFETIME));
    assert!(lifetime(&cart(), &token(3)).is_some_and(|lifetime| lifetime <= Duration::from_secs(3)));
    assert_eq!(lifetime(&cart(), &token(-3)), Some(Duration::ZERO));
    assert_eq!(lifetime(&cart(), "opaque"), Some(ACCEPTED_LIFETIME));
    assert_eq!(lifetime(&Err(ReviewError::NotAuthenticated), &token(600)), Some(REJECTED_LIFETIME));
    let cache = cache(8);
    let cluster = Text::from("local");
    let mut reviews = 0;
    for _ in 0..3 {
        reviews += 1;
        let failed = async { Err(ReviewError::Unavailable("local".into(), "no".into())) };
        cache.reviewed(&cluster, None, "token", failed).await.expect_err("unavailable");
    }
    assert_eq!(cache.metrics.reviews.get(), reviews, "a failure is not a result");
    let expired = token(-3);
    for _ in 0..3 {
        cache.reviewed(&cluster, None, &expired, async { cart() }).await.expect("the API server decides");
    }
    assert_eq!(cache.metrics.reviews.get(), reviews + 3, "an expired token is reviewed each time");
}

#[tokio::test]
async fn reviews_at_a_time_and_their_duration_are_limited() {
    let cache = cache(4);
    let cluster = Text::from("local");
    let never = (0..50).map(|n| {
        let (cache, cluster) = (&cache, &cluster);
        let review = async move {
            assert!(cache.metrics.running.get() <= 4, "more than four reviews at a time");
            std::future::pending().await
        };
        async move { cache.reviewed(cluster, None, &format!("token-{n}"), review).await }
    });
    let results = join_all(never).await;
    assert!(results.iter().all(|result| *result == Err(ReviewError::Timeout)));
    assert_eq!((cache.metrics.timeouts.get(), cache.metrics.running.get()), (50, 0));
    assert!(cache.results().is_empty(), "nothing is kept");
    cache.reviewed(&cluster, None, "token-0", async { cart() }).await.expect("the next review is sent");
}

#[tokio::test]
async fn hung_cluster_does_not_delay_the_reviews_of_another() {
    let cache = ReviewCache::new(limits(4, Duration::from_secs(600)), ReviewMetrics::default());
    let (hung, answering) = (Text::from("hung"), Text::from("answering"));
    let never = join_all((0..100).map(|n| {
        let (cache, hung) = (&cache, &hung);
        async move { cache.reviewed(hung, None, &format!("token-{n}"), std::future::pending()).await }
    }));
    let others = async {
        while cache.metrics.running.get() < 4 {
            tokio::task::yield_now().await;
        }
        join_all((0..100).map(|n| {
            let (cache, answering) = (&cache, &answering);
            async move { cache.reviewed(answering, None, &format!("token-{n}"), async { cart() }).await }
        }))
        .await
    };
    let results = tokio::select! {
        results = tokio::time::timeout(Duration::from_secs(20), others) => results.expect("they are reviewed at once"),
        _ = never => unreachable!("the cluster does not answer"),
    };
    assert!(results.iter().all(|result| *result == cart()));
}

#[tokio::test]
async fn results_are_limited_in_number() {
    let cache = cache(4);
    let cluster = Text::from("local");
    for n in 0..MAX_RESULTS + 100 {
        let rejected = async { Err(ReviewError::NotAuthenticated) };
        cache.reviewed(&cluster, None, &format!("token-{n}"), rejected).await.expect_err("rejected");
    }
    assert!(cache.results().len() <= MAX_RESULTS);
}

/// Begins a review that never has a result. Returns the refusal, or the call of a caller that waits.
fn begin<'c>(
    cache: &'c ReviewCache,
    cluster: &'c Text,
    address: Option<IpAddr>,
    token: &'c str,
) -> Result<ReviewResult, BoxFuture<'c, ReviewResult>> {
    let mut call = cache.reviewed(cluster, address, token, std::future::pending()).boxed();
    match (&mut call).now_or_never() {
        Some(result) => Ok(result),
        None => Err(call),
    }
}

#[tokio::test]
async fn callers_that_wait_for_a_hung_cluster_are_limited_and_known_tokens_are_accepted() {
    let waiting = WaitingLimits { of_address: 3, of_cluster: 5, all: 8 };
    let limits = ReviewLimits { waiting, ..limits(2, Duration::from_secs(600)) };
    let cache = ReviewCache::new(limits, ReviewMetrics::default());
    let (hung, answering) = (Text::from("hung"), Text::from("answering"));
    let [one, two, three] = [1, 2, 3].map(|last| Some(IpAddr::from([10, 0, 0, last])));
    cache.reviewed(&hung, one, "known", async { cart() }).await.expect("accepted");
    let mut held = Vec::new();
    for (address, token) in [(one, "a"), (one, "b"), (one, "b"), (two, "c"), (two, "d")] {
        held.extend(begin(&cache, &hung, address, token).err());
    }
    assert_eq!(held.len(), 5, "callers wait, also those with the same token");
    for (address, token) in [(one, "e"), (three, "f"), (three, "a")] {
        let refused = begin(&cache, &hung, address, token).ok();
        assert_eq!(refused, Some(Err(ReviewError::Overloaded)), "{address:?}");
    }
    assert_eq!(cache.metrics.refused.get(), 3);
    assert_eq!(begin(&cache, &hung, one, "known").ok(), Some(cart()), "a recent result needs no wait");
    cache.reviewed(&answering, three, "g", async { cart() }).await.expect("another cluster has room");
    drop(held);
    cache.reviewed(&hung, one, "e", async { cart() }).await.expect("the others have left");
}

#[tokio::test]
async fn callers_that_leave_while_they_wait_do_not_use_up_the_results() {
    let cache = cache(4);
    let cluster = Text::from("local");
    for n in 0..MAX_RESULTS {
        assert!(begin(&cache, &cluster, None, &format!("token-{n}")).is_err(), "it waits, and leaves");
    }
    for _ in 0..2 {
        cache.reviewed(&cluster, None, "token", async { cart() }).await.expect("accepted");
    }
    assert_eq!(cache.metrics.cached.get(), 1, "the second caller needs no review");
}
