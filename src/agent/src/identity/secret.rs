//! A secret in memory, and its encoding for Envoy.

use std::fmt;

use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::config::core::v3::{DataSource, data_source::Specifier};
use sluice_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret as EnvoySecret, TlsCertificate, secret::Type,
};
use zeroize::Zeroizing;

/// A private key in PEM. `Debug` does not show it, and it is zeroed on drop.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct PrivateKey(Zeroizing<Vec<u8>>);

impl PrivateKey {
    pub(crate) fn new(pem: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(pem.into()))
    }

    pub(crate) fn pem(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// The content of a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SdsSecret {
    /// A certificate chain in PEM, and its key.
    KeyPair { chain: Vec<u8>, key: PrivateKey },
    /// Roots in PEM.
    Roots(Vec<u8>),
    /// Roots and certificate revocation lists, in PEM.
    RootsAndCrl(Vec<u8>, Vec<u8>),
}

impl SdsSecret {
    /// The encoded `envoy.extensions.transport_sockets.tls.v3.Secret`.
    pub(crate) fn encode(&self, name: &str) -> Bytes {
        let inline = |bytes: &[u8]| {
            Some(DataSource { specifier: Some(Specifier::InlineBytes(bytes.to_vec())), ..Default::default() })
        };
        let content = match self {
            Self::KeyPair { chain, key } => Type::TlsCertificate(TlsCertificate {
                certificate_chain: inline(chain),
                private_key: inline(key.pem()),
                ..Default::default()
            }),
            Self::Roots(pem) => {
                Type::ValidationContext(CertificateValidationContext { trusted_ca: inline(pem), ..Default::default() })
            }
            Self::RootsAndCrl(pem, crl) => Type::ValidationContext(CertificateValidationContext {
                trusted_ca: inline(pem),
                crl: inline(crl),
                ..Default::default()
            }),
        };
        EnvoySecret { name: name.to_owned(), r#type: Some(content) }.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_does_not_show_keys() {
        let secret = SdsSecret::KeyPair { chain: b"chain".to_vec(), key: PrivateKey::new("very-secret") };
        let debug_text = format!("{secret:?}");
        assert!(
            !debug_text.contains("very-secret") && !debug_text.contains(&format!("{:?}", b"very-secret")),
            "{debug_text}"
        );
    }

    #[test]
    fn secret_is_encoded_inline_under_its_name() {
        let secret = SdsSecret::KeyPair { chain: b"chain".to_vec(), key: PrivateKey::new("key") };
        let message = EnvoySecret::decode(secret.encode("default")).expect("a secret");
        assert_eq!(message.name, "default");
        let Some(Type::TlsCertificate(certificate)) = message.r#type else { panic!("no certificate") };
        let bytes = |source: Option<DataSource>| match source.and_then(|source| source.specifier) {
            Some(Specifier::InlineBytes(bytes)) => bytes,
            other => panic!("not inline: {other:?}"),
        };
        assert_eq!(bytes(certificate.private_key), b"key");
        assert_eq!(bytes(certificate.certificate_chain), b"chain");
        let roots = EnvoySecret::decode(SdsSecret::Roots(b"root".to_vec()).encode("ROOTCA")).expect("a secret");
        assert!(matches!(roots.r#type, Some(Type::ValidationContext(_))));
    }
}
