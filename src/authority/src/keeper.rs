//! Loads the material of the authority, and follows its changes while the control plane runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use rand::Rng as _;
use sluice_ca::store::{self, CACERTS, Contents, SECRET};
use sluice_ca::{Authority, Certificate, Material, MaterialError, NewKey, RsaBits, root};
use sluice_kube::RequestError;
use sluice_model::Text;
use sluice_telemetry::unix_seconds;
use sluice_watch::{FollowGuard, LastReason, follow_changes};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::secret::{SecretApi, WriteResult};
use super::{AuthorityError, Signer, directory};
use crate::config::AuthorityConfig;

/// Longest wait for a Secret at start-up.
const SECRET_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Wait after the first attempt to read or create a Secret; it doubles with each further one.
const FIRST_RETRY_WAIT: Duration = Duration::from_millis(500);
/// Longest wait between two attempts.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);

/// The storage of the material.
enum MaterialStore {
    /// Files of an operator, or generated ones.
    Directory { is_generated: bool },
    /// A Secret that a replica generated.
    Secret(SecretApi, &'static str),
    /// A Secret of an operator.
    Remote(SecretApi),
    /// The memory of the process.
    Memory,
}

/// Loads an authority, follows changes of its material and renews its root.
pub struct AuthorityKeeper {
    config: AuthorityConfig,
    storage: MaterialStore,
    signer: Arc<Signer>,
    /// Roots in the directory that are trusted in addition to the root of a Secret.
    extra_roots: String,
    /// Why the files could not be used when they were read last.
    invalid_files: LastReason,
}

impl AuthorityKeeper {
    /// Loads or generates the authority of a trust domain: with a cluster, in a Secret of the control plane's namespace.
    ///
    /// # Errors
    /// Material is invalid, or the API server is not reached in time.
    pub async fn open(
        config: AuthorityConfig,
        cluster: Option<(Client, Text)>,
        trust_domain: &str,
    ) -> Result<Self, AuthorityError> {
        let fail = |error| AuthorityError::Directory { directory: config.directory.clone(), error };
        let files = directory::read(&config.directory)?;
        let secrets = cluster.map(|(client, namespace)| SecretApi::new(client, &namespace));
        // Roots alone are trusted in addition to the root of the Secret.
        let has_roots_only = secrets.is_some() && files.keys().all(|name| name == store::ROOTS);
        let stored = if has_roots_only { None } else { store::from_files(&files, config.revocations).map_err(fail)? };
        let mounts_own = config.in_cacerts && secrets.is_some();
        if let Some(stored) = stored.filter(|stored| !(stored.is_generated && mounts_own)) {
            let authority = Authority::new(&stored.material, unix_seconds()).map_err(fail)?;
            info!(target: "pkica", directory = %config.directory.display(), "using the certificate authority of the directory");
            let is_generated = stored.is_generated && secrets.is_none();
            return Ok(Self::new(config, MaterialStore::Directory { is_generated }, authority, String::new()));
        }
        let extra_roots = extra_roots(&files);
        match secrets {
            Some(secrets) => Self::open_secret(config, secrets, trust_domain, extra_roots).await,
            None => Self::open_local(config, trust_domain),
        }
    }

    fn new(config: AuthorityConfig, storage: MaterialStore, authority: Authority, extra_roots: String) -> Self {
        log_root(&authority);
        Self { config, storage, signer: Signer::new(authority), extra_roots, invalid_files: LastReason::default() }
    }

    /// Without a cluster: generates a root in the directory (`--createCA`), else in memory.
    fn open_local(config: AuthorityConfig, trust_domain: &str) -> Result<Self, AuthorityError> {
        let key = config.root_key.unwrap_or(NewKey::EcdsaP256);
        let created = root::create(trust_domain, key, config.root_lifetime, unix_seconds());
        let material = created.map_err(AuthorityError::Create)?;
        let authority = Authority::new(&material, unix_seconds()).map_err(AuthorityError::Create)?;
        let storage = if config.create {
            directory::write(&config.directory, &store::to_files(&material))?;
            info!(target: "pkica", directory = %config.directory.display(), "generated a certificate authority");
            MaterialStore::Directory { is_generated: true }
        } else {
            info!(
                target: "pkica",
                directory = %config.directory.display(),
                "no certificate authority found: a root in memory is used until the process ends; --createCA generates a \
                 permanent one"
            );
            MaterialStore::Memory
        };
        Ok(Self::new(config, storage, authority, String::new()))
    }

