//! Directories and Secrets with an authority (P01, P03), with istiod's names of files and keys.

use std::collections::{BTreeMap, BTreeSet};

use zeroize::Zeroizing;

use crate::{Authority, Certificate, Material, MaterialError, pem};

/// Secret of a self-signed root.
pub const SECRET: &str = "istio-ca-secret";
/// Secret of a plugged-in authority; with `USE_CACERTS_FOR_SELF_SIGNED_CA`, of a self-signed root.
pub const CACERTS: &str = "cacerts";
/// Type of those Secrets.
pub const SECRET_TYPE: &str = "istio.io/ca-root";
/// Key of a Secret that the control plane has generated.
const GENERATED: &str = "istio-generated";

const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const CHAIN: &str = "cert-chain.pem";
/// File with the roots.
pub const ROOTS: &str = "root-cert.pem";
const CRL: &str = "ca-crl.pem";
const TLS_CERTIFICATE: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";
const TLS_ROOTS: &str = "ca.crt";

/// Names of all files that are read.
pub const FILES: [&str; 9] = [CERTIFICATE, KEY, CHAIN, ROOTS, CRL, TLS_CERTIFICATE, TLS_KEY, TLS_ROOTS, GENERATED];

/// Contents by file name or key, zeroed on drop.
pub type Contents = BTreeMap<String, Zeroizing<String>>;

/// The authority in a directory or Secret.
#[derive(Debug)]
pub struct StoredAuthority {
    /// Its certificates and key.
    pub material: Material,
    /// A control plane has generated it, and renews it.
    pub is_generated: bool,
}

/// The authority in a directory, from the contents of those [`FILES`] that exist; `None` if none exists. `tls.crt`,
/// `tls.key` and `ca.crt`, as in Secrets of type `kubernetes.io/tls`, take precedence.
///
/// # Errors
/// Some of the files exist and others are missing.
pub fn from_files(files: &Contents, with_crl: bool) -> Result<Option<StoredAuthority>, MaterialError> {
    let text = |name: &str| files.get(name).map(|text| text.to_string()).unwrap_or_default();
    let secret = |name: &str| files.get(name).cloned().unwrap_or_default();
    let has_tls = files.contains_key(TLS_CERTIFICATE);
    let needed: &[&str] =
        if has_tls { &[TLS_CERTIFICATE, TLS_KEY, TLS_ROOTS] } else { &[CERTIFICATE, KEY, ROOTS, CHAIN] };
    let missing: Vec<&str> = needed.iter().copied().filter(|name| !files.contains_key(*name)).collect();
    if missing.len() == needed.len() {
        return Ok(None);
    }
    if !missing.is_empty() {
        return Err(MaterialError::new(missing.join(", "), "is missing; the other files of the authority exist"));
    }
    let material = if has_tls {
        Material {
            certificate: text(TLS_CERTIFICATE),
            key: secret(TLS_KEY),
            chain: text(TLS_CERTIFICATE) + "\n" + &text(TLS_ROOTS),
            roots: text(TLS_ROOTS),
            crl: String::new(),
        }
    } else {
        Material {
            certificate: text(CERTIFICATE),
            key: secret(KEY),
            chain: text(CHAIN),
            roots: text(ROOTS),
            crl: if with_crl { text(CRL) } else { String::new() },
        }
    };
    Ok(Some(StoredAuthority { material, is_generated: files.contains_key(GENERATED) }))
}

/// The self-signed root in a Secret. `extra_roots` are trusted as well.
///
/// # Errors
/// The Secret has no certificate or no key.
pub fn from_secret(name: &str, data: &Contents, extra_roots: &str) -> Result<Material, MaterialError> {
    let get = |key: &str| {
        data.get(key).cloned().ok_or_else(|| MaterialError::new(format!("Secret {name}"), format!("has no {key}")))
    };
    Ok(with_roots(
        Material {
            certificate: get(CERTIFICATE)?.to_string(),
            key: get(KEY)?,
            roots: get(CERTIFICATE)?.to_string(),
            ..Material::default()
        },
        extra_roots,
    ))
}

/// The material with additional trusted roots.
#[must_use]
pub fn with_roots(mut material: Material, extra_roots: &str) -> Material {
    if !extra_roots.trim().is_empty() {
        material.roots = material.roots.trim_end().to_owned() + "\n" + extra_roots;
    }
    material
}

/// Checks a file with additional roots.
///
/// # Errors
/// It has text that is not a list of certificates.
pub fn check_roots(text: &str) -> Result<(), MaterialError> {
    let roots = pem::certificates(ROOTS, text)?;
    if roots.is_empty() && !text.trim().is_empty() {
        return Err(MaterialError::new(ROOTS, "contains no certificate"));
    }
    roots.iter().try_for_each(|root| Certificate::parse(ROOTS, root).map(drop))
}

/// The contents of a Secret with a self-signed root.
#[must_use]
pub fn to_secret(name: &str, material: &Material) -> Contents {
    let text = |text: &str| Zeroizing::new(text.to_owned());
    let mut data = BTreeMap::from([
        (CHAIN.to_owned(), text("")),
        ("key.pem".to_owned(), text("")),
        (ROOTS.to_owned(), text(&material.certificate)),
        (CERTIFICATE.to_owned(), text(&material.certificate)),
        (KEY.to_owned(), material.key.clone()),
    ]);
    if name == CACERTS {
        data.insert(GENERATED.to_owned(), text(""));
    }
    data
}

/// The files of a directory with a self-signed root. [`from_files`] reads them back.
#[must_use]
pub fn to_files(material: &Material) -> Contents {
    to_secret(CACERTS, material).into_iter().filter(|(name, _)| name != "key.pem").collect()
}

/// Checks whether a plugged-in authority may replace another while proxies hold certificates of it. The roots must stay
/// the same. With `multi_root` (`ISTIO_MULTIROOT_MESH`), roots may be added, or removed.
///
/// # Errors
/// The reason why it may not.
pub fn check_replacement(old: &Authority, new: &Authority, multi_root: bool) -> Result<(), ReplacementError> {
    let set =
        |authority: &Authority| -> BTreeSet<Vec<u8>> { authority.roots().iter().map(|root| root.to_vec()).collect() };
    let (before, after) = (set(old), set(new));
    if before == after {
        Ok(())
    } else if !multi_root {
        Err(ReplacementError::RootsDiffer)
    } else if before.is_subset(&after) || after.is_subset(&before) {
        Ok(())
    } else {
        Err(ReplacementError::RootsAddedAndRemoved)
    }
}

/// The reason why an authority must not replace another.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReplacementError {
    /// The roots differ, and several roots are not enabled.
    #[error("the roots differ, which is accepted with ISTIO_MULTIROOT_MESH=true only")]
    RootsDiffer,
    /// Roots are added and removed in one step.
    #[error("roots may be added or removed, but not both at once")]
    RootsAddedAndRemoved,
}
