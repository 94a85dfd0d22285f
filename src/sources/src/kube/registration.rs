//! Registration and health of workloads outside Kubernetes (S13, S14).
//!
//! A proxy that names a WorkloadGroup gets a WorkloadEntry while it is connected. The replica that it is connected to writes
//! the entry, so this is no work of a leader; annotations name the replica and the time. The leader removes the entries of
//! proxies that have gone, see [`EntryCleaner`].
//!
//! Entries are written whole, with their resourceVersion: two replicas may write at the same time when a proxy reconnects, and
//! server-side apply would let the later one win, whichever the proxy is connected to. Their conditions are one list, which
//! other writers extend.

mod cleaner;
mod entry;
mod identity;
mod metrics;
mod waiting;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Client;
use sluice_kube::Backoff;
use sluice_model::{Proxy, Text};
use sluice_tasks::{FailedAttempts, sleep_until_due};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use cleaner::{CleanupOptions, EntryCleaner};
use entry::EntryApi;
pub use metrics::RegistrationMetrics;
use waiting::{StreamChanges, WaitingStreams};
use workload::{ConnectedWorkload, HealthReport, Presence};

/// Maximum number of workloads that are connected, or whose entries are to be written. Streams of further ones are refused.
const MAX_WORKLOADS: usize = 100_000;
/// Maximum number of entries that are written at the same time.
const MAX_WRITES: usize = 8;
/// Wait after the first failed write of an entry. It doubles with each further one.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(100);
/// Longest wait after a failed write.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);
/// Time in which the entries of streams that end with the process are written.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(5);

/// What is registered, and by whom.
#[derive(Clone, Debug)]
pub struct RegistrationOptions {
    /// Name of this replica, its pod: the value of annotation `istio.io/workloadController`.
    pub controller: Text,
    /// Entries are created for proxies that name a WorkloadGroup (`PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION`).
    pub registers: bool,
    /// The health that proxies report is written (`PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS`).
    pub reports_health: bool,
    /// An entry is only written for a proxy with its identity (`ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY`).
    pub checks_identity: bool,
}

/// Ends a stream with a reason.
pub type Refuse = Arc<dyn Fn(String) + Send + Sync>;

/// A stream of a proxy.
pub struct WorkloadStream {
    /// Number of the stream.
    pub id: u64,
    /// The proxy, with the identity of the caller.
    pub proxy: Arc<Proxy>,
    /// When it connected.
    pub connected_at: SystemTime,
    /// Ends the stream.
    pub refuse: Refuse,
}

/// Reports streams to the [`WorkloadRegistrar`]. Calls do not block.
#[derive(Clone)]
pub struct RegistrarHandle {
    waiting: WaitingStreams,
    registers: bool,
    reports_health: bool,
}

impl RegistrarHandle {
    /// Whether the proxy is one of a workload outside Kubernetes, so that its streams have to be reported.
    #[must_use]
    pub fn concerns(&self, proxy: &Proxy) -> bool {
        (self.registers && identity::group(proxy).is_some())
            || (self.reports_health && identity::entry(proxy).is_some())
    }

    /// A proxy has connected.
    pub fn connected(&self, stream: WorkloadStream) {
        self.waiting.connected(stream);
    }

    /// A stream has ended.
    pub fn disconnected(&self, proxy: Arc<Proxy>, stream: u64) {
        self.waiting.disconnected(stream, proxy, SystemTime::now());
    }

    /// A proxy reports over a stream that its workload is healthy, or why it is not.
    pub fn reported(&self, proxy: Arc<Proxy>, stream: u64, health: Result<(), String>) {
        if self.reports_health {
            self.waiting.reported(stream, proxy, HealthReport { result: health, at: SystemTime::now() });
        }
    }
}

/// Namespace and name of an entry.
type EntryKey = (Text, Text);

/// Writes the WorkloadEntries of connected proxies.
pub struct WorkloadRegistrar {
    api: EntryApi,
    waiting: WaitingStreams,
    workloads: BTreeMap<EntryKey, ConnectedWorkload>,
    writing: BTreeSet<EntryKey>,
    failures: FailedAttempts,
}

