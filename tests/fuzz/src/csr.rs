//! Mutated signing requests to a certificate authority.
//!
//! Whatever the request, the certificate has only the identity of its caller, cannot sign certificates, has the key that
//! signed the request, is not valid for longer than allowed, and verifies against the root.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, UnixTime};
use sluice_ca::{Authority, ForwardedRequest, Issued, LifetimeLimits, root};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bytes;
use crate::memory_bound::within_for_client;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::turns;
use crate::violation::{Violation, violation};

/// Valid requests.
const GOOD: &[&str] = &[
    include_str!("keys/p256.csr"),
    include_str!("keys/p384.csr"),
    include_str!("keys/ed25519.csr"),
    include_str!("../../../src/ca/src/tests/rsa.csr"),
];
/// Invalid requests.
const BAD: &[&str] = &[
    include_str!("../../../src/ca/src/tests/weak-rsa-1024.csr"),
    include_str!("../../../src/ca/src/tests/sha1.csr"),
    include_str!("../../../src/ca/src/tests/p521.csr"),
];
const IDENTITIES: &[&str] = &["spiffe://td/ns/shop/sa/cart", "spiffe://td/ns/bank/sa/vault"];
/// Names in requests.
const NAMES: &[&str] =
    &["spiffe://td/ns/shop/sa/cart", "spiffe://td/ns/bank/sa/vault", "https://elsewhere", "istiod.istio-system.svc"];
const DAY: u64 = 24 * 3600;

/// A certificate authority, and requests to change.
pub(crate) struct SigningTarget {
    authority: Authority,
    root: CertificateDer<'static>,
    good: Vec<Vec<u8>>,
    all: Vec<Vec<u8>>,
    key: KeyPair,
    now: i64,
}

/// Sends requests until the deadline.
///
/// # Errors
/// The authority cannot be created.
pub fn run(run: &Run) -> Result<FuzzStatistics> {
    let target = SigningTarget::new()?;
    Ok(turns::run(run, "requests for certificates", |rng| target.run_turn(rng)))
}

fn to_der(pem: &str) -> Option<Vec<u8>> {
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    STANDARD.decode(body).ok()
}

pub(crate) fn to_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"))
}

