//! Begins and ends faults.

use std::path::PathBuf;
use std::time::{Duration, Instant};

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

/// A fault that has begun.
#[derive(Default)]
pub(super) struct ActiveFault {
    end: FaultEnd,
    /// The clients that are a part of it.
    pub(super) clients: Option<FaultClients>,
    /// The server runs with other options than the usual ones.
    pub(super) has_other_server: bool,
    /// If the server or its tasks have ended: the longest time from that until another server had configured all proxies, or
    /// the tasks ran again.
    pub(super) longest_restart: Option<Duration>,
}

/// How a fault ends, as far as the recovery depends on that.
#[derive(Default)]
enum FaultEnd {
    /// It has ended, or the recovery takes place while it lasts.
    #[default]
    Nothing,
    /// The proxy before the API server is restored.
    Proxy,
    /// The process of the server is continued.
    Paused,
    /// The clock jumps back.
    Clock(FakeClock),
    /// Reviews of tokens are answered again.
    TokenReviews,
}

/// Clients that are a part of a fault. They stay during the recovery.
pub(super) enum FaultClients {
    Token(TokenCallers),
    Hostile(HostileClients),
    /// Some of the proxies.
    Slow,
}

/// Prepares the server for a fault, before the streams that end are counted: hostile clients attack ports that the usual server
/// does not serve, and must not end a stream.
pub(super) async fn prepare(fault: FaultKind, faulty: &mut FaultyMesh<'_>) -> Result<()> {
    if fault == FaultKind::HostileClients {
        let options = ServerOptions { secure: true, ..faulty.options()? };
        faulty.start_server(&options).await?;
    }
    Ok(())
}

/// Begins a fault.
pub(super) async fn begin(fault: FaultKind, faulty: &mut FaultyMesh<'_>) -> Result<Injected> {
    let json = |status: &str, body: &str| {
        proxy(&faulty.mesh)?.respond(status, "application/json", body);
        Ok::<_, anyhow::Error>(ActiveFault::ends(FaultEnd::Proxy))
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
            ActiveFault::ends(FaultEnd::Proxy)
        }
        FaultKind::ApiRefused => {
            proxy(&faulty.mesh)?.refuse();
            ActiveFault::ends(FaultEnd::Proxy)
        }
        FaultKind::ApiConnectionsLost => {
            proxy(&faulty.mesh)?.lose_connections();
            ActiveFault::default()
        }
        FaultKind::ApiCompacted => {
            api(&faulty.mesh)?.compact();
            ActiveFault::default()
        }
        FaultKind::TokenServiceHung => {
            let mut options = ServerOptions { secure: true, ..faulty.options()? };
            options.arguments.push(REVIEW_TIMEOUT_ARGUMENT.to_owned());
            faulty.start_server(&options).await?;
            api(&faulty.mesh)?.hang_token_reviews(true);
            let root = api(&faulty.mesh)?.root_certificate()?;
            let callers = TokenCallers::start(faulty.mesh.server.secure()?, &root).await?;
            let clients = Some(FaultClients::Token(callers));
            ActiveFault { clients, has_other_server: true, ..ActiveFault::ends(FaultEnd::TokenReviews) }
        }
        FaultKind::ServerPaused => {
            faulty.mesh.server.signal(Signal::SIGSTOP)?;
            ActiveFault::ends(FaultEnd::Paused)
        }
        FaultKind::ServerTerminated => {
            let longest_restart = Some(terminate_often(faulty).await?);
            ActiveFault { longest_restart, ..ActiveFault::default() }
        }
        FaultKind::ServerKilled => {
            let killed = Instant::now();
            faulty.mesh.server.restart().await?;
            faulty.reach_server().await?;
            ActiveFault { longest_restart: Some(killed.elapsed()), ..ActiveFault::default() }
        }
        FaultKind::TaskPanics | FaultKind::FatalPanics => {
            let panics = Panics::new()?;
            let mut options = faulty.options()?;
            options.environment.push(panics.environment());
            // A backtrace reads the debug info of the program, which takes hundreds of MiB and seconds.
            options.environment.push(("RUST_BACKTRACE".to_owned(), "0".into()));
            faulty.start_server(&options).await?;
            if !panics.are_possible().await? {
                let options = faulty.options()?;
                faulty.start_server(&options).await?;
                return Ok(Injected::Skipped("only debug builds of the server inject panics".to_owned()));
            }
            let longest_restart = Some(match fault {
                FaultKind::TaskPanics => panics.restart_each_task(faulty).await?,
                _ => panics.end_by_each_task(faulty, &options).await?,
            });
            ActiveFault { longest_restart, has_other_server: true, ..ActiveFault::default() }
        }
        FaultKind::LogDiskFull => {
            let options = ServerOptions { log: Some(PathBuf::from(FULL_DISK)), ..faulty.options()? };
            faulty.start_server(&options).await?;
            ActiveFault { has_other_server: true, ..ActiveFault::default() }
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
            ActiveFault { has_other_server: true, ..ActiveFault::ends(FaultEnd::Clock(clock)) }
        }
        FaultKind::HostileClients => {
            let root = api(&faulty.mesh)?.root_certificate()?;
            let clients = HostileClients::start(faulty.mesh.fleet.len(), &faulty.mesh.server, &root)?;
            let clients = Some(FaultClients::Hostile(clients));
            ActiveFault { clients, has_other_server: true, ..ActiveFault::default() }
        }
        FaultKind::SlowClients => {
            faulty.slow_clients_read(pace_of_slow_client).await?;
            ActiveFault { clients: Some(FaultClients::Slow), ..ActiveFault::default() }
        }
    };
    Ok(Injected::Active(active))
}

