//! Client certificates, verified by TLS (P07).

use futures::future::BoxFuture;
use sluice_ca::Certificate;

use crate::{Authenticator, Call, Verdict};

/// Authenticates a caller by the URI names of its client certificate.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientCertificates;

impl Authenticator for ClientCertificates {
    fn name(&self) -> &'static str {
        "client certificate"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        let verdict = match call.certificates.first() {
            None => Verdict::NoCredentials,
            Some(certificate) => match Certificate::parse("client certificate", certificate) {
                Ok(certificate) => {
                    Verdict::Identified(certificate.uris().iter().filter_map(|uri| uri.parse().ok()).collect())
                }
                Err(error) => Verdict::Rejected(error.to_string()),
            },
        };
        Box::pin(async move { verdict })
    }
}
