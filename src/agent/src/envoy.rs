//! The Envoy process: started once, drained, ended.

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

/// Time between looks at connections that are left.
const LOOK: Duration = Duration::from_secs(1);
/// Looks that may fail one after the other before it is given up.
const FAILED_LOOKS: u32 = 5;

/// How the agent is to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// It is to end.
    pub(crate) requested: CancellationToken,
    /// Without draining: that was done already, or must not be.
    pub(crate) at_once: CancellationToken,
}

/// How Envoy ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// We were asked to end it.
    Requested,
    /// It ended by itself, with this code or by a signal.
    Exited(Option<i32>),
}

/// Starts Envoy and waits for its end, or for ours: then it is drained and ended.
///
/// # Errors
/// It cannot be started.
pub(crate) async fn run(mut child: Child, admin: &Admin, settings: &Settings, stop: &Stop) -> Result<End> {
    tokio::select! {
        status = child.wait() => {
            let status = status.context("wait for Envoy")?;
            report(status);
            Ok(End::Exited(status.code()))
        }
        () = stop.requested.cancelled() => {
            if stop.at_once.is_cancelled() {
                info!("ending Envoy without draining");
            } else {
                drain(&mut child, admin, settings, stop).await;
            }
            if child.try_wait().context("look after Envoy")?.is_none() {
                child.kill().await.context("end Envoy")?;
            }
            info!("Envoy has ended");
            Ok(End::Requested)
        }
    }
}

fn report(status: ExitStatus) {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.success(), status.signal()) {
        (true, _) => info!("Envoy ended"),
        (false, Some(9)) => warn!("Envoy was killed: it may have used more memory than it may"),
        (false, _) => warn!("Envoy ended with {status}"),
    }
}

/// Lets Envoy finish what it does: until the time is over, or nobody is connected any more.
async fn drain(child: &mut Child, admin: &Admin, settings: &Settings, stop: &Stop) {
    let DrainSettings { duration, minimum, until_no_connections } = settings.drain;
    if let Err(error) = admin.drain(settings.role, false).await {
        warn!("drain Envoy: {error:#}");
    }
    let least = if until_no_connections { minimum } else { duration };
    info!(?least, until_no_connections, "draining");
    let end = async {
        tokio::time::sleep(least).await;
        if until_no_connections {
            wait_for_no_connections(admin, settings).await;
        }
    };
    tokio::select! {
        () = end => {}
        () = stop.at_once.cancelled() => info!("asked to end at once"),
        _ = child.wait() => info!("Envoy ended while it was drained"),
    }
}

async fn wait_for_no_connections(admin: &Admin, settings: &Settings) {
    let own = [settings.ports.envoy_status, settings.ports.envoy_prometheus];
    let (mut failed, mut next) = (0, Instant::now());
    while failed < FAILED_LOOKS {
        match timeout(LOOK * 2, admin.active_connections(&own)).await {
            Ok(Ok(0)) => return info!("no connection is left"),
            Ok(Ok(left)) => {
                failed = 0;
                info!(left, "connections are left");
            }
            Ok(Err(error)) => {
                failed += 1;
                warn!("ask Envoy for connections: {error:#}");
            }
            Err(_) => failed += 1,
        }
        next += LOOK;
        sleep_until(next).await;
    }
}
