//! Readiness and metrics over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use sluice_listen::{BodyLimits, ListenLimits, Listener, PortOptions, serve_http};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What has to be in place before the node is ready.
#[derive(Clone, Default)]
pub(crate) struct NodeReadiness {
    /// The plugin is installed.
    pub(crate) installed: Arc<AtomicBool>,
    /// Events of the plugin are served.
    pub(crate) serving: Arc<AtomicBool>,
}

impl NodeReadiness {
    fn is_ready(&self) -> bool {
        self.installed.load(Ordering::Relaxed) && self.serving.load(Ordering::Relaxed)
    }
}

/// Serves `/healthz` and `/readyz`, as `install-cni`.
pub(crate) async fn serve_probes(
    port: u16,
    readiness: NodeReadiness,
) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
    let ready = move || {
        let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        std::future::ready(status)
    };
    let router = Router::new().route("/healthz", get(|| async { StatusCode::OK })).route("/readyz", get(ready));
    serve("probes", port, router).await
}

/// Serves `/metrics`.
pub(crate) async fn serve_metrics(
    port: u16,
    registry: Registry,
) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
    let registry = Arc::new(registry);
    let metrics = move || {
        let mut text = String::new();
        let result = encode(&mut text, &registry);
        let content_type = [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];
        let response = match result {
            Ok(()) => (StatusCode::OK, content_type, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, content_type, error.to_string()),
        };
        std::future::ready(response)
    };
    serve("metrics", port, Router::new().route("/metrics", get(metrics))).await
}

async fn serve(
    name: &'static str,
    port: u16,
    router: Router,
) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
    let any = TcpListener::bind(("::", port)).await;
    // A node without IPv6.
    let listener = match any {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await.with_context(|| format!("listen on port {port}"))?,
    };
    let options = PortOptions { name, limits: ListenLimits::FEW_CLIENTS, ..PortOptions::default() };
    let listener = Listener::new(listener, options);
    Ok(async move {
        // It never ends: the caller drops it.
        serve_http(listener, router, BodyLimits::default(), CancellationToken::new()).await;
        Ok(())
    })
}
