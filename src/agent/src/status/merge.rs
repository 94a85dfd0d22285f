//! Metrics of the agent, Envoy and the application in one answer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::join_all;
use serde::Deserialize;
use tracing::warn;

use crate::args::Role;
use crate::http_client::Ask;
use crate::metrics::Metrics;
use crate::settings::Settings;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text";
const END: &[u8] = b"# EOF";
/// Most bytes of what the application says.
const MOST_BODY: usize = 10 << 20;
/// Unless the scraper says how long it waits.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Ports that are ours or Envoy's: to ask them would go round in a circle, or show what is not the application's.
const RESERVED: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

/// Asks all of them.
pub(super) struct Scraper {
    envoy_host: String,
    envoy_port: u16,
    targets: Vec<(u16, String)>,
    metrics: Metrics,
    pub(super) only_local: bool,
}

/// As the injector writes it.
#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    scrape: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    port: String,
    #[serde(default)]
    path: String,
}

impl Scraper {
    pub(super) fn new(settings: &Settings, metrics: Metrics) -> Result<Self> {
        let mut targets = Vec::new();
        // A gateway's port is open to others than Prometheus.
        if let (Role::Sidecar, Some(text)) = (settings.role, &settings.probes.prometheus) {
            let described: Described = serde_json::from_str(text).context("read the JSON")?;
            if described.scrape != "false" {
                let mut all = described.targets;
                if all.is_empty() {
                    let port = if described.port.is_empty() { "80".to_owned() } else { described.port };
                    all.push(Target { port, path: described.path });
                }
                for Target { port, path } in all {
                    let number: u16 = port.parse().with_context(|| format!("port {port:?}"))?;
                    let taken = number == 0 || number == settings.ports.status || RESERVED.contains(&number);
                    ensure!(!taken, "port {number} is the proxy's, not the application's");
                    targets.push((number, if path.is_empty() { "/metrics".to_owned() } else { path }));
                }
            }
        }
        Ok(Self {
            envoy_host: settings.loopback().to_string(),
            envoy_port: settings.ports.envoy_prometheus,
            targets,
            metrics,
            only_local: settings.probes.metrics_only_local,
        })
    }

    /// All that can be had. The application's come last, for their end may end everything.
    pub(super) async fn answer(&self, query: Option<&str>, headers: &HeaderMap) -> Response {
        self.metrics.scraped();
        let timeout = timeout(headers);
        let path = match query {
            Some(query) => format!("/stats/prometheus?{query}"),
            None => "/stats/prometheus".to_owned(),
        };
        let open = headers
            .get_all(header::ACCEPT)
            .iter()
            .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains(OPEN_METRICS)));
        let accept =
            if open { "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5" } else { TEXT };
        let envoy = self.scrape("envoy", &self.envoy_host, self.envoy_port, &path, TEXT, timeout);
        let applications = self
            .targets
            .iter()
            .map(|(port, path)| self.scrape("application", "localhost", *port, path, accept, timeout));
        let (envoy, applications) = tokio::join!(envoy, join_all(applications));
        let mut body = self.metrics.text().into_bytes();
        if let Some((_, envoy)) = envoy {
            append(&mut body, &envoy);
        }
        let (kinds, bodies): (Vec<_>, Vec<_>) = applications.into_iter().flatten().unzip();
        // One that is plain makes all plain.
        let kind = kinds.iter().find(|kind| !kind.starts_with(OPEN_METRICS)).or(kinds.first());
        let open = kind.is_some_and(|kind| kind.starts_with(OPEN_METRICS));
        bodies.iter().for_each(|application| append(&mut body, application));
        if open {
            body.extend_from_slice(END);
            body.push(b'\n');
        }
        let kind = kind.filter(|_| open).map_or(TEXT, String::as_str);
        ([(header::CONTENT_TYPE, kind.to_owned())], body).into_response()
    }

    async fn scrape(
        &self,
        source: &'static str,
        host: &str,
        port: u16,
        path: &str,
        accept: &str,
        timeout: Duration,
    ) -> Option<(String, Bytes)> {
        let mut ask = Ask { timeout, ..Ask::new(Method::GET, host, port, path) };
        if source == "application" {
            ask.most = MOST_BODY;
        }
        if let Ok(accept) = HeaderValue::from_str(accept) {
            ask.headers.insert(header::ACCEPT, accept);
        }
        let result = ask.send().await.and_then(|(status, headers, body)| {
            ensure!(status.is_success(), "{status}");
            let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or(TEXT);
            Ok((kind.to_owned(), body))
        });
        result
            .inspect_err(|error| {
                self.metrics.scrape_failed(source);
                warn!(target: "status", source, port, "no metrics: {error:#}");
            })
            .ok()
    }
}

/// Adds an exposition, without the mark of its end and with a line end.
fn append(body: &mut Vec<u8>, exposition: &[u8]) {
    let trimmed = exposition.trim_ascii_end();
    let trimmed = trimmed.strip_suffix(END).unwrap_or(trimmed).trim_ascii_end();
    if !trimmed.is_empty() {
        body.extend_from_slice(trimmed);
        body.push(b'\n');
    }
}

fn timeout(headers: &HeaderMap) -> Duration {
    let asked = headers.get("x-prometheus-scrape-timeout-seconds").and_then(|text| text.to_str().ok());
    let asked = asked.and_then(|text| text.parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
    asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    fn targets(role: &str, json: &str) -> Result<Vec<(u16, String)>> {
        let settings = settings(role, &[("ISTIO_PROMETHEUS_ANNOTATIONS", json)])?;
        Ok(Scraper::new(&settings, Metrics::default())?.targets)
    }

    #[test]
    fn the_application_is_asked_where_it_says() {
        let metrics = || "/metrics".to_owned();
        assert_eq!(targets("sidecar", r#"{"scrape":"true"}"#).expect("targets"), [(80, metrics())]);
        let many = r#"{"targets":[{"port":"81"},{"port":"82","path":"/m"}]}"#;
        assert_eq!(targets("sidecar", many).expect("targets"), [(81, metrics()), (82, "/m".to_owned())]);
        assert!(targets("sidecar", r#"{"scrape":"false"}"#).expect("none").is_empty());
        assert!(targets("router", r#"{"scrape":"true"}"#).expect("none").is_empty());
    }

    #[test]
    fn our_own_ports_are_refused() {
        for port in ["15020", "015020", "15090", "0", "http"] {
            assert!(targets("sidecar", &format!(r#"{{"scrape":"true","port":"{port}"}}"#)).is_err(), "{port}");
        }
    }

    #[test]
    fn expositions_are_joined_without_their_ends() {
        let mut body = b"a 1\n".to_vec();
        append(&mut body, b"b 2\n# EOF\n");
        append(&mut body, b"");
        append(&mut body, b"c 3");
        assert_eq!(body, b"a 1\nb 2\nc 3\n");
    }
}
