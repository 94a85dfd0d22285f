//! Leader election among replicas, revisions and control planes, by locks (O17, S18).
//!
//! The leader renews its lock. A lock that has not changed for its duration, measured by the local clock, is free,
//! because clocks of replicas may differ. A leader that cannot renew stops before another replica may start: its [`Term`]
//! ends after two thirds of the duration, and writes that are in progress then are dropped.
//!
//! Some control planes take a shared lock from a holder that is alive: those of the default revision from another revision,
//! and those of the cluster from one of another cluster with the same revision. The holder notices this when it renews. A
//! leader that has taken a lock in this way begins its work when the former holder has certainly ended its own.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use kube::Client;
use rand::Rng as _;
use sluice_model::Text;
use sluice_tasks::{catch_panic, sleep_until_due};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::lock::{LockApi, LockError, Record, Stored};
use crate::{Backoff, Lock, Term};

/// Begin of the key of a holder that is of another cluster.
const REMOTE_PREFIX: char = '^';
/// Time limit of an attempt in progress once the replica is stopped.
const STOPPED_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the release of a lock.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait before the next term if work has ended although its replica leads. It doubles with each further one.
const FIRST_NEXT_TERM_WAIT: Duration = Duration::from_millis(500);
/// Longest wait before the next term.
const MAX_NEXT_TERM_WAIT: Duration = Duration::from_secs(30);
/// Work that runs for this time is considered healthy: the next term waits for [`FIRST_NEXT_TERM_WAIT`].
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// A replica that may become leader.
#[derive(Clone)]
pub struct Election {
    /// `None` makes this replica the leader without a lock.
    client: Option<Client>,
    namespace: Text,
    identity: String,
    revision: String,
    /// The control plane is of another cluster than its locks.
    is_remote: bool,
    duration: Duration,
}

impl Election {
    /// A replica of a revision, named after its pod. Without a client, every replica leads.
    #[must_use]
    pub fn new(client: Option<Client>, namespace: Text, pod: &str, revision: &str) -> Self {
        let unique: u32 = rand::rng().random();
        let pod = if pod.is_empty() { "sluiced" } else { pod };
        let revision = if revision.is_empty() { "default" } else { revision };
        Self {
            client,
            namespace,
            identity: format!("{pod}-{unique:08x}"),
            revision: revision.to_owned(),
            is_remote: false,
            duration: Duration::from_secs(30),
        }
    }

    /// Sets the client of the locks. Without a client, every replica leads.
    #[must_use]
    pub fn with_client(self, client: Option<Client>) -> Self {
        Self { client, ..self }
    }

    /// The locks are of another cluster than the replica. A control plane of that cluster takes them from it.
    #[must_use]
    pub fn of_remote_cluster(self) -> Self {
        Self { is_remote: true, ..self }
    }

