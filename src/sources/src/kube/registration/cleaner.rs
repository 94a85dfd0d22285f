//! Removes the WorkloadEntries of proxies that have gone (S13).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use kube::Client;
use sluice_engine::{Feed, Published};
use sluice_kube::{Backoff, Term, TermEnded, next_batch_or_due};
use sluice_model::{Labels, ObjectKey, Text, WorkloadEntry};
use sluice_tasks::FailedAttempts;
use tokio::time::Instant;
use tracing::{info, warn};

use super::entry::{CONNECTED_AT, CONTROLLER, DISCONNECTED_AT, ENTRIES, EntryApi, EntryError, GROUP};
use super::{RegistrationMetrics, RegistrationOptions};

/// Time between two removals. Many workloads may go at the same time.
const REMOVAL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait after a failure.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);

/// When the entry of a proxy is removed.
#[derive(Clone, Copy, Debug)]
pub struct CleanupOptions {
    /// Time after the end of the last stream (`PILOT_WORKLOAD_ENTRY_GRACE_PERIOD`).
    pub grace_period: Duration,
    /// Longest time for which a connection is open. The entry of a proxy that has been connected for one and a half times as
    /// long is an orphan: its replica has ended without a mark. `None` is unlimited.
    pub max_connection_age: Option<Duration>,
}

impl CleanupOptions {
    /// When an entry with these annotations is to be removed. `None` if it is not one of a proxy, or its proxy is connected.
    fn due(&self, annotations: &Labels) -> Option<SystemTime> {
        let text = |name: &str| annotations.get(name).map(|text| text.as_str()).filter(|text| !text.is_empty());
        if text(GROUP).is_none() && text(CONTROLLER).is_none() {
            return None;
        }
        let time = |text: &str| text.parse::<Timestamp>().ok().map(SystemTime::from);
        if let Some(connected) = text(CONNECTED_AT) {
            return time(connected)?.checked_add(self.max_connection_age?.mul_f64(1.5));
        }
        let disconnected = text(DISCONNECTED_AT)?;
        // A time that cannot be read counts as long ago.
        time(disconnected).unwrap_or(SystemTime::UNIX_EPOCH).checked_add(self.grace_period)
    }
}

/// Removes entries that proxies have registered and left, and the health of existing ones. One replica does this, also for
/// entries of replicas that have ended.
pub struct EntryCleaner {
    api: EntryApi,
    cluster: Text,
    options: CleanupOptions,
    feed: Feed,
    entries: Published<ObjectKey, WorkloadEntry>,
    due: BTreeMap<ObjectKey, Instant>,
    /// Time of the next removal, at the earliest.
    earliest: Instant,
    backoff: Backoff,
    failures: FailedAttempts,
}

impl EntryCleaner {
    /// Removes `entries` of the cluster of a client.
    #[must_use]
    pub fn new(
        (cluster, client): (Text, Client),
        registration: RegistrationOptions,
        options: CleanupOptions,
        feed: Feed,
        entries: Published<ObjectKey, WorkloadEntry>,
        metrics: RegistrationMetrics,
    ) -> Self {
        let (feed, backoff) = (feed.only(&entries), Backoff::new(Duration::from_millis(500), MAX_RETRY_WAIT));
        Self {
            api: EntryApi::new(client, registration, metrics),
            cluster,
            options,
            feed,
            entries,
            due: BTreeMap::new(),
            earliest: Instant::now(),
            backoff,
            failures: FailedAttempts::of("workload cleaner"),
        }
    }

