//! The Kubernetes API as every component uses it: clients by cluster, list and watch, leader election, retries.

mod api;
mod backoff;
mod clients;
mod leader;
mod list_watch;
mod turn;

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub use api::{Api, ApiError, Page, PageMetadata, Resource, Told};
pub use backoff::Backoff;
pub use clients::{Clients, ClientsById};
pub use leader::{ADDRESSES_LEASE, Election, ROOTS_LEASE, TRUST_BUNDLE_LEASE};
pub use list_watch::{ListWatch, Receiver};
pub use turn::next_turn;

/// How the API is used.
#[derive(Clone, Copy, Debug)]
pub struct KubeOptions {
    /// Objects a page.
    pub page: usize,
    /// How long one watch lasts at most; the server ends it then and it goes on from there.
    pub watch: Duration,
    /// The first wait after a failure; each further one in a row is twice as long.
    pub first_retry: Duration,
    /// The longest wait.
    pub last_retry: Duration,
}

impl Default for KubeOptions {
    /// 500 objects, 5 minutes, 0.5 to 30 seconds.
    fn default() -> Self {
        Self {
            page: 500,
            watch: Duration::from_secs(290),
            first_retry: Duration::from_millis(500),
            last_retry: Duration::from_secs(30),
        }
    }
}

/// A client by a kubeconfig file, or by the pod's service account without one.
///
/// # Errors
/// Why there is none, a lower-case fragment. The server is not asked yet.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, String> {
    let config = match kubeconfig {
        Some(path) => {
            let fail =
                |error: kube::config::KubeconfigError| format!("kubeconfig {}: {}", path.display(), chain(&error));
            let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)?
        }
        None => Config::incluster().map_err(|error| {
            let hint = "this is no pod: name a cluster with --kubeconfig, or a directory with --configDir";
            format!("{} ({hint})", chain(&error))
        })?,
    };
    Client::try_from(config).map_err(|error| chain(&error))
}

/// An error with what caused it.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += ": ";
            text += &cause_text;
        }
        source = cause.source();
    }
    text
}

/// Why a request failed. What programs say that fetch credentials is left out: it may hold some.
#[must_use]
pub fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Auth(_) => "no credentials can be got as the kubeconfig says".to_owned(),
        other => chain(other),
    }
}
