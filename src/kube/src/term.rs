//! The time in which a replica certainly leads, and may write.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_tasks::sleep_until_due;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A term of a leader. A clone is another handle.
#[derive(Clone, Debug)]
pub struct Term {
    ended: CancellationToken,
    /// Time until which no other replica can lead; `None` without an election.
    certain_until: Arc<Mutex<Option<Instant>>>,
    /// `None` without an election.
    renewals: Option<Arc<Renewals>>,
}

/// Renewals of the lock of a term.
#[derive(Debug)]
struct Renewals {
    requested: Notify,
    /// When the last successful renewal began.
    last: watch::Sender<Instant>,
}

/// The replica may no longer lead, so it must not write.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the replica no longer leads")]
pub struct TermEnded;

impl Term {
    pub(crate) fn new(ended: CancellationToken, renewed: Instant, certain_until: Instant) -> Self {
        let renewals = Renewals { requested: Notify::new(), last: watch::Sender::new(renewed) };
        let certain_until = Arc::new(Mutex::new(Some(certain_until)));
        Self { ended, certain_until, renewals: Some(Arc::new(renewals)) }
    }

    /// Is cancelled when the term has ended.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether no other replica can lead now. It is false at once when the time has passed, even if the process was
    /// suspended and the end of the term is not noticed yet.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.ended.is_cancelled() && self.certain_until().is_none_or(|until| Instant::now() < until)
    }

    /// Runs a write. It is dropped, which closes its connection, when the term ends or is no longer certain. It continues while
    /// the lock is renewed.
    ///
    /// # Errors
    /// The term has ended. The write may have been applied.
    pub async fn write<T>(&self, write: impl Future<Output = T>) -> Result<T, TermEnded> {
        if !self.is_current() {
            return Err(TermEnded);
        }
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Err(TermEnded),
            () = self.no_longer_certain() => Err(TermEnded),
            result = write => Ok(result),
        }
    }

    /// Waits until the lock has been renewed after a time. A replica whose lock was taken notices it by this.
    ///
    /// # Errors
    /// The term has ended.
    pub async fn confirm(&self, since: Instant) -> Result<(), TermEnded> {
        if !self.is_current() {
            return Err(TermEnded);
        }
        let Some(renewals) = &self.renewals else { return Ok(()) };
        let mut last = renewals.last.subscribe();
        if *last.borrow() >= since {
            return Ok(());
        }
        renewals.requested.notify_one();
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Err(TermEnded),
            renewed = last.wait_for(|renewed| *renewed >= since) => renewed.map(|_| ()).map_err(|_| TermEnded),
        }
    }

    /// Waits until the time has passed in which no other replica can lead. A renewal extends it.
    async fn no_longer_certain(&self) {
        loop {
            let until = self.certain_until();
            if until.is_some_and(|until| until <= Instant::now()) {
                return;
            }
            sleep_until_due(until).await;
        }
    }

    /// Waits until [`Self::confirm`] is called.
    pub(crate) async fn renewal_requested(&self) {
        match &self.renewals {
            Some(renewals) => renewals.requested.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn certain_until(&self) -> Option<Instant> {
        *self.certain_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock was renewed by a request that began at `renewed`.
    pub(crate) fn renew(&self, renewed: Instant, certain_until: Instant) {
        *self.certain_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(certain_until);
        if let Some(renewals) = &self.renewals {
            renewals.last.send_replace(renewed);
        }
    }
}

impl From<CancellationToken> for Term {
    /// A term without an election, until the token is cancelled.
    fn from(ended: CancellationToken) -> Self {
        Self { ended, certain_until: Arc::default(), renewals: None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn write_is_dropped_when_the_lease_may_be_taken() {
        let certain_until = Instant::now() + Duration::from_millis(50);
        let term = Term::new(CancellationToken::new(), Instant::now(), certain_until);
        assert_eq!(term.write(std::future::pending::<()>()).await, Err(TermEnded));
        assert!(Instant::now() >= certain_until);
        assert!(!term.is_current() && !term.ended().is_cancelled(), "the end is not noticed yet");
        assert_eq!(term.write(async { 1 }).await, Err(TermEnded));
        term.renew(Instant::now(), Instant::now() + Duration::from_secs(3600));
        assert!(term.is_current());
        assert_eq!(term.write(async { 1 }).await, Ok(1));
        term.ended().cancel();
        assert_eq!(term.write(async { 1 }).await, Err(TermEnded));
    }

    #[tokio::test]
    async fn write_continues_if_the_lock_is_renewed_meanwhile() {
        let certain_until = Instant::now() + Duration::from_millis(50);
        let term = Term::new(CancellationToken::new(), Instant::now(), certain_until);
        let writing = term.write(tokio::time::sleep_until(certain_until + Duration::from_millis(50)));
        let renewing = async { term.renew(Instant::now(), Instant::now() + Duration::from_secs(3600)) };
        assert_eq!(tokio::join!(writing, renewing).0, Ok(()));
        let certain_until = Instant::now() + Duration::from_millis(50);
        term.renew(Instant::now(), certain_until);
        assert_eq!(term.write(std::future::pending::<()>()).await, Err(TermEnded), "it is not renewed any more");
        assert!(Instant::now() >= certain_until);
    }

    #[tokio::test]
    async fn term_is_confirmed_by_a_renewal_that_begins_later() {
        let (begun, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let term = Term::new(CancellationToken::new(), begun, later);
        let since = Instant::now();
        let confirming = tokio::spawn({
            let term = term.clone();
            async move { term.confirm(since).await }
        });
        term.renewal_requested().await;
        term.renew(begun, later);
        tokio::task::yield_now().await;
        assert!(!confirming.is_finished(), "that renewal began before");
        term.renew(Instant::now(), later);
        assert_eq!(confirming.await.expect("no panic"), Ok(()));
        assert_eq!(term.confirm(since).await, Ok(()), "no further renewal is requested");
        term.ended().cancel();
        assert_eq!(term.confirm(Instant::now()).await, Err(TermEnded));
    }
}
