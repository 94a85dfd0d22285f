//! Probes that the injector redirects to the agent, since the kubelet has no mesh certificate (W08).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tracing::warn;

use super::probe::{Probe, Prober, Target};
use crate::settings::Settings;

/// The probes of the application, by the path that the kubelet requests.
pub(super) struct AppProbes {
    probes: BTreeMap<String, Probe>,
    prober: Prober,
    status_port: u16,
}

/// A probe as the injector writes it into `ISTIO_KUBE_APP_PROBERS`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InjectedProbe {
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    grpc: Option<Grpc>,
    #[serde(default)]
    timeout_seconds: u64,
}

#[derive(Deserialize)]
struct HttpGet {
    #[serde(default)]
    path: String,
    port: u16,
    #[serde(default)]
    scheme: String,
}

#[derive(Deserialize)]
struct TcpSocket {
    port: u16,
}

#[derive(Deserialize)]
struct Grpc {
    port: u16,
    #[serde(default)]
    service: Option<String>,
}

impl AppProbes {
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        let injected: BTreeMap<String, Option<InjectedProbe>> = match &settings.probes.app_probers {
            Some(text) => serde_json::from_str(text).context("read the JSON")?,
            None => BTreeMap::new(),
        };
        let host = match (settings.probes.to_localhost, settings.addresses.first()) {
            (false, Some(address)) => address.to_string(),
            _ => "localhost".to_owned(),
        };
        let mut probes = BTreeMap::new();
        for (path, injected) in injected {
            ensure!(
                is_probe_path(&path),
                "{path}: accepted paths are /app-health/CONTAINER/{{livez,readyz,startupz}} and /app-lifecycle/CONTAINER/{{prestopz,poststartz}}"
            );
            let injected = injected.with_context(|| format!("{path}: the probe is null"))?;
            let (target, port) = match (injected.http_get, injected.tcp_socket, injected.grpc) {
                (Some(http), None, None) => {
                    (Target::Http { tls: http.scheme.eq_ignore_ascii_case("https"), path: http.path }, http.port)
                }
                (None, Some(tcp), None) => (Target::Tcp, tcp.port),
                (None, None, Some(grpc)) => (Target::Grpc { service: grpc.service.unwrap_or_default() }, grpc.port),
                _ => bail!("{path}: the probe needs exactly one of httpGet, tcpSocket and grpc"),
            };
            let timeout = Duration::from_secs(injected.timeout_seconds.max(1));
            probes.insert(path, Probe { target, host: host.clone(), port, timeout });
        }
        Ok(Self { probes, prober: Prober::new(settings.probes.http2)?, status_port: settings.ports.status })
    }

    /// The application's response to a probe.
    pub(super) async fn respond(&self, path: &str, headers: &HeaderMap) -> Response {
        let Some(probe) = self.probes.get(path) else {
            warn!(target: "probes", path, "unknown probe requested");
            return (StatusCode::BAD_REQUEST, "there is no such probe\n").into_response();
        };
        match self.prober.probe(probe, self.forwarded_headers(headers, probe.port)).await {
            Ok((status, body)) => (status, body).into_response(),
            Err(error) => {
                warn!(target: "probes", path, error = format!("{error:#}"), "application probe failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    /// The kubelet's headers. In `Host`, the application's port replaces the status port.
    fn forwarded_headers(&self, headers: &HeaderMap, port: u16) -> HeaderMap {
        let mut headers = headers.clone();
        for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::UPGRADE, header::TE]
        {
            headers.remove(name);
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(ToOwned::to_owned);
        if let Some((host, requested_port)) = host.as_deref().and_then(|host| host.rsplit_once(':'))
            && requested_port.parse() == Ok(self.status_port)
            && let Ok(host) = HeaderValue::try_from(format!("{host}:{port}"))
        {
            headers.insert(header::HOST, host);
        }
        headers
    }
}

fn is_probe_path(path: &str) -> bool {
    let mut parts = path.split('/');
    let (empty, kind, container, probe) = (parts.next(), parts.next(), parts.next(), parts.next());
    empty == Some("")
        && matches!(kind, Some("app-health" | "app-lifecycle"))
        && container.is_some_and(|container| !container.is_empty())
        && matches!(probe, Some("livez" | "readyz" | "startupz" | "prestopz" | "poststartz"))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    fn read(json: &str) -> Result<AppProbes> {
        AppProbes::new(&settings("sidecar", &[("INSTANCE_IP", "10.0.0.7"), ("ISTIO_KUBE_APP_PROBERS", json)])?)
    }

    #[test]
    fn injected_probes_are_parsed() {
        let json = r#"{
            "/app-health/tea/livez": {"httpGet": {"path": "up", "port": 8080, "scheme": "HTTPS"}, "timeoutSeconds": 3},
            "/app-health/tea/readyz": {"tcpSocket": {"port": 9}},
            "/app-lifecycle/tea/prestopz": {"grpc": {"port": 7, "service": null}}
        }"#;
        let probes = read(json).expect("probes").probes;
        let expected = Probe {
            target: Target::Http { tls: true, path: "up".to_owned() },
            host: "10.0.0.7".to_owned(),
            port: 8080,
            timeout: Duration::from_secs(3),
        };
        assert_eq!(probes["/app-health/tea/livez"], expected);
        assert_eq!(probes["/app-health/tea/readyz"].target, Target::Tcp);
        assert_eq!(probes["/app-health/tea/readyz"].timeout, Duration::from_secs(1));
        assert_eq!(probes["/app-lifecycle/tea/prestopz"].target, Target::Grpc { service: String::new() });
    }

    #[test]
    fn application_is_probed_at_localhost_if_that_is_configured() {
        let probers = r#"{"/app-health/tea/livez": {"tcpSocket": {"port": 9}}}"#;
        let host = |to_localhost: &str| {
            let variables = [
                ("INSTANCE_IP", "10.0.0.7"),
                ("ISTIO_KUBE_APP_PROBERS", probers),
                ("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", to_localhost),
            ];
            let probes = AppProbes::new(&settings("sidecar", &variables).expect("settings")).expect("probes").probes;
            probes["/app-health/tea/livez"].host.clone()
        };
        assert_eq!((host("false").as_str(), host("true").as_str()), ("10.0.0.7", "localhost"));
    }

    #[test]
    fn malformed_probes_are_rejected() {
        for json in [
            "[]",
            r#"{"/app-health/tea": {"tcpSocket": {"port": 9}}}"#,
            r#"{"/app-health/tea/other": {"tcpSocket": {"port": 9}}}"#,
            r#"{"/app-health/tea/livez": {}}"#,
            r#"{"/app-health/tea/livez": {"tcpSocket": {"port": "http"}}}"#,
            r#"{"/app-health/tea/livez": {"tcpSocket": {"port": 9}, "grpc": {"port": 9}}}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn forwarded_host_keeps_its_name_and_gets_the_application_port() {
        let probes = read("{}").expect("no probes");
        let forwarded = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::try_from(host).expect("a host"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            let headers = probes.forwarded_headers(&headers, 80);
            assert!(!headers.contains_key(header::CONNECTION));
            headers[header::HOST].to_str().expect("text").to_owned()
        };
        assert_eq!(forwarded("10.0.0.7:15020"), "10.0.0.7:80");
        assert_eq!(forwarded("tea.example"), "tea.example");
    }
}
