//! Whether the proxy is ready: it has a configuration, it is live, and names are known if DNS is captured.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::dns::Names;
use crate::envoy::admin::{Admin, Updates};
use crate::metrics::Metrics;

/// Asks Envoy, until it once was ready: it does not go back, and the way to this answer goes through it.
pub(crate) struct Readiness {
    admin: Admin,
    names: Option<Names>,
    terminating: CancellationToken,
    metrics: Metrics,
    was_live: AtomicBool,
    /// What was answered last.
    last: Mutex<Option<Result<(), String>>>,
}

impl Readiness {
    pub(crate) fn new(admin: Admin, names: Option<Names>, terminating: CancellationToken, metrics: Metrics) -> Self {
        let (was_live, last) = (AtomicBool::new(false), Mutex::default());
        Self { admin, names, terminating, metrics, was_live, last }
    }

    /// # Errors
    /// It is not ready, and why.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let result = self.look().await;
        // Each reason is logged once, not each question.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&result) {
            match &result {
                Ok(()) => info!(target: "status", "ready"),
                Err(reason) => warn!(target: "status", "not ready: {reason}"),
            }
            *last = Some(result.clone());
        }
        result
    }

    async fn look(&self) -> Result<(), String> {
        if self.terminating.is_cancelled() {
            return Err("the agent is ending".to_owned());
        }
        if !self.was_live.load(Relaxed) {
            let updates = self.admin.updates().await.map_err(|error| format!("Envoy does not answer: {error:#}"))?;
            judge(&updates)?;
            self.metrics.ready();
            self.was_live.store(true, Relaxed);
        }
        match &self.names {
            Some(names) if !names.is_known() => Err("DNS is captured and no table of names has come yet".to_owned()),
            _ => Ok(()),
        }
    }
}

fn judge(updates: &Updates) -> Result<(), String> {
    let Updates { clusters, clusters_refused, listeners, listeners_refused, state, workers_started } = *updates;
    if clusters == 0 || listeners == 0 {
        let counts = format!(
            "clusters: {clusters} updates, {clusters_refused} refused; listeners: {listeners} updates, \
             {listeners_refused} refused"
        );
        return Err(match (clusters + listeners, clusters_refused + listeners_refused) {
            (0, 0) => format!("no configuration from the control plane ({counts})"),
            (_, 0) => format!("not all of the configuration has come ({counts})"),
            _ => format!("Envoy refused its configuration ({counts})"),
        });
    }
    match (state, workers_started) {
        (Some(0), true) => Ok(()),
        (Some(0), false) => Err("Envoy has not started its workers".to_owned()),
        (state, _) => Err(format!("Envoy is not live (state {state:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_ready_with_clusters_and_listeners_and_workers() {
        let ready = Updates { clusters: 1, listeners: 1, state: Some(0), workers_started: true, ..Updates::default() };
        assert_eq!(judge(&ready), Ok(()));
        let reason = |updates: Updates| judge(&updates).expect_err("not ready");
        assert!(reason(Updates { clusters: 0, listeners: 0, ..ready }).contains("no configuration"));
        assert!(reason(Updates { listeners: 0, ..ready }).contains("not all"));
        assert!(reason(Updates { listeners: 0, listeners_refused: 1, ..ready }).contains("refused its"));
        assert!(reason(Updates { workers_started: false, ..ready }).contains("workers"));
        assert!(reason(Updates { state: Some(2), ..ready }).contains("not live"));
        assert!(reason(Updates { state: None, ..ready }).contains("not live"));
    }
}
