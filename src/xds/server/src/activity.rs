//! The requests in progress on a connection, and when a limit ends the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng as _;
use sluice_listen::{ConnectionEnd, ConnectionSlot};
use sluice_tls::TlsConnection;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Largest relative deviation from the maximum age of a connection, so that clients that connected together do not
/// reconnect together.
const AGE_JITTER: f64 = 0.1;

/// The requests in progress on a connection.
pub(crate) struct ConnectionActivity {
    slot: ConnectionSlot,
    requests: Mutex<Requests>,
    /// Ends the streams of the connection.
    ending: CancellationToken,
    /// Mirror of `ending` that is read without taking its lock.
    is_ending: AtomicBool,
}

struct Requests {
    in_progress: usize,
    /// When the last request ended.
    idle_since: Instant,
}

/// A request in progress.
pub(crate) struct RequestGuard(Arc<ConnectionActivity>);

impl ConnectionActivity {
    /// A connection without requests. `draining` ends its streams as well.
    pub(crate) fn new(slot: ConnectionSlot, draining: &CancellationToken) -> Arc<Self> {
        let requests = Mutex::new(Requests { in_progress: 0, idle_since: Instant::now() });
        Arc::new(Self { slot, requests, ending: draining.child_token(), is_ending: AtomicBool::new(false) })
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has arrived.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.slot.first_request();
        self.requests().in_progress += 1;
        RequestGuard(self.clone())
    }

    /// Time limit for the first request of the connection, and of each stream.
    pub(crate) fn first_request_timeout(&self) -> Duration {
        self.slot.limits().first_request_timeout
    }

    /// Maximum size of the headers of a request in bytes.
    pub(crate) fn max_header_bytes(&self) -> u32 {
        self.slot.limits().max_header_bytes
    }

    /// The token that ends the streams of the connection.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Ends the streams of the connection, so that their client reconnects.
    pub(crate) fn end_streams(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.ending.cancel();
    }

    /// Waits until a limit ends the connection.
    pub(crate) async fn end(&self, max_age: Option<Duration>, secure: Option<&TlsConnection>) -> ConnectionEnd {
        let age = async {
            match max_age {
                Some(age) => tokio::time::sleep(with_jitter(age)).await,
                None => std::future::pending().await,
            }
        };
        let credentials = async {
            match secure {
                // Boxed, because connections without TLS need no space for it.
                Some(secure) => Box::pin(secure.credentials_end()).await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = self.silence() => end,
            () = age => ConnectionEnd::Age,
            reason = credentials => {
                tracing::info!(target: "ads", peer = %self.slot.peer(), "connection ends: the client certificate is not valid: {reason}");
                ConnectionEnd::Credentials
            }
        };
        self.slot.closed(end);
        end
    }

    /// Waits until no request has been in progress for too long.
    async fn silence(&self) -> ConnectionEnd {
        tokio::time::sleep(self.slot.limits().first_request_timeout).await;
        if self.slot.is_pending() {
            return ConnectionEnd::FirstRequest;
        }
        let limit = self.slot.limits().idle_timeout;
        loop {
            let check_at = {
                let requests = self.requests();
                match requests.in_progress {
                    0 if requests.idle_since.elapsed() >= limit => return ConnectionEnd::Idle,
                    0 => requests.idle_since + limit,
                    _ => Instant::now() + limit,
                }
            };
            tokio::time::sleep_until(check_at).await;
        }
    }
}

impl RequestGuard {
    pub(crate) fn connection(&self) -> &Arc<ConnectionActivity> {
        &self.0
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut requests = self.0.requests();
        requests.in_progress -= 1;
        requests.idle_since = Instant::now();
    }
}

/// A duration that differs by at most [`AGE_JITTER`].
fn with_jitter(age: Duration) -> Duration {
    age.mul_f64(rand::rng().random_range(1.0 - AGE_JITTER..=1.0 + AGE_JITTER))
}