impl SigningTarget {
    /// # Errors
    /// The authority cannot be created.
    pub(crate) fn new() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
        let now = i64::try_from(now.as_secs())?;
        let material = root::create("td", sluice_ca::NewKey::EcdsaP256, Duration::from_secs(3650 * DAY), now)?;
        let authority = Authority::new(&material, now)?;
        let der =
            |list: &[&str]| list.iter().map(|text| to_der(text)).collect::<Option<Vec<_>>>().context("read requests");
        let good = der(GOOD)?;
        let all = [good.clone(), der(BAD)?].concat();
        // Ed25519 (RFC 8410) with a fixed seed, so that signatures are reproducible.
        let pkcs8 = [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20][..], &[7; 32]].concat();
        let key = KeyPair::try_from(pkcs8.as_slice()).context("read the key")?;
        let root = authority.roots().first().context("a root")?.clone();
        Ok(Self { authority, root, good, all, key, now })
    }

    /// Sends a random request. Returns whether a certificate was issued.
    pub(crate) fn run_turn(&self, rng: &mut FuzzRng) -> Result<bool, Violation> {
        let mut der = match rng.below(6) {
            0 => self.sign(rng),
            1 => rng.choose(&self.all).cloned().unwrap_or_default(),
            _ => rng.choose(&self.good).cloned().unwrap_or_default(),
        };
        let signed = !self.all.contains(&der);
        let requested = signed_part(&der).map(<[u8]>::to_vec);
        let changes = !rng.once_in(5);
        if changes {
            bytes::change(&mut der, &self.all, rng, 3);
        }
        let mut text = to_pem(&der);
        let is_text_changed = rng.once_in(6);
        if is_text_changed {
            let others: Vec<Vec<u8>> = GOOD.iter().map(|text| text.as_bytes().to_vec()).collect();
            bytes::change_text(&mut text, &others, rng, 4);
        }
        let (is_issued, seconds) = self.request(&der, &text, is_text_changed, requested.as_deref(), rng)?;
        if !is_issued && signed && !changes && !is_text_changed && (0..=90 * DAY as i64).contains(&seconds) {
            return violation("a valid request is rejected", text);
        }
        Ok(is_issued)
    }

    /// Sends the bytes as a request, in DER or as the whole text. Returns whether a certificate was issued.
    pub(crate) fn run_bytes(&self, bytes: &[u8], is_text: bool) -> Result<bool, Violation> {
        let text = if is_text { String::from_utf8_lossy(bytes).into_owned() } else { to_pem(bytes) };
        Ok(self.request(bytes, &text, is_text, None, &mut FuzzRng::new(1, bytes.len() as u64))?.0)
    }

    /// Valid and invalid requests, in DER.
    pub(crate) fn requests(&self) -> &[Vec<u8>] {
        &self.all
    }

    /// Sends a request for a random identity and lifetime. Returns whether a certificate was issued, and the lifetime.
    /// `requested` is the part that its key has signed, if it is none of the valid requests.
    fn request(
        &self,
        der: &[u8],
        text: &str,
        is_text_changed: bool,
        requested: Option<&[u8]>,
        rng: &mut FuzzRng,
    ) -> Result<(bool, i64), Violation> {
        let identity = rng.choose(IDENTITIES).copied().unwrap_or_default().to_owned();
        let read = || ForwardedRequest::parse(text, std::slice::from_ref(&identity)).is_ok();
        if !is_text_changed && within_for_client("certificate requests", text.len(), read)? {
            let requests_name = |name: &str| der.windows(name.len()).any(|window| window == name.as_bytes());
            if let Some(other) = NAMES.iter().find(|name| **name != identity && requests_name(name)) {
                return violation("a request for another identity is forwarded", format!("{other}\n{text}"));
            }
        }
        let seconds = rng.choose(&[0, -1, 1, 3600, 90 * DAY as i64, 90 * DAY as i64 + 1, i64::MAX, i64::MIN]).copied();
        let seconds = seconds.unwrap_or_default();
        let limits = LifetimeLimits::default();
        let issue = || self.authority.issue(text, std::slice::from_ref(&identity), seconds, limits, self.now);
        let issued = within_for_client("certificate requests", text.len(), issue)?;
        let Ok(issued) = issued else { return Ok((false, seconds)) };
        if seconds > 90 * DAY as i64 {
            return violation("a certificate is valid for longer than allowed", format!("{seconds} s"));
        }
        self.check(&issued, &identity)?;
        // A client without the key cannot sign another request. Text around the base64 is ignored, so changed text
        // is not checked.
        let part = signed_part(der);
        let known = self.good.iter().any(|good| signed_part(good) == part);
        if is_text_changed || known || (part.is_some() && requested == part) {
            return Ok((true, seconds));
        }
        violation("a certificate is issued for a request that its key has not signed", text)
    }

    /// A random request with a valid signature.
    fn sign(&self, rng: &mut FuzzRng) -> Vec<u8> {
        let mut params = CertificateParams::default();
        for _ in 0..rng.below(4) {
            let name = rng.choose(NAMES).copied().unwrap_or_default();
            let name =
                if rng.once_in(2) { name.try_into().map(SanType::URI) } else { name.try_into().map(SanType::DnsName) };
            params.subject_alt_names.extend(name);
        }
        if rng.once_in(2) {
            let length = *rng.choose(&[0, 1, 64, 65, 2000]).unwrap_or(&1);
            params.distinguished_name.push(DnType::CommonName, "x".repeat(length));
        }
        params.serialize_request(&self.key).map(|request| request.der().to_vec()).unwrap_or_default()
    }

    fn check(&self, issued: &Issued, identity: &str) -> Result<(), Violation> {
        let [leaf, root] = issued.chain.as_slice() else {
            return violation("the chain is not the certificate and the root", format!("{} parts", issued.chain.len()));
        };
        if root != self.authority.roots_pem() {
            return violation("the last certificate of the chain is not the root", root.clone());
        }
        let der = to_der(leaf).unwrap_or_default();
        let Ok(([], certificate)) = X509Certificate::from_der(&der) else {
            return violation("the issued PEM text is not a certificate", leaf.clone());
        };
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
        if !matches!(names.as_slice(), [GeneralName::URI(uri)] if *uri == identity) {
            return violation(
                "a certificate has an identity that is not its caller's",
                format!("{names:?} for {identity}"),
            );
        }
        let common: Vec<&str> =
            certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok()).collect();
        if common.iter().any(|name| *name != identity) {
            return violation(
                "a certificate has a common name that is not its caller's",
                format!("{common:?} for {identity}"),
            );
        }
        let usage = certificate.key_usage().ok().flatten().map(|usage| *usage.value);
        if certificate.is_ca() || usage.is_none_or(|usage| usage.key_cert_sign() || usage.crl_sign()) {
            return violation("a certificate may sign other certificates", leaf.clone());
        }
        let most = self.now + i64::try_from(90 * DAY).unwrap_or_default();
        let validity = certificate.validity();
        if validity.not_after.timestamp() != issued.not_after || issued.not_after > most {
            return violation("a certificate is valid for longer than allowed", validity.not_after.to_string());
        }
        let verified = || -> Result<(), webpki::Error> {
            let der = CertificateDer::from(der.as_slice());
            let anchors = [anchor_from_trusted_cert(&self.root)?];
            let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(self.now).unwrap_or_default()));
            let leaf = EndEntityCert::try_from(&der)?;
            let algorithms = &[webpki::aws_lc_rs::ECDSA_P256_SHA256];
            leaf.verify_for_usage(algorithms, &anchors, &[], now, KeyUsage::client_auth(), None, None).map(drop)
        };
        verified().or_else(|error| violation("an issued certificate does not verify", format!("{error}: {leaf}")))
    }
}

/// The signed part of a request: the first element of its sequence.
fn signed_part(der: &[u8]) -> Option<&[u8]> {
    let (_, contents) = element(der)?;
    let (whole, _) = element(contents)?;
    Some(whole)
}

/// The first DER element of the bytes, and its contents.
pub(crate) fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, length) = match *der.get(1)? {
        short @ 0..=0x7f => (2, usize::from(short)),
        0x81 => (3, usize::from(*der.get(2)?)),
        0x82 => (4, usize::from(*der.get(2)?) << 8 | usize::from(*der.get(3)?)),
        _ => return None,
    };
    Some((der.get(..head + length)?, der.get(head..head + length)?))
}
