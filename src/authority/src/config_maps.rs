//! Writes the roots and the revocation lists into a ConfigMap of every namespace (P04, P11).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published};
use sluice_kube::{Api, KubeOptions, ListWatch, Receiver, RequestError, Resource, WatchEvent, sleep_until_due};
use sluice_model::{Namespace, ObjectKey, Text};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::api_request;
use crate::server::TrustBundle;

/// Namespaces of Kubernetes without pods of a mesh. `kube-system` can have node proxies.
const EXCLUDED_NAMESPACES: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Attempts for a namespace before the writer waits for a change.
const MAX_ATTEMPTS: u32 = 5;
/// Wait after the first attempt; it doubles with each further one.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(100);

/// A ConfigMap that every namespace receives.
#[derive(Clone, Debug)]
struct WantedConfigMap {
    name: String,
    key: &'static str,
    text: fn(&TrustBundle) -> &str,
}

/// Writes ConfigMaps with the trust bundle into every namespace of a cluster, and repairs them.
///
/// One of several replicas should write, see [`Election`](sluice_kube::Election). If two write for a moment, they write the
/// same.
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
    existing: BTreeSet<Text>,
    /// Failed writes: number of attempts, and the time of the next one.
    failed: BTreeMap<(usize, Text), (u32, Instant)>,
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
            existing: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Runs until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        let api = Api::new(self.client.clone(), self.cluster.clone(), self.options);
        let mut watches = tokio::task::JoinSet::new();
        let mut contents = Vec::new();
        let (notify, mut changes) = watch::channel(());
        for wanted in &self.wanted {
            let (sender, receiver) = watch::channel(None);
            let reader =
                ConfigMapReceiver { key: wanted.key, contents: BTreeMap::new(), sender, notify: notify.clone() };
            let watching =
                ListWatch::new(api.clone(), Resource::config_maps_named(&wanted.name), self.options.backoff(), reader);
            watches.spawn(async move { drop(watching.run().await) });
            contents.push(receiver);
        }
        loop {
            let due = self.failed.values().filter(|(tries, _)| *tries < MAX_ATTEMPTS).map(|(_, due)| *due).min();
            tokio::select! {
                () = stop.cancelled() => return,
                batch = self.feed.next() => match batch {
                    Some(batch) => self.take(&batch),
                    None => return,
                },
                changed = self.bundle.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.failed.clear();
                }
                _ = changes.changed() => {}
                () = sleep_until_due(due) => {}
            }
            let bundle = self.bundle.borrow_and_update().clone();
            for (index, receiver) in contents.iter_mut().enumerate() {
                let current = receiver.borrow_and_update().clone();
                if let Some(current) = current {
                    self.write_all(index, &current, &bundle).await;
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
            self.failed.retain(|(_, namespace), _| namespace != name);
            if event.new.is_some() {
                self.existing.insert(name.clone());
            } else {
                self.existing.remove(name);
            }
        }
    }

    async fn write_all(&mut self, index: usize, current: &BTreeMap<Text, String>, bundle: &TrustBundle) {
        let wanted = self.wanted[index].clone();
        let text = (wanted.text)(bundle);
        // Without revocation lists, no ConfigMap is written for them.
        if text.is_empty() {
            return;
        }
        let now = Instant::now();
        for namespace in self.existing.clone() {
            let target = (index, namespace.clone());
            if current.get(&namespace).is_some_and(|content| content == text) {
                self.failed.remove(&target);
                continue;
            }
            let (tries, due) = self.failed.get(&target).copied().unwrap_or((0, now));
            if tries >= MAX_ATTEMPTS || due > now {
                continue;
            }
            let result = self.write(&namespace, &wanted, text, current.contains_key(&namespace)).await;
            // The watch reports the written ConfigMap later. Until then, a successful write counts as an attempt too.
            let retry_at = Instant::now() + FIRST_RETRY_WAIT * 2u32.pow(tries);
            self.failed.insert(target, (tries + 1, retry_at));
            match result {
                Ok(()) => {
                    debug!(target: "ca", %namespace, config_map = wanted.name, "wrote the ConfigMap")
                }
                Err(error) if tries + 1 == MAX_ATTEMPTS => {
                    warn!(target: "ca", %namespace, config_map = wanted.name, %error, "failed to write the ConfigMap, giving up until a change");
                }
                Err(error) => {
                    debug!(target: "ca", %namespace, config_map = wanted.name, %error, "failed to write the ConfigMap, retrying")
                }
            }
        }
    }

    async fn write(
        &self,
        namespace: &str,
        wanted: &WantedConfigMap,
        text: &str,
        exists: bool,
    ) -> Result<(), RequestError> {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": wanted.name, "namespace": namespace, "labels": {"istio.io/config": "true"}},
            "data": {wanted.key: text},
        });
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (method, uri) = match exists {
            true => (Method::PATCH, format!("{collection}/{}", wanted.name)),
            false => (Method::POST, collection),
        };
        match api_request::send(&self.client, method, uri, Some(&object)).await {
            Ok(_) => Ok(()),
            // Another writer created or deleted it. The watch reports the change.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error.into()),
        }
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
