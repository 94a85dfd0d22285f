//! The Kubernetes API as every component uses it: clients by cluster, list and watch, leader election, retries.

mod api;
mod backoff;
mod clients;
mod error;
mod leader;
mod list_watch;
mod pace;
mod raw_object;
mod server;
mod turn;

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub use api::{Api, ApiError, Resource};
pub use backoff::Backoff;
pub use clients::{Clients, ClientsById};
pub use error::{ConnectError, RequestError, UnreachableServer, chain};
pub use leader::{ADDRESSES_LEASE, Election, ROOTS_LEASE, TRUST_BUNDLE_LEASE};
pub use list_watch::{ListWatch, Receiver, WatchEvent};
pub use server::client;
pub use turn::next_turn;

/// Limits of lists and watches.
#[derive(Clone, Copy, Debug)]
pub struct KubeOptions {
    /// Objects a page.
    pub page: u32,
    /// Longest time of one watch. The server ends it then, and the next watch continues from there. A watch that receives
    /// nothing, not even its end, is given up 5 seconds later.
    pub watch: Duration,
    /// Longest time without data of a list in progress. It is read again then.
    pub list_silence: Duration,
    /// The wait after the first failure; each further one in a row is twice as long.
    pub first_retry: Duration,
    /// The longest wait.
    pub last_retry: Duration,
}

impl Default for KubeOptions {
    /// 500 objects, 290 seconds, 75 seconds, 0.5 to 30 seconds.
    fn default() -> Self {
        Self {
            page: 500,
            watch: Duration::from_secs(290),
            // Longer than the limit of a response, so that an error names the address of the server.
            list_silence: Duration::from_secs(75),
            first_retry: Duration::from_millis(500),
            last_retry: Duration::from_secs(30),
        }
    }
}

/// A client by a kubeconfig file, or by the service account of the pod without one. No request is sent yet.
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
