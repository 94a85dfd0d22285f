//! Which modules there are as files, and when they are fetched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use http::Uri;
use rustls::ClientConfig;
use tracing::{debug, info, warn};

use super::client::{Ask, Client, accepted, shown};
use super::convert::PullPolicy;
use super::credentials::{Credentials, basic};
use super::reference::{Reference, SCHEME};
use super::registry::Registry;
use super::unpack;
use crate::files::write_whole;
use crate::metrics::Metrics;
use crate::settings::WasmSettings;

/// A module that an extension asks for.
pub(super) struct Wanted<'a> {
    pub(super) url: &'a str,
    /// Digits of SHA-256, of the module or of its image's manifest; empty if it may be anything.
    pub(super) checksum: String,
    /// The extension's name.
    pub(super) extension: &'a str,
    /// Of the object that the extension comes from.
    pub(super) resource_version: &'a str,
    pub(super) policy: PullPolicy,
    /// Credentials for its registry.
    pub(super) secret: Option<&'a [u8]>,
}

/// All of them.
pub(super) struct Cache {
    settings: WasmSettings,
    client: Client,
    metrics: Metrics,
    known: Mutex<Known>,
    /// By where modules are from: who asks for one that is being fetched waits for it.
    queues: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct Known {
    modules: BTreeMap<Key, Module>,
    /// What was last found at a URL that does not say what has to be there.
    found: HashMap<String, Found>,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    /// Where it is from, in whichever version.
    origin: String,
    checksum: String,
}

struct Module {
    file: PathBuf,
    asked: Instant,
    urls: BTreeSet<String>,
}

struct Found {
    checksum: String,
    /// Versions of the objects whose extensions had it fetched, by the extension's name.
    versions: BTreeMap<String, String>,
}

impl Cache {
    pub(super) fn new(settings: WasmSettings, tls: Option<ClientConfig>, metrics: Metrics) -> Self {
        let client = Client::new(&settings, tls);
        Self { settings, client, metrics, known: Mutex::default(), queues: Mutex::default() }
    }

