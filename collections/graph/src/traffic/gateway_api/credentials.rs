//! Certificates and root certificates of listeners: whether an object has any (G02).

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{ObjectKey, RootCertificates};

use crate::inputs::ObjectCollections;

/// Presence only: a renewed certificate changes no listener.
pub(super) struct CredentialIndex<'s> {
    /// Whether Envoy can read the certificate and its key.
    certificates: Collection<'s, ObjectKey, bool>,
    roots: Collection<'s, ObjectKey, ()>,
    bundles: Collection<'s, ObjectKey, ()>,
}

impl<'s> CredentialIndex<'s> {
    /// Indexes Secrets, and ConfigMaps with root certificates.
    pub(super) fn new(objects: &ObjectCollections<'s>, bundles: &Collection<'s, ObjectKey, RootCertificates>) -> Self {
        let secrets = &objects.secrets;
        Self {
            certificates: secrets.filter_map("gateway_api/certificates", |_, secret| {
                secret.certificate.as_ref().map(|certificate| certificate.readable)
            }),
            roots: secrets.filter_map("gateway_api/roots", |_, secret| secret.roots.as_ref().map(|_| ())),
            bundles: bundles.map("gateway_api/bundles", |_, _| ()),
        }
    }
}

/// Looks up credentials.
#[derive(Clone, Copy)]
pub(super) struct CredentialLookup {
    certificates: Dep<ObjectKey, bool>,
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

    /// Whether Envoy can read the certificate of a Secret and its key; `None` if there is no Secret with a certificate.
    pub(super) fn certificate(self, cx: &Context, secret: &ObjectKey) -> Option<bool> {
        cx.get(&self.certificates, secret).map(|readable| *readable)
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
