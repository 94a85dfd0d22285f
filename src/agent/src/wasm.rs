//! Wasm modules that extensions name by URL (D07): fetched, checked and kept in a directory, so that Envoy is told of files.
//!
//! - [`convert`]: extensions as Envoy takes them.
//! - [`cache`]: which modules there are, for how long.
//! - [`client`], [`registry`], [`credentials`]: how they are fetched, by HTTP or from registries of images.
//! - [`unpack`]: out of archives.
//!
//! A module that cannot be had is replaced by a filter that lets nothing pass, or everything if the extension may fail
//! open. Credentials for registries go to registries only: neither Envoy nor a log nor an error ever has them.

mod cache;
mod client;
mod convert;
mod credentials;
mod reference;
mod registry;
mod unpack;

use std::sync::Arc;

use anyhow::Result;
use futures::future::join_all;
use rustls::ClientConfig;
use sluice_proto::google::protobuf::Any;
use tracing::debug;

use crate::connection;
use crate::metrics::Metrics;
use crate::settings::{Roots, WasmSettings};
use cache::Cache;
pub(crate) use convert::is_wasm;

/// The modules of this proxy; clones are the same.
#[derive(Clone)]
pub(crate) struct Modules(Arc<Cache>);

impl Modules {
    /// Modules that are fetched with verification by the machine's roots, and purged when nothing asks for them any more.
    pub(crate) fn new(settings: WasmSettings, metrics: Metrics) -> Self {
        // A machine without roots can still fetch what is not over TLS.
        let tls = connection::client_config(&Roots::System, None, None).ok();
        let modules = Self::with_tls(settings, tls, metrics);
        let cache = Arc::downgrade(&modules.0);
        let interval = modules.0.settings().purge_interval;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                let Some(cache) = cache.upgrade() else { return };
                cache.purge(std::time::Instant::now());
            }
        });
        modules
    }

    fn with_tls(settings: WasmSettings, tls: Option<ClientConfig>, metrics: Metrics) -> Self {
        Self(Arc::new(Cache::new(settings, tls, metrics)))
    }

    /// Extensions as Envoy takes them.
    ///
    /// # Errors
    /// One of them cannot be read, so that all have to be refused.
    pub(crate) async fn convert(&self, extensions: Vec<Any>) -> Result<Vec<Any>> {
        let begun = std::time::Instant::now();
        let converted = join_all(extensions.into_iter().map(|extension| convert::convert(&self.0, extension))).await;
        self.0.metrics().wasm_converted_all(begun.elapsed());
        debug!(target: "wasm", extensions = converted.len(), "converted");
        converted.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
