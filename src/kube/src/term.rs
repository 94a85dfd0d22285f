//! The time in which a replica certainly leads, and may write.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::sleep_until_due;

/// A term of a leader. A clone is another handle.
#[derive(Clone, Debug)]
pub struct Term {
    ended: CancellationToken,
    /// Time until which no other replica can lead; `None` without an election.
    certain_until: Arc<Mutex<Option<Instant>>>,
}

/// The replica may no longer lead, so it must not write.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the replica no longer leads")]
pub struct TermEnded;

impl Term {
    pub(crate) fn new(ended: CancellationToken, certain_until: Instant) -> Self {
        Self { ended, certain_until: Arc::new(Mutex::new(Some(certain_until))) }
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

    /// Runs a write. It is dropped, which closes its connection, when the term ends or is no longer certain.
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
            () = sleep_until_due(self.certain_until()) => Err(TermEnded),
            result = write => Ok(result),
        }
    }

    pub(crate) fn certain_until(&self) -> Option<Instant> {
        *self.certain_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn renew(&self, certain_until: Instant) {
        *self.certain_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(certain_until);
    }
}

impl From<CancellationToken> for Term {
    /// A term without an election, until the token is cancelled.
    fn from(ended: CancellationToken) -> Self {
        Self { ended, certain_until: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn write_is_dropped_when_the_lease_may_be_taken() {
        let certain_until = Instant::now() + Duration::from_millis(50);
        let term = Term::new(CancellationToken::new(), certain_until);
        assert_eq!(term.write(std::future::pending::<()>()).await, Err(TermEnded));
        assert!(Instant::now() >= certain_until);
        assert!(!term.is_current() && !term.ended().is_cancelled(), "the end is not noticed yet");
        assert_eq!(term.write(async { 1 }).await, Err(TermEnded));
        term.renew(Instant::now() + Duration::from_secs(3600));
        assert!(term.is_current());
        assert_eq!(term.write(async { 1 }).await, Ok(1));
        term.ended().cancel();
        assert_eq!(term.write(async { 1 }).await, Err(TermEnded));
    }
}
