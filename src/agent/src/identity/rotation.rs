//! Obtains the workload's certificate and renews it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use sluice_tasks::restart;
use tracing::{info, warn};

use super::file_secrets::{self, SecretFiles};
use super::{CERTIFICATE, ROOTS, SdsSecret, SecretStore, authority, certificate, crl, output};
use crate::certificate_expiry::certificate_expiry;
use crate::metrics::Metrics;
use crate::settings::{IdentitySettings, KeyFiles, Upstream};

/// Delay after the first failed attempt.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Minimum delay of a renewal, even if the authority issues expired certificates.
const MIN_RENEWAL_DELAY: Duration = Duration::from_millis(100);

/// Keeps certificate and roots up to date, from files if they exist, else from the authority. Never ends.
pub(crate) async fn run(settings: IdentitySettings, secrets: SecretStore, metrics: Metrics) {
    let KeyFiles { chain, key, roots } = &settings.files;
    // Files that the agent writes are not a source.
    let is_own_output = settings.output.as_ref().is_some_and(|output| same_directory(&output.directory, chain));
    let from_files = !is_own_output && (settings.authority.is_none() || (chain.exists() && key.exists()));
    let roots_from_file = !is_own_output && (settings.authority.is_none() || roots.exists());
    if let Some(output) = settings.output.clone() {
        output::spawn(output, secrets.clone());
    }
    if let Some(file) = settings.crl_file.clone() {
        crl::spawn(file, settings.debounce, secrets.clone());
    }
    if roots_from_file {
        let secrets = secrets.clone();
        file_secrets::spawn(
            ROOTS,
            SecretFiles::Roots(roots.clone()),
            settings.debounce,
            metrics.clone(),
            move |secret| {
                if let SdsSecret::Roots(pem) = secret {
                    secrets.set_roots(pem);
                }
            },
        );
    }
    if from_files {
        info!(target: "cache", chain = %chain.display(), "certificate is read from files");
        let source = SecretFiles::KeyPair { chain: chain.clone(), key: key.clone() };
        let gauge = metrics.clone();
        file_secrets::spawn(CERTIFICATE, source, settings.debounce, metrics, move |secret| {
            if let SdsSecret::KeyPair { chain, .. } = &secret
                && let Ok(expiry) = certificate_expiry(chain)
            {
                gauge.certificate_expires(expiry);
            }
            secrets.set_certificate(secret);
        });
        return std::future::pending().await;
    }
    let Some(upstream) = &settings.authority else { return std::future::pending().await };
    info!(target: "cache", authority = upstream.address, identity = settings.spiffe_id, "certificate is requested from the authority");
    let renew = || async {
        renew_forever(&settings, upstream, &secrets, &metrics, roots_from_file).await;
        Ok(())
    };
    restart("certificate renewal", renew).await;
}

async fn renew_forever(
    settings: &IdentitySettings,
    upstream: &Upstream,
    secrets: &SecretStore,
    metrics: &Metrics,
    roots_from_file: bool,
) {
    let mut failures = 0;
    loop {
        let start = std::time::Instant::now();
        let result = obtain(settings, upstream).await;
        metrics.certificate_requested(start.elapsed(), result.is_ok());
        let delay = match result {
            Ok(issued) => {
                failures = 0;
                let now = SystemTime::now();
                let delay =
                    renewal_delay(now, issued.expiry, settings.grace_ratio, settings.grace_jitter, rand::random());
                let lifetime = issued.expiry.duration_since(now).unwrap_or_default();
                info!(target: "cache", ?lifetime, renewal = ?delay, "certificate received");
                metrics.certificate_expires(issued.expiry);
                // Roots first, because peers may present certificates of a new root immediately.
                if !roots_from_file {
                    secrets.set_roots(issued.root.into_bytes());
                }
                secrets.set_certificate(issued.pair);
                delay
            }
            Err(error) => {
                let delay = backoff(failures, rand::random());
                failures += 1;
                let error = format!("{error:#}");
                warn!(target: "cache", retry = ?delay, error, "failed to request a certificate, the current one stays");
                delay
            }
        };
        tokio::time::sleep(delay).await;
    }
}

/// A certificate from the authority.
struct IssuedCertificate {
    pair: SdsSecret,
    root: String,
    expiry: SystemTime,
}

async fn obtain(settings: &IdentitySettings, upstream: &Upstream) -> Result<IssuedCertificate> {
    // An RSA key takes up to a second.
    let (name, kind) = (settings.spiffe_id.clone(), settings.key);
    let generated = tokio::task::spawn_blocking(move || certificate::request(&name, kind)).await;
    let (key, csr) = generated.context("generate a key")??;
    let chain = authority::sign(upstream, &csr, settings.lifetime, &settings.cert_signer).await?;
    let with_newline = |pem: &String| if pem.ends_with('\n') { pem.clone() } else { format!("{pem}\n") };
    let root = chain.last().map(with_newline).unwrap_or_default();
    let chain: String = chain.iter().map(with_newline).collect();
    certificate::check_pair(chain.as_bytes(), key.pem()).context("use the certificate of the authority")?;
    let expiry = certificate_expiry(chain.as_bytes())?;
    Ok(IssuedCertificate { pair: SdsSecret::KeyPair { chain: chain.into_bytes(), key }, root, expiry })
}

/// Delay until a certificate issued now is renewed: when `ratio` of its lifetime is left, plus or minus `jitter`.
/// `random` is between 0 and 1.
fn renewal_delay(now: SystemTime, expires: SystemTime, ratio: f64, jitter: f64, random: f64) -> Duration {
    let lifetime = expires.duration_since(now).unwrap_or_default();
    let left = (ratio + jitter * (2.0 * random - 1.0)).clamp(0.0, 1.0);
    lifetime.mul_f64(1.0 - left).max(MIN_RENEWAL_DELAY)
}

/// Delay until a failed attempt is repeated. It doubles with each failure. A random part of up to a quarter is subtracted, so
/// that proxies do not retry at the same time.
fn backoff(failures: u32, random: f64) -> Duration {
    let delay = INITIAL_BACKOFF.saturating_mul(2_u32.saturating_pow(failures.min(16)));
    delay.min(MAX_BACKOFF).mul_f64(1.0 - random / 4.0)
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
    fn certificate_is_renewed_at_half_its_lifetime_with_jitter() {
        let now = SystemTime::UNIX_EPOCH;
        let at = |random| renewal_delay(now, now + Duration::from_secs(1000), 0.5, 0.01, random).as_secs();
        assert_eq!((at(0.0), at(0.5), at(1.0)), (510, 500, 490));
        let at_once = renewal_delay(now, now + Duration::from_secs(1000), 2.0, 0.0, 0.5);
        assert_eq!(at_once, Duration::from_millis(100));
        assert_eq!(renewal_delay(now + Duration::from_secs(5), now, 0.5, 0.0, 0.5), Duration::from_millis(100));
    }

    #[test]
    fn backoff_doubles_up_to_the_limit() {
        assert_eq!(backoff(0, 0.0), Duration::from_millis(500));
        assert_eq!(backoff(3, 0.0), Duration::from_secs(4));
        assert_eq!(backoff(u32::MAX, 0.0), Duration::from_secs(60));
        assert_eq!(backoff(u32::MAX, 1.0), Duration::from_secs(45));
    }

    #[test]
    fn output_directory_is_not_a_source() {
        assert!(same_directory(Path::new("/nowhere/certs"), Path::new("/nowhere/certs/cert-chain.pem")));
        assert!(!same_directory(Path::new("/nowhere/other"), Path::new("/nowhere/certs/cert-chain.pem")));
    }
}
