//! TLS versions and cipher suites.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ProtocolVersion, SupportedProtocolVersion};
use sluice_model::CompliancePolicy;

use crate::TlsOptionError;

/// The accepted TLS versions and cipher suites.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TlsVersions {
    /// TLS 1.2 is disabled.
    only_13: bool,
    /// Cipher suites of TLS 1.2; empty for all secure ones. All suites of TLS 1.3 are secure.
    suites: Vec<CipherSuite>,
    /// Replaces the other fields.
    policy: Option<CompliancePolicy>,
}

impl TlsVersions {
    /// Parses `--tls-min-version` and `--tls-cipher-suites` (IANA names).
    ///
    /// # Errors
    /// A flag has an unknown or insecure value.
    pub fn parse(min_version: &str, suites: &[String]) -> Result<Self, TlsOptionError> {
        let only_13 = match min_version {
            "" | "VersionTLS12" | "TLSv1_2" | "1.2" => false,
            "VersionTLS13" | "TLSv1_3" | "1.3" => true,
            other => {
                let reason = format!("{other:?} is not supported: use VersionTLS12 or VersionTLS13");
                return Err(TlsOptionError { option: "--tls-min-version", reason });
            }
        };
        let known = suites_of_tls12();
        let mut chosen = Vec::new();
        for name in suites.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
            // Older Go names omit the hash.
            let same = |suite: &&CipherSuite| {
                suite.as_str().is_some_and(|it| it == name || it.strip_suffix("_SHA256") == Some(name))
            };
            match known.iter().find(same) {
                Some(suite) => chosen.push(*suite),
                None if name.starts_with("TLS_AES_") || name.starts_with("TLS_CHACHA20_") => {}
                None => {
                    let all: Vec<&str> = known.iter().filter_map(CipherSuite::as_str).collect();
                    let reason = format!("{name:?} is not supported: use {}", all.join(", "));
                    return Err(TlsOptionError { option: "--tls-cipher-suites", reason });
                }
            }
        }
        Ok(Self { only_13, suites: chosen, policy: None })
    }

    /// With a compliance policy, which replaces the flags.
    #[must_use]
    pub fn limited_by(self, policy: Option<CompliancePolicy>) -> Self {
        Self { policy, ..self }
    }

    pub(super) fn protocols(&self) -> &'static [&'static SupportedProtocolVersion] {
        const ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
        match self.policy {
            None if self.only_13 => ONLY_13,
            policy => sluice_crypto::protocols(policy),
        }
    }

    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let provider = sluice_crypto::provider(self.policy);
        if self.policy.is_some() || self.suites.is_empty() {
            return provider;
        }
        let mut provider = provider.as_ref().clone();
        provider.cipher_suites.retain(|suite| {
            suite.version().version == ProtocolVersion::TLSv1_3 || self.suites.contains(&suite.suite())
        });
        Arc::new(provider)
    }
}

fn suites_of_tls12() -> Vec<CipherSuite> {
    let all = &sluice_crypto::provider(None).cipher_suites;
    let of_tls12 = all.iter().filter(|suite| suite.version().version == ProtocolVersion::TLSv1_2);
    of_tls12.map(rustls::SupportedCipherSuite::suite).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secure_versions_and_suites_are_accepted() {
        let parse = |min_version: &str, suites: &[&str]| {
            let suites: Vec<String> = suites.iter().map(|name| (*name).to_owned()).collect();
            TlsVersions::parse(min_version, &suites)
        };
        let default = parse("", &[]).expect("the default");
        assert_eq!(default.protocols().len(), 2);
        assert_eq!(default.provider().cipher_suites, sluice_crypto::provider(None).cipher_suites);
        assert_eq!(parse("VersionTLS13", &[]).expect("known").protocols(), [&rustls::version::TLS13]);
        for old in ["VersionTLS10", "VersionTLS11", "SSLv3"] {
            assert_eq!(parse(old, &[]).expect_err("unsafe").option, "--tls-min-version");
        }
        let one = parse("1.2", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]).expect("known");
        let of_tls12 = |versions: &TlsVersions| {
            let suites = versions.provider().cipher_suites.clone();
            suites.iter().filter(|suite| suite.version().version == ProtocolVersion::TLSv1_2).count()
        };
        assert_eq!(of_tls12(&one), 1);
        let old = parse("", &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"]).expect("Go's name");
        assert_eq!(of_tls12(&old), 1);
        let error = parse("", &["TLS_RSA_WITH_AES_128_CBC_SHA"]).expect_err("unsafe");
        assert!(error.reason.contains("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "{error}");
    }
}
