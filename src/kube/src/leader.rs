//! Which of several replicas writes (O17): a Lease of the own namespace says.
//!
//! Whoever holds it renews it; a lease that has not changed for its whole duration, by the own clock, is free. So clocks of
//! replicas may differ. A leader that cannot renew stops before another may begin.

use std::time::{Duration, SystemTime};

use http::{Method, Request, header};
use kube::Client;
use rand::Rng as _;
use serde_json::{Value, json};
use sluice_model::Text;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::chain;

/// Lease of who writes roots into namespaces.
pub const ROOTS_LEASE: &str = "istio-namespace-controller-election";
/// Lease of who writes addresses of ServiceEntries into their statuses.
pub const ADDRESSES_LEASE: &str = "istio-ip-autoallocate";
/// Lease of who writes the ClusterTrustBundle.
pub const TRUST_BUNDLE_LEASE: &str = "istio-clustertrustbundle-controller-election";

/// A replica that may become leader.
#[derive(Clone)]
pub struct Election {
    /// Without one, this replica leads: nobody else is there, or it was switched off.
    client: Option<Client>,
    namespace: Text,
    identity: String,
    duration: Duration,
}

impl Election {
    /// As a pod of a namespace; without a client, every replica leads.
    #[must_use]
    pub fn new(client: Option<Client>, namespace: Text, pod: &str) -> Self {
        let unique: u32 = rand::rng().random();
        let pod = if pod.is_empty() { "sluiced" } else { pod };
        Self { client, namespace, identity: format!("{pod}-{unique:08x}"), duration: Duration::from_secs(30) }
    }

    /// With leases that last so long.
    #[must_use]
    pub fn lasting(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// Works while this replica leads: `work` is begun anew each time it becomes leader, and told to end when it no longer
    /// is, until `stop` is cancelled.
    pub async fn lead<W: Future<Output = ()>>(
        self,
        lease: &'static str,
        stop: CancellationToken,
        mut work: impl FnMut(CancellationToken) -> W,
    ) {
        let Some(client) = self.client.clone() else { return work(stop).await };
        let mut candidate = Candidate {
            leases: Leases { client, namespace: self.namespace, name: lease },
            identity: self.identity,
            duration: self.duration,
            seen: None,
            told: false,
        };
        while let Some(lost) = candidate.wait_for_turn(&stop).await {
            info!(target: "leader", lease, identity = candidate.identity, "leading");
            let term = stop.child_token();
            let working = work(term.clone());
            tokio::pin!(working);
            let kept = candidate.keep(lost, &stop);
            let ended = tokio::select! {
                () = &mut working => true,
                () = kept => false,
            };
            if !ended {
                term.cancel();
                working.await;
            }
            if ended || stop.is_cancelled() {
                candidate.release().await;
                return;
            }
            warn!(target: "leader", lease, identity = candidate.identity, "no longer leading");
        }
    }
}

/// A lease as it was seen, and when it was first seen so.
struct Seen {
    object: Value,
    since: Instant,
}

struct Candidate {
    leases: Leases,
    identity: String,
    duration: Duration,
    seen: Option<Seen>,
    /// That the lease cannot be read or written has been told.
    told: bool,
}

impl Candidate {
    /// Waits until it leads; gives the time until which that is certain. Nothing if it is to stop.
    async fn wait_for_turn(&mut self, stop: &CancellationToken) -> Option<Instant> {
        loop {
            let begun = Instant::now();
            if self.try_take().await {
                return Some(begun + self.duration / 2);
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(self.duration / 4) => {}
            }
        }
    }

