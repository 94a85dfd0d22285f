//! Health of the workload by the ProxyConfig's `readinessProbe`. It is for workloads outside Kubernetes, which have no kubelet.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sluice_proto::istio::networking::v1alpha3::ReadinessProbe;
use sluice_proto::istio::networking::v1alpha3::readiness_probe::HealthCheckMethod;
use sluice_tasks::restart;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use crate::settings::Settings;
use crate::status::{NotReady, Probe, Prober, Target};

/// The workload's health, as it is reported to the control plane; `None` before the first result.
pub(crate) type Health = Option<Result<(), Unhealthy>>;

/// The reason why the workload is unhealthy. Each one is temporary: the probe is repeated.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Unhealthy {
    #[error("the proxy is not ready: {0}")]
    ProxyNotReady(#[from] NotReady),
    #[error("the workload responded with status {0}")]
    Status(StatusCode),
    #[error("{0}")]
    Probe(String),
    #[error("exec has no command")]
    NoCommand,
    #[error("run {program}: {reason}")]
    CommandNotStarted { program: String, reason: String },
    #[error("{program} exited with {status}")]
    CommandFailed { program: String, status: ExitStatus },
    #[error("{program} did not exit within {limit:?}")]
    CommandTimeout { program: String, limit: Duration },
}

/// Counts consecutive results until they reach the threshold.
struct HealthThreshold {
    successes: u32,
    failures: u32,
    success_threshold: u32,
    failure_threshold: u32,
    last: Option<bool>,
}

impl HealthThreshold {
    fn new(probe: &ReadinessProbe) -> Self {
        let at_least_one = |count: i32| u32::try_from(count).unwrap_or(0).max(1);
        Self {
            successes: 0,
            failures: 0,
            success_threshold: at_least_one(probe.success_threshold),
            failure_threshold: at_least_one(probe.failure_threshold),
            last: None,
        }
    }

    /// Adds a result. Returns whether it changes the health.
    fn add(&mut self, healthy: bool) -> bool {
        let (count, other, threshold) = match healthy {
            true => (&mut self.successes, &mut self.failures, self.success_threshold),
            false => (&mut self.failures, &mut self.successes, self.failure_threshold),
        };
        *count += 1;
        *other = 0;
        let changes = *count >= threshold && self.last != Some(healthy);
        if changes {
            self.last = Some(healthy);
        }
        changes
    }
}

/// Checks the workload while there is a receiver, if the ProxyConfig has a probe. The proxy has to be ready as well: while
/// `proxy_ready` fails, the workload is unhealthy.
pub(crate) fn spawn<F, R>(settings: &Settings, proxy_ready: F) -> watch::Receiver<Health>
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), NotReady>> + Send + 'static,
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
    let Some(check) = WorkloadCheck::new(&config, &host, limit) else {
        warn!(target: "healthcheck", "ProxyConfig: readinessProbe is ignored: it has no valid httpGet, tcpSocket, grpc or exec");
        return receiver;
    };
    let checker = Arc::new(HealthChecker { config, check, proxy_ready, limit, period, delay, sender });
    tokio::spawn(restart("workload health", move || checker.clone().run()));
    receiver
}

/// Checks the workload at an interval.
struct HealthChecker<F> {
    config: ReadinessProbe,
    check: WorkloadCheck,
    proxy_ready: F,
    limit: Duration,
    period: Duration,
    delay: Duration,
    sender: watch::Sender<Health>,
}

impl<F, R> HealthChecker<F>
where
    F: Fn() -> R,
    R: Future<Output = Result<(), NotReady>>,
{
    /// Runs while there is a receiver.
    async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut threshold = HealthThreshold::new(&self.config);
        sleep(self.delay).await;
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.sender.closed() => return Ok(()),
            }
            let result = match (self.proxy_ready)().await {
                Ok(()) => self.check.run(self.limit).await,
                Err(reason) => Err(reason.into()),
            };
            if threshold.add(result.is_ok()) {
                match &result {
                    Ok(()) => info!(target: "healthcheck", "workload is healthy"),
                    Err(reason) => warn!(target: "healthcheck", %reason, "workload is unhealthy"),
                }
                self.sender.send_replace(Some(result));
            }
        }
    }
}

/// How the workload is checked.
enum WorkloadCheck {
    Network(Box<Prober>, Probe, HeaderMap),
    Command(Vec<String>),
}

impl WorkloadCheck {
    fn new(config: &ReadinessProbe, host: &str, timeout: Duration) -> Option<Self> {
        let network = |target, own: &str, port: u32, headers| {
            let host = if own.is_empty() { host } else { own }.to_owned();
            let probe = Probe { target, host, port: u16::try_from(port).ok()?, timeout };
            Some(Self::Network(Box::new(Prober::new(false).ok()?), probe, headers))
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

    async fn run(&self, limit: Duration) -> Result<(), Unhealthy> {
        match self {
            Self::Network(prober, probe, headers) => match prober.probe(probe, headers.clone()).await {
                Ok((status, _)) if status.is_success() || status.is_redirection() => Ok(()),
                Ok((status, _)) => Err(Unhealthy::Status(status)),
                Err(error) => Err(Unhealthy::Probe(format!("{error:#}"))),
            },
            Self::Command(command) => {
                let Some((program, arguments)) = command.split_first() else {
                    return Err(Unhealthy::NoCommand);
                };
                let run = Command::new(program).args(arguments).kill_on_drop(true).output();
                match timeout(limit, run).await {
                    Ok(Ok(output)) if output.status.success() => Ok(()),
                    Ok(Ok(output)) => Err(Unhealthy::CommandFailed { program: program.clone(), status: output.status }),
                    Ok(Err(error)) => {
                        Err(Unhealthy::CommandNotStarted { program: program.clone(), reason: error.to_string() })
                    }
                    Err(_) => Err(Unhealthy::CommandTimeout { program: program.clone(), limit }),
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
    fn health_changes_after_threshold_of_consecutive_results() {
        let probe = ReadinessProbe { success_threshold: 2, failure_threshold: 3, ..ReadinessProbe::default() };
        let mut threshold = HealthThreshold::new(&probe);
        let changes: Vec<bool> = [true, false, true, true, true, false, false, true, false, false, false]
            .map(|healthy| threshold.add(healthy))
            .into();
        assert_eq!(
            changes.iter().enumerate().filter(|(_, changed)| **changed).map(|(i, _)| i).collect::<Vec<_>>(),
            [3, 10]
        );
        let mut once = HealthThreshold::new(&ReadinessProbe::default());
        assert!(once.add(false) && !once.add(false) && once.add(true));
    }

    #[tokio::test]
    async fn exec_probe_decides_health_by_exit_status() {
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
