//! Envoy's admin interface.

use std::fmt;

use anyhow::{Result, ensure};
use http::Method;
use sluice_http_client::{HttpClient, HttpRequest};

use crate::args::Role;
use crate::local_http;

/// A client of the admin interface.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    host: String,
    port: u16,
    client: HttpClient,
}

/// The statistics that readiness depends on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ReadinessStats {
    pub(crate) clusters: u64,
    pub(crate) clusters_rejected: u64,
    pub(crate) listeners: u64,
    pub(crate) listeners_rejected: u64,
    /// `server.state`; 0 is LIVE.
    pub(crate) state: Option<u64>,
    pub(crate) workers_started: bool,
}

impl fmt::Display for ReadinessStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, clusters_rejected, listeners, listeners_rejected, .. } = self;
        write!(
            f,
            "clusters: {clusters} updates, {clusters_rejected} rejected; listeners: {listeners} updates, \
             {listeners_rejected} rejected"
        )
    }
}

impl Admin {
    /// # Errors
    /// The HTTP client cannot be set up.
    pub(crate) fn new(host: String, port: u16) -> Result<Self> {
        Ok(Self { host, port, client: local_http::client(None)? })
    }

    /// Sends a request and returns the response body.
    ///
    /// # Errors
    /// There is no response, or its status is not a success.
    pub(crate) async fn request(&self, method: Method, path: &str) -> Result<String> {
        let request = HttpRequest { method, ..local_http::get("http", &self.host, self.port, path)? };
        let response = self.client.send(request).await?;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        ensure!(response.status.is_success(), "{path}: status {}: {}", response.status, text.trim());
        Ok(text)
    }

    /// Drains the listeners, so that clients connect elsewhere. A sidecar keeps serving the traffic of its own workload.
    ///
    /// # Errors
    /// There is no response, or its status is not a success.
    pub(crate) async fn drain(&self, role: Role, keep_running: bool) -> Result<()> {
        let inbound = if role == Role::Sidecar { "inboundonly&" } else { "" };
        let keep = if keep_running { "&skip_exit" } else { "" };
        self.request(Method::POST, &format!("/drain_listeners?{inbound}graceful{keep}")).await.map(drop)
    }

    /// Reads the statistics that readiness depends on.
    ///
    /// # Errors
    /// There is no response, or its status is not a success.
    pub(crate) async fn readiness_stats(&self) -> Result<ReadinessStats> {
        let filter = "%5E(cluster_manager%5C.cds%5C.update_|listener_manager%5C.(lds%5C.update_|workers_started)|server%5C.state)";
        let text = self.request(Method::GET, &format!("/stats?usedonly&filter={filter}")).await?;
        Ok(parse_readiness_stats(&text))
    }

    /// Active downstream connections, without those to the listeners of `own_ports` and to Envoy's internal listeners.
    ///
    /// # Errors
    /// There is no response, or its status is not a success.
    pub(crate) async fn active_connections(&self, own_ports: &[u16]) -> Result<u64> {
        let text = self.request(Method::GET, "/stats?usedonly&filter=downstream_cx_active$").await?;
        Ok(parse_connections(&text, own_ports))
    }
}

/// Statistics as Envoy writes them: lines `name: value`.
fn stats(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(':')?;
        Some((name, value.trim().parse().ok()?))
    })
}

fn parse_readiness_stats(text: &str) -> ReadinessStats {
    let mut read = ReadinessStats::default();
    for (name, value) in stats(text) {
        match name {
            "cluster_manager.cds.update_success" => read.clusters = value,
            "cluster_manager.cds.update_rejected" => read.clusters_rejected = value,
            "listener_manager.lds.update_success" => read.listeners = value,
            "listener_manager.lds.update_rejected" => read.listeners_rejected = value,
            "server.state" => read.state = Some(value),
            "listener_manager.workers_started" => read.workers_started = value == 1,
            _ => {}
        }
    }
    read
}

fn parse_connections(text: &str, own_ports: &[u16]) -> u64 {
    let counts = |name: &str| {
        let Some(listener) = name.strip_prefix("listener.") else { return false };
        let Some(listener) = listener.strip_suffix(".downstream_cx_active") else { return false };
        let own = own_ports.iter().any(|port| listener.ends_with(&format!("_{port}")));
        // The connections of a worker are part of those of its listener. Internal listeners have no clients.
        !own && !listener.contains("worker_")
            && !listener.starts_with("admin")
            && !listener.starts_with("envoy_internal_")
    };
    stats(text).filter(|(name, _)| counts(name)).map(|(_, value)| value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_counts_are_parsed() {
        let text = "cluster_manager.cds.update_rejected: 0\ncluster_manager.cds.update_success: 3\n\
                    listener_manager.lds.update_success: 2\nlistener_manager.workers_started: 1\nserver.state: 0\n";
        let expected = ReadinessStats {
            clusters: 3,
            listeners: 2,
            state: Some(0),
            workers_started: true,
            ..ReadinessStats::default()
        };
        assert_eq!(parse_readiness_stats(text), expected);
        assert_eq!(parse_readiness_stats("nonsense"), ReadinessStats::default());
    }

    #[test]
    fn only_client_connections_are_counted() {
        let text = "http.inbound_0.0.0.0_80;.downstream_cx_active: 7\n\
                    listener.0.0.0.0_15021.downstream_cx_active: 1\n\
                    listener.0.0.0.0_15006.downstream_cx_active: 2\n\
                    listener.0.0.0.0_15006.worker_0.downstream_cx_active: 2\n\
                    listener.10.0.0.1_80.downstream_cx_active: 3\n\
                    listener.admin.main_thread.downstream_cx_active: 1\n\
                    listener.envoy_internal_main.downstream_cx_active: 9\n";
        assert_eq!(parse_connections(text, &[15021, 15090]), 5);
    }
}
