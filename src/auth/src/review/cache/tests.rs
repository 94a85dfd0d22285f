use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::join_all;

use super::*;

fn cache(max_reviews: usize) -> ReviewCache {
    ReviewCache::new(ReviewLimits { max_reviews, timeout: Duration::from_millis(200) }, ReviewMetrics::default())
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
    let results = join_all((0..100).map(|_| cache.reviewed(&local, &token, review()))).await;
    assert!(results.iter().all(|result| *result == cart()));
    assert_eq!((reviews.load(Ordering::Relaxed), cache.metrics.cached.get()), (1, 99));
    // The same text as a token of another cluster is another token.
    let remote = Text::from("remote");
    cache.reviewed(&remote, &token, review()).await.expect("accepted");
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
        cache.reviewed(&cluster, "token", failed).await.expect_err("unavailable");
    }
    assert_eq!(cache.metrics.reviews.get(), reviews, "a failure is not a result");
    let expired = token(-3);
    for _ in 0..3 {
        cache.reviewed(&cluster, &expired, async { cart() }).await.expect("the API server decides");
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
        async move { cache.reviewed(cluster, &format!("token-{n}"), review).await }
    });
    let results = join_all(never).await;
    assert!(results.iter().all(|result| *result == Err(ReviewError::Timeout)));
    assert_eq!((cache.metrics.timeouts.get(), cache.metrics.running.get()), (50, 0));
    assert!(cache.results().is_empty(), "nothing is kept");
    cache.reviewed(&cluster, "token-0", async { cart() }).await.expect("the next review is sent");
}

#[tokio::test]
async fn hung_cluster_does_not_delay_the_reviews_of_another() {
    let cache =
        ReviewCache::new(ReviewLimits { max_reviews: 4, timeout: Duration::from_secs(600) }, ReviewMetrics::default());
    let (hung, answering) = (Text::from("hung"), Text::from("answering"));
    let never = join_all((0..100).map(|n| {
        let (cache, hung) = (&cache, &hung);
        async move { cache.reviewed(hung, &format!("token-{n}"), std::future::pending()).await }
    }));
    let others = async {
        while cache.metrics.running.get() < 4 {
            tokio::task::yield_now().await;
        }
        join_all((0..100).map(|n| {
            let (cache, answering) = (&cache, &answering);
            async move { cache.reviewed(answering, &format!("token-{n}"), async { cart() }).await }
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
        cache.reviewed(&cluster, &format!("token-{n}"), rejected).await.expect_err("rejected");
    }
    assert!(cache.results().len() <= MAX_RESULTS);
}
