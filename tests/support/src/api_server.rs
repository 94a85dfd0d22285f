//! The parts of a Kubernetes API server that clients use, over real HTTP.
//!
//! It keeps objects with resourceVersions, lists them in pages with continue tokens, sends events and bookmarks to
//! watches, answers 410 to a watch that is too far behind, and has discovery. Requests for the metadata of objects are
//! answered only in the form that a real server requires. Tests can make it slow, forbid kinds, disconnect or silence
//! watches, break lists off, compact its history and give wrong answers. It records requests, so that granted rights can be
//! compared with used ones.

mod answer;
mod discovery;
mod fault;
mod metadata;
mod patch;
mod port_forward;
mod response;
mod rights;
mod store;
mod versions;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::serve::ListenerExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use fault::WrongAnswer;
pub use rights::{Right, granted, granted_by_rules};
use store::ObjectStore;
pub use store::ResourceKind;

/// A request to the server: a verb on a resource, `services` or `gateways.networking.istio.io`.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct ReceivedRequest {
    /// `list`, `watch`, `get`, `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// API group, empty for the core group.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// The namespace, empty for all.
    pub namespace: String,
}

/// Faults that tests switch on.
#[derive(Clone, Debug, Default)]
struct Faults {
    slow_lists: Duration,
    /// A list may be requested as the beginning of a watch.
    streams_lists: bool,
    /// The number of lists that are broken off in the middle, by resource.
    broken_lists: BTreeMap<String, usize>,
    forbidden: BTreeSet<String>,
    /// Wrong answers to requests for a resource, `discovery`, or `*`, which is everything.
    wrong: BTreeMap<String, WrongAnswer>,
    /// Accepted tokens. Without a set, requests need no token.
    tokens: Option<BTreeSet<String>>,
}

#[derive(Default)]
struct State {
    store: ObjectStore,
    faults: Faults,
    requests: BTreeMap<ReceivedRequest, usize>,
    /// Statuses of TokenReviews, by token.
    reviews: BTreeMap<String, Value>,
    /// Number of streaming lists, by resource.
    streamed_lists: BTreeMap<String, usize>,
    /// The version of the last bookmark sent to watches of a resource.
    bookmarks: BTreeMap<String, u64>,
    /// Users that may list the Secrets of their namespace.
    readers: BTreeSet<String>,
    /// Addresses of forwarded ports, by `namespace/pod` and port.
    ports: BTreeMap<(String, u16), SocketAddr>,
    /// Number of requests to forward a port.
    forwarded: usize,
    /// Logs by `namespace/pod` and container.
    logs: BTreeMap<(String, String), String>,
    log_requests: Vec<String>,
}

