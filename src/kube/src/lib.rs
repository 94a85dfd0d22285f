//! The Kubernetes API as every component uses it: clients by cluster, list and watch, leader election, retries.

mod api;
mod backoff;
mod by_key;
mod clients;
mod cluster_tasks;
mod discovery;
mod error;
mod feed;
mod leader;
mod list_watch;
mod lock;
mod object_path;
mod pace;
mod raw_object;
mod reachability;
mod term;
mod transport;
mod untrusted;
mod watch_states;

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub use api::{Api, ApiError, Resource};
pub use backoff::Backoff;
pub use by_key::{ByKey, ObjectsByKey};
pub use clients::{Clients, ClientsById};
pub use cluster_tasks::ClusterTasks;
pub use discovery::Discovery;
pub use error::{ConnectError, RequestError, chain};
pub use feed::next_batch_or_due;
pub use leader::Election;
pub use list_watch::{ListWatch, Receiver, WatchEvent};
pub use lock::{ADDRESSES_LOCK, EXPORTS_LOCK, INGRESS_LOCK, Lock, ROOTS_LOCK, STATUS_LOCK, UNTAINT_LOCK};
pub use object_path::ObjectPath;
pub use term::{Term, TermEnded};
pub use transport::{REQUEST_TIMEOUT, client, request};
pub use untrusted::untrusted_config;
pub use watch_states::{FailureSummary, WatchStates, WatchSummary};

/// Limits of lists and watches.
#[derive(Clone, Copy, Debug)]
pub struct KubeOptions {
    /// Maximum number of objects in a page of a list.
    pub page_size: u32,
    /// Longest time of one watch. The server ends the watch then, and the next one continues at the last resourceVersion.
    /// A watch whose end does not arrive is closed 5 seconds later. It is short, because a watch whose connection is dead
    /// looks like one without events.
    pub watch_timeout: Duration,
    /// Longest time until the response to a watch begins.
    pub response_timeout: Duration,
    /// Longest time without data of a list in progress. The list is read again then, in pages.
    pub list_silence: Duration,
    /// The wait after the first failure. It doubles with each further failure in a row.
    pub first_retry: Duration,
    /// The longest wait.
    pub max_retry: Duration,
}

impl Default for KubeOptions {
    /// 500 objects, 40 seconds, 20 seconds, 30 seconds, 0.25 to 3 seconds.
    fn default() -> Self {
        Self {
            page_size: 500,
            watch_timeout: Duration::from_secs(40),
            // The API server queues a request for 15 seconds at most.
            response_timeout: Duration::from_secs(20),
            list_silence: Duration::from_secs(30),
            first_retry: Duration::from_millis(250),
            max_retry: Duration::from_secs(3),
        }
    }
}

impl KubeOptions {
    /// The waits after failures.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff::new(self.first_retry, self.max_retry)
    }
}

/// A client with the settings of a kubeconfig file, or of the pod's service account without one. No request is sent yet.
///
/// # Errors
/// The kubeconfig or the service account cannot be used.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let fail = |cause| ConnectError::Kubeconfig { path: path.to_owned(), cause };
            let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)?
        }
        None => Config::incluster().map_err(ConnectError::ServiceAccount)?,
    };
    client(config).map_err(ConnectError::Client)
}