    pub(super) fn settings(&self) -> &WasmSettings {
        &self.settings
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The module's file, fetched if need be.
    ///
    /// # Errors
    /// It cannot be had, is not what it has to be, or cannot be kept.
    pub(super) async fn get(&self, wanted: &Wanted<'_>) -> Result<PathBuf> {
        let image = wanted.url.starts_with(SCHEME).then(|| Reference::parse(wanted.url)).transpose()?;
        let origin = image.as_ref().map_or_else(|| wanted.url.to_owned(), Reference::module);
        let queue = self.queues().entry(origin.clone()).or_default().clone();
        let _one_at_a_time = queue.lock().await;
        let mut checksum = wanted.checksum.clone();
        if let Some(digest) = image.as_ref().and_then(Reference::digest).filter(|_| checksum.is_empty()) {
            checksum = digest.to_ascii_lowercase();
        }
        if checksum.is_empty() {
            checksum = self.last_found(wanted).unwrap_or_default();
        }
        let file = self.hit(&Key { origin: origin.clone(), checksum }, wanted);
        self.metrics.wasm_looked_up(file.is_some());
        if let Some(file) = file {
            return Ok(file);
        }
        let fetched = match &image {
            Some(image) => self.fetch_image(wanted, image, &origin).await,
            None => self.fetch_file(wanted, origin).await,
        };
        let (key, bytes) = match fetched? {
            Fetched::Known(file) => return Ok(file),
            Fetched::New(key, bytes) => (key, bytes),
        };
        if !unpack::is_module(&bytes) {
            self.metrics.wasm_fetched("fetch_failure");
            bail!("what is served is no Wasm module");
        }
        self.metrics.wasm_fetched("success");
        info!(target: "wasm", url = shown(wanted.url), checksum = key.checksum, bytes = bytes.len(), "fetched");
        self.keep(key, wanted, bytes).await
    }

    async fn fetch_file(&self, wanted: &Wanted<'_>, origin: String) -> Result<Fetched> {
        let failed = |_: &anyhow::Error| self.metrics.wasm_fetched("download_failure");
        let Ok(uri) = wanted.url.parse::<Uri>() else { bail!("the address is none") };
        let authority = uri.authority().context("the address has no host")?.as_str();
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let insecure = self.settings.is_insecure(host);
        let authorization = match basic(user.as_bytes()) {
            Credentials::Basic(value) if !user.is_empty() => Some(value),
            _ => None,
        };
        let answer = self.client.get(&Ask { uri, accept: "*/*", authorization, insecure }).await;
        let body = answer.and_then(accepted).inspect_err(failed)?.body;
        let most = self.settings.most_bytes;
        let unpacked = tokio::task::spawn_blocking(move || unpack::module(body.to_vec(), most)).await?;
        let bytes = unpacked.inspect_err(|_| self.metrics.wasm_fetched("fetch_failure"))?;
        let checksum = sha256(&bytes);
        self.check(wanted, &checksum)?;
        Ok(Fetched::New(Key { origin, checksum }, bytes))
    }

    async fn fetch_image(&self, wanted: &Wanted<'_>, image: &Reference, origin: &str) -> Result<Fetched> {
        let insecure = self.settings.is_insecure(&image.registry);
        let docker_config = self.settings.docker_config.as_deref();
        let mut registry = Registry::new(&self.client, image, insecure, wanted.secret, docker_config)?;
        let found = registry.image().await.inspect_err(|_| self.metrics.wasm_fetched("manifest_failure"))?;
        // The list of images for several machines may be named instead.
        if image.digest().is_none_or(|digest| digest != wanted.checksum) {
            self.check(wanted, &found.digest)?;
        }
        let key = Key { origin: origin.to_owned(), checksum: found.digest.clone() };
        if let Some(file) = self.hit(&key, wanted) {
            return Ok(Fetched::Known(file));
        }
        let module = registry.module(&found, self.settings.most_bytes).await;
        Ok(Fetched::New(key, module.inspect_err(|_| self.metrics.wasm_fetched("download_failure"))?))
    }

    fn check(&self, wanted: &Wanted<'_>, checksum: &str) -> Result<()> {
        if wanted.checksum.is_empty() || wanted.checksum == checksum {
            return Ok(());
        }
        self.metrics.wasm_fetched("checksum_mismatched");
        bail!("its checksum is {checksum}, not {}", wanted.checksum)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, Arc<tokio::sync::Mutex<()>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checksum of what was last found there, unless it has to be looked at again.
    fn last_found(&self, wanted: &Wanted<'_>) -> Option<String> {
        let follows_tag = wanted.url.starts_with(SCHEME) && wanted.url.ends_with(":latest");
        let any_version = match wanted.policy {
            PullPolicy::IfNotPresent => true,
            PullPolicy::Always => false,
            PullPolicy::Unspecified => !follows_tag,
        };
        let mut known = self.known();
        let found = known.found.get_mut(wanted.url)?;
        let before = found.versions.insert(wanted.extension.to_owned(), wanted.resource_version.to_owned());
        (any_version || before.as_deref() == Some(wanted.resource_version)).then(|| found.checksum.clone())
    }

    fn hit(&self, key: &Key, wanted: &Wanted<'_>) -> Option<PathBuf> {
        let mut known = self.known();
        let module = known.modules.get_mut(key).filter(|module| module.file.exists())?;
        module.asked = Instant::now();
        module.urls.insert(wanted.url.to_owned());
        let file = module.file.clone();
        known.note(key, wanted);
        Some(file)
    }

    /// Writes a module to its file, which is there as a whole or not at all.
    async fn keep(&self, key: Key, wanted: &Wanted<'_>, bytes: Vec<u8>) -> Result<PathBuf> {
        let directory = self.settings.directory.join(sha256(key.origin.as_bytes()));
        let file = directory.join(format!("{}.wasm", key.checksum));
        let to = file.clone();
        let written = tokio::task::spawn_blocking(move || write(&directory, &to, &bytes));
        let file = written.await?.with_context(|| format!("write {}", file.display()))?;
        let mut known = self.known();
        let urls = BTreeSet::from([wanted.url.to_owned()]);
        known.modules.insert(key.clone(), Module { file: file.clone(), asked: Instant::now(), urls });
        known.note(&key, wanted);
        self.metrics.wasm_modules(known.modules.len());
        Ok(file)
    }

    /// Removes what nothing asked for in a long time.
    pub(super) fn purge(&self, now: Instant) {
        self.queues().retain(|_, queue| Arc::strong_count(queue) > 1);
        let mut known = self.known();
        let Known { modules, found } = &mut *known;
        modules.retain(|key, module| {
            if now.saturating_duration_since(module.asked) <= self.settings.expiry {
                return true;
            }
            match std::fs::remove_file(&module.file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    warn!(target: "wasm", file = %module.file.display(), "cannot be removed: {error}");
                    return true;
                }
                _ => debug!(target: "wasm", checksum = key.checksum, "removed"),
            }
            found.retain(|url, found| !(module.urls.contains(url) && found.checksum == key.checksum));
            false
        });
        self.metrics.wasm_modules(modules.len());
    }
}

/// What fetching gave.
enum Fetched {
    Known(PathBuf),
    New(Key, Vec<u8>),
}

impl Known {
    /// Notes what was found at a URL, unless the URL says itself what has to be there.
    fn note(&mut self, key: &Key, wanted: &Wanted<'_>) {
        if wanted.url.starts_with(SCHEME) && wanted.url.contains('@') {
            return;
        }
        let empty = || Found { checksum: String::new(), versions: BTreeMap::new() };
        let found = self.found.entry(wanted.url.to_owned()).or_insert_with(empty);
        found.checksum.clone_from(&key.checksum);
        found.versions.insert(wanted.extension.to_owned(), wanted.resource_version.to_owned());
    }
}

fn write(directory: &Path, file: &Path, bytes: &[u8]) -> Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    write_whole(file, bytes, 0o644)?;
    let file = file.canonicalize()?;
    ensure!(file.to_str().is_some(), "the directory's name is no text");
    Ok(file)
}

/// The digits of bytes' SHA-256.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
