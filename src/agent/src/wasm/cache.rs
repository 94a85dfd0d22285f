//! The module files, and when they are fetched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use http::Uri;
use rustls::ClientConfig;
use sluice_http_client::Url;
use tracing::{debug, info, warn};

use super::client::{FetchRequest, RetryingClient, redacted, success};
use super::credentials::{Credentials, basic};
use super::digest::sha256;
use super::reference::{ImageReference, SCHEME};
use super::registry::RegistryClient;
use super::unpack;
use crate::files::write_atomic;
use crate::metrics::Metrics;
use crate::settings::WasmSettings;

/// When a cached module is fetched again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum PullPolicy {
    #[default]
    Unspecified,
    IfNotPresent,
    Always,
}

/// A module that an extension refers to.
pub(super) struct ModuleRequest<'a> {
    pub(super) url: &'a str,
    /// Hexadecimal SHA-256 of the module, or of its image's manifest; empty if any content is accepted.
    pub(super) checksum: String,
    /// Name of the extension.
    pub(super) extension: &'a str,
    /// Resource version of the WasmPlugin that the extension is made from.
    pub(super) resource_version: &'a str,
    pub(super) policy: PullPolicy,
    /// Pull secret for its registry.
    pub(super) pull_secret: Option<&'a [u8]>,
}

