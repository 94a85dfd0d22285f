//! Begins and ends faults.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::fault_proxy::FaultProxy;

use super::clock::FakeClock;
use super::hostile::HostileClients;
use super::panics::Panics;
use super::token_callers::{REVIEW_TIMEOUT_ARGUMENT, TokenCallers};
use super::{FaultyMesh, TERMINATION_LIMIT};
use crate::api::Api;
use crate::client::Pace;
use crate::fault_kind::FaultKind;
use crate::measured_mesh::MeasuredMesh;
use crate::server::{Server, ServerOptions};

/// Delay of a slow client before each message.
const SLOW_CLIENT_DELAY: Duration = Duration::from_millis(500);
/// Longest random wait before the server is terminated.
const MAX_LIFE: Duration = Duration::from_millis(400);
/// A file on a disk that is always full.
const FULL_DISK: &str = "/dev/full";

/// A fault that was to begin.
pub(super) enum Injected {
    Active(ActiveFault),
    /// Why this machine cannot inject it.
    Skipped(String),
}

/// A fault that has begun, and how it ends.
pub(super) enum ActiveFault {
    /// It ends by itself.
    Passing,
    /// The proxy before the API server is restored.
    Proxy,
    /// The process of the server is continued.
    Paused,
    /// The server runs with other options, and is started again with the usual ones.
    OtherOptions,
    /// The clock jumps back, and the server is started again with the real clock.
    Clock(FakeClock),
    /// Reviews of tokens are answered again, and the server is started again with the usual options.
    TokenServiceHung(TokenCallers),
    /// The clients end.
    Hostile(HostileClients),
    /// All proxies read promptly again.
    Slow,
}

