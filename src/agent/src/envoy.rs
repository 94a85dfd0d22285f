//! The Envoy process: start, drain, termination.

pub(crate) mod admin;
mod command;

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::Child;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::settings::{DrainSettings, Settings};
use admin::Admin;
pub(crate) use command::command;

/// Interval of reads of Envoy's active connections while draining.
const CONNECTION_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive failed reads after which the drain ends.
const MAX_FAILED_POLLS: u32 = 5;

/// Requests to terminate.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShutdownTokens {
    /// Termination is requested.
    pub(crate) requested: CancellationToken,
    /// Termination without draining Envoy is requested.
    pub(crate) at_once: CancellationToken,
}

/// The reason why Envoy does not run any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Termination {
    /// The agent terminated it on request.
    Requested,
    /// It exited by itself, with this code; `None` if a signal terminated it.
    Exited(Option<i32>),
}

/// Waits until Envoy exits or a termination is requested. On request, Envoy is drained and terminated.
///
/// # Errors
/// The state of the process cannot be read.
pub(crate) async fn run(
    mut child: Child,
    admin: &Admin,
    settings: &Settings,
    stop: &ShutdownTokens,
) -> Result<Termination> {
    tokio::select! {
        status = child.wait() => {
            let status = status.context("wait for Envoy")?;
            log_exit(status);
            Ok(Termination::Exited(status.code()))
        }
        () = stop.requested.cancelled() => {
            if stop.at_once.is_cancelled() {
                info!("terminating Envoy without draining");
            } else {
                drain(&mut child, admin, settings, stop).await;
            }
            if child.try_wait().context("read the state of Envoy")?.is_none() {
                child.kill().await.context("terminate Envoy")?;
            }
            info!("Envoy is terminated");
            Ok(Termination::Requested)
        }
    }
}

fn log_exit(status: ExitStatus) {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.success(), status.signal()) {
        (true, _) => info!("Envoy exited"),
        (false, Some(9)) => warn!("Envoy was killed; a possible cause is its memory limit"),
        (false, _) => warn!(%status, "Envoy exited"),
    }
}

/// Drains Envoy for the drain duration, or until no client is connected.
async fn drain(child: &mut Child, admin: &Admin, settings: &Settings, stop: &ShutdownTokens) {
    let DrainSettings { duration, minimum, until_no_connections } = settings.drain;
    if let Err(error) = admin.drain(settings.role, false).await {
        warn!(error = format!("{error:#}"), "failed to drain Envoy");
    }
    let drain_time = if until_no_connections { minimum } else { duration };
    info!(?drain_time, until_no_connections, "draining Envoy");
    let end = async {
        tokio::time::sleep(drain_time).await;
        if until_no_connections {
            wait_for_no_connections(admin, settings).await;
        }
    };
    tokio::select! {
        () = end => {}
        () = stop.at_once.cancelled() => info!("drain is cancelled"),
        _ = child.wait() => info!("Envoy exited while draining"),
    }
}

async fn wait_for_no_connections(admin: &Admin, settings: &Settings) {
    let own = [settings.ports.envoy_status, settings.ports.envoy_prometheus];
    let (mut failed, mut next) = (0, Instant::now());
    while failed < MAX_FAILED_POLLS {
        match timeout(CONNECTION_POLL_INTERVAL * 2, admin.active_connections(&own)).await {
            Ok(Ok(0)) => return info!("no active connections"),
            Ok(Ok(connections)) => {
                failed = 0;
                info!(connections, "active connections");
            }
            Ok(Err(error)) => {
                failed += 1;
                warn!(error = format!("{error:#}"), "failed to read active connections");
            }
            Err(_) => failed += 1,
        }
        next += CONNECTION_POLL_INTERVAL;
        sleep_until(next).await;
    }
}