/// State that all handlers share.
struct Shared {
    state: Mutex<State>,
    /// Counts changes; wakes watches.
    changed: watch::Sender<u64>,
    /// Counts disconnects; ends watches.
    disconnected: watch::Sender<u64>,
    /// Counts silences; watches that are open then send nothing more and do not end.
    silenced: watch::Sender<u64>,
    /// Counts changes of wrong answers; ends requests that hang.
    released: watch::Sender<u64>,
    /// Interval of bookmarks on an idle watch.
    bookmark_interval: Duration,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server. It ends when this is dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl ApiServer {
    /// A server on a free loopback port with the built-in kinds and no objects.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen for API requests")?;
        let address = listener.local_addr().context("read the local address")?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: watch::channel(0).0,
            disconnected: watch::channel(0).0,
            silenced: watch::channel(0).0,
            released: watch::channel(0).0,
            bookmark_interval: Duration::from_millis(20),
        });
        // As in an API server: what TCP holds back is lost when a connection with unread data is closed.
        let listener = listener.tap_io(|stream| {
            // It fails only for a connection that is gone.
            let _ = stream.set_nodelay(true);
        });
        let router = answer::router(shared.clone());
        let task = tokio::spawn(async move {
            // The task is aborted when the server is dropped.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { shared, address, task })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client of this server.
    ///
    /// # Errors
    /// The client cannot be created.
    pub fn client(&self) -> Result<kube::Client> {
        let uri = format!("http://{}", self.address).parse().context("parse the server's address")?;
        kube::Client::try_from(kube::Config::new(uri)).context("create a client")
    }

    /// Writes a kubeconfig of this server.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.kubeconfig(json!({})).to_string()).context("write the kubeconfig")
    }

    /// A kubeconfig of a user of this server.
    #[must_use]
    pub fn kubeconfig(&self, user: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": user}],
        })
    }

    /// Answers 401 to requests without one of these tokens.
    pub fn accept_only_tokens(&self, tokens: &[&str]) {
        self.shared.state().faults.tokens = Some(tokens.iter().map(|token| (*token).to_owned()).collect());
    }

    /// Accepts a token, or no longer. From the first call on, requests without an accepted token get 401.
    pub fn accept_token(&self, token: &str, is_accepted: bool) {
        let mut state = self.shared.state();
        let tokens = state.faults.tokens.get_or_insert_default();
        if is_accepted {
            tokens.insert(token.to_owned());
        } else {
            tokens.remove(token);
        }
    }

    /// Adds a kind with its definition, or removes it with all its objects.
    pub fn define(&self, kind: ResourceKind, is_served: bool) {
        let mut state = self.shared.state();
        if is_served {
            state.store.define(kind)
        } else {
            state.store.undefine(&kind)
        }
        drop(state);
        self.wake();
    }

    /// Creates or updates an object, and returns its resourceVersion.
    ///
    /// # Panics
    /// The server has no such kind.
    pub fn apply(&self, object: Value) -> u64 {
        let version = self.shared.state().store.apply(object);
        self.wake();
        version
    }

    /// The current state of an object.
    #[must_use]
    pub fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.state().store.get(group, resource, namespace, name)
    }

    /// All objects of a resource, by namespace and name.
    #[must_use]
    pub fn list(&self, group: &str, resource: &str) -> Vec<Value> {
        let all = self.shared.state().store.list(group, resource, "", |_| true).objects;
        all.iter().map(|stored| stored.object.clone()).collect()
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// There is no such object.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.shared.state().store.delete(resource, namespace, name);
        self.wake();
    }

    /// Compacts the history: watches and continue tokens of earlier versions get 410.
    pub fn compact(&self) {
        self.shared.state().store.compact();
    }

    /// Serializes all lists, so that a list request takes little CPU time of this process.
    pub fn warm(&self) {
        self.shared.state().store.warm();
    }

    /// Ends every watch, as a load balancer or a restart of the server does.
    pub fn disconnect(&self) {
        self.shared.disconnected.send_modify(|count| *count += 1);
    }

    /// Keeps every open watch open and sends nothing more, as after the loss of a connection.
    pub fn silence(&self) {
        self.shared.silenced.send_modify(|count| *count += 1);
    }

    /// Accepts streaming lists, as Kubernetes 1.34 does; otherwise they are refused.
    pub fn stream_lists(&self) {
        self.shared.state().faults.streams_lists = true;
    }

    /// Breaks off the next list of a resource in the middle.
    pub fn break_list(&self, resource: &str) {
        *self.shared.state().faults.broken_lists.entry(resource.to_owned()).or_default() += 1;
    }

    /// Delays every page of a list.
    pub fn slow_lists(&self, delay: Duration) {
        self.shared.state().faults.slow_lists = delay;
    }

    /// Answers 403 to requests for a resource, or stops doing so.
    pub fn forbid(&self, resource: &str, forbidden: bool) {
        let mut state = self.shared.state();
        if forbidden {
            state.faults.forbidden.insert(resource.to_owned());
        } else {
            state.faults.forbidden.remove(resource);
        }
    }

    /// Answers requests for a resource wrongly, until `None`; with `create RESOURCE`, only those with this verb. The resource
    /// `discovery` is discovery, and `*` is everything.
    pub fn answer_wrongly(&self, resource: &str, answer: Option<WrongAnswer>) {
        let wrong = &mut self.shared.state().faults.wrong;
        match answer {
            Some(answer) => wrong.insert(resource.to_owned(), answer),
            None => wrong.remove(resource),
        };
        self.shared.released.send_modify(|count| *count += 1);
    }

    /// Sets the status of a TokenReview of a token. Other tokens are not authenticated.
    pub fn review(&self, token: &str, status: Value) {
        self.shared.state().reviews.insert(token.to_owned(), status);
    }

    /// Allows or forbids a service account to list the Secrets of its namespace.
    pub fn allow_reading_secrets(&self, namespace: &str, service_account: &str, allowed: bool) {
        let user = format!("system:serviceaccount:{namespace}:{service_account}");
        let mut state = self.shared.state();
        if allowed {
            state.readers.insert(user);
        } else {
            state.readers.remove(&user);
        }
    }

    /// The resource version of the newest object.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.state().store.version()
    }

    /// The resource version of the last bookmark sent to a watch of a resource; 0 if none was sent.
    #[must_use]
    pub fn bookmarked(&self, resource: &str) -> u64 {
        self.shared.state().bookmarks.get(resource).copied().unwrap_or_default()
    }

    /// The name in URLs of a kind, if the server has it.
    #[must_use]
    pub fn plural(&self, group: &str, kind: &str) -> Option<&'static str> {
        self.shared.state().store.plural(group, kind)
    }

    /// Number of lists of a resource that began a watch.
    #[must_use]
    pub fn streamed_lists(&self, resource: &str) -> usize {
        self.shared.state().streamed_lists.get(resource).copied().unwrap_or_default()
    }

    /// Every request so far, with its count.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<ReceivedRequest, usize> {
        self.shared.state().requests.clone()
    }

    /// The number of requests with a verb on a resource.
    #[must_use]
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let requests = self.requests();
        requests
            .iter()
            .filter(|(request, _)| request.verb == verb && request.resource == resource)
            .map(|(_, count)| count)
            .sum()
    }

    fn wake(&self) {
        self.shared.changed.send_modify(|count| *count += 1);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.disconnect();
        self.task.abort();
    }
}