    async fn open_secret(
        config: AuthorityConfig,
        secrets: SecretApi,
        trust_domain: &str,
        extra_roots: String,
    ) -> Result<Self, AuthorityError> {
        let deadline = tokio::time::Instant::now() + SECRET_TIMEOUT;
        let mut wait = FIRST_RETRY_WAIT;
        loop {
            let (name, reason) = match try_secret(&config, &secrets, trust_domain, &extra_roots).await {
                Ok(Some((authority, storage))) => return Ok(Self::new(config, storage, authority, extra_roots)),
                // Another replica created it first: read it.
                Ok(None) => (SECRET, "it changed during every attempt".to_owned()),
                Err((name, Failure::Material(reason))) => {
                    return Err(AuthorityError::Secret { name: name.to_owned(), reason });
                }
                Err((name, Failure::Api(reason))) => {
                    warn!(target: "pkica", secret = name, reason, "failed to read or create the Secret of the authority, retrying");
                    (name, reason)
                }
            };
            if tokio::time::Instant::now() + wait > deadline {
                return Err(AuthorityError::Secret { name: name.to_owned(), reason });
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_RETRY_WAIT);
        }
    }

    /// The signer, with the current authority.
    #[must_use]
    pub fn signer(&self) -> Arc<Signer> {
        self.signer.clone()
    }

    /// Follows the files and renews the root until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let (sender, mut changes) = mpsc::channel(1);
        let _guard = self.follow(sender);
        let interval = self.config.check_interval;
        let first = if self.config.jitter { interval.mul_f64(rand::rng().random_range(0.0..1.0)) } else { interval };
        let mut wait = first;
        loop {
            let due = async {
                if interval.is_zero() { std::future::pending().await } else { tokio::time::sleep(wait).await }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = changes.recv() => self.follow_files().await,
                () = due => {
                    self.check().await;
                    wait = interval;
                }
            }
        }
    }

    fn follow(&self, sender: mpsc::Sender<()>) -> Option<FollowGuard> {
        if !matches!(self.storage, MaterialStore::Directory { .. } | MaterialStore::Secret(..)) {
            return None;
        }
        let wanted = |file: &Path| {
            file.file_name().and_then(|name| name.to_str()).is_some_and(|name| store::FILES.contains(&name))
        };
        let guard = follow_changes(std::slice::from_ref(&self.config.directory), wanted, move || {
            // Fails only if another change is waiting already.
            let _ = sender.try_send(());
        });
        guard
            .inspect_err(|error| {
                warn!(target: "pkica", %error, "failed to follow the files of the certificate authority: changes need a restart");
            })
            .ok()
    }

    /// Reads the directory again, after a change or at an interval.
    async fn follow_files(&mut self) {
        if matches!(self.storage, MaterialStore::Directory { .. }) {
            self.reload_files();
        } else if self.read_extra_roots() != self.extra_roots {
            self.check().await;
        }
    }

    /// The roots in the directory that are trusted in addition to that of the Secret. If they cannot be used, those that were
    /// read last.
    fn read_extra_roots(&mut self) -> String {
        let directory = &self.config.directory;
        let read = || -> Result<String, CheckError> {
            let roots = extra_roots(&directory::read(directory)?);
            store::check_roots(&roots)?;
            Ok(roots)
        };
        match read() {
            Ok(roots) => {
                self.invalid_files.clear();
                roots
            }
            Err(reason) => {
                if self.invalid_files.is_new(&reason.to_string()) {
                    warn!(
                        target: "pkica", directory = %directory.display(), %reason,
                        "additional roots of the certificate authority are invalid, the previous ones stay in use"
                    );
                }
                self.extra_roots.clone()
            }
        }
    }

