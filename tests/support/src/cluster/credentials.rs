//! Certificates and keys of a cluster.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use serde_json::{Value, json};

/// The certificates of a cluster's clients, and what they trust.
pub(super) struct Credentials {
    root: String,
    admin: (String, String),
    controller_manager: (String, String),
}

impl Credentials {
    /// Makes the credentials, and writes those of the API server into a directory: `ca.crt`, `server.crt`, `server.key`,
    /// `accounts.key` and `accounts.pub`.
    pub(super) fn write(directory: &Path) -> Result<Self> {
        let key = KeyPair::generate().context("make the key of the authority")?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "cluster");
        let root = params.self_signed(&key).context("sign the authority")?.pem();
        let issuer = Issuer::new(params, key);
        let server = issue(&issuer, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth)?;
        let client = |name, group| issue(&issuer, name, group, ExtendedKeyUsagePurpose::ClientAuth);
        let admin = client("admin", Some("system:masters"))?;
        let controller_manager = client("system:kube-controller-manager", None)?;
        let accounts = KeyPair::generate().context("make the key of service accounts")?;
        for (name, text) in [
            ("ca.crt", &root),
            ("server.crt", &server.0),
            ("server.key", &server.1),
            ("accounts.key", &accounts.serialize_pem()),
            ("accounts.pub", &accounts.public_key_pem()),
        ] {
            std::fs::write(directory.join(name), text).with_context(|| format!("write {name}"))?;
        }
        Ok(Self { root, admin, controller_manager })
    }

    /// The user of a kubeconfig: an administrator.
    pub(super) fn admin(&self) -> Value {
        user(&self.admin)
    }

    /// The user of a kubeconfig: the controller manager.
    pub(super) fn controller_manager(&self) -> Value {
        user(&self.controller_manager)
    }

    /// A kubeconfig of a user.
    pub(super) fn kubeconfig(&self, address: SocketAddr, user: Value) -> Value {
        let server = format!("https://{address}");
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {
                "server": server, "certificate-authority-data": STANDARD.encode(&self.root)}}],
            "users": [{"name": "test", "user": user}],
        })
    }
}

fn user((certificate, key): &(String, String)) -> Value {
    json!({"client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key)})
}

/// A certificate and its key, PEM.
fn issue(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    group: Option<&str>,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String)> {
    let key = KeyPair::generate().context("make a key")?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    params.extended_key_usages = vec![usage];
    let certificate = params.signed_by(&key, issuer).context("sign a certificate")?;
    Ok((certificate.pem(), key.serialize_pem()))
}
