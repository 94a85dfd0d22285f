//! JSON web key sets of token issuers (P15). The graph publishes the wanted key sets, and fetched key sets are an input
//! of the graph.
//!
//! `state.rs` decides what to fetch when, `client.rs` fetches.

mod client;
mod state;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use prometheus_client::registry::Registry;
use sluice_engine::{Engine, Input, Published};
use sluice_http_client::HttpError;
use sluice_model::{Jwks, JwksKey, WantedJwks};
use sluice_tasks::catch_panic;
use sluice_telemetry::{Count, register_counts};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

pub use client::{FetchError, JwksClient};
pub use state::{JwksLimits, Schedule};
use state::{JwksState, Outcome};

/// Options of the fetcher.
#[derive(Clone, Debug)]
pub struct JwksOptions {
    /// When key sets are fetched.
    pub schedule: Schedule,
    /// Limits on what is fetched.
    pub limits: JwksLimits,
    /// Certificates of servers are not verified (`JWKS_RESOLVER_INSECURE_SKIP_VERIFY`).
    pub skip_verify: bool,
    /// Plaintext HTTP is refused, in redirects too. Otherwise, it is refused in redirects and discovery documents of servers
    /// with TLS.
    pub https_only: bool,
    /// Addresses that requests are never sent to (`BLOCKED_CIDRS_IN_JWKS_URIS`).
    pub blocked: Vec<IpNet>,
    /// PEM file with roots in addition to those of the system, if it exists.
    pub extra_roots: PathBuf,
}

impl Default for JwksOptions {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            limits: JwksLimits::default(),
            skip_verify: false,
            https_only: false,
            blocked: Vec::new(),
            extra_roots: PathBuf::from("/cacerts/extra.pem"),
        }
    }
}

/// Numbers of successful and failed fetches.
#[derive(Clone, Debug, Default)]
pub struct JwksMetrics {
    fetched: Count,
    failed: Count,
}

impl JwksMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        register_counts(
            registry,
            [
                ("pilot_jwks_resolver_network_fetch_success_total", "Key sets that were fetched", &self.fetched),
                ("pilot_jwks_resolver_network_fetch_fail_total", "Failed fetches of key sets", &self.failed),
            ],
        );
    }
}

/// Fetches the key sets that the graph publishes as wanted, and writes them to its input.
pub struct JwksFetcher {
    engine: Engine,
    wanted: Published<JwksKey, WantedJwks>,
    fetched: Input<JwksKey, Jwks>,
    client: Arc<JwksClient>,
    state: JwksState,
    metrics: JwksMetrics,
    tried: watch::Sender<bool>,
}

impl JwksFetcher {
    /// A fetcher without key sets. [`Self::run`] fetches.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn new(
        engine: Engine,
        wanted: Published<JwksKey, WantedJwks>,
        fetched: Input<JwksKey, Jwks>,
        options: &JwksOptions,
        metrics: JwksMetrics,
    ) -> Result<Self, HttpError> {
        Ok(Self {
            engine,
            wanted,
            fetched,
            client: Arc::new(JwksClient::new(options)?),
            state: JwksState::new(options.schedule, options.limits),
            metrics,
            tried: watch::Sender::new(false),
        })
    }

    /// Becomes `true` when a fetch of every wanted key set has succeeded or failed. Proxies are served after that, so
    /// that a restart of the control plane does not make them reject valid tokens.
    #[must_use]
    pub fn tried(&self) -> watch::Receiver<bool> {
        self.tried.subscribe()
    }

    /// Fetches until the engine stops.
    pub async fn run(mut self) {
        let mut feed = self.engine.feed().only(&self.wanted);
        let mut fetches = JoinSet::new();
        let mut synced = false;
        loop {
            let now = Instant::now();
            for key in self.state.expire(now) {
                warn!(target: "jwks", %key, "no fetch of the keys has succeeded for too long, they are dropped");
                self.fetched.delete(key);
            }
            for (key, timeout) in self.state.start(now) {
                let client = self.client.clone();
                fetches.spawn(async move {
                    // Without a result, the key would never be fetched again.
                    let result = catch_panic(client.fetch(&key, timeout)).await;
                    (key, result.unwrap_or_else(|panic| Err(panic.into())))
                });
            }
            let next = self.state.next(now);
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                batch = feed.next() => {
                    let Some(batch) = batch else { return };
                    synced = batch.all_synced();
                    for event in batch.events(&self.wanted) {
                        match event.new {
                            Some(wanted) => self.state.want((*event.key).clone(), (*wanted).clone(), Instant::now()),
                            None => if self.state.forget(&event.key) {
                                self.fetched.delete((*event.key).clone());
                            },
                        }
                    }
                }
                Some(Ok((key, result))) = fetches.join_next() => self.finish(key, result),
                () = due => {}
            }
            let tried = synced && self.state.is_tried();
            self.tried.send_if_modified(|before| std::mem::replace(before, tried) != tried);
        }
    }

    /// Counts and logs the result of a fetch, and writes changed keys to the input.
    fn finish(&mut self, key: JwksKey, result: Result<String, FetchError>) {
        match &result {
            Ok(_) => self.metrics.fetched.inc(),
            Err(error) => {
                self.metrics.failed.inc();
                warn!(target: "jwks", %key, %error, "failed to fetch keys");
            }
        }
        if let Outcome::Changed(jwks) = self.state.done(&key, result.ok(), Instant::now()) {
            if jwks.refused.is_empty() {
                info!(target: "jwks", %key, "keys have changed");
            } else {
                self.metrics.failed.inc();
                warn!(target: "jwks", %key, reason = %jwks.refused, "fetched keys are not used");
            }
            self.fetched.set(key, jwks);
        }
    }
}

#[cfg(test)]
mod tests;
