//! Wasm modules of extensions (D07): the agent fetches them from their URL, checks them and writes them to files, so that
//! Envoy loads files only.
//!
//! - [`convert`]: extensions with files in place of URLs.
//! - [`cache`]: the module files and their expiry.
//! - [`client`], [`registry`], [`credentials`]: fetches from HTTP servers and container registries.
//! - [`unpack`]: modules in archives.
//!
//! A filter whose module cannot be fetched is replaced by one that denies all traffic, or allows it if the extension fails open.
//! Credentials are sent to their registry only; they appear in no configuration of Envoy, no log and no error.

mod cache;
mod client;
mod convert;
mod credentials;
mod digest;
mod reference;
mod registry;
mod unpack;

use std::sync::Arc;

use anyhow::Result;
use futures::future::join_all;
use rustls::ClientConfig;
use sluice_crypto::Roots;
use sluice_proto::google::protobuf::Any;
use sluice_tasks::restart;
use tracing::debug;

use crate::connection;
use crate::metrics::Metrics;
use crate::settings::WasmSettings;
use cache::ModuleCache;
pub(crate) use convert::is_wasm;

/// The modules of this proxy. Clones share the cache.
#[derive(Clone)]
pub(crate) struct Modules(Arc<ModuleCache>);

impl Modules {
    /// Servers are verified by the system's roots. Modules that no extension requests expire.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) fn new(settings: WasmSettings, metrics: Metrics) -> Result<Self> {
        // Without system roots, URLs of plaintext HTTP still work.
        let tls = connection::client_config(&Roots::System, None, None).ok();
        let modules = Self::with_tls(settings, tls, metrics)?;
        let cache = Arc::downgrade(&modules.0);
        let interval = modules.0.settings().purge_interval;
        tokio::spawn(restart("expiry of modules", move || {
            let cache = cache.clone();
            async move {
                loop {
                    tokio::time::sleep(interval).await;
                    let Some(cache) = cache.upgrade() else { return Ok(()) };
                    cache.purge(std::time::Instant::now());
                }
            }
        }));
        Ok(modules)
    }

    fn with_tls(settings: WasmSettings, tls: Option<ClientConfig>, metrics: Metrics) -> Result<Self> {
        Ok(Self(Arc::new(ModuleCache::new(settings, tls, metrics)?)))
    }

    /// The extensions with files in place of URLs.
    ///
    /// # Errors
    /// An extension is malformed. The whole response must be rejected.
    pub(crate) async fn convert(&self, extensions: Vec<Any>) -> Result<Vec<Any>> {
        let start = std::time::Instant::now();
        let converted = join_all(extensions.into_iter().map(|extension| convert::convert(&self.0, extension))).await;
        self.0.metrics().wasm_response_converted(start.elapsed());
        debug!(target: "wasm", extensions = converted.len(), "extensions converted");
        converted.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
