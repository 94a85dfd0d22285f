//! Sessions of browsers (O09): the identities of a caller that has presented a token, by a random secret that the browser keeps in a
//! cookie. The token is not kept.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use aws_lc_rs::rand;
use sluice_model::Identity;

/// Sessions at a time. Further callers get none.
const MAX_SESSIONS: usize = 256;
/// Sessions of the same identities at a time. A further one ends the oldest.
const MAX_SESSIONS_PER_CALLER: usize = 16;
/// Duration of a session in seconds. It ends earlier if its token expires.
pub(crate) const MAX_SESSION_SECONDS: i64 = 3600;
/// Size of a secret in bytes.
const SECRET_BYTES: usize = 32;

/// The hash of a secret. The secret itself is not kept.
type SecretHash = [u8; SHA256_OUTPUT_LEN];

/// The sessions of this instance.
#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<SecretHash, Session>>);

/// One session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Session {
    /// The identities of the caller.
    pub(crate) identities: Vec<Identity>,
    /// The end of the session, in seconds since the Unix epoch.
    pub(crate) expires: i64,
    started: i64,
}

/// The reason why there is no new session.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("there are {} sessions; try again when one of them has ended", MAX_SESSIONS)]
    TooMany,
    #[error("the token has expired")]
    Expired,
    #[error("the system provides no random numbers")]
    NoRandomness,
}

impl Sessions {
    /// Starts a session of a caller whose token expires at `expires`. Returns the secret for its cookie. Times are in seconds since
    /// the Unix epoch.
    pub(crate) fn start(
        &self,
        identities: Vec<Identity>,
        expires: Option<i64>,
        now: i64,
    ) -> Result<String, SessionError> {
        let latest = now.saturating_add(MAX_SESSION_SECONDS);
        let session = Session { identities, expires: expires.unwrap_or(latest).min(latest), started: now };
        if session.expires <= now {
            return Err(SessionError::Expired);
        }
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret).map_err(|_| SessionError::NoRandomness)?;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.expires > now);
        let own = sessions.iter().filter(|(_, other)| other.identities == session.identities);
        let own: Vec<_> = own.map(|(hash, other)| (other.started, *hash)).collect();
        if own.len() >= MAX_SESSIONS_PER_CALLER
            && let Some((_, oldest)) = own.into_iter().min()
        {
            sessions.remove(&oldest);
        }
        if sessions.len() >= MAX_SESSIONS {
            return Err(SessionError::TooMany);
        }
        sessions.insert(hash(&secret), session);
        Ok(secret)
    }

    /// The session of a secret, unless it has ended.
    pub(crate) fn get(&self, secret: &str, now: i64) -> Option<Session> {
        self.lock().get(&hash(secret)).filter(|session| session.expires > now).cloned()
    }

    /// Ends the session of a secret.
    pub(crate) fn end(&self, secret: &str) {
        self.lock().remove(&hash(secret));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SecretHash, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.lock().len())
    }
}

fn hash(secret: &str) -> SecretHash {
    let mut hash = SecretHash::default();
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(account: &str) -> Vec<Identity> {
        vec![Identity::new("cluster.local", "istio-system", account)]
    }

    #[test]
    fn session_ends_with_its_token_at_the_time_limit_or_when_it_is_ended() {
        let sessions = Sessions::default();
        let start = |expires| sessions.start(caller("a"), expires, 1_000).expect("a session");
        let (short, long, ended) = (start(Some(1_060)), start(Some(1_000_000)), start(None));
        assert_eq!(sessions.get(&short, 1_059).map(|session| session.identities), Some(caller("a")));
        assert_eq!(sessions.get(&short, 1_060), None);
        assert!(sessions.get(&long, 999 + MAX_SESSION_SECONDS).is_some());
        assert_eq!(sessions.get(&long, 1_000 + MAX_SESSION_SECONDS), None);
        sessions.end(&ended);
        assert_eq!(sessions.get(&ended, 1_001), None);
        assert_eq!(sessions.get("", 1_001), None);
        assert_eq!(sessions.start(caller("a"), Some(1_000), 1_000), Err(SessionError::Expired));
        assert!(!format!("{sessions:?}").contains(&long));
    }

    #[test]
    fn one_caller_cannot_use_up_the_sessions_of_others() {
        let sessions = Sessions::default();
        let other = sessions.start(caller("other"), None, 0).expect("a session");
        let own: Vec<_> =
            (0..100).map(|second| sessions.start(caller("a"), None, second).expect("a session")).collect();
        let valid = own.iter().filter(|secret| sessions.get(secret, 100).is_some()).count();
        assert_eq!(valid, MAX_SESSIONS_PER_CALLER);
        assert!(sessions.get(&own[99], 100).is_some() && sessions.get(&other, 100).is_some());
        let mut accounts = (0..).map(|n| caller(&format!("n{n}")));
        let free = MAX_SESSIONS - MAX_SESSIONS_PER_CALLER - 1;
        assert!(accounts.by_ref().take(free).all(|caller| sessions.start(caller, None, 100).is_ok()));
        assert_eq!(sessions.start(caller("late"), None, 100), Err(SessionError::TooMany));
        assert!(sessions.start(caller("late"), None, 100 + MAX_SESSION_SECONDS).is_ok(), "the others have ended");
    }
}
