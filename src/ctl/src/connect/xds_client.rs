//! Who the client of an xDS server is: its node has to state the namespace and service account of its credentials.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use sluice_model::SPIFFE_SCHEME;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;

/// A service account.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Client {
    pub(super) namespace: String,
    pub(super) service_account: String,
}

/// The service account of a token of Kubernetes. The token is not verified: the server does that.
pub(super) fn client_of_token(token: &str) -> Option<Client> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let payload: Value = serde_json::from_slice(&payload).ok()?;
    let account = payload["sub"].as_str()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, service_account) = account.split_once(':')?;
    Some(Client { namespace: namespace.to_owned(), service_account: service_account.to_owned() })
}

/// The service account in the first certificate of a file: `spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
pub(super) fn client_of_certificate(chain: &Path) -> Option<Client> {
    let text = std::fs::read(chain).ok()?;
    let pem = Pem::iter_from_buffer(&text).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    let names = certificate.extensions().iter().filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    let uris = names.flatten().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    uris.filter_map(client_of_identity).next()
}

fn client_of_identity(uri: &str) -> Option<Client> {
    match uri.strip_prefix(SPIFFE_SCHEME)?.split('/').collect::<Vec<_>>()[..] {
        [_, "ns", namespace, "sa", account] => {
            Some(Client { namespace: namespace.to_owned(), service_account: account.to_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(namespace: &str, service_account: &str) -> Option<Client> {
        Some(Client { namespace: namespace.to_owned(), service_account: service_account.to_owned() })
    }

    #[test]
    fn token_states_its_service_account() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"system:serviceaccount:shop:till","aud":["istio-ca"]}"#);
        assert_eq!(client_of_token(&format!("e30.{payload}.c2ln")), client("shop", "till"));
        for token in ["", "a", "a.b.c", &format!("e30.{}.", URL_SAFE_NO_PAD.encode("{}"))] {
            assert_eq!(client_of_token(token), None, "{token}");
        }
    }

    #[test]
    fn identity_states_its_service_account() {
        assert_eq!(client_of_identity("spiffe://cluster.local/ns/shop/sa/till"), client("shop", "till"));
        assert_eq!(client_of_identity("spiffe://cluster.local/other"), None);
        assert_eq!(client_of_identity("https://a/ns/shop/sa/till"), None);
    }
}
