//! Writes the roots and the revocation lists into a ConfigMap of every namespace (P04, P11).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use http::Method;
use kube::Client;
use kube::core::Status;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published};
use sluice_kube::{
    Api, Backoff, KubeOptions, ListWatch, ObjectPath, ROOTS_LOCK, Receiver, RequestError, Resource, Term, TermEnded,
    WatchEvent, WatchStates,
};
use sluice_model::{Namespace, ObjectKey, Text};
use sluice_tasks::{FailedAttempts, restart_with, sleep_until_due};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::api_request;
use crate::server::TrustBundle;

/// Namespaces of Kubernetes without pods of a mesh. `kube-system` can have node proxies.
const EXCLUDED_NAMESPACES: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// The cause with which the API server refuses to create an object in a namespace that is being deleted.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
/// Wait after the first failed attempt for a namespace. It doubles with each further one.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(100);
/// Longest wait after the API server refused a write.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);
/// Wait before a ConfigMap is repaired that was repaired shortly before. It doubles with each further repair.
const FIRST_REPAIR_WAIT: Duration = Duration::from_secs(1);
/// Longest wait before a repair.
const MAX_REPAIR_WAIT: Duration = Duration::from_secs(60);
/// Time without a repair after which the next one does not wait.
const REPAIR_MEMORY: Duration = Duration::from_secs(600);
/// Number of repairs in a row that is reported.
const REPORTED_REPAIRS: u32 = 4;
/// Longest wait after a failure of the API server as a whole.
const MAX_SERVER_RETRY_WAIT: Duration = Duration::from_secs(3);
/// Time in which the watch has to report a written ConfigMap. It is written again after that.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A ConfigMap that every namespace receives.
#[derive(Clone, Debug)]
struct WantedConfigMap {
    name: String,
    key: &'static str,
    text: fn(&TrustBundle) -> &str,
}

/// Writes ConfigMaps with the trust bundle into every namespace of a cluster, and repairs them.
///
/// One of several control planes should write, see [`Election`](sluice_kube::Election). A ConfigMap that another writer has
/// changed is repaired only after the lock has been confirmed, because the other may have taken it. Repairs of the same
/// ConfigMap in a row wait longer and longer: another control plane may write without a lock.
pub struct BundleWriter {
    client: Client,
    cluster: Text,
    /// The only namespace to write to; `None` is all.
    only: Option<Text>,
    feed: Feed,
    namespaces: Published<ObjectKey, Namespace>,
    bundle: watch::Receiver<TrustBundle>,
    wanted: Vec<WantedConfigMap>,
    options: KubeOptions,
    states: WatchStates,
    existing: BTreeSet<Text>,
    /// Writes that have failed, or that the watch has not reported yet: number of failures, and the time of the next
    /// attempt.
    pending: BTreeMap<(usize, Text), (u32, Instant)>,
    /// Repairs of ConfigMaps that had the wanted content: their number, and the time of the last one.
    repairs: BTreeMap<(usize, Text), (u32, Instant)>,
    failures: FailedAttempts,
}

/// Content of a ConfigMap by namespace; `None` before the first list.
type ContentByNamespace = Option<BTreeMap<Text, String>>;

impl BundleWriter {
    /// Writes the roots into ConfigMaps named `roots` and, if named, the revocation lists into those named `revoked`.
    #[must_use]
    pub fn new(
        client: Client,
        cluster: Text,
        only: Option<Text>,
        feed: Feed,
        namespaces: Published<ObjectKey, Namespace>,
        bundle: watch::Receiver<TrustBundle>,
        (roots, revoked): (&str, Option<&str>),
    ) -> Self {
        let mut wanted = vec![WantedConfigMap {
            name: roots.to_owned(),
            key: "root-cert.pem",
            text: |bundle| bundle.roots.as_str(),
        }];
        wanted.extend(revoked.map(|name| WantedConfigMap {
            name: name.to_owned(),
            key: "ca-crl.pem",
            text: |bundle| bundle.revoked.as_str(),
        }));
        Self {
            client,
            cluster,
            only,
            feed: feed.only(&namespaces),
            namespaces,
            bundle,
            wanted,
            options: KubeOptions::default(),
            states: WatchStates::default(),
            existing: BTreeSet::new(),
            pending: BTreeMap::new(),
            repairs: BTreeMap::new(),
            failures: FailedAttempts::of("root ConfigMap writer"),
        }
    }