    /// Uses the authority in the directory. Returns whether a new reason why it cannot be used was logged.
    fn reload_files(&mut self) -> bool {
        let read = || -> Result<Option<(Authority, bool)>, CheckError> {
            let files = directory::read(&self.config.directory)?;
            let stored = store::from_files(&files, self.config.revocations)?;
            let Some(stored) = stored else { return Err("its files have been removed".to_owned().into()) };
            let current = self.signer.current();
            let new = Authority::new(&stored.material, unix_seconds())?;
            if new.material() == current.material() {
                return Ok(None);
            }
            store::check_replacement(&current, &new, self.config.multi_root).map_err(|error| error.to_string())?;
            Ok(Some((new, stored.is_generated)))
        };
        match read() {
            Ok(None) => self.invalid_files.clear(),
            Ok(Some((authority, is_generated))) => {
                self.invalid_files.clear();
                info!(target: "pkica", directory = %self.config.directory.display(), "the certificate authority has changed");
                if !is_generated {
                    // An operator replaced a generated root: the operator renews it.
                    self.storage = MaterialStore::Directory { is_generated };
                }
                self.replace(authority);
            }
            Err(reason) => {
                // The files are read again every few seconds.
                let is_new = self.invalid_files.is_new(&reason.to_string());
                if is_new {
                    warn!(
                        target: "pkica", directory = %self.config.directory.display(), %reason,
                        "changed certificate authority is invalid, the previous one stays in use"
                    );
                }
                return is_new;
            }
        }
        false
    }

    fn replace(&self, authority: Authority) {
        log_root(&authority);
        self.signer.replace(authority);
    }

    /// Renews a generated root when it is due, or loads the one that another replica renewed.
    async fn check(&mut self) {
        let is_secret = matches!(self.storage, MaterialStore::Secret(..));
        let extra_roots = if is_secret { self.read_extra_roots() } else { String::new() };
        let checked = match &self.storage {
            MaterialStore::Directory { is_generated: false } => Ok(()),
            MaterialStore::Directory { is_generated: true } | MaterialStore::Memory => self.renew_local(),
            MaterialStore::Secret(secrets, name) => self.check_secret(secrets, name, &extra_roots).await,
            MaterialStore::Remote(secrets) => self.check_remote(secrets).await,
        };
        if checked.is_ok() {
            self.extra_roots = extra_roots;
        }
        if let Err(reason) = checked {
            error!(target: "rootcertrotator", %reason, "failed to check or renew the certificate authority");
        }
    }

    fn is_due(&self, authority: &Authority) -> bool {
        root::is_due(authority, self.config.grace_percent, unix_seconds())
    }

    fn renewed(&self, authority: &Authority, extra_roots: &str) -> Result<(Material, Authority), CheckError> {
        let material = root::renew(authority, self.config.root_lifetime, unix_seconds())?;
        let all = store::with_roots(material.clone(), extra_roots);
        let authority = Authority::new(&all, unix_seconds())?;
        Ok((material, authority))
    }

    fn renew_local(&self) -> Result<(), CheckError> {
        let current = self.signer.current();
        if !self.is_due(&current) {
            return Ok(());
        }
        let (material, authority) = self.renewed(&current, "")?;
        if matches!(self.storage, MaterialStore::Directory { .. }) {
            directory::write(&self.config.directory, &store::to_files(&material))?;
        }
        info!(target: "rootcertrotator", "renewed the root certificate");
        self.replace(authority);
        Ok(())
    }

    async fn check_secret(&self, secrets: &SecretApi, name: &'static str, extra_roots: &str) -> Result<(), CheckError> {
        let secret = secrets.get(name).await?.ok_or_else(|| format!("Secret {name} has been deleted"))?;
        let material = store::from_secret(name, &secret.data, extra_roots)?;
        let current = self.signer.current();
        let stored = Authority::new(&material, unix_seconds());
        let is_due = match &stored {
            Ok(stored) => self.is_due(stored),
            // Only an expired root can be renewed.
            Err(error) => {
                let certificate = Certificate::from_pem(name, &material.certificate);
                if certificate.is_ok_and(|certificate| certificate.not_after >= unix_seconds()) {
                    return Err(format!("Secret {name}: {error}").into());
                }
                true
            }
        };
        if !is_due {
            let stored = stored?;
            if stored.certificate() != current.certificate() {
                info!(target: "rootcertrotator", secret = name, "another replica has changed the root certificate");
                self.replace(stored);
            } else if stored.material() != current.material() {
                let directory = self.config.directory.display();
                info!(target: "rootcertrotator", secret = name, %directory, "the additional roots have changed");
                self.replace(stored);
            }
            return Ok(());
        }
        // An expired root cannot be loaded; the one in memory has the same key.
        let (material, authority) = self.renewed(stored.as_ref().unwrap_or(&current), extra_roots)?;
        match secrets.update(name, &secret, &store::to_secret(name, &material)).await? {
            WriteResult::Written => {
                info!(target: "rootcertrotator", secret = name, "renewed the root certificate");
                self.replace(authority);
                Ok(())
            }
            WriteResult::Conflict => Err(format!("another writer changed Secret {name}").into()),
        }
    }

