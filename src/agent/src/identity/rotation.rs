//! Gets the workload's certificate and renews it in time.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tracing::{info, warn};

use super::file_secrets::{self, Source};
use super::{CERTIFICATE, ROOTS, Secret, Secrets, authority, certificate, revoked};
use crate::files::write_private;
use crate::metrics::Metrics;
use crate::settings::{IdentitySettings, KeyFiles, Peer};

/// Time before a failed attempt is repeated, the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Keeps certificate and roots fresh, from files if there are any, else from the authority. Never ends.
pub(crate) async fn run(settings: IdentitySettings, secrets: Secrets, metrics: Metrics) {
    let KeyFiles { chain, key, roots } = &settings.files;
    // Files that we write ourselves are not what is meant.
    let own = settings.output.as_deref().is_some_and(|output| same_directory(output, chain));
    let from_files = !own && (settings.authority.is_none() || (chain.exists() && key.exists()));
    let roots_from_file = !own && (settings.authority.is_none() || roots.exists());
    if let Some(file) = settings.revoked.clone() {
        revoked::spawn(file, settings.debounce, secrets.clone());
    }
    if roots_from_file {
        let secrets = secrets.clone();
        file_secrets::spawn(ROOTS, Source::Roots(roots.clone()), settings.debounce, metrics.clone(), move |secret| {
            if let Secret::Roots(pem) = secret {
                secrets.set_roots(pem);
            }
        });
    }
    if from_files {
        info!(target: "cache", chain = %chain.display(), "the certificate comes from files");
        let source = Source::KeyPair { chain: chain.clone(), key: key.clone() };
        let gauge = metrics.clone();
        file_secrets::spawn(CERTIFICATE, source, settings.debounce, metrics, move |secret| {
            if let Secret::KeyPair { chain, .. } = &secret
                && let Ok(expires) = certificate::expires(chain)
            {
                gauge.certificate_expires(expires);
            }
            secrets.set_certificate(secret);
        });
        return std::future::pending().await;
    }
    let Some(peer) = &settings.authority else { return std::future::pending().await };
    info!(target: "cache", authority = peer.address, identity = settings.spiffe_id, "the certificate comes from the authority");
    renew_forever(&settings, peer, &secrets, &metrics, roots_from_file).await;
}

async fn renew_forever(
    settings: &IdentitySettings,
    peer: &Peer,
    secrets: &Secrets,
    metrics: &Metrics,
    roots_from_file: bool,
) {
    let mut failures = 0;
    loop {
        let begun = std::time::Instant::now();
        let result = obtain(settings, peer).await;
        metrics.asked_for_certificate(begun.elapsed(), result.is_ok());
        let wait = match result {
            Ok(issued) => {
                failures = 0;
                let now = SystemTime::now();
                let wait = renewal(now, issued.expires, settings.grace_ratio, settings.grace_jitter, rand::random());
                let left = issued.expires.duration_since(now).unwrap_or_default();
                info!(target: "cache", lifetime = ?left, renewal = ?wait, "got a certificate");
                metrics.certificate_expires(issued.expires);
                if let Some(directory) = &settings.output
                    && let Err(error) = issued.write(directory)
                {
                    warn!(target: "cache", "write the certificate to {}: {error}", directory.display());
                }
                // Whoever trusts the new certificate may be the first to see it.
                if !roots_from_file {
                    secrets.set_roots(issued.root.into_bytes());
                }
                secrets.set_certificate(issued.pair);
                wait
            }
            Err(error) => {
                let wait = backoff(failures, rand::random());
                failures += 1;
                warn!(target: "cache", retry = ?wait, "no certificate, what there is stays: {error:#}");
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// What an authority gave.
struct Issued {
    pair: Secret,
    root: String,
    expires: SystemTime,
}

impl Issued {
    fn write(&self, directory: &Path) -> std::io::Result<()> {
        let Secret::KeyPair { chain, key } = &self.pair else { return Ok(()) };
        std::fs::create_dir_all(directory)?;
        write_private(&directory.join("key.pem"), key.pem())?;
        write_private(&directory.join("cert-chain.pem"), chain)?;
        write_private(&directory.join("root-cert.pem"), self.root.as_bytes())
    }
}

async fn obtain(settings: &IdentitySettings, peer: &Peer) -> Result<Issued> {
    // An RSA key takes a good part of a second.
    let (name, kind) = (settings.spiffe_id.clone(), settings.key);
    let made = tokio::task::spawn_blocking(move || certificate::request(&name, kind)).await;
    let (key, csr) = made.context("make a key")??;
    let chain = authority::sign(peer, &csr, settings.lifetime, &settings.cert_signer).await?;
    let ended = |pem: &String| if pem.ends_with('\n') { pem.clone() } else { format!("{pem}\n") };
    let root = chain.last().map(ended).unwrap_or_default();
    let chain: String = chain.iter().map(ended).collect();
    certificate::check_pair(chain.as_bytes(), key.pem()).context("use the certificate of the authority")?;
    let expires = certificate::expires(chain.as_bytes())?;
    Ok(Issued { pair: Secret::KeyPair { chain: chain.into_bytes(), key }, root, expires })
}

/// Time until a certificate that was made now is renewed: when `ratio`, more or less by `jitter`, of its life is left.
/// `random` is from 0 to 1.
fn renewal(now: SystemTime, expires: SystemTime, ratio: f64, jitter: f64, random: f64) -> Duration {
    let life = expires.duration_since(now).unwrap_or_default();
    let left = (ratio + jitter * (2.0 * random - 1.0)).clamp(0.0, 1.0);
    let wait = life.mul_f64(1.0 - left);
    // An authority whose certificates are already over must not be asked all the time.
    wait.max(Duration::from_millis(100))
}

/// Time until a failed attempt is repeated: doubled each time, up to a quarter less so that proxies spread.
fn backoff(failures: u32, random: f64) -> Duration {
    let (first, most) = BACKOFF;
    first.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(most).mul_f64(1.0 - random / 4.0)
}

fn same_directory(output: &Path, file: &Path) -> bool {
    let directory = file.parent().unwrap_or(Path::new("."));
    match (output.canonicalize(), directory.canonicalize()) {
        (Ok(output), Ok(directory)) => output == directory,
        _ => output == directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_at_half_their_life_give_or_take_a_hundredth() {
        let now = SystemTime::UNIX_EPOCH;
        let at = |random| renewal(now, now + Duration::from_secs(1000), 0.5, 0.01, random).as_secs();
        assert_eq!((at(0.0), at(0.5), at(1.0)), (510, 500, 490));
        let whole = renewal(now, now + Duration::from_secs(1000), 2.0, 0.0, 0.5);
        assert_eq!(whole, Duration::from_millis(100));
        assert_eq!(renewal(now + Duration::from_secs(5), now, 0.5, 0.0, 0.5), Duration::from_millis(100));
    }

    #[test]
    fn attempts_become_rarer_but_never_end() {
        assert_eq!(backoff(0, 0.0), Duration::from_millis(500));
        assert_eq!(backoff(3, 0.0), Duration::from_secs(4));
        assert_eq!(backoff(u32::MAX, 0.0), Duration::from_secs(60));
        assert_eq!(backoff(u32::MAX, 1.0), Duration::from_secs(45));
    }

    #[test]
    fn files_we_write_are_not_read() {
        assert!(same_directory(Path::new("/nowhere/certs"), Path::new("/nowhere/certs/cert-chain.pem")));
        assert!(!same_directory(Path::new("/nowhere/other"), Path::new("/nowhere/certs/cert-chain.pem")));
    }
}
