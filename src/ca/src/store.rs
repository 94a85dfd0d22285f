//! How material lies in directories and Secrets (P01, P03), under istiod's names.

use std::collections::{BTreeMap, BTreeSet};

use zeroize::Zeroizing;

use crate::{Authority, Material, MaterialError};

/// Secret of a self-signed root.
pub const SECRET: &str = "istio-ca-secret";
/// Secret of a plugged-in authority; with `USE_CACERTS_FOR_SELF_SIGNED_CA`, of a self-signed root.
pub const CACERTS: &str = "cacerts";
/// Type of those Secrets.
pub const SECRET_TYPE: &str = "istio.io/ca-root";
/// Key that says that a Secret was made by the control plane.
pub const GENERATED: &str = "istio-generated";

const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const CHAIN: &str = "cert-chain.pem";
/// File of roots.
pub const ROOTS: &str = "root-cert.pem";
const REVOKED: &str = "ca-crl.pem";
const TLS_CERTIFICATE: &str = "tls.crt";
const TLS_KEY: &str = "tls.key";
const TLS_ROOTS: &str = "ca.crt";

/// Names of all files that are looked at.
pub const FILES: [&str; 9] = [CERTIFICATE, KEY, CHAIN, ROOTS, REVOKED, TLS_CERTIFICATE, TLS_KEY, TLS_ROOTS, GENERATED];

/// Contents by name, wiped when dropped.
pub type Contents = BTreeMap<String, Zeroizing<String>>;

/// What a directory holds.
#[derive(Debug)]
pub struct Found {
    /// The material.
    pub material: Material,
    /// It was made by a control plane, which renews it.
    pub is_generated: bool,
}

/// The material of a directory, from the contents of [`FILES`] that are there; nothing if there is none. `tls.crt`,
/// `tls.key` and `ca.crt` of Secrets of type `kubernetes.io/tls` come first.
///
/// # Errors
/// Some of the files are there, and others missing.
pub fn from_files(files: &Contents, with_revoked: bool) -> Result<Option<Found>, MaterialError> {
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
        return Err(MaterialError::new(missing.join(", "), "is missing beside the other files of the authority"));
    }
    let material = if has_tls {
        Material {
            certificate: text(TLS_CERTIFICATE),
            key: secret(TLS_KEY),
            chain: text(TLS_CERTIFICATE) + "\n" + &text(TLS_ROOTS),
            roots: text(TLS_ROOTS),
            revoked: String::new(),
        }
    } else {
        Material {
            certificate: text(CERTIFICATE),
            key: secret(KEY),
            chain: text(CHAIN),
            roots: text(ROOTS),
            revoked: if with_revoked { text(REVOKED) } else { String::new() },
        }
    };
    Ok(Some(Found { material, is_generated: files.contains_key(GENERATED) }))
}

/// The material of a Secret of a self-signed root; `extra_roots` are trusted beside it.
///
/// # Errors
/// The Secret does not hold a certificate and a key.
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

/// The material with more roots to trust.
#[must_use]
pub fn with_roots(mut material: Material, extra_roots: &str) -> Material {
    if !extra_roots.trim().is_empty() {
        material.roots = material.roots.trim_end().to_owned() + "\n" + extra_roots;
    }
    material
}

/// What a Secret of a self-signed root holds.
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

/// The files of a self-signed root in a directory, which is read again as what it is.
#[must_use]
pub fn to_files(material: &Material) -> Contents {
    to_secret(CACERTS, material).into_iter().filter(|(name, _)| name != "key.pem").collect()
}

/// Whether plugged-in material may take the place of another while proxies hold certificates of it: only what is beneath
/// the roots may change. With several roots (`ISTIO_MULTIROOT_MESH`) roots may be added, or taken away.
///
/// # Errors
/// Why not.
pub fn may_replace(old: &Authority, new: &Authority, multi_root: bool) -> Result<(), String> {
    let set =
        |authority: &Authority| -> BTreeSet<Vec<u8>> { authority.roots().iter().map(|root| root.to_vec()).collect() };
    let (before, after) = (set(old), set(new));
    if before == after {
        Ok(())
    } else if !multi_root {
        Err("the roots differ, and they may only with ISTIO_MULTIROOT_MESH".to_owned())
    } else if before.is_subset(&after) || after.is_subset(&before) {
        Ok(())
    } else {
        Err("roots may be added or taken away, but not both at once".to_owned())
    }
}
