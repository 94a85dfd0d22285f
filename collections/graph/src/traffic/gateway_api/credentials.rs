//! Certificates and root certificates of listeners: whether an object has any (G02).

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{ObjectKey, RootCertificates, Secret, Text};

use crate::inputs::ObjectCollections;

/// Presence only: a renewed certificate changes no listener.
pub(super) struct CredentialIndex<'s> {
    /// Why Envoy cannot use the certificate of a Secret; empty if it can.
    certificates: Collection<'s, ObjectKey, Text>,
    roots: Collection<'s, ObjectKey, ()>,
    bundles: Collection<'s, ObjectKey, ()>,
}

impl<'s> CredentialIndex<'s> {
    /// Indexes Secrets, and ConfigMaps with root certificates.
    pub(super) fn new(objects: &ObjectCollections<'s>, bundles: &Collection<'s, ObjectKey, RootCertificates>) -> Self {
        let secrets = &objects.secrets;
        Self {
            certificates: secrets.map("gateway_api/certificates", |_, secret| certificate_problem(secret)),
            roots: secrets.filter_map("gateway_api/roots", |_, secret| secret.roots.as_ref().map(|_| ())),
            bundles: bundles.map("gateway_api/bundles", |_, _| ()),
        }
    }
}

/// Why Envoy cannot use the certificate of a Secret; empty if it can.
fn certificate_problem(secret: &Secret) -> Text {
    match &secret.certificate {
        Some(certificate) if certificate.problem.is_empty() => Text::default(),
        Some(certificate) => format!("the certificate is malformed: {}", certificate.problem).into(),
        None => format!(
            "found secret, but didn't have expected keys (cert and key) or (tls.crt and tls.key); found: {}",
            secret.keys
        )
        .into(),
    }
}

/// Looks up credentials.
#[derive(Clone, Copy)]
pub(super) struct CredentialLookup {
    certificates: Dep<ObjectKey, Text>,
    roots: Dep<ObjectKey, ()>,
    bundles: Dep<ObjectKey, ()>,
}

impl CredentialLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, index: &CredentialIndex<'s>) -> Self {
        Self {
            certificates: deps.on(&index.certificates),
            roots: deps.on(&index.roots),
            bundles: deps.on(&index.bundles),
        }
    }

    /// Checks that a Secret has a certificate that Envoy can use.
    ///
    /// # Errors
    /// Why Envoy cannot.
    pub(super) fn check_certificate(self, cx: &Context, secret: &ObjectKey) -> Result<(), Text> {
        match cx.get(&self.certificates, secret) {
            Some(problem) if problem.is_empty() => Ok(()),
            Some(problem) => Err((*problem).clone()),
            None => Err(format!("secret {}/{} not found", secret.namespace, secret.name).into()),
        }
    }

    /// Whether a Secret has root certificates.
    pub(super) fn has_roots(self, cx: &Context, secret: &ObjectKey) -> bool {
        cx.get(&self.roots, secret).is_some()
    }

    /// Whether a ConfigMap has root certificates.
    pub(super) fn has_bundle(self, cx: &Context, config_map: &ObjectKey) -> bool {
        cx.get(&self.bundles, config_map).is_some()
    }
}