    async fn check_remote(&self, secrets: &SecretApi) -> Result<(), CheckError> {
        let secret = secrets.get(CACERTS).await?.ok_or_else(|| format!("Secret {CACERTS} has been deleted"))?;
        let stored = store::from_files(&secret.data, self.config.revocations)?;
        let stored = stored.ok_or_else(|| format!("Secret {CACERTS} is empty"))?;
        let new = Authority::new(&stored.material, unix_seconds())?;
        let current = self.signer.current();
        if new.material() != current.material() {
            store::check_replacement(&current, &new, self.config.multi_root).map_err(|error| error.to_string())?;
            self.replace(new);
        }
        Ok(())
    }
}

/// A check or renewal that failed. The next check retries.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Material(#[from] MaterialError),
    #[error(transparent)]
    Directory(#[from] AuthorityError),
    #[error("{0}")]
    State(String),
}

impl From<String> for CheckError {
    fn from(reason: String) -> Self {
        Self::State(reason)
    }
}

/// A failed attempt: permanent (material) or retryable (API).
enum Failure {
    Material(String),
    Api(String),
}

/// Reads or creates the Secret. `None` if another replica created it first.
async fn try_secret(
    config: &AuthorityConfig,
    secrets: &SecretApi,
    trust_domain: &str,
    extra_roots: &str,
) -> Result<Option<(Authority, MaterialStore)>, (&'static str, Failure)> {
    let material = |name| move |error: MaterialError| (name, Failure::Material(error.to_string()));
    let api = |name| move |error: RequestError| (name, Failure::Api(error.to_string()));
    if config.remote_certs
        && let Some(secret) = secrets.get(CACERTS).await.map_err(api(CACERTS))?
        && let Some(stored) = store::from_files(&secret.data, config.revocations).map_err(material(CACERTS))?
        && !stored.is_generated
    {
        let authority = Authority::new(&stored.material, unix_seconds()).map_err(material(CACERTS))?;
        info!(target: "pkica", secret = CACERTS, "using the certificate authority of the Secret");
        return Ok(Some((authority, MaterialStore::Remote(secrets.clone()))));
    }
    // The default Secret first, so that switching USE_CACERTS_FOR_SELF_SIGNED_CA on does not change the root.
    let names: &[&'static str] = if config.in_cacerts { &[SECRET, CACERTS] } else { &[SECRET] };
    for name in names.iter().copied() {
        if let Some(secret) = secrets.get(name).await.map_err(api(name))? {
            let loaded = store::from_secret(name, &secret.data, extra_roots).map_err(material(name))?;
            let authority = Authority::new(&loaded, unix_seconds()).map_err(material(name))?;
            info!(target: "pkica", secret = name, "using the root of the Secret");
            return Ok(Some((authority, MaterialStore::Secret(secrets.clone(), name))));
        }
    }
    let name = if config.in_cacerts { CACERTS } else { SECRET };
    let (domain, lifetime) = (trust_domain.to_owned(), config.root_lifetime);
    let key = config.root_key.unwrap_or(NewKey::Rsa(RsaBits::DEFAULT));
    // Generating an RSA key takes up to a second.
    let created = tokio::task::spawn_blocking(move || root::create(&domain, key, lifetime, unix_seconds())).await;
    let created = created.map_err(|error| (name, Failure::Api(error.to_string())))?.map_err(material(name))?;
    let all = store::with_roots(created.clone(), extra_roots);
    let authority = Authority::new(&all, unix_seconds()).map_err(material(name))?;
    match secrets.create(name, &store::to_secret(name, &created)).await.map_err(api(name))? {
        WriteResult::Written => {
            info!(target: "pkica", secret = name, "generated a root and its Secret");
            Ok(Some((authority, MaterialStore::Secret(secrets.clone(), name))))
        }
        WriteResult::Conflict => Ok(None),
    }
}

/// The roots beside a Secret in the files of the directory.
fn extra_roots(files: &Contents) -> String {
    files.get(store::ROOTS).map(|text| text.to_string()).unwrap_or_default()
}

fn log_root(authority: &Authority) {
    let certificate = authority.certificate();
    info!(
        target: "pkica",
        roots = authority.roots().len(),
        chain = authority.chain().len(),
        algorithm = ?authority.key().algorithm(),
        not_after = certificate.not_after,
        "the certificate authority is ready"
    );
}

#[cfg(test)]
mod tests;
