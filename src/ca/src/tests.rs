//! Issued certificates are parsed again, and verified as TLS does.

mod external;
mod issuing;
mod material;

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::{Authority, Material, NewKey, root};

/// A day in November 2026.
pub(super) const NOW: i64 = 1_795_000_000;
pub(super) const DAY: u64 = 24 * 3600;
pub(super) const RSA_PKCS1: &str = include_str!("tests/rsa-pkcs1.key");
pub(super) const RSA_PKCS8: &str = include_str!("tests/rsa-pkcs8.key");
pub(super) const EC_SEC1: &str = include_str!("tests/ec-sec1.key");
pub(super) const P521: &str = include_str!("tests/p521.key");
pub(super) const WORKLOAD: &str = "spiffe://cluster.local/ns/shop/sa/cart";

pub(super) fn self_signed() -> Authority {
    let material =
        root::create("cluster.local", NewKey::EcdsaP256, Duration::from_secs(3650 * DAY), NOW).expect("a root");
    Authority::new(&material, NOW).expect("an authority")
}

/// A request that is signed by a new P-256 key. It contains names that must be ignored.
pub(super) fn request() -> String {
    request_with(&KeyPair::generate().expect("a key"), "")
}

pub(super) fn request_with(key: &KeyPair, common_name: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if !common_name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, common_name);
    }
    params.subject_alt_names = vec![
        SanType::URI("spiffe://cluster.local/ns/istio-system/sa/istiod".try_into().expect("a name")),
        SanType::DnsName("istiod.istio-system.svc".try_into().expect("a name")),
    ];
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.serialize_request(key).expect("a request").pem().expect("its text")
}

pub(super) fn der(pem: &str) -> CertificateDer<'static> {
    crate::pem::certificates("test", pem).expect("PEM").remove(0)
}

/// Verifies a chain, in the form of [`Issued`](crate::Issued), at a point in time.
pub(super) fn verify(chain: &[String], roots: &str, at: i64) -> Result<(), webpki::Error> {
    let leaf = der(&chain[0]);
    let intermediates: Vec<_> = chain[1..chain.len() - 1].iter().map(|pem| der(pem)).collect();
    let roots = crate::pem::certificates("test", roots).expect("roots");
    let anchors: Vec<_> = roots.iter().map(|root| anchor_from_trusted_cert(root).expect("a root")).collect();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at.unsigned_abs()));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let algorithms = provider.signature_verification_algorithms.all;
    for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
        EndEntityCert::try_from(&leaf)?.verify_for_usage(
            algorithms,
            &anchors,
            &intermediates,
            at,
            usage,
            None,
            None,
        )?;
    }
    Ok(())
}

/// A root and an intermediate authority below it, whose subject repeats an attribute.
pub(super) struct PluggedAuthority {
    pub(super) root: CertificateParams,
    pub(super) root_key: KeyPair,
    pub(super) material: Material,
}

pub(super) fn plugged(name: &str) -> PluggedAuthority {
    let mut params = authority_params(name);
    let root_key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&root_key).expect("a root");
    params.distinguished_name.push(DnType::OrganizationName, "shop");
    let mut plugged = PluggedAuthority {
        root: authority_params(name),
        root_key,
        material: Material { roots: root.pem(), ..Material::default() },
    };
    plugged.intermediate(&params);
    plugged
}

impl PluggedAuthority {
    /// Replaces the authority by another one below the same root.
    pub(super) fn intermediate(&mut self, params: &CertificateParams) {
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&self.root, &self.root_key);
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        self.material.certificate = certificate.pem();
        self.material.key = zeroize::Zeroizing::new(key.serialize_pem());
        self.material.chain = certificate.pem() + &self.material.roots;
    }
}

pub(super) fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = x509_parser::time::ASN1Time::from_timestamp(NOW - 3600).expect("a time").to_datetime();
    params.not_after =
        x509_parser::time::ASN1Time::from_timestamp(NOW + 100 * DAY as i64).expect("a time").to_datetime();
    params
}