    /// Sets the duration of the locks.
    #[must_use]
    pub fn with_lease_duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// Runs `work` each time this replica becomes leader and ends its term when the replica no longer leads, until `stop` is
    /// cancelled. Work that does not end with its term is dropped. If it panics, the lock is released before the panic
    /// continues, because another replica may be able to do the work. If it ends before its term, the lock is released too, and
    /// this replica takes part in the election again after a wait. Without a client, this returns when the work ends.
    pub async fn lead<W: Future<Output = ()>>(
        self,
        lock: Lock,
        stop: CancellationToken,
        mut work: impl FnMut(Term) -> W,
    ) {
        let Some(client) = self.client.clone() else { return Box::pin(work(stop.into())).await };
        let name = lock.name().to_owned();
        let mut candidate = Candidate {
            lock: LockApi { client, namespace: self.namespace.clone(), lock },
            election: self,
            observed: None,
            begins: None,
            logged_failures: LoggedFailures::default(),
        };
        let mut backoff = Backoff::new(FIRST_NEXT_TERM_WAIT, MAX_NEXT_TERM_WAIT);
        while let Some(renewed) = candidate.acquire(&stop).await {
            let begun = Instant::now();
            info!(target: "leader", lock = name, identity = candidate.election.identity, "became leader");
            let term = Term::new(stop.child_token(), renewed, candidate.certain_after(renewed));
            let (begins, work, own_term) = (candidate.begins.take(), &mut work, term.clone());
            let mut working = Box::pin(catch_panic(async move {
                if begins.is_some() {
                    sleep_until_due(begins).await;
                }
                Box::pin(work(own_term)).await;
            }));
            let finished = tokio::select! {
                finished = &mut working => Some(finished),
                () = candidate.renew(&term, &stop) => None,
            };
            if let Some(Err(panic)) = finished {
                term.ended().cancel();
                candidate.release().await;
                panic.resume();
            }
            let is_finished = finished.is_some();
            // Work also ends because its term is over.
            let ended_early = is_finished && term.is_current();
            term.ended().cancel();
            let grace = candidate.election.duration / 8;
            if !is_finished && tokio::time::timeout(grace, &mut working).await.is_err() {
                warn!(target: "leader", lock = name, "work has not ended with the leadership and is stopped");
            }
            drop(working);
            if stop.is_cancelled() {
                candidate.release().await;
                return;
            }
            if !ended_early {
                warn!(target: "leader", lock = name, identity = candidate.election.identity, "lost the leadership");
                continue;
            }
            if begun.elapsed() >= HEALTHY_AFTER {
                backoff.reset();
            }
            let wait = backoff.failed();
            warn!(target: "leader", lock = name, ?wait, "work has ended although the replica leads, and begins again");
            candidate.release().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// The key of this replica in a lock that all revisions share.
    fn key(&self) -> String {
        if self.is_remote { format!("{REMOTE_PREFIX}{}", self.revision) } else { self.revision.clone() }
    }

    /// Whether this replica takes a lock from a holder that is alive.
    fn takes_precedence(&self, holder_key: &str, default_revision: Option<&str>) -> bool {
        let (revision, is_remote) = match holder_key.strip_prefix(REMOTE_PREFIX) {
            Some(revision) => (revision, true),
            None => (holder_key, false),
        };
        if revision == self.revision {
            return is_remote && !self.is_remote;
        }
        default_revision == Some(self.revision.as_str())
    }
}

/// The result of an attempt to acquire or renew a lock.
enum Attempt {
    /// This replica holds it.
    Ours,
    /// Another replica holds it, or wrote first.
    OfAnother,
    /// It could not be read or written.
    Failed,
}

/// The last observed state of a lock, and when its record was first observed.
struct Observed {
    stored: Stored,
    since: Instant,
}

/// Failures that have been logged, and have not ended.
#[derive(Default)]
struct LoggedFailures {
    lock: bool,
    default_revision: bool,
}

struct Candidate {
    lock: LockApi,
    election: Election,
    observed: Option<Observed>,
    /// When the work of a leader begins that has taken the lock from a holder that was alive.
    begins: Option<Instant>,
    logged_failures: LoggedFailures,
}

impl Candidate {
    /// Waits until this replica holds the lock. Returns a time at which it held it; `None` once stopped.
    async fn acquire(&mut self, stop: &CancellationToken) -> Option<Instant> {
        loop {
            let begun = Instant::now();
            let limit = self.attempt_limit(begun);
            let attempt = self.attempt_until(stop, limit).await;
            if stop.is_cancelled() {
                if matches!(attempt, Attempt::Ours) {
                    self.release().await;
                }
                return None;
            }
            let wait = match attempt {
                Attempt::Ours => return Some(begun),
                Attempt::OfAnother => self.election.duration / 4,
                Attempt::Failed => self.election.duration / 15,
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Renews until the lock is lost or `stop` is cancelled.
    async fn renew(&mut self, term: &Term, stop: &CancellationToken) {
        let mut wait = self.election.duration / 4;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = term.renewal_requested() => {}
                () = tokio::time::sleep(wait) => {}
            }
            let begun = Instant::now();
            let certain_until = term.certain_until().unwrap_or(begun);
            let limit = self.attempt_limit(begun).min(certain_until);
            let attempt = self.attempt_until(stop, limit).await;
            if stop.is_cancelled() {
                return;
            }
            match attempt {
                Attempt::Ours => {
                    term.renew(begun, self.certain_after(begun));
                    wait = self.election.duration / 4;
                }
                _ if Instant::now() >= certain_until || self.is_of_another() => return,
                Attempt::OfAnother | Attempt::Failed => {
                    wait = (self.election.duration / 15).min(certain_until.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// The time until which a lock that is written after `begun` is certain. Another replica waits for the whole duration
    /// after it has seen the write.
    fn certain_after(&self, begun: Instant) -> Instant {
        begun + self.election.duration * 2 / 3
    }

    /// The time limit of an attempt: several fit into the time in which the lock is certain.
    fn attempt_limit(&self, begun: Instant) -> Instant {
        begun + self.election.duration / 6
    }

    fn is_of_another(&self) -> bool {
        let holder = self.observed.as_ref().map_or("", |observed| &observed.stored.record.holder);
        !holder.is_empty() && holder != self.election.identity
    }

    /// As [`Self::attempt`]. Once stopped, an attempt in progress still has [`STOPPED_ATTEMPT_TIMEOUT`]: the API server may have
    /// written the lock already, and only a lock that is known to be held can be released.
    async fn attempt_until(&mut self, stop: &CancellationToken, deadline: Instant) -> Attempt {
        let mut attempt = pin!(self.attempt(deadline));
        tokio::select! {
            attempt = &mut attempt => return attempt,
            () = stop.cancelled() => {}
        }
        tokio::time::timeout(STOPPED_ATTEMPT_TIMEOUT, attempt).await.unwrap_or(Attempt::Failed)
    }

    /// Acquires the lock if it is free, or renews it if this replica holds it.
    async fn attempt(&mut self, deadline: Instant) -> Attempt {
        let result = match tokio::time::timeout_at(deadline, self.acquire_or_renew()).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("no response in time".to_owned()),
        };
        match result {
            Ok(is_ours) => {
                self.logged_failures.lock = false;
                if is_ours { Attempt::Ours } else { Attempt::OfAnother }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.logged_failures.lock, true) {
                    let lock = self.lock.lock.name();
                    warn!(target: "leader", lock, error, "cannot read or write the lock, retrying");
                }
                Attempt::Failed
            }
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<bool, LockError> {
        let Some(stored) = self.lock.get().await? else {
            return self.write(None, true).await;
        };
        if self.observed.as_ref().is_none_or(|observed| observed.stored.record != stored.record) {
            self.observed = Some(Observed { stored: stored.clone(), since: Instant::now() });
        }
        if stored.record.holder == self.election.identity {
            return self.write(Some(&stored), false).await;
        }
        let duration = Duration::try_from_secs_f64(stored.record.duration_seconds).unwrap_or_default();
        let duration = duration.max(self.election.duration);
        let is_free = stored.record.holder.is_empty()
            || self.observed.as_ref().is_some_and(|observed| observed.since.elapsed() >= duration);
        if !is_free && !self.takes_precedence(&stored.record).await {
            return Ok(false);
        }
        // A holder that is alive notices this at its next renewal, and then gives up as late as the reference does. The response
        // to the write may be lost.
        self.begins = (!is_free).then(|| Instant::now() + duration * 3 / 4);
        let is_ours = self.write(Some(&stored), true).await?;
        self.begins = self.begins.filter(|_| is_ours);
        Ok(is_ours)
    }

    async fn takes_precedence(&mut self, holder: &Record) -> bool {
        if !self.lock.lock.is_shared() {
            return false;
        }
        if self.election.takes_precedence(&holder.key, None) {
            return true;
        }
        if !self.election.takes_precedence(&holder.key, Some(&self.election.revision)) {
            return false;
        }
        match self.lock.default_revision().await {
            Ok(default) => self.election.takes_precedence(&holder.key, default.as_deref()),
            Err(error) => {
                if !std::mem::replace(&mut self.logged_failures.default_revision, true) {
                    let lock = self.lock.lock.name();
                    warn!(target: "leader", lock, %error, "cannot read the default revision, so no lock is taken for it");
                }
                false
            }
        }
    }

    /// Writes this replica as the holder. Returns whether it is: another replica may have written first.
    async fn write(&mut self, stored: Option<&Stored>, is_new: bool) -> Result<bool, LockError> {
        let now = now();
        let old = stored.map(|stored| stored.record.clone());
        let record = Record {
            holder: self.election.identity.clone(),
            key: if self.lock.lock.is_shared() { self.election.key() } else { String::new() },
            duration_seconds: self.election.duration.as_secs_f64(),
            acquired: old.as_ref().filter(|_| !is_new).map_or_else(|| now.clone(), |old| old.acquired.clone()),
            renewed: now,
            transitions: old.map_or(0, |old| old.transitions.saturating_add(i64::from(is_new))),
        };
        let written = self.lock.write(stored, &record).await?;
        let is_ours = written.is_some();
        if let Some(stored) = written {
            self.observed = Some(Observed { stored, since: Instant::now() });
        }
        Ok(is_ours)
    }

    /// Releases the lock, so that another replica can acquire it at once.
    async fn release(&self) {
        let is_ours = |observed: &&Observed| observed.stored.record.holder == self.election.identity;
        let Some(observed) = self.observed.as_ref().filter(is_ours) else { return };
        let now = now();
        let record = Record {
            acquired: now.clone(),
            renewed: now,
            transitions: observed.stored.record.transitions,
            duration_seconds: 1.0,
            ..Record::default()
        };
        let released = self.lock.write(Some(&observed.stored), &record);
        if !matches!(tokio::time::timeout(RELEASE_TIMEOUT, released).await, Ok(Ok(Some(_)))) {
            info!(target: "leader", lock = self.lock.lock.name(), "cannot release the lock, it expires by itself");
        }
    }
}

/// The time now, in the form of the records of locks. Each renewal has another time, which other candidates observe.
fn now() -> String {
    let now: Timestamp = SystemTime::now().try_into().unwrap_or_default();
    format!("{now:.6}")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::*;

    /// An API server that stores one object.
    fn api_server() -> (Client, Arc<Mutex<Option<Value>>>) {
        let stored = Arc::<Mutex<Option<Value>>>::default();
        let object = stored.clone();
        let answer = move |request: http::Request<Body>| {
            let object = object.clone();
            async move {
                let is_read = request.method() == Method::GET;
                let body = request.into_body().collect().await?.to_bytes();
                let mut object = object.lock().expect("no panic");
                if !is_read {
                    *object = Some(serde_json::from_slice(&body).expect("an object"));
                }
                let (status, answer) = match &*object {
                    Some(object) => (200, object.clone()),
                    None => (404, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})),
                };
                let response = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, kube::Error>(response.expect("a response"))
            }
        };
        (Client::new(tower::service_fn(answer), "default"), stored)
    }

    #[tokio::test]
    async fn work_that_ends_before_its_term_begins_again_after_a_growing_wait() {
        let (client, stored) = api_server();
        let lock = Lock::lease("test");
        let holder = {
            let lock = lock.clone();
            move || lock.holder(stored.lock().expect("no panic").as_ref().expect("a lock"))
        };
        let election = Election::new(Some(client), "istio-system".into(), "one", "");
        let (stop, terms) = (CancellationToken::new(), watch::Sender::new(Vec::new()));
        let (mut begun, held) = (terms.subscribe(), holder.clone());
        let work = move |term: Term| {
            assert!(held().starts_with("one-"), "the replica holds the lock");
            terms.send_modify(|terms| terms.push(Instant::now()));
            let is_last = terms.borrow().len() == 3;
            async move {
                if is_last {
                    term.ended().cancelled().await;
                }
            }
        };
        let leading = tokio::spawn(election.lead(lock, stop.clone(), work));
        let terms = begun.wait_for(|terms| terms.len() == 3).await.expect("it leads").clone();
        let waits: Vec<Duration> = terms.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let shortest = [Duration::from_millis(250), Duration::from_millis(500)];
        assert!(waits.iter().zip(shortest).all(|(wait, shortest)| *wait >= shortest), "{waits:?}");
        assert!(holder().starts_with("one-") && !leading.is_finished(), "it leads while its work runs");
        stop.cancel();
        leading.await.expect("no panic");
        assert_eq!(holder(), "", "it is released");
    }

    #[test]
    fn default_revision_and_own_cluster_take_precedence() {
        let election = |revision: &str| Election::new(None, "istio-system".into(), "a", revision);
        let local = election("");
        assert!(local.takes_precedence("canary", Some("default")), "the default revision takes it from another");
        assert!(local.takes_precedence("^canary", Some("default")));
        assert!(!local.takes_precedence("canary", Some("canary")));
        assert!(!local.takes_precedence("canary", None), "without a default revision, no candidate takes it");
        assert!(!local.takes_precedence("default", Some("default")), "another replica of the revision keeps it");
        assert!(local.takes_precedence("^default", None), "the cluster's own control plane takes it");
        let remote = election("").of_remote_cluster();
        assert_eq!((local.key(), remote.key()), ("default".to_owned(), "^default".to_owned()));
        assert!(!remote.takes_precedence("^default", Some("default")));
        assert!(!remote.takes_precedence("default", Some("default")), "two rules must not take it from each other");
        assert!(remote.takes_precedence("canary", Some("default")));
        assert!(!election("canary").takes_precedence("", Some("default")));
    }
}