/// All modules of this proxy.
pub(super) struct ModuleCache {
    settings: WasmSettings,
    client: RetryingClient,
    metrics: Metrics,
    index: Mutex<ModuleIndex>,
    /// Locks by origin: a request for a module that is being fetched waits for the fetch.
    fetch_locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct ModuleIndex {
    modules: BTreeMap<ModuleKey, ModuleFile>,
    /// The latest content of URLs without a digest.
    latest: HashMap<String, LatestContent>,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct ModuleKey {
    /// The URL without version.
    origin: String,
    checksum: String,
}

struct ModuleFile {
    file: PathBuf,
    last_requested: Instant,
    urls: BTreeSet<String>,
}

struct LatestContent {
    checksum: String,
    /// Resource versions for which the content was last fetched or reused, by extension name.
    versions: BTreeMap<String, String>,
}

impl ModuleCache {
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(settings: WasmSettings, tls: Option<ClientConfig>, metrics: Metrics) -> Result<Self> {
        let client = RetryingClient::new(&settings, tls)?;
        Ok(Self { settings, client, metrics, index: Mutex::default(), fetch_locks: Mutex::default() })
    }

    pub(super) fn settings(&self) -> &WasmSettings {
        &self.settings
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The module's file; the module is fetched if it is not cached.
    ///
    /// # Errors
    /// The module cannot be fetched, has another checksum, or cannot be written.
    pub(super) async fn get(&self, request: &ModuleRequest<'_>) -> Result<PathBuf> {
        let image = request.url.starts_with(SCHEME).then(|| ImageReference::parse(request.url)).transpose()?;
        let origin = image.as_ref().map_or_else(|| request.url.to_owned(), ImageReference::repository_url);
        let fetch_lock = self.fetch_locks().entry(origin.clone()).or_default().clone();
        let _guard = fetch_lock.lock().await;
        let mut checksum = request.checksum.clone();
        if let Some(digest) = image.as_ref().and_then(ImageReference::digest).filter(|_| checksum.is_empty()) {
            checksum = digest.to_ascii_lowercase();
        }
        if checksum.is_empty() {
            checksum = self.latest_checksum(request).unwrap_or_default();
        }
        let file = self.cached_file(&ModuleKey { origin: origin.clone(), checksum }, request);
        self.metrics.wasm_looked_up(file.is_some());
        if let Some(file) = file {
            return Ok(file);
        }
        let fetched = match &image {
            Some(image) => self.fetch_image(request, image, &origin).await,
            None => self.fetch_file(request, origin).await,
        };
        let (key, bytes) = match fetched? {
            FetchedModule::Cached(file) => return Ok(file),
            FetchedModule::New(key, bytes) => (key, bytes),
        };
        if !unpack::is_module(&bytes) {
            self.metrics.wasm_fetched("fetch_failure");
            bail!("the server's response is not a Wasm module");
        }
        self.metrics.wasm_fetched("success");
        info!(target: "wasm", url = redacted(request.url), checksum = key.checksum, bytes = bytes.len(), "module fetched");
        self.store(key, request, bytes).await
    }

    async fn fetch_file(&self, request: &ModuleRequest<'_>, origin: String) -> Result<FetchedModule> {
        let failed = |_: &anyhow::Error| self.metrics.wasm_fetched("download_failure");
        let Ok(uri) = request.url.parse::<Uri>() else { bail!("the URL is malformed") };
        let authority = uri.authority().context("the URL has no host")?.as_str();
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let insecure = self.settings.is_insecure(host);
        let authorization = match basic(user.as_bytes()) {
            Credentials::Basic(value) if !user.is_empty() => Some(value),
            _ => None,
        };
        let Ok(url) = request.url.parse::<Url>() else { bail!("the URL is malformed") };
        let is_secret = authorization.is_some();
        let fetch = FetchRequest { url, accept: "*/*", authorization, is_secret, blocked: Vec::new(), insecure };
        let response = self.client.get(&fetch).await;
        let body = response.and_then(success).inspect_err(failed)?.body;
        let max_bytes = self.settings.max_bytes;
        let unpacked = tokio::task::spawn_blocking(move || unpack::module(body.to_vec(), max_bytes)).await?;
        let bytes = unpacked.inspect_err(|_| self.metrics.wasm_fetched("fetch_failure"))?;
        let checksum = sha256(&bytes);
        self.check(request, &checksum)?;
        Ok(FetchedModule::New(ModuleKey { origin, checksum }, bytes))
    }

    async fn fetch_image(
        &self,
        request: &ModuleRequest<'_>,
        image: &ImageReference,
        origin: &str,
    ) -> Result<FetchedModule> {
        let insecure = self.settings.is_insecure(&image.registry);
        let docker_config = self.settings.docker_config.as_deref();
        let mut registry = RegistryClient::new(&self.client, image, insecure, request.pull_secret, docker_config)?;
        let manifest = registry.image().await.inspect_err(|_| self.metrics.wasm_fetched("manifest_failure"))?;
        // The checksum may be that of the list of manifests for several platforms.
        if image.digest().is_none_or(|digest| digest != request.checksum) {
            self.check(request, &manifest.digest)?;
        }
        let key = ModuleKey { origin: origin.to_owned(), checksum: manifest.digest.clone() };
        if let Some(file) = self.cached_file(&key, request) {
            return Ok(FetchedModule::Cached(file));
        }
        let module = registry.module(&manifest, self.settings.max_bytes).await;
        Ok(FetchedModule::New(key, module.inspect_err(|_| self.metrics.wasm_fetched("download_failure"))?))
    }

    fn check(&self, request: &ModuleRequest<'_>, checksum: &str) -> Result<()> {
        if request.checksum.is_empty() || request.checksum == checksum {
            return Ok(());
        }
        self.metrics.wasm_fetched("checksum_mismatched");
        bail!("the checksum is {checksum}, expected {}", request.checksum)
    }

    fn index(&self) -> MutexGuard<'_, ModuleIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch_locks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.fetch_locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checksum of the latest content of the URL, unless the pull policy requires another fetch.
    fn latest_checksum(&self, request: &ModuleRequest<'_>) -> Option<String> {
        let follows_tag = request.url.starts_with(SCHEME) && request.url.ends_with(":latest");
        let any_version = match request.policy {
            PullPolicy::IfNotPresent => true,
            PullPolicy::Always => false,
            PullPolicy::Unspecified => !follows_tag,
        };
        let mut index = self.index();
        let latest = index.latest.get_mut(request.url)?;
        let before = latest.versions.insert(request.extension.to_owned(), request.resource_version.to_owned());
        (any_version || before.as_deref() == Some(request.resource_version)).then(|| latest.checksum.clone())
    }

    fn cached_file(&self, key: &ModuleKey, request: &ModuleRequest<'_>) -> Option<PathBuf> {
        let mut index = self.index();
        let module = index.modules.get_mut(key).filter(|module| module.file.exists())?;
        module.last_requested = Instant::now();
        module.urls.insert(request.url.to_owned());
        let file = module.file.clone();
        index.note(key, request);
        Some(file)
    }

    /// Writes a module to its file. The file appears complete or not at all.
    async fn store(&self, key: ModuleKey, request: &ModuleRequest<'_>, bytes: Vec<u8>) -> Result<PathBuf> {
        let directory = self.settings.directory.join(sha256(key.origin.as_bytes()));
        let file = directory.join(format!("{}.wasm", key.checksum));
        let to = file.clone();
        let written = tokio::task::spawn_blocking(move || write(&directory, &to, &bytes));
        let file = written.await?.with_context(|| format!("write {}", file.display()))?;
        let mut index = self.index();
        let urls = BTreeSet::from([request.url.to_owned()]);
        index.modules.insert(key.clone(), ModuleFile { file: file.clone(), last_requested: Instant::now(), urls });
        index.note(&key, request);
        self.metrics.wasm_modules(index.modules.len());
        Ok(file)
    }

    /// Removes modules that no extension has requested within the expiry time.
    pub(super) fn purge(&self, now: Instant) {
        self.fetch_locks().retain(|_, lock| Arc::strong_count(lock) > 1);
        let mut index = self.index();
        let ModuleIndex { modules, latest } = &mut *index;
        modules.retain(|key, module| {
            if now.saturating_duration_since(module.last_requested) <= self.settings.expiry {
                return true;
            }
            match std::fs::remove_file(&module.file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    warn!(target: "wasm", file = %module.file.display(), %error, "failed to remove an expired module");
                    return true;
                }
                _ => debug!(target: "wasm", checksum = key.checksum, "expired module removed"),
            }
            latest.retain(|url, content| !(module.urls.contains(url) && content.checksum == key.checksum));
            false
        });
        self.metrics.wasm_modules(modules.len());
    }
}

/// The result of a fetch.
enum FetchedModule {
    /// The manifest refers to a module that is cached.
    Cached(PathBuf),
    New(ModuleKey, Vec<u8>),
}

impl ModuleIndex {
    /// Records the content of a URL, unless the URL has a digest.
    fn note(&mut self, key: &ModuleKey, request: &ModuleRequest<'_>) {
        if request.url.starts_with(SCHEME) && request.url.contains('@') {
            return;
        }
        let empty = || LatestContent { checksum: String::new(), versions: BTreeMap::new() };
        let latest = self.latest.entry(request.url.to_owned()).or_insert_with(empty);
        latest.checksum.clone_from(&key.checksum);
        latest.versions.insert(request.extension.to_owned(), request.resource_version.to_owned());
    }
}

fn write(directory: &Path, file: &Path, bytes: &[u8]) -> Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    write_atomic(file, bytes, 0o644)?;
    let file = file.canonicalize()?;
    ensure!(file.to_str().is_some(), "the path of the directory is not UTF-8");
    Ok(file)
}