impl WorkloadRegistrar {
    /// A registrar, and the handle by which it learns of streams.
    #[must_use]
    pub fn new(client: Client, options: RegistrationOptions, metrics: RegistrationMetrics) -> (Self, RegistrarHandle) {
        let waiting = WaitingStreams::default();
        let handle = RegistrarHandle {
            waiting: waiting.clone(),
            registers: options.registers,
            reports_health: options.reports_health,
        };
        let api = EntryApi::new(client, options, metrics);
        let failures = FailedAttempts::of("workload registrar");
        (Self { api, waiting, workloads: BTreeMap::new(), writing: BTreeSet::new(), failures }, handle)
    }

    /// Runs until `stop` is cancelled and the entries of the streams that end then are written.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut writes = FuturesUnordered::new();
        let mut stopped_at = None;
        loop {
            let now = Instant::now();
            let due = |workload: &ConnectedWorkload| workload.due.is_some_and(|due| due <= now);
            let ready: Vec<EntryKey> = self
                .workloads
                .iter()
                .filter(|(key, workload)| due(workload) && !self.writing.contains(*key))
                .map(|(key, _)| key.clone())
                .take(MAX_WRITES.saturating_sub(self.writing.len()))
                .collect();
            for key in ready {
                let Some(workload) = self.workloads.get_mut(&key) else { continue };
                workload.due = None;
                let (api, wanted) = (self.api.clone(), workload.wanted());
                self.writing.insert(key.clone());
                writes.push(async move {
                    let result = api.reconcile(&key, &wanted).await;
                    (key, wanted, result)
                });
            }
            if stopped_at.is_some()
                && self.writing.is_empty()
                && self.workloads.values().all(ConnectedWorkload::is_gone)
            {
                return;
            }
            let next = match self.writing.len() < MAX_WRITES {
                true => self.waiting().filter_map(|workload| workload.due).min(),
                false => None,
            };
            tokio::select! {
                () = stop.cancelled(), if stopped_at.is_none() => stopped_at = Some(Instant::now() + STOPPED_TIMEOUT),
                () = sleep_until_due(stopped_at) => return,
                streams = self.waiting.take() => for (id, changes) in streams {
                    self.apply(id, changes);
                },
                Some((key, wanted, result)) = writes.next() => self.written(&key, &wanted, result),
                () = sleep_until_due(next) => {}
            }
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &ConnectedWorkload> {
        self.workloads.iter().filter(|(key, _)| !self.writing.contains(*key)).map(|(_, workload)| workload)
    }

    /// The entry of a proxy: of its group, or the one that it names.
    fn key(&self, proxy: &Proxy) -> Result<(EntryKey, bool), String> {
        let registers = self.api.options.registers && identity::group(proxy).is_some();
        let name = if registers { identity::registered_name(proxy)? } else { identity::named_entry(proxy)? };
        Ok(((proxy.namespace.clone(), name.into()), registers))
    }

    fn apply(&mut self, id: u64, changes: StreamChanges) {
        let StreamChanges { connected, reported, disconnected } = changes;
        if let Some(stream) = connected {
            match self.key(&stream.proxy) {
                Ok((key, _)) if self.workloads.len() >= MAX_WORKLOADS && !self.workloads.contains_key(&key) => {
                    refuse(&stream, "too many workloads are registered");
                }
                Ok((key, registers)) => self.workloads.entry(key).or_default().connect(stream, registers),
                Err(reason) => refuse(&stream, &reason),
            }
        }
        if let Some((proxy, health)) = reported
            && let Some(workload) = self.workload(&proxy)
        {
            workload.report(health);
        }
        if let Some((proxy, at)) = disconnected
            && let Some(workload) = self.workload(&proxy)
        {
            workload.disconnect(id, at);
        }
    }

    fn workload(&mut self, proxy: &Proxy) -> Option<&mut ConnectedWorkload> {
        let (key, _) = self.key(proxy).ok()?;
        self.workloads.get_mut(&key)
    }

    fn written(&mut self, key: &EntryKey, wanted: &workload::EntryState, result: Result<bool, entry::EntryError>) {
        self.writing.remove(key);
        let Some(workload) = self.workloads.get_mut(key) else { return };
        let (namespace, name) = key;
        match result {
            Ok(changed) => {
                workload.failures = 0;
                workload.reconciled(wanted, Instant::now());
                let presence = match wanted.presence {
                    Presence::Connected { .. } => "connected",
                    Presence::Disconnected { .. } => "disconnected",
                };
                if changed {
                    info!(target: "wle", %namespace, name = %name, presence, "wrote a WorkloadEntry");
                }
                if matches!(wanted.presence, Presence::Disconnected { .. }) && workload.is_gone() {
                    self.workloads.remove(key);
                }
            }
            Err(error) if error.is_permanent() => {
                workload.streams.values().for_each(|stream| refuse(stream, &error.to_string()));
                // The streams end. A proxy that connects again is judged anew.
                self.workloads.remove(key);
            }
            Err(error) => {
                let wait = match error.is_conflict() {
                    true => Duration::ZERO,
                    false => Backoff::after(workload.failures, FIRST_RETRY_WAIT, MAX_RETRY_WAIT),
                };
                if !error.is_conflict()
                    && let Some(failures) = self.failures.count()
                {
                    warn!(
                        target: "wle", %namespace, name = %name, %error, failures,
                        "failed to write a WorkloadEntry, retrying; reported once a minute"
                    );
                }
                workload.failures = workload.failures.saturating_add(1);
                workload.due = Some(Instant::now() + wait);
            }
        }
    }
}

fn refuse(stream: &WorkloadStream, reason: &str) {
    warn!(target: "wle", node = %stream.proxy.id, reason, "refused the registration of a workload");
    (stream.refuse)(format!("registration of the workload failed: {reason}"));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn streams_concern_the_registrar_as_the_switches_say() {
        let concerned = |registers, reports_health| {
            let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
            let client = sluice_kube::client(config).expect("a client");
            let options =
                RegistrationOptions { controller: "one".into(), registers, reports_health, checks_identity: true };
            let (_, handle) = WorkloadRegistrar::new(client, options, RegistrationMetrics::default());
            // The one registers itself, the other names an entry whose health it reports.
            ["AUTO_REGISTER_GROUP", "WORKLOAD_ENTRY"].map(|name| {
                let metadata = [(name.into(), "\"vms\"".into())].into_iter().collect();
                handle.concerns(&Proxy { namespace: "app".into(), metadata, ..Proxy::default() })
            })
        };
        assert_eq!(concerned(true, true), [true, true]);
        assert_eq!(concerned(false, true), [false, true]);
        assert_eq!(concerned(true, false), [true, false]);
        assert_eq!(concerned(false, false), [false, false]);
    }

    #[tokio::test]
    async fn stream_of_a_workload_over_the_limit_is_refused() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = sluice_kube::client(config).expect("a client");
        let options = RegistrationOptions {
            controller: "one".into(),
            registers: true,
            reports_health: true,
            checks_identity: true,
        };
        let (mut registrar, _) = WorkloadRegistrar::new(client, options, RegistrationMetrics::default());
        let known = |n: usize| (("app".into(), format!("vms-10.0.0.{n}").into()), ConnectedWorkload::default());
        registrar.workloads.extend((0..MAX_WORKLOADS).map(known));
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let mut connect = |id: u64, ip: &str| {
            let proxy = Proxy {
                namespace: "app".into(),
                ips: vec![ip.into()],
                metadata: [("AUTO_REGISTER_GROUP".into(), "\"vms\"".into())].into_iter().collect(),
                ..Proxy::default()
            };
            let recorded = reasons.clone();
            let refuse: Refuse = Arc::new(move |reason| recorded.lock().expect("no panic").push(reason));
            let connected_at = SystemTime::UNIX_EPOCH;
            let stream = WorkloadStream { id, proxy: Arc::new(proxy), connected_at, refuse };
            registrar.apply(id, StreamChanges { connected: Some(stream), ..StreamChanges::default() });
            reasons.lock().expect("no panic").len()
        };
        assert_eq!(connect(1, "10.0.0.7"), 0, "its workload is known");
        assert_eq!(connect(2, "10.1.0.7"), 1);
        let reasons = reasons.lock().expect("no panic");
        assert_eq!(reasons[0], "registration of the workload failed: too many workloads are registered");
    }
}
