//! Metrics of the agent, Envoy and the application in one response.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::join_all;
use serde::Deserialize;
use sluice_http_client::{HttpClient, HttpRequest};
use tracing::warn;

use crate::args::Role;
use crate::local_http;
use crate::metrics::Metrics;
use crate::settings::Settings;

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_END: &[u8] = b"# EOF";
/// Size limit of the application's metrics.
const MAX_APPLICATION_METRICS_BYTES: usize = 10 << 20;
/// Time limit of a scrape, unless the scraper states its own.
const DEFAULT_SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// Ports of the agent and of Envoy. A scrape of these ports would be a loop, or would return metrics of the proxy.
const RESERVED: [u16; 9] = [15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090];

/// Scrapes Envoy and the application.
pub(super) struct Scraper {
    /// Host and port of Envoy's metrics; `None` without Envoy.
    envoy: Option<(String, u16)>,
    targets: Vec<(u16, String)>,
    client: HttpClient,
    metrics: Metrics,
    pub(super) only_local: bool,
}

/// The annotations as the injector writes them into `ISTIO_PROMETHEUS_ANNOTATIONS`.
#[derive(Deserialize)]
struct PrometheusAnnotations {
    #[serde(default)]
    scrape: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    targets: Vec<ScrapeTarget>,
}

#[derive(Deserialize)]
struct ScrapeTarget {
    port: String,
    #[serde(default)]
    path: String,
}

impl Scraper {
    pub(super) fn new(settings: &Settings, metrics: Metrics) -> Result<Self> {
        let mut targets = Vec::new();
        // On a gateway, clients other than Prometheus can reach the status port.
        if let (Role::Sidecar, Some(text)) = (settings.role, &settings.probes.prometheus) {
            let annotations: PrometheusAnnotations = serde_json::from_str(text).context("read the JSON")?;
            if annotations.scrape != "false" {
                let mut all = annotations.targets;
                if all.is_empty() {
                    let port = if annotations.port.is_empty() { "80".to_owned() } else { annotations.port };
                    all.push(ScrapeTarget { port, path: annotations.path });
                }
                for ScrapeTarget { port, path } in all {
                    let number: u16 = port.parse().with_context(|| format!("port {port:?}"))?;
                    let taken = number == 0 || number == settings.ports.status || RESERVED.contains(&number);
                    ensure!(!taken, "port {number} is a port of the proxy, not of the application");
                    targets.push((number, if path.is_empty() { "/metrics".to_owned() } else { path }));
                }
            }
        }
        Ok(Self {
            envoy: settings.runs_envoy.then(|| (settings.loopback().to_string(), settings.ports.envoy_prometheus)),
            targets,
            client: local_http::client(None)?,
            metrics,
            only_local: settings.probes.metrics_only_local,
        })
    }

    /// The metrics of all sources that respond. Those of the application are last, because OpenMetrics ends with a mark.
    pub(super) async fn respond(&self, query: Option<&str>, headers: &HeaderMap) -> Response {
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
        let accept = if open {
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        } else {
            TEXT_FORMAT
        };
        let envoy = async {
            let (host, port) = self.envoy.as_ref()?;
            self.scrape("envoy", host, *port, &path, TEXT_FORMAT, timeout).await
        };
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
        // If one source has the text format, the whole response has it.
        let kind = kinds.iter().find(|kind| !kind.starts_with(OPEN_METRICS)).or(kinds.first());
        let open = kind.is_some_and(|kind| kind.starts_with(OPEN_METRICS));
        bodies.iter().for_each(|application| append(&mut body, application));
        if open {
            body.extend_from_slice(OPEN_METRICS_END);
            body.push(b'\n');
        }
        let kind = kind.filter(|_| open).map_or(TEXT_FORMAT, String::as_str);
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
        let scraped = async {
            let mut request = HttpRequest { timeout, ..local_http::get("http", host, port, path)? };
            if source == "application" {
                request.max_body_bytes = MAX_APPLICATION_METRICS_BYTES;
            }
            if let Ok(accept) = HeaderValue::from_str(accept) {
                request.headers.insert(header::ACCEPT, accept);
            }
            let response = self.client.send(request).await?;
            ensure!(response.status.is_success(), "status {}", response.status);
            let kind = response.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            Ok((kind.unwrap_or(TEXT_FORMAT).to_owned(), response.body))
        };
        scraped
            .await
            .inspect_err(|error| {
                self.metrics.scrape_failed(source);
                warn!(target: "status", source, port, error = format!("{error:#}"), "failed to scrape metrics");
            })
            .ok()
    }
}

/// Appends metrics, without the end mark of OpenMetrics and with a line end.
fn append(body: &mut Vec<u8>, exposition: &[u8]) {
    let trimmed = exposition.trim_ascii_end();
    let trimmed = trimmed.strip_suffix(OPEN_METRICS_END).unwrap_or(trimmed).trim_ascii_end();
    if !trimmed.is_empty() {
        body.extend_from_slice(trimmed);
        body.push(b'\n');
    }
}

fn timeout(headers: &HeaderMap) -> Duration {
    let stated = headers.get("x-prometheus-scrape-timeout-seconds").and_then(|text| text.to_str().ok());
    let stated = stated.and_then(|text| text.parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
    stated.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_SCRAPE_TIMEOUT)
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
    fn scrape_targets_follow_the_annotations() {
        let metrics = || "/metrics".to_owned();
        assert_eq!(targets("sidecar", r#"{"scrape":"true"}"#).expect("targets"), [(80, metrics())]);
        let many = r#"{"targets":[{"port":"81"},{"port":"82","path":"/m"}]}"#;
        assert_eq!(targets("sidecar", many).expect("targets"), [(81, metrics()), (82, "/m".to_owned())]);
        assert!(targets("sidecar", r#"{"scrape":"false"}"#).expect("none").is_empty());
        assert!(targets("router", r#"{"scrape":"true"}"#).expect("none").is_empty());
    }

    #[test]
    fn ports_of_the_proxy_are_rejected() {
        for port in ["15020", "015020", "15090", "0", "http"] {
            assert!(targets("sidecar", &format!(r#"{{"scrape":"true","port":"{port}"}}"#)).is_err(), "{port}");
        }
    }

    #[test]
    fn metrics_are_joined_without_end_marks() {
        let mut body = b"a 1\n".to_vec();
        append(&mut body, b"b 2\n# EOF\n");
        append(&mut body, b"");
        append(&mut body, b"c 3");
        assert_eq!(body, b"a 1\nb 2\nc 3\n");
    }
}
