//! SDS secrets: certificates and root certificates (P17).

use envoy_types::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::private_key_provider::ConfigType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, PrivateKeyProvider as EnvoyProvider, Secret, TlsCertificate,
};
use envoy_types::pb::google::protobuf::{Any, Duration};
use sluice_model::{CertificateKeyPair, PrivateKeyProvider, Redacted, RootCertificates};
use sluice_proto::private_key_providers::cryptomb::v3alpha::CryptoMbPrivateKeyMethodConfig;
use sluice_proto::private_key_providers::qat::v3alpha::QatPrivateKeyMethodConfig;

use crate::wire::any;

/// A certificate with its private key, or with a private key provider.
#[must_use]
pub fn build_certificate(
    name: &str,
    certificate: &CertificateKeyPair,
    provider: Option<&PrivateKeyProvider>,
) -> Secret {
    let mut built = TlsCertificate { certificate_chain: Some(inline(&certificate.chain)), ..TlsCertificate::default() };
    match provider {
        Some(provider) => built.private_key_provider = Some(key_provider(provider, &certificate.key)),
        None => {
            built.private_key = Some(inline(&certificate.key));
            built.ocsp_staple = certificate.ocsp_staple.as_ref().map(inline);
        }
    }
    Secret { name: name.to_owned(), r#type: Some(Type::TlsCertificate(built)) }
}

/// A validation context with root certificates.
#[must_use]
pub fn build_roots(name: &str, roots: &RootCertificates) -> Secret {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(&roots.certificates)),
        crl: roots.revoked.as_ref().map(inline),
        ..CertificateValidationContext::default()
    };
    Secret { name: name.to_owned(), r#type: Some(Type::ValidationContext(context)) }
}

fn inline(bytes: &Redacted) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes.0.to_vec())), ..DataSource::default() }
}

fn key_provider(provider: &PrivateKeyProvider, key: &Redacted) -> EnvoyProvider {
    let private_key = Some(inline(key));
    // As in Istio, only the part of the delay below a second is used.
    let nanos = provider.poll_delay.map_or(0, |delay| delay.subsec_nanos());
    let poll_delay = Some(Duration { seconds: 0, nanos: i32::try_from(nanos).unwrap_or_default() });
    let (name, config): (_, Any) = if provider.qat {
        ("qat", any(&QatPrivateKeyMethodConfig { private_key, poll_delay }))
    } else {
        ("cryptomb", any(&CryptoMbPrivateKeyMethodConfig { private_key, poll_delay }))
    };
    EnvoyProvider {
        provider_name: name.to_owned(),
        fallback: provider.fallback.unwrap_or_default(),
        config_type: Some(ConfigType::TypedConfig(config)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use serde_json::json;
    use sluice_proto::json::encode_any;

    use super::*;
    use crate::wire::encode;

    fn bytes(text: &'static str) -> Redacted {
        Redacted(Bytes::from_static(text.as_bytes()))
    }

    fn shown(secret: &Secret) -> serde_json::Value {
        let mut value =
            encode_any("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", &encode(secret));
        value.as_object_mut().expect("a message").remove("@type");
        value
    }

    #[test]
    fn roots_include_the_revocation_list() {
        let roots = RootCertificates { certificates: bytes("R"), revoked: Some(bytes("C")) };
        let expect = json!({
            "name": "n", "validationContext": {"trustedCa": {"inlineBytes": "Ug=="}, "crl": {"inlineBytes": "Qw=="}},
        });
        assert_eq!(shown(&build_roots("n", &roots)), expect);
    }

    #[test]
    fn private_key_provider_gets_the_key() {
        let certificate = CertificateKeyPair {
            chain: bytes("P"),
            key: bytes("K"),
            ocsp_staple: Some(bytes("S")),
            problem: "".into(),
        };
        let plain = json!({"name": "n", "tlsCertificate": {
            "certificateChain": {"inlineBytes": "UA=="}, "privateKey": {"inlineBytes": "Sw=="},
            "ocspStaple": {"inlineBytes": "Uw=="},
        }});
        assert_eq!(shown(&build_certificate("n", &certificate, None)), plain);
        for (qat, name, config) in [(false, "cryptomb", "CryptoMb"), (true, "qat", "Qat")] {
            let delay = Some(Duration::from_millis(2010));
            let provider = PrivateKeyProvider { qat, poll_delay: delay, fallback: Some(true) };
            let expect = json!({"name": "n", "tlsCertificate": {
                "certificateChain": {"inlineBytes": "UA=="},
                "privateKeyProvider": {
                    "providerName": name, "fallback": true,
                    "typedConfig": {
                        "@type": format!("type.googleapis.com/envoy.extensions.private_key_providers.{name}.v3alpha.\
                                          {config}PrivateKeyMethodConfig"),
                        "privateKey": {"inlineBytes": "Sw=="}, "pollDelay": "0.010s",
                    },
                },
            }});
            assert_eq!(shown(&build_certificate("n", &certificate, Some(&provider))), expect);
        }
    }
}
