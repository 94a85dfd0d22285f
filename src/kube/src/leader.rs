//! Leader election among replicas by a Lease of the control plane's namespace (O17).
//!
//! The leader renews its Lease. A Lease that has not changed for its duration, measured by the local clock, is free,
//! because clocks of replicas may differ. A leader that cannot renew stops before another replica may start: its [`Term`]
//! ends after two thirds of the duration, and writes that are in progress then are dropped.

use std::time::{Duration, SystemTime};

use http::{Method, Request, header};
use kube::Client;
use rand::Rng as _;
use serde_json::{Value, json};
use sluice_model::Text;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{RequestError, Term, transport};

/// Lease of the replica that writes roots into namespaces.
pub const ROOTS_LEASE: &str = "istio-namespace-controller-election";
/// Lease of the replica that writes addresses into the statuses of ServiceEntries.
pub const ADDRESSES_LEASE: &str = "istio-ip-autoallocate";
/// Lease of the replica that writes the ClusterTrustBundle.
pub const TRUST_BUNDLE_LEASE: &str = "istio-clustertrustbundle-controller-election";

/// A replica that may become leader.
#[derive(Clone)]
pub struct Election {
    /// `None` makes this replica the leader without a Lease.
    client: Option<Client>,
    namespace: Text,
    identity: String,
    duration: Duration,
}

impl Election {
    /// A replica named after its pod. Without a client, every replica leads.
    #[must_use]
    pub fn new(client: Option<Client>, namespace: Text, pod: &str) -> Self {
        let unique: u32 = rand::rng().random();
        let pod = if pod.is_empty() { "sluiced" } else { pod };
        Self { client, namespace, identity: format!("{pod}-{unique:08x}"), duration: Duration::from_secs(30) }
    }

