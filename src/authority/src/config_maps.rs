//! Writes the roots, and the revocation lists, into every namespace (P04, P11).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use sluice_engine::{Batch, Feed, Published};
use sluice_kube::{Api, Backoff, KubeOptions, ListWatch, Receiver, Resource, Told, chain};
use sluice_model::{Namespace, ObjectKey, Text};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::server::TrustBundle;

/// Namespaces of Kubernetes that have no pods of a mesh. `kube-system` may: node proxies.
const WITHOUT: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Tries for a namespace before it is left alone until something changes.
const TRIES: u32 = 5;
/// First wait between two tries; each further one in a row is twice as long.
const RETRY: Duration = Duration::from_millis(100);

/// A ConfigMap that every namespace gets.
#[derive(Clone, Debug)]
struct Wanted {
    name: String,
    key: &'static str,
    text: fn(&TrustBundle) -> &str,
}

/// Writes ConfigMaps with what a bundle holds, into every namespace of a cluster, and mends them.
///
/// One of several replicas should do so, see [`Election`](sluice_kube::Election); if two do for a moment, they come to the same.
pub struct BundleWriter {
    client: Client,
    cluster: Text,
    /// The only namespace to write to; `None` is all.
    only: Option<Text>,
    feed: Feed,
    namespaces: Published<ObjectKey, Namespace>,
    bundle: watch::Receiver<TrustBundle>,
    wanted: Vec<Wanted>,
    options: KubeOptions,
    there: BTreeSet<Text>,
    /// What did not work, how often, and when to try again.
    failed: BTreeMap<(usize, Text), (u32, Instant)>,
}

/// What namespaces have in a ConfigMap; nothing before it was listed.
type Had = Option<BTreeMap<Text, String>>;

impl BundleWriter {
    /// Writes the roots into ConfigMaps of one name and, if there is another, the revocation lists into those of that.
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
        let mut wanted =
            vec![Wanted { name: roots.to_owned(), key: "root-cert.pem", text: |bundle| bundle.roots.as_str() }];
        wanted.extend(revoked.map(|name| Wanted {
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
            there: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Until `stop` is cancelled or the engine stops.
    pub async fn run(mut self, stop: CancellationToken) {
        let api = Api::new(self.client.clone(), self.options);
        let mut watches = tokio::task::JoinSet::new();
        let mut had = Vec::new();
        let (noticed, mut changes) = watch::channel(());
        for wanted in &self.wanted {
            let (sender, receiver) = watch::channel(None);
            let reader = Reader { key: wanted.key, had: BTreeMap::new(), sender, noticed: noticed.clone() };
            let backoff = Backoff::new(self.options.first_retry, self.options.last_retry);
            let watching = ListWatch::new(api.clone(), Resource::config_maps_named(&wanted.name), backoff, reader);
            watches.spawn(async move { drop(watching.run().await) });
            had.push(receiver);
        }
        loop {
            let due = self.failed.values().filter(|(tries, _)| *tries < TRIES).map(|(_, due)| *due).min();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
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
                () = wait => {}
            }
            let bundle = self.bundle.borrow_and_update().clone();
            for index in 0..self.wanted.len() {
                let had = had[index].borrow_and_update().clone();
                if let Some(had) = had {
                    self.write_all(index, &had, &bundle).await;
                }
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        for event in batch.events(&self.namespaces) {
            let name = &event.key.name;
            if event.key.cluster != self.cluster || WITHOUT.contains(&name.as_str()) {
                continue;
            }
            if self.only.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            self.failed.retain(|(_, namespace), _| namespace != name);
            if event.new.is_some() {
                self.there.insert(name.clone());
            } else {
                self.there.remove(name);
            }
        }
    }

    async fn write_all(&mut self, index: usize, had: &BTreeMap<Text, String>, bundle: &TrustBundle) {
        let wanted = self.wanted[index].clone();
        let text = (wanted.text)(bundle);
        // Nothing is no news: without revocation lists there is no ConfigMap of them.
        if text.is_empty() {
            return;
        }
        let now = Instant::now();
        for namespace in self.there.clone() {
            let place = (index, namespace.clone());
            if had.get(&namespace).is_some_and(|has| has == text) {
                self.failed.remove(&place);
                continue;
            }
            let (tries, due) = self.failed.get(&place).copied().unwrap_or((0, now));
            if tries >= TRIES || due > now {
                continue;
            }
            let result = self.write(&namespace, &wanted, text, had.contains_key(&namespace)).await;
            // Until the watch tells of it, it may look as if nothing had happened.
            let again = Instant::now() + RETRY * 2u32.pow(tries);
            self.failed.insert(place, (tries + 1, again));
            match result {
                Ok(()) => {
                    debug!(target: "ca", %namespace, config_map = wanted.name, "wrote what certificates are verified with")
                }
                Err(error) if tries + 1 == TRIES => {
                    warn!(target: "ca", %namespace, config_map = wanted.name, error, "cannot write what certificates are verified with");
                }
                Err(error) => debug!(target: "ca", %namespace, config_map = wanted.name, error, "trying again"),
            }
        }
    }

    async fn write(&self, namespace: &str, wanted: &Wanted, text: &str, exists: bool) -> Result<(), String> {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": wanted.name, "namespace": namespace, "labels": {"istio.io/config": "true"}},
            "data": {wanted.key: text},
        });
        let root = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (method, uri, kind) = match exists {
            true => (Method::PATCH, format!("{root}/{}", wanted.name), "application/merge-patch+json"),
            false => (Method::POST, root, "application/json"),
        };
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, kind);
        let request = request.body(object.to_string().into_bytes()).map_err(|error| error.to_string())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(()),
            // Another replica has made it, or somebody has taken it away: the watch will tell.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(chain(&error)),
        }
    }
}

/// What namespaces have in ConfigMaps of one name.
struct Reader {
    key: &'static str,
    had: BTreeMap<Text, String>,
    sender: watch::Sender<Had>,
    noticed: watch::Sender<()>,
}

impl Reader {
    fn set(&mut self, object: &Value) {
        if let Some(namespace) = object.pointer("/metadata/namespace").and_then(Value::as_str) {
            let text = object["data"][self.key].as_str().unwrap_or_default().to_owned();
            self.had.insert(namespace.into(), text);
        }
    }

    fn tell(&self) {
        self.sender.send_replace(Some(self.had.clone()));
        self.noticed.send_replace(());
    }
}

impl Receiver for Reader {
    fn begin_list(&mut self) {
        self.had.clear();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        self.tell();
    }

    fn told(&mut self, events: Vec<Told>) {
        for event in events {
            match event {
                Told::Set(object) => self.set(&object),
                Told::Deleted(object) => {
                    if let Some(namespace) = object.pointer("/metadata/namespace").and_then(Value::as_str) {
                        self.had.remove(namespace);
                    }
                }
                Told::Bookmark(_) => {}
            }
        }
        self.tell();
    }

    fn absent(&mut self) {
        self.had.clear();
        self.tell();
    }
}
