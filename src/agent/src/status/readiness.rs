//! Readiness of the proxy: Envoy has its configuration and is live, gRPC libraries have their files, and the name table has
//! arrived if DNS is captured.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::dns::NameTableStore;
use crate::envoy::admin::{Admin, ReadinessStats};
use crate::metrics::Metrics;

/// Reads Envoy's statistics until Envoy is ready once. After that Envoy stays ready: the readiness request itself passes through
/// it.
pub(crate) struct Readiness {
    /// `None` without Envoy.
    admin: Option<Admin>,
    /// Files that gRPC libraries need.
    grpc_files: Vec<PathBuf>,
    names: Option<NameTableStore>,
    terminating: CancellationToken,
    metrics: Metrics,
    was_live: AtomicBool,
    /// The latest result.
    last: Mutex<Option<Result<(), NotReady>>>,
}

impl Readiness {
    pub(crate) fn new(
        admin: Option<Admin>,
        grpc_files: Vec<PathBuf>,
        names: Option<NameTableStore>,
        terminating: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        let (was_live, last) = (AtomicBool::new(false), Mutex::default());
        Self { admin, grpc_files, names, terminating, metrics, was_live, last }
    }

    /// # Errors
    /// The reason why the proxy is not ready.
    pub(crate) async fn check(&self) -> Result<(), NotReady> {
        let result = self.evaluate().await;
        // A result is logged when it changes, not at each request.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&result) {
            match &result {
                Ok(()) => info!(target: "status", "proxy is ready"),
                Err(reason) => warn!(target: "status", %reason, "proxy is not ready"),
            }
            *last = Some(result.clone());
        }
        result
    }

    async fn evaluate(&self) -> Result<(), NotReady> {
        if self.terminating.is_cancelled() {
            return Err(NotReady::Terminating);
        }
        let was_live = self.was_live.load(Relaxed);
        if let Some(admin) = self.admin.as_ref().filter(|_| !was_live) {
            let stats = admin.readiness_stats().await.map_err(|error| NotReady::NoResponse(format!("{error:#}")))?;
            check_stats(&stats)?;
        }
        if let Some(missing) = self.grpc_files.iter().find(|file| !file.exists()) {
            return Err(NotReady::NoGrpcFile(missing.clone()));
        }
        if !was_live {
            self.metrics.ready();
            self.was_live.store(true, Relaxed);
        }
        match &self.names {
            Some(names) if !names.has_table() => Err(NotReady::NoNameTable),
            _ => Ok(()),
        }
    }
}

fn check_stats(stats: &ReadinessStats) -> Result<(), NotReady> {
    let ReadinessStats { clusters, clusters_rejected, listeners, listeners_rejected, state, workers_started } = *stats;
    if clusters == 0 || listeners == 0 {
        return Err(match (clusters + listeners, clusters_rejected + listeners_rejected) {
            (0, 0) => NotReady::NoConfiguration(*stats),
            (_, 0) => NotReady::IncompleteConfiguration(*stats),
            _ => NotReady::RejectedConfiguration(*stats),
        });
    }
    match (state, workers_started) {
        (Some(0), true) => Ok(()),
        (Some(0), false) => Err(NotReady::WorkersNotStarted),
        (state, _) => Err(NotReady::NotLive(state)),
    }
}

/// The reason why the proxy is not ready. Each one is temporary, except `Terminating`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("the agent is terminating")]
    Terminating,
    #[error("Envoy does not respond: {0}")]
    NoResponse(String),
    #[error("no configuration from the control plane ({0})")]
    NoConfiguration(ReadinessStats),
    #[error("the configuration is not complete yet ({0})")]
    IncompleteConfiguration(ReadinessStats),
    #[error("Envoy rejected its configuration ({0})")]
    RejectedConfiguration(ReadinessStats),
    #[error("Envoy has not started its workers")]
    WorkersNotStarted,
    /// With the value of `server.state`.
    #[error("Envoy is not live (state {0:?})")]
    NotLive(Option<u64>),
    /// A file that gRPC libraries need.
    #[error("{} does not exist yet", .0.display())]
    NoGrpcFile(PathBuf),
    #[error("DNS is captured and the name table has not arrived yet")]
    NoNameTable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_envoy_the_files_of_grpc_libraries_decide() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = ["bootstrap.json", "key.pem"].map(|name| directory.path().join(name));
        let stop = CancellationToken::new();
        let readiness = Readiness::new(None, files.to_vec(), None, stop.clone(), Metrics::default());
        for file in &files {
            assert_eq!(readiness.check().await, Err(NotReady::NoGrpcFile(file.clone())));
            std::fs::write(file, "").expect("write");
        }
        assert_eq!(readiness.check().await, Ok(()));
        std::fs::remove_file(&files[1]).expect("remove");
        assert_eq!(readiness.check().await, Err(NotReady::NoGrpcFile(files[1].clone())));
        stop.cancel();
        assert_eq!(readiness.check().await, Err(NotReady::Terminating));
    }

    #[test]
    fn proxy_is_ready_with_clusters_listeners_and_workers() {
        let ready = ReadinessStats {
            clusters: 1,
            listeners: 1,
            state: Some(0),
            workers_started: true,
            ..ReadinessStats::default()
        };
        assert_eq!(check_stats(&ready), Ok(()));
        let reason = |stats: ReadinessStats| check_stats(&stats).expect_err("not ready").to_string();
        assert!(reason(ReadinessStats { clusters: 0, listeners: 0, ..ready }).contains("no configuration"));
        assert!(reason(ReadinessStats { listeners: 0, ..ready }).contains("not complete"));
        assert!(reason(ReadinessStats { listeners: 0, listeners_rejected: 1, ..ready }).contains("rejected its"));
        assert!(reason(ReadinessStats { workers_started: false, ..ready }).contains("workers"));
        assert!(reason(ReadinessStats { state: Some(2), ..ready }).contains("not live"));
        assert!(reason(ReadinessStats { state: None, ..ready }).contains("not live"));
    }
}