    /// Sets the duration of the Leases.
    #[must_use]
    pub fn with_lease_duration(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// Runs `work` each time this replica becomes leader and ends its term when the replica no longer leads, until `stop` is
    /// cancelled. Work that does not end with its term is dropped.
    pub async fn lead<W: Future<Output = ()>>(
        self,
        lease: &'static str,
        stop: CancellationToken,
        mut work: impl FnMut(Term) -> W,
    ) {
        let Some(client) = self.client.clone() else { return work(stop.into()).await };
        let mut candidate = Candidate {
            lease: LeaseApi { client, namespace: self.namespace, name: lease },
            identity: self.identity,
            duration: self.duration,
            observed: None,
            failure_is_logged: false,
        };
        while let Some(certain_until) = candidate.acquire(&stop).await {
            info!(target: "leader", lease, identity = candidate.identity, "became leader");
            let term = Term::new(stop.child_token(), certain_until);
            let mut working = Box::pin(work(term.clone()));
            let is_finished = tokio::select! {
                () = &mut working => true,
                () = candidate.renew(&term, &stop) => false,
            };
            // Work also ends because its term is over, and begins again with the next term.
            let ended = is_finished && term.is_current();
            term.ended().cancel();
            let grace = candidate.duration / 8;
            if !is_finished && tokio::time::timeout(grace, &mut working).await.is_err() {
                warn!(target: "leader", lease, "work has not ended with the leadership and is stopped");
            }
            drop(working);
            if ended || stop.is_cancelled() {
                candidate.release().await;
                return;
            }
            warn!(target: "leader", lease, identity = candidate.identity, "lost the leadership");
        }
    }
}

/// The result of an attempt to acquire or renew a Lease.
enum Attempt {
    /// This replica holds it.
    Ours,
    /// Another replica holds it, or wrote first.
    OfAnother,
    /// It could not be read or written.
    Failed,
}

/// The last observed Lease, and when its spec was first observed.
struct ObservedLease {
    object: Value,
    since: Instant,
}

struct Candidate {
    lease: LeaseApi,
    identity: String,
    duration: Duration,
    observed: Option<ObservedLease>,
    /// The failure to read or write the Lease has been logged.
    failure_is_logged: bool,
}

impl Candidate {
    /// Waits until this replica holds the Lease. Returns the time until which that is certain; `None` once stopped.
    async fn acquire(&mut self, stop: &CancellationToken) -> Option<Instant> {
        loop {
            let begun = Instant::now();
            let limit = self.attempt_limit(begun);
            let attempt = tokio::select! {
                () = stop.cancelled() => return None,
                attempt = self.attempt(limit) => attempt,
            };
            let wait = match attempt {
                Attempt::Ours => return Some(self.certain_after(begun)),
                Attempt::OfAnother => self.duration / 4,
                Attempt::Failed => self.duration / 15,
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Renews until the Lease is lost or `stop` is cancelled.
    async fn renew(&mut self, term: &Term, stop: &CancellationToken) {
        let mut wait = self.duration / 4;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let begun = Instant::now();
            let certain_until = term.certain_until().unwrap_or(begun);
            let limit = self.attempt_limit(begun).min(certain_until);
            let attempt = tokio::select! {
                () = stop.cancelled() => return,
                attempt = self.attempt(limit) => attempt,
            };
            match attempt {
                Attempt::Ours => {
                    term.renew(self.certain_after(begun));
                    wait = self.duration / 4;
                }
                _ if Instant::now() >= certain_until || self.is_of_another() => return,
                Attempt::OfAnother | Attempt::Failed => {
                    wait = (self.duration / 15).min(certain_until.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// The time until which a Lease that is written after `begun` is certain. Another replica waits for the whole duration
    /// after it has seen the write.
    fn certain_after(&self, begun: Instant) -> Instant {
        begun + self.duration * 2 / 3
    }

    /// The time limit of an attempt: several fit into the time in which the Lease is certain.
    fn attempt_limit(&self, begun: Instant) -> Instant {
        begun + self.duration / 6
    }

    fn is_of_another(&self) -> bool {
        let holder = self.observed.as_ref().map(|observed| holder(&observed.object)).unwrap_or_default();
        !holder.is_empty() && holder != self.identity
    }

    /// Acquires a free Lease, or renews the Lease that this replica holds.
    async fn attempt(&mut self, deadline: Instant) -> Attempt {
        let result = match tokio::time::timeout_at(deadline, self.acquire_or_renew()).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("no response in time".to_owned()),
        };
        match result {
            Ok(is_ours) => {
                self.failure_is_logged = false;
                if is_ours { Attempt::Ours } else { Attempt::OfAnother }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failure_is_logged, true) {
                    warn!(target: "leader", lease = self.lease.name, error, "cannot read or write the Lease, retrying");
                }
                Attempt::Failed
            }
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<bool, RequestError> {
        let Some(object) = self.lease.get().await? else {
            let mut object = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": self.lease.name, "namespace": self.lease.namespace},
            });
            self.set_holder(&mut object, true);
            let written = self.lease.write(Method::POST, "", &object).await?;
            self.observed = written.map(|object| ObservedLease { object, since: Instant::now() });
            return Ok(self.observed.is_some());
        };
        if self.observed.as_ref().is_none_or(|observed| observed.object["spec"] != object["spec"]) {
            self.observed = Some(ObservedLease { object: object.clone(), since: Instant::now() });
        }
        let holder = holder(&object);
        let lease_duration = object["spec"]["leaseDurationSeconds"].as_f64().unwrap_or_default();
        let lease_duration = Duration::try_from_secs_f64(lease_duration).unwrap_or_default().max(self.duration);
        let is_free = holder.is_empty()
            || self.observed.as_ref().is_some_and(|observed| observed.since.elapsed() >= lease_duration);
        let is_ours = holder == self.identity;
        if !is_ours && !is_free {
            return Ok(false);
        }
        let mut new = object;
        self.set_holder(&mut new, !is_ours);
        let path = format!("/{}", self.lease.name);
        match self.lease.write(Method::PUT, &path, &new).await? {
            Some(written) => {
                self.observed = Some(ObservedLease { object: written, since: Instant::now() });
                Ok(true)
            }
            // Another replica wrote first.
            None => Ok(false),
        }
    }

    /// Writes this replica as the holder and the times into a Lease.
    fn set_holder(&self, object: &mut Value, is_new: bool) {
        let now = micro_time();
        let transitions = object["spec"]["leaseTransitions"].as_i64();
        let spec = &mut object["spec"];
        spec["holderIdentity"] = self.identity.as_str().into();
        spec["leaseDurationSeconds"] = self.duration.as_secs().max(1).into();
        spec["renewTime"] = now.as_str().into();
        if is_new {
            spec["acquireTime"] = now.into();
            spec["leaseTransitions"] = transitions.map_or(0, |count| count.saturating_add(1)).into();
        }
    }

    /// Releases the Lease, so that another replica can acquire it at once.
    async fn release(&self) {
        let Some(observed) = self.observed.as_ref().filter(|observed| holder(&observed.object) == self.identity) else {
            return;
        };
        let mut object = observed.object.clone();
        object["spec"]["holderIdentity"] = "".into();
        object["spec"]["leaseDurationSeconds"] = 1.into();
        object["spec"]["renewTime"] = micro_time().into();
        let (limit, path) = (Duration::from_secs(2), format!("/{}", self.lease.name));
        let released = self.lease.write(Method::PUT, &path, &object);
        if !matches!(tokio::time::timeout(limit, released).await, Ok(Ok(Some(_)))) {
            info!(target: "leader", lease = self.lease.name, "cannot release the Lease, it expires by itself");
        }
    }
}

fn holder(object: &Value) -> &str {
    object["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// The time now in the form of a Kubernetes `MicroTime`.
fn micro_time() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or_default();
    let at = jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
    format!("{at:.6}")
}

/// Reads and writes one Lease.
struct LeaseApi {
    client: Client,
    namespace: Text,
    name: &'static str,
}

impl LeaseApi {
    async fn get(&self) -> Result<Option<Value>, RequestError> {
        match self.send(Method::GET, &format!("/{}", self.name), Vec::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a Lease. `None` if another replica wrote first.
    async fn write(&self, method: Method, path: &str, object: &Value) -> Result<Option<Value>, RequestError> {
        match self.send(method, path, object.to_string().into_bytes()).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, kube::Error> {
        let uri = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases{path}", self.namespace);
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        transport::request(&self.client, request.map_err(kube::Error::HttpError)?).await
    }
}