impl ActiveFault {
    fn ends(end: FaultEnd) -> Self {
        Self { end, ..Self::default() }
    }

    /// Ends the fault, as far as the recovery depends on that.
    pub(super) fn end(&self, mesh: &MeasuredMesh) -> Result<()> {
        match &self.end {
            FaultEnd::Nothing => {}
            FaultEnd::Proxy => proxy(mesh)?.restore(),
            FaultEnd::Paused => mesh.server.signal(Signal::SIGCONT)?,
            FaultEnd::Clock(clock) => clock.jump("-1d")?,
            FaultEnd::TokenReviews => api(mesh)?.hang_token_reviews(false),
        }
        Ok(())
    }
}

impl FaultClients {
    /// Ends the clients that are no proxies. All proxies read promptly again.
    pub(super) async fn end(self, faulty: &mut FaultyMesh<'_>) -> Result<()> {
        match self {
            Self::Token(callers) => callers.stop().await,
            Self::Hostile(clients) => clients.stop().await,
            Self::Slow => faulty.slow_clients_read(|_| Pace::Prompt).await,
        }
    }
}

/// How the proxy of that number reads during `slow-clients`.
fn pace_of_slow_client(number: usize) -> Pace {
    match number % 100 {
        0 => Pace::Dead,
        number if number % 10 == 1 => Pace::Slow(SLOW_CLIENT_DELAY),
        _ => Pace::Prompt,
    }
}

impl FaultyMesh<'_> {
    /// Replaces the server, and waits until all proxies are configured by the new one.
    async fn start_server(&mut self, options: &ServerOptions) -> Result<()> {
        self.replace_server(options).await?;
        self.await_configured().await
    }

    /// Replaces the server. Proxies connect to the new one from their next stream on.
    pub(super) async fn replace_server(&mut self, options: &ServerOptions) -> Result<()> {
        self.mesh.server.terminate(TERMINATION_LIMIT).await?;
        self.mesh.server = Server::start(options).await?.0;
        self.mesh.fleet.move_to(self.mesh.server.address);
        Ok(())
    }

    /// Sends the streams of all proxies to the present server, and waits until they are configured.
    pub(super) async fn reach_server(&mut self) -> Result<()> {
        self.mesh.fleet.move_to(self.mesh.server.address);
        self.await_configured().await
    }

    /// Waits until all proxies that read promptly are configured.
    async fn await_configured(&self) -> Result<()> {
        let (_, missed) = self.mesh.fleet.configured(Instant::now(), self.timeout()).await;
        ensure!(missed == 0, "{missed} proxies were not configured by the server");
        Ok(())
    }

    /// Connects the proxies that read slowly during `slow-clients` again, with the pace of each by its number. The others keep
    /// their streams.
    async fn slow_clients_read(&mut self, pace: impl Fn(usize) -> Pace) -> Result<()> {
        let is_slow = |number| pace_of_slow_client(number) != Pace::Prompt;
        let mut clients = self.mesh.fleet.disconnect_some(is_slow).await;
        for client in &mut clients {
            let pace = pace(client.number);
            self.mesh.fleet.set_pace(client, pace);
        }
        self.mesh.fleet.connect(clients);
        self.await_configured().await
    }
}

/// Terminates the server at random moments after its start, and starts it again. Returns the longest time from a termination until
/// the next server had configured all proxies, if that was waited for.
async fn terminate_often(faulty: &mut FaultyMesh<'_>) -> Result<Duration> {
    let options = faulty.options()?;
    let mut longest = Duration::ZERO;
    for _ in 0..faulty.arguments.terminations {
        faulty.change_for(MAX_LIFE.mul_f64(rand::random_range(0.0..1.0))).await?;
        let terminated = Instant::now();
        // Not ready yet in half of the cases: the next termination comes during the start.
        if rand::random() {
            faulty.start_server(&options).await?;
            longest = longest.max(terminated.elapsed());
        } else {
            faulty.mesh.server.terminate(TERMINATION_LIMIT).await?;
            faulty.mesh.server = Server::spawn(&options)?;
            faulty.mesh.fleet.move_to(faulty.mesh.server.address);
        }
    }
    let terminated = Instant::now();
    faulty.start_server(&options).await?;
    Ok(longest.max(terminated.elapsed()))
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