    /// Adds the watched ConfigMaps to `states`.
    #[must_use]
    pub fn with_states(self, states: WatchStates) -> Self {
        Self { states, ..self }
    }

    /// Runs until the term or the engine ends.
    pub async fn run(mut self, term: impl Into<Term>) {
        let term = term.into();
        let api = Api::new(self.client.clone(), self.cluster.clone(), self.options, self.states.clone());
        let mut watches = tokio::task::JoinSet::new();
        let mut contents = Vec::new();
        let (notify, mut changes) = watch::channel(());
        for wanted in &self.wanted {
            let (sender, receiver) = watch::channel(None);
            let reader =
                ConfigMapReceiver { key: wanted.key, contents: BTreeMap::new(), sender, notify: notify.clone() };
            // With one namespace, this may be the only one whose ConfigMaps the control plane may read.
            let resource = Resource::config_maps_named(&wanted.name, self.only.clone());
            let mut watching = ListWatch::new(api.clone(), resource, self.options.backoff(), reader);
            let name = format!("watch of ConfigMap {}", wanted.name);
            watches.spawn(async move {
                restart_with(&name, &mut watching, |watch| watch.run().boxed()).await;
            });
            contents.push(receiver);
        }
        let mut last = self.bundle.borrow().clone();
        loop {
            let due = self.pending.values().map(|(_, due)| *due).min();
            tokio::select! {
                () = term.ended().cancelled() => return,
                batch = self.feed.next() => match batch {
                    Some(batch) => self.take(&batch),
                    None => return,
                },
                changed = self.bundle.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = changes.changed() => {}
                () = sleep_until_due(due) => {}
            }
            let bundle = self.bundle.borrow_and_update().clone();
            // Any of the events above can come first after a change of the bundle.
            if (&bundle.roots, &bundle.revoked) != (&last.roots, &last.revoked) {
                self.pending.clear();
                self.repairs.clear();
                last = bundle.clone();
            }
            for (index, receiver) in contents.iter_mut().enumerate() {
                let current = receiver.borrow_and_update().clone();
                if let Some(current) = current
                    && self.write_all(index, &current, &bundle, &term).await.is_err()
                {
                    return;
                }
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        for event in batch.events(&self.namespaces) {
            let name = &event.key.name;
            if event.key.cluster != self.cluster || EXCLUDED_NAMESPACES.contains(&name.as_str()) {
                continue;
            }
            if self.only.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            // A write of a namespace that only changes its labels has been sent already.
            if event.old.is_some() == event.new.is_some() {
                continue;
            }
            self.pending.retain(|(_, namespace), _| namespace != name);
            self.repairs.retain(|(_, namespace), _| namespace != name);
            if event.new.is_some() {
                self.existing.insert(name.clone());
            } else {
                self.existing.remove(name);
            }
        }
    }

    async fn write_all(
        &mut self,
        index: usize,
        current: &BTreeMap<Text, String>,
        bundle: &TrustBundle,
        term: &Term,
    ) -> Result<(), TermEnded> {
        let wanted = self.wanted[index].clone();
        let text = (wanted.text)(bundle);
        self.pending.retain(|(of, namespace), _| *of != index || self.existing.contains(namespace));
        // Without revocation lists, their ConfigMap is empty. Agents can mount it before there are any.
        if bundle.roots.is_empty() {
            self.pending.retain(|(of, _), _| *of != index);
            return Ok(());
        }
        let now = Instant::now();
        for namespace in self.existing.clone() {
            let target = (index, namespace.clone());
            if current.get(&namespace).is_some_and(|content| content == text) {
                self.pending.remove(&target);
                self.repairs.entry(target).or_insert((0, now));
                continue;
            }
            // One that was deleted is written again at once.
            if current.contains_key(&namespace) {
                self.schedule_repair(&target, now, term).await?;
            }
            let (failures, due) = self.pending.get(&target).copied().unwrap_or((0, now));
            if due > now {
                continue;
            }
            let written = term.write(self.write(&namespace, &wanted, text, current.contains_key(&namespace))).await?;
            let error = match written {
                Ok(true) => {
                    debug!(target: "ca", %namespace, config_map = wanted.name, "wrote the ConfigMap");
                    self.pending.insert(target, (failures, Instant::now() + OBSERVE_TIMEOUT));
                    continue;
                }
                // The watch may not have reported the last write, which is then not the wanted one.
                Ok(false) => {
                    let wait = Backoff::after(failures, FIRST_RETRY_WAIT, MAX_SERVER_RETRY_WAIT);
                    self.pending.insert(target, (failures.saturating_add(1), Instant::now() + wait));
                    continue;
                }
                Err(error) => error,
            };
            let of_server = is_failure_of_server(&error);
            let longest = if of_server { MAX_SERVER_RETRY_WAIT } else { MAX_RETRY_WAIT };
            let wait = Backoff::after(failures, FIRST_RETRY_WAIT, longest);
            self.pending.insert(target, (failures.saturating_add(1), Instant::now() + wait));
            if let Some(failures) = self.failures.count() {
                let pending = self.pending.len();
                warn!(
                    target: "ca", %namespace, config_map = wanted.name, %error, pending, failures,
                    "failed to write the ConfigMap, retrying; reported once a minute"
                );
            }
            if of_server {
                // The others would fail too.
                let again = Instant::now() + wait;
                for other in &self.existing {
                    self.pending.entry((index, other.clone())).or_insert((0, again));
                }
                break;
            }
        }
        Ok(())
    }

    /// Schedules the write of a ConfigMap that had the wanted content and was changed by another writer.
    async fn schedule_repair(&mut self, target: &(usize, Text), now: Instant, term: &Term) -> Result<(), TermEnded> {
        if self.pending.contains_key(target) {
            return Ok(());
        }
        let Some((repairs, last)) = self.repairs.get_mut(target) else { return Ok(()) };
        if now.saturating_duration_since(*last) > REPAIR_MEMORY {
            *repairs = 0;
        }
        let wait = match repairs.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => Backoff::after(earlier, FIRST_REPAIR_WAIT, MAX_REPAIR_WAIT),
        };
        (*repairs, *last) = (repairs.saturating_add(1), now);
        if *repairs == REPORTED_REPAIRS {
            let config_map = &self.wanted[target.0].name;
            warn!(
                target: "ca", namespace = %target.1, config_map,
                "another writer changes the ConfigMap again and again: another control plane writes without the lock {}",
                ROOTS_LOCK.name()
            );
        }
        self.pending.insert(target.clone(), (0, now + wait));
        term.confirm(now).await
    }

    /// Writes a ConfigMap. `false` if it was created or deleted since the watch reported it.
    async fn write(
        &self,
        namespace: &str,
        wanted: &WantedConfigMap,
        text: &str,
        exists: bool,
    ) -> Result<bool, RequestError> {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": wanted.name, "namespace": namespace, "labels": {"istio.io/config": "true"}},
            "data": {wanted.key: text},
        });
        let config_maps = ObjectPath::new("/api/v1", "configmaps");
        let (method, uri) = match exists {
            true => (Method::PATCH, config_maps.of(namespace, &wanted.name, "")),
            false => (Method::POST, config_maps.all(namespace)),
        };
        match api_request::send(&self.client, method, uri, Some(&object)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            // The namespace is deleted after its objects. No object can be created in it meanwhile.
            Err(kube::Error::Api(status)) if has_cause(&status, NAMESPACE_TERMINATING) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

fn has_cause(status: &Status, reason: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason)
}

/// Whether the API server as a whole fails, and not only this write.
fn is_failure_of_server(error: &RequestError) -> bool {
    match error {
        RequestError::Unreachable(_) | RequestError::Credentials => true,
        RequestError::Status { code, .. } => *code == 429 || *code >= 500,
        RequestError::Malformed(_) => false,
    }
}

/// Content of the ConfigMaps of one name.
struct ConfigMapReceiver {
    key: &'static str,
    contents: BTreeMap<Text, String>,
    sender: watch::Sender<ContentByNamespace>,
    notify: watch::Sender<()>,
}

impl ConfigMapReceiver {
    fn set(&mut self, object: &Value) {
        if let Some(namespace) = object.pointer("/metadata/namespace").and_then(Value::as_str) {
            let text = object["data"][self.key].as_str().unwrap_or_default().to_owned();
            self.contents.insert(namespace.into(), text);
        }
    }

    fn publish(&self) {
        self.sender.send_replace(Some(self.contents.clone()));
        self.notify.send_replace(());
    }
}

impl Receiver for ConfigMapReceiver {
    fn begin_list(&mut self) {
        self.contents.clear();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        self.publish();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                WatchEvent::Delete(object) => {
                    if let Some(namespace) = object.pointer("/metadata/namespace").and_then(Value::as_str) {
                        self.contents.remove(namespace);
                    }
                }
            }
        }
        self.publish();
    }

    fn absent(&mut self) {
        self.contents.clear();
        self.publish();
    }
}