    /// Runs until the term or the engine ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        loop {
            let due = self.due.values().min().map(|due| (*due).max(self.earliest));
            let Some(batch) = next_batch_or_due(&mut self.feed, due, term.ended()).await else { return };
            for event in batch.iter().flat_map(|batch| batch.events(&self.entries)) {
                let due = event.new.and_then(|entry| self.options.due(&entry.meta.annotations));
                match due.filter(|_| event.key.cluster == self.cluster) {
                    Some(due) => self.due.insert((*event.key).clone(), instant(due)),
                    None => self.due.remove(&event.key),
                };
            }
            if self.remove_due(&term).await.is_err() {
                return;
            }
        }
    }

    /// Removes the entry that has been due for the longest time, if one is, so that changes are read between two removals.
    async fn remove_due(&mut self, term: &Term) -> Result<(), TermEnded> {
        let now = Instant::now();
        let first = self.due.iter().min_by_key(|(_, due)| **due).filter(|(_, due)| **due <= now);
        let Some((key, _)) = first.filter(|_| self.earliest <= now) else { return Ok(()) };
        let key = key.clone();
        self.due.remove(&key);
        let wait = match term.write(self.remove(&key)).await? {
            // The watch reports the change.
            Ok(()) | Err(EntryError::Conflict) => {
                self.backoff.reset();
                REMOVAL_INTERVAL
            }
            Err(error) => {
                if let Some(failures) = self.failures.count() {
                    warn!(
                        target: "wle", workload_entry = %key, %error, failures,
                        "failed to remove a WorkloadEntry, retrying; reported once a minute"
                    );
                }
                let wait = self.backoff.failed();
                self.due.insert(key, Instant::now() + wait);
                // If the API server failed, the others would fail too.
                if error.is_permanent() { REMOVAL_INTERVAL } else { wait }
            }
        };
        self.earliest = Instant::now() + wait;
        Ok(())
    }

    async fn remove(&self, key: &ObjectKey) -> Result<(), EntryError> {
        let key = (key.namespace.clone(), key.name.clone());
        let Some(entry) = self.api.get(ENTRIES, &key).await? else { return Ok(()) };
        let annotations = entry["metadata"]["annotations"].as_object().into_iter().flatten();
        let annotations: Labels =
            annotations.filter_map(|(name, value)| Some((name.into(), value.as_str()?.into()))).collect();
        if self.options.due(&annotations).is_none_or(|due| due > SystemTime::now()) {
            // It was changed since. The watch reports that.
            return Ok(());
        }
        let (namespace, name) = &key;
        if annotations.get(GROUP).is_some_and(|group| !group.is_empty()) {
            self.api.delete(&key, &entry).await?;
            info!(target: "wle", %namespace, name = %name, "removed the WorkloadEntry of a proxy that has gone");
        } else if self.api.forget_health(&key, entry).await? {
            info!(target: "wle", %namespace, name = %name, "removed the health of a workload whose proxy has gone");
        }
        Ok(())
    }
}

fn instant(at: SystemTime) -> Instant {
    Instant::now() + at.duration_since(SystemTime::now()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use sluice_engine::{Engine, EngineOptions};
    use sluice_model::ObjectMeta;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn no_entry_is_removed_while_the_wait_after_a_failure_of_the_api_server_lasts() {
        let (engine, (input, entries)) = Engine::start(EngineOptions::default(), |builder| {
            builder.dataflow("test", |graph| {
                let (input, entries) = graph.input::<ObjectKey, WorkloadEntry>("entries");
                (input, entries.publish())
            })
        });
        let annotations = [(CONTROLLER, "one"), (DISCONNECTED_AT, "1970-01-01T00:00:01Z")];
        let annotations: Labels = annotations.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let meta = ObjectMeta { annotations, ..ObjectMeta::default() };
        engine.transaction(|tx| {
            for number in 0..50 {
                let key = ObjectKey::new("c", "shop", format!("entry-{number}"));
                tx.set(&input, key, WorkloadEntry { meta: meta.clone(), ..WorkloadEntry::default() });
            }
        });
        engine.flush();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let answer = move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, Infallible>(
                Response::builder().status(500).body(Body::empty()).expect("a response"),
            ))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let registration = RegistrationOptions {
            controller: "one".into(),
            registers: true,
            reports_health: true,
            checks_identity: true,
        };
        let options = CleanupOptions { grace_period: Duration::ZERO, max_connection_age: None };
        let metrics = RegistrationMetrics::default();
        let cleaner = EntryCleaner::new(("c".into(), client), registration, options, engine.feed(), entries, metrics);
        let stop = CancellationToken::new();
        let cleaning = tokio::spawn(cleaner.run(stop.clone()));
        // With a wait between two removals only, these are 30 requests.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stop.cancel();
        cleaning.await.expect("the cleaner ends");
        let requests = requests.load(Ordering::SeqCst);
        assert!((1..=5).contains(&requests), "{requests}");
    }

    #[test]
    fn entries_are_due_after_the_grace_period_or_as_orphans() {
        let options =
            CleanupOptions { grace_period: Duration::from_secs(10), max_connection_age: Some(Duration::from_secs(60)) };
        let due = |options: &CleanupOptions, annotations: &[(&str, &str)]| {
            let annotations = annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let due = options.due(&annotations)?.duration_since(SystemTime::UNIX_EPOCH);
            Some(due.expect("after 1970").as_secs())
        };
        let group = (GROUP, "vms");
        assert_eq!(due(&options, &[(DISCONNECTED_AT, "1970-01-01T00:00:01Z")]), None, "it is not one of a proxy");
        assert_eq!(due(&options, &[group]), None);
        assert_eq!(due(&options, &[group, (DISCONNECTED_AT, "1970-01-01T00:00:01Z")]), Some(11));
        assert_eq!(due(&options, &[(CONTROLLER, "one"), (DISCONNECTED_AT, "never")]), Some(10));
        let connected = [group, (CONNECTED_AT, "1970-01-01T00:00:01.5Z"), (DISCONNECTED_AT, "1970-01-01T00:00:01Z")];
        assert_eq!(due(&options, &connected), Some(91));
        assert_eq!(due(&CleanupOptions { max_connection_age: None, ..options }, &connected), None);
    }
}