/// Begins a fault.
pub(super) async fn begin(fault: FaultKind, faulty: &mut FaultyMesh<'_>) -> Result<Injected> {
    let json = |status: &str, body: &str| {
        proxy(&faulty.mesh)?.respond(status, "application/json", body);
        Ok::<_, anyhow::Error>(ActiveFault::Proxy)
    };
    let active = match fault {
        FaultKind::ApiNotFound => json("404 Not Found", &failure(404, "NotFound"))?,
        FaultKind::ApiForbidden => json("403 Forbidden", &failure(403, "Forbidden"))?,
        FaultKind::ApiTooManyRequests => json("429 Too Many Requests", &failure(429, "TooManyRequests"))?,
        FaultKind::ApiFails => json("500 Internal Server Error", &failure(500, "InternalError"))?,
        FaultKind::ApiGarbage => json("200 OK", "<html>maintenance</html>")?,
        FaultKind::ApiOtherKind => {
            json("200 OK", r#"{"apiVersion":"v1","kind":"ComponentStatusList","metadata":{},"items":[]}"#)?
        }
        FaultKind::ApiFrozen => {
            proxy(&faulty.mesh)?.freeze();
            ActiveFault::Proxy
        }
        FaultKind::ApiRefused => {
            proxy(&faulty.mesh)?.refuse();
            ActiveFault::Proxy
        }
        FaultKind::ApiConnectionsLost => {
            proxy(&faulty.mesh)?.lose_connections();
            ActiveFault::Passing
        }
        FaultKind::ApiCompacted => {
            api(&faulty.mesh)?.compact();
            ActiveFault::Passing
        }
        FaultKind::TokenServiceHung => {
            let mut options = ServerOptions { secure: true, ..faulty.options()? };
            options.arguments.push(REVIEW_TIMEOUT_ARGUMENT.to_owned());
            faulty.start_server(&options).await?;
            api(&faulty.mesh)?.hang_token_reviews(true);
            let root = api(&faulty.mesh)?.root_certificate()?;
            ActiveFault::TokenServiceHung(TokenCallers::start(faulty.mesh.server.secure()?, &root).await?)
        }
        FaultKind::ServerPaused => {
            faulty.mesh.server.signal(Signal::SIGSTOP)?;
            ActiveFault::Paused
        }
        FaultKind::ServerTerminated => {
            terminate_often(faulty).await?;
            ActiveFault::Passing
        }
        FaultKind::ServerKilled => {
            faulty.mesh.server.restart().await?;
            faulty.reach_server().await?;
            ActiveFault::Passing
        }
        FaultKind::TaskPanics | FaultKind::FatalPanics => {
            let panics = Panics::new()?;
            let mut options = faulty.options()?;
            options.environment.push(panics.environment());
            faulty.start_server(&options).await?;
            if !panics.are_possible().await? {
                let options = faulty.options()?;
                faulty.start_server(&options).await?;
                return Ok(Injected::Skipped("only debug builds of the server inject panics".to_owned()));
            }
            match fault {
                FaultKind::TaskPanics => panics.restart_each_task(faulty).await?,
                _ => panics.end_by_each_task(faulty, &options).await?,
            }
            ActiveFault::OtherOptions
        }
        FaultKind::LogDiskFull => {
            let options = ServerOptions { log: Some(PathBuf::from(FULL_DISK)), ..faulty.options()? };
            faulty.start_server(&options).await?;
            ActiveFault::OtherOptions
        }
        FaultKind::ClockJumps => {
            let clock = match FakeClock::install() {
                Ok(clock) => clock,
                Err(reason) => return Ok(Injected::Skipped(reason)),
            };
            let mut options = faulty.options()?;
            options.environment.extend(clock.environment());
            faulty.start_server(&options).await?;
            clock.jump("+1d")?;
            ActiveFault::Clock(clock)
        }
        FaultKind::HostileClients => ActiveFault::Hostile(HostileClients::start(faulty.mesh.server.address)),
        FaultKind::SlowClients => {
            let pace = |number: usize| match number % 100 {
                0 => Pace::Dead,
                number if number % 10 == 1 => Pace::Slow(SLOW_CLIENT_DELAY),
                _ => Pace::Prompt,
            };
            faulty.set_paces(pace).await?;
            ActiveFault::Slow
        }
    };
    Ok(Injected::Active(active))
}

impl ActiveFault {
    /// Ends the fault, as far as the recovery depends on that.
    pub(super) fn end(&self, mesh: &MeasuredMesh) -> Result<()> {
        match self {
            Self::Proxy => proxy(mesh)?.restore(),
            Self::Paused => mesh.server.signal(Signal::SIGCONT)?,
            Self::Clock(clock) => clock.jump("-1d")?,
            Self::TokenServiceHung(_) => api(mesh)?.hang_token_reviews(false),
            // The recovery takes place while these last.
            Self::Passing | Self::OtherOptions | Self::Hostile(_) | Self::Slow => {}
        }
        Ok(())
    }

    /// Returns to the usual server and proxies.
    pub(super) async fn clean_up(self, faulty: &mut FaultyMesh<'_>) -> Result<()> {
        match self {
            Self::Passing | Self::Proxy | Self::Paused => Ok(()),
            Self::OtherOptions | Self::Clock(_) => {
                let options = faulty.options()?;
                faulty.start_server(&options).await
            }
            Self::TokenServiceHung(callers) => {
                callers.stop().await?;
                let options = faulty.options()?;
                faulty.start_server(&options).await
            }
            Self::Hostile(clients) => clients.stop().await,
            Self::Slow => faulty.set_paces(|_| Pace::Prompt).await,
        }
    }
}

impl FaultyMesh<'_> {
    /// Replaces the server, and waits until all proxies are configured by the new one.
    async fn start_server(&mut self, options: &ServerOptions) -> Result<()> {
        self.mesh.server.terminate(TERMINATION_LIMIT).await?;
        self.mesh.server = Server::start(options).await?.0;
        self.reach_server().await
    }

    /// Sends the streams of all proxies to the present server, and waits until they are configured.
    pub(super) async fn reach_server(&mut self) -> Result<()> {
        self.mesh.fleet.move_to(self.mesh.server.address);
        let (_, missed) = self.mesh.fleet.configured(std::time::Instant::now(), self.timeout()).await;
        ensure!(missed == 0, "{missed} proxies were not configured by the restarted server");
        Ok(())
    }

    /// Connects all proxies again, with the pace of each by its number.
    async fn set_paces(&mut self, pace: impl Fn(usize) -> Pace) -> Result<()> {
        let mut clients = self.mesh.fleet.disconnect().await;
        for client in &mut clients {
            let pace = pace(client.number);
            self.mesh.fleet.set_pace(client, pace);
        }
        self.mesh.fleet.connect(clients);
        self.reach_server().await
    }
}

/// Terminates the server at random moments after its start, and starts it again.
async fn terminate_often(faulty: &mut FaultyMesh<'_>) -> Result<()> {
    let options = faulty.options()?;
    for _ in 0..faulty.arguments.terminations {
        faulty.change_for(MAX_LIFE.mul_f64(rand::random_range(0.0..1.0))).await?;
        faulty.mesh.server.terminate(TERMINATION_LIMIT).await?;
        // Not ready yet in half of the cases: the next termination comes during the start.
        faulty.mesh.server = match rand::random() {
            true => Server::start(&options).await?.0,
            false => Server::spawn(&options)?,
        };
        faulty.mesh.fleet.move_to(faulty.mesh.server.address);
    }
    faulty.start_server(&options).await
}

fn proxy(mesh: &MeasuredMesh) -> Result<&FaultProxy> {
    mesh.api_proxy.as_ref().context("the server reads the API through a proxy")
}

fn api(mesh: &MeasuredMesh) -> Result<&Api> {
    mesh.objects.api().context("objects are written to an API")
}

/// The body of a failed request to a Kubernetes API server.
fn failure(code: u16, reason: &str) -> String {
    serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
        .to_string()
}