    /// Renews until it is lost or to be given up.
    async fn keep(&mut self, mut certain_until: Instant, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.duration / 4) => {}
            }
            let begun = Instant::now();
            let renewed = tokio::time::timeout_at(certain_until, self.try_take()).await;
            if renewed.unwrap_or(false) {
                certain_until = begun + self.duration / 2;
            } else if Instant::now() >= certain_until || self.is_of_another() {
                return;
            }
        }
    }

    fn is_of_another(&self) -> bool {
        let holder = self.seen.as_ref().map(|seen| holder(&seen.object)).unwrap_or_default();
        !holder.is_empty() && holder != self.identity
    }

    /// Takes the lease if it is free, or renews it; whether it is ours now.
    async fn try_take(&mut self) -> bool {
        match self.take().await {
            Ok(ours) => {
                self.told = false;
                ours
            }
            Err(error) => {
                if !std::mem::replace(&mut self.told, true) {
                    warn!(target: "leader", lease = self.leases.name, error, "cannot take part in the election");
                }
                false
            }
        }
    }

    async fn take(&mut self) -> Result<bool, String> {
        let Some(object) = self.leases.get().await? else {
            let mut object = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": self.leases.name, "namespace": self.leases.namespace},
            });
            self.sign(&mut object, true);
            let written = self.leases.write(Method::POST, "", &object).await?;
            self.seen = written.map(|object| Seen { object, since: Instant::now() });
            return Ok(self.seen.is_some());
        };
        if self.seen.as_ref().is_none_or(|seen| seen.object["spec"] != object["spec"]) {
            self.seen = Some(Seen { object: object.clone(), since: Instant::now() });
        }
        let holder = holder(&object);
        let lasts = object["spec"]["leaseDurationSeconds"].as_f64().unwrap_or_default();
        let lasts = Duration::try_from_secs_f64(lasts).unwrap_or_default().max(self.duration);
        let is_free = holder.is_empty() || self.seen.as_ref().is_some_and(|seen| seen.since.elapsed() >= lasts);
        let is_ours = holder == self.identity;
        if !is_ours && !is_free {
            return Ok(false);
        }
        let mut new = object;
        self.sign(&mut new, !is_ours);
        let path = format!("/{}", self.leases.name);
        match self.leases.write(Method::PUT, &path, &new).await? {
            Some(written) => {
                self.seen = Some(Seen { object: written, since: Instant::now() });
                Ok(true)
            }
            // Another was faster.
            None => Ok(false),
        }
    }

    /// Writes who holds it, and since when.
    fn sign(&self, object: &mut Value, is_new: bool) {
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

    /// Lets another have it at once.
    async fn release(&self) {
        let Some(seen) = self.seen.as_ref().filter(|seen| holder(&seen.object) == self.identity) else { return };
        let mut object = seen.object.clone();
        object["spec"]["holderIdentity"] = "".into();
        object["spec"]["leaseDurationSeconds"] = 1.into();
        object["spec"]["renewTime"] = micro_time().into();
        let (limit, path) = (Duration::from_secs(2), format!("/{}", self.leases.name));
        let released = self.leases.write(Method::PUT, &path, &object);
        if !matches!(tokio::time::timeout(limit, released).await, Ok(Ok(Some(_)))) {
            info!(target: "leader", lease = self.leases.name, "the lease is not given back: it ends by itself");
        }
    }
}

fn holder(object: &Value) -> &str {
    object["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// Now, as Kubernetes writes times with microseconds.
fn micro_time() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or_default();
    let at = jiff::Timestamp::from_microsecond(micros).unwrap_or_default();
    format!("{at:.6}")
}

/// A lease behind the API.
struct Leases {
    client: Client,
    namespace: Text,
    name: &'static str,
}

impl Leases {
    async fn get(&self) -> Result<Option<Value>, String> {
        match self.send(Method::GET, &format!("/{}", self.name), Vec::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Writes one; nothing if another was faster.
    async fn write(&self, method: Method, path: &str, object: &Value) -> Result<Option<Value>, String> {
        match self.send(method, path, object.to_string().into_bytes()).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, kube::Error> {
        let uri = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases{path}", self.namespace);
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        self.client.request(request.map_err(kube::Error::HttpError)?).await
    }
}
