//! Whether the workload is healthy, by the ProxyConfig's readiness probe: workloads that are no pods have nobody else who
//! asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use sluice_proto::istio::networking::v1alpha3::ReadinessProbe;
use sluice_proto::istio::networking::v1alpha3::readiness_probe::HealthCheckMethod;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::settings::Settings;
use crate::status::{Probe, Target, probe};

/// What is told to the control plane.
pub(crate) type Health = Option<Result<(), String>>;

/// Counts results in a row until they count.
struct Judge {
    successes: u32,
    failures: u32,
    needed_successes: u32,
    needed_failures: u32,
    last: Option<bool>,
}

impl Judge {
    fn new(probe: &ReadinessProbe) -> Self {
        let needed = |count: i32| u32::try_from(count).unwrap_or(0).max(1);
        Self {
            successes: 0,
            failures: 0,
            needed_successes: needed(probe.success_threshold),
            needed_failures: needed(probe.failure_threshold),
            last: None,
        }
    }

    /// Whether this turns the health.
    fn turns(&mut self, healthy: bool) -> bool {
        let (count, other, needed) = match healthy {
            true => (&mut self.successes, &mut self.failures, self.needed_successes),
            false => (&mut self.failures, &mut self.successes, self.needed_failures),
        };
        *count += 1;
        *other = 0;
        let turns = *count >= needed && self.last != Some(healthy);
        if turns {
            self.last = Some(healthy);
        }
        turns
    }
}

/// Looks after the workload as long as somebody listens, if the ProxyConfig says how. `proxy_ready` comes first.
pub(crate) fn spawn<F, R>(settings: &Settings, proxy_ready: F) -> watch::Receiver<Health>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<(), String>> + Send,
{
    let (sender, receiver) = watch::channel(None);
    let Some(config) = settings.proxy.readiness_probe.clone() else { return receiver };
    let host = settings.addresses.first().map_or_else(|| "localhost".to_owned(), ToString::to_string);
    let host = if settings.probes.to_localhost { "localhost".to_owned() } else { host };
    let seconds = |seconds: i32, default: u64| match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => Duration::from_secs(default),
    };
    let (limit, period) = (seconds(config.timeout_seconds, 1), seconds(config.period_seconds, 10));
    let delay = seconds(config.initial_delay_seconds, 0);
    let mut judge = Judge::new(&config);
    let Some(check) = Check::new(&config, &host, limit) else {
        warn!(target: "healthcheck", "readinessProbe: there is nothing to ask");
        return receiver;
    };
    let check = Arc::new(check);
    tokio::spawn(async move {
        sleep(delay).await;
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            let result = match proxy_ready().await {
                Ok(()) => check.run(limit).await,
                Err(reason) => Err(format!("the proxy is not ready: {reason}")),
            };
            if judge.turns(result.is_ok()) {
                match &result {
                    Ok(()) => info!(target: "healthcheck", "the workload is healthy"),
                    Err(reason) => warn!(target: "healthcheck", "the workload is not healthy: {reason}"),
                }
                sender.send_replace(Some(result));
            }
        }
    });
    receiver
}

/// How to ask.
enum Check {
    Network(Probe, HeaderMap),
    Command(Vec<String>),
}

impl Check {
    fn new(config: &ReadinessProbe, host: &str, timeout: Duration) -> Option<Self> {
        let network = |target, own: &str, port: u32, headers| {
            let host = if own.is_empty() { host } else { own }.to_owned();
            Some(Self::Network(Probe { target, host, port: u16::try_from(port).ok()?, timeout }, headers))
        };
        match config.health_check_method.as_ref()? {
            HealthCheckMethod::HttpGet(http) => {
                let tls = http.scheme.eq_ignore_ascii_case("https");
                let path = if http.path.is_empty() { "/".to_owned() } else { http.path.clone() };
                let named: BTreeMap<_, _> =
                    http.http_headers.iter().map(|header| (header.name.as_str(), header.value.as_str())).collect();
                let valid = |(name, value): (&str, &str)| {
                    Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
                };
                let headers = named.into_iter().filter_map(valid).collect();
                network(Target::Http { tls, path }, &http.host, http.port, headers)
            }
            HealthCheckMethod::TcpSocket(tcp) => network(Target::Tcp, &tcp.host, tcp.port, HeaderMap::new()),
            HealthCheckMethod::Grpc(grpc) => {
                network(Target::Grpc { service: grpc.service.clone() }, "", grpc.port, HeaderMap::new())
            }
            HealthCheckMethod::Exec(exec) => (!exec.command.is_empty()).then(|| Self::Command(exec.command.clone())),
        }
    }

    async fn run(&self, limit: Duration) -> Result<(), String> {
        match self {
            Self::Network(asked, headers) => match probe(asked, headers.clone()).await {
                Ok((status, _)) if status.is_success() || status.is_redirection() => Ok(()),
                Ok((status, _)) => Err(format!("the workload answered {status}")),
                Err(error) => Err(format!("{error:#}")),
            },
            Self::Command(command) => {
                let Some((program, arguments)) = command.split_first() else { return Err("no command".to_owned()) };
                let run = Command::new(program).args(arguments).kill_on_drop(true).output();
                match timeout(limit, run).await {
                    Ok(Ok(output)) if output.status.success() => Ok(()),
                    Ok(Ok(output)) => Err(format!("{program} ended with {}", output.status)),
                    Ok(Err(error)) => Err(format!("run {program}: {error}")),
                    Err(_) => Err(format!("{program} did not end within {limit:?}")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn health_turns_after_as_many_in_a_row_as_asked() {
        let probe = ReadinessProbe { success_threshold: 2, failure_threshold: 3, ..ReadinessProbe::default() };
        let mut judge = Judge::new(&probe);
        let turns: Vec<bool> = [true, false, true, true, true, false, false, true, false, false, false]
            .map(|healthy| judge.turns(healthy))
            .into();
        assert_eq!(
            turns.iter().enumerate().filter(|(_, turned)| **turned).map(|(i, _)| i).collect::<Vec<_>>(),
            [3, 10]
        );
        let mut once = Judge::new(&ReadinessProbe::default());
        assert!(once.turns(false) && !once.turns(false) && once.turns(true));
    }

    #[tokio::test]
    async fn a_command_says_how_the_workload_is() {
        let watch = |command: &str| {
            let config = format!("{{readinessProbe: {{exec: {{command: [{command}]}}}}}}");
            spawn(&settings("sidecar", &[("PROXY_CONFIG", &config)]).expect("settings"), || async { Ok(()) })
        };
        for (command, healthy) in [("'true'", true), ("'false'", false), ("/nowhere", false)] {
            let mut health = watch(command);
            health.changed().await.expect("a result");
            assert_eq!(health.borrow().as_ref().map(Result::is_ok), Some(healthy), "{command}");
        }
    }
}
