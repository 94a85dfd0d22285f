//! Secrets (P17): certificates and root certificates by their SDS names.

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::secret::{build_certificate, build_roots};
use sluice_envoy::wire;
use sluice_model::{
    CertificateKeyPair, CredentialKind, CredentialName, ObjectKey, ProxyKey, ROOTS_SUFFIX, Resource, ResourceKey,
    ResourceType, RootCertificates, Secret, Text,
};

use super::Outputs;
use crate::traffic::secrets::{SecretAccess, SecretLayer};

/// Inputs of the derivation of Secrets.
pub(crate) struct SecretInputs<'a, 's> {
    /// Id of the cluster of the control plane.
    pub(crate) cluster: &'a Text,
    /// The Secrets that each proxy may read.
    pub(crate) access: &'a Collection<'s, ProxyKey, SecretAccess>,
    /// ConfigMaps with roots.
    pub(crate) bundles: &'a Collection<'s, ObjectKey, RootCertificates>,
    /// Secrets that proxies can use.
    pub(crate) secrets: &'a Collection<'s, ObjectKey, Secret>,
}

/// Secrets.
pub(crate) fn derive_secrets<'s>(inputs: &SecretInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let access = inputs.access;
    let in_use = access.index("secret_layers/by-content", |_, access| {
        access.layers.iter().map(|layer| (layer.clone(), ())).collect::<Vec<_>>()
    });
    let layers = in_use.distinct("secret_layers");
    outputs.resources.extend([derive_own(inputs, &layers), derive_bundles(inputs, &layers), derive_referenced(inputs)]);
}

/// Reads Secrets, inside a `derive`.
#[derive(Clone, Copy)]
struct SecretLookup {
    secrets: Dep<ObjectKey, Secret>,
}

impl SecretLookup {
    /// The certificate in the Secret of that name, in the first of the clusters that has one.
    fn certificate(self, cx: &Context, clusters: &[&Text], namespace: &Text, name: &str) -> Option<CertificateKeyPair> {
        let get = |cluster: &&Text| cx.get(&self.secrets, &ObjectKey::new((*cluster).clone(), namespace.clone(), name));
        clusters.iter().filter_map(get).find_map(|secret| secret.certificate.clone())
    }

    /// The root certificates of that name: those of the Secret with the suffix, else those in the Secret of the
    /// certificate.
    fn roots(self, cx: &Context, clusters: &[&Text], namespace: &Text, base: &str) -> Option<RootCertificates> {
        let own = format!("{base}{ROOTS_SUFFIX}");
        clusters.iter().find_map(|cluster| {
            let get = |name: &str| cx.get(&self.secrets, &ObjectKey::new((*cluster).clone(), namespace.clone(), name));
            get(&own).or_else(|| get(base))?.roots.clone()
        })
    }
}

/// The clusters to look up: the proxy's, then that of the control plane.
pub(super) fn clusters<'a>(cluster: &'a Text, own: &'a Text) -> Vec<&'a Text> {
    if cluster == own { vec![own] } else { vec![cluster, own] }
}

/// Secrets of the namespaces of proxies that subscribe to Secrets: `kubernetes://NAME` and
/// `kubernetes://NAMESPACE/NAME`.
/// Key: layer and name. From: `secrets`, `secret_layers`.
/// Changes when: a Secret of such a namespace does. Size: Secrets of such namespaces, twice. Rejects: none.
fn derive_own<'s>(
    inputs: &SecretInputs<'_, 's>,
    layers: &Collection<'s, SecretLayer, ()>,
) -> Collection<'s, ResourceKey, Resource> {
    let by_namespace = layers
        .index("secret_layers/by-namespace", |layer, ()| layer.namespace().map(|namespace| (namespace.clone(), ())));
    let names = inputs.secrets.index("secrets/by-name", |key, _| {
        let base = key.name.strip_suffix(ROOTS_SUFFIX).map(Text::from);
        let names = [Some(key.name.clone()), base].into_iter().flatten();
        names.map(|name| ((key.namespace.clone(), name), ())).collect::<Vec<_>>()
    });
    let own = inputs.cluster.clone();
    names.distinct("secrets/names").derive_many("secrets/own", |deps| {
        let lookup = SecretLookup { secrets: deps.on(inputs.secrets) };
        let by_namespace = deps.by(&by_namespace);
        move |cx, (namespace, name), ()| {
            let mut rows = Vec::new();
            for (layer, _) in cx.by(&by_namespace, namespace) {
                let prefix = CredentialKind::Secret.prefix();
                let names =
                    |suffix: &str| [format!("{prefix}{name}{suffix}"), format!("{prefix}{namespace}/{name}{suffix}")];
                match &layer {
                    // A name with the suffix refers to root certificates.
                    SecretLayer::Certificates { .. } if name.ends_with(ROOTS_SUFFIX) => {}
                    SecretLayer::Certificates { cluster, provider, .. } => {
                        let found = lookup.certificate(cx, &clusters(cluster, &own), namespace, name);
                        rows.extend(found.iter().flat_map(|certificate| {
                            names("").map(|name| {
                                let secret = build_certificate(&name, certificate, provider.as_ref());
                                (key(&layer, &name), Resource::Encoded(wire::encode(&secret)))
                            })
                        }));
                    }
                    SecretLayer::Roots { cluster, .. } => {
                        let found = lookup.roots(cx, &clusters(cluster, &own), namespace, name);
                        rows.extend(found.iter().flat_map(|roots| roots_rows(&layer, names(ROOTS_SUFFIX), roots)));
                    }
                    SecretLayer::Referenced { .. } | SecretLayer::Bundles => {}
                }
            }
            rows
        }
    })
}

/// Root certificates in ConfigMaps: `configmap://NAMESPACE/NAME`, with and without the suffix.
/// Key: layer and name. From: `root_bundles`, `secret_layers`.
/// Changes when: such a ConfigMap does. Size: ConfigMaps with roots, twice, once a proxy subscribes to Secrets.
/// Rejects: none.
fn derive_bundles<'s>(
    inputs: &SecretInputs<'_, 's>,
    layers: &Collection<'s, SecretLayer, ()>,
) -> Collection<'s, ResourceKey, Resource> {
    let own = inputs.cluster.clone();
    inputs.bundles.derive_many("secrets/bundles", |deps| {
        let layers = deps.on(layers);
        move |cx, object, roots| {
            // A ConfigMap whose own name has the suffix cannot be referred to.
            if object.cluster != own || object.name.ends_with(ROOTS_SUFFIX) {
                return Vec::new();
            }
            if cx.get(&layers, &SecretLayer::Bundles).is_none() {
                return Vec::new();
            }
            let name = format!("{}{}/{}", CredentialKind::ConfigMap.prefix(), object.namespace, object.name);
            roots_rows(&SecretLayer::Bundles, [format!("{name}{ROOTS_SUFFIX}"), name], roots)
        }
    })
}

/// Secrets that Gateways refer to: `kubernetes-gateway://NAMESPACE/NAME`.
/// Key: layer and name. From: `secret_access`, `secrets`.
/// Changes when: such a Secret does. Size: such references of distinct routers. Rejects: none.
fn derive_referenced<'s>(inputs: &SecretInputs<'_, 's>) -> Collection<'s, ResourceKey, Resource> {
    let references = inputs.access.index("secret_references/by-content", |_, access| {
        let layer = access.layers.first().filter(|_| !access.references.is_empty());
        let each = |layer: &SecretLayer| {
            let layer = layer.clone();
            access.references.iter().map(move |name| ((layer.clone(), name.clone()), ())).collect::<Vec<_>>()
        };
        layer.map(each).unwrap_or_default()
    });
    let own = inputs.cluster.clone();
    references.distinct("secret_references").derive_many("secrets/referenced", |deps| {
        let lookup = SecretLookup { secrets: deps.on(inputs.secrets) };
        move |cx, (layer, resource), ()| {
            let Some(CredentialName { namespace: Some(namespace), name, .. }) = CredentialName::parse(resource) else {
                return Vec::new();
            };
            if let Some(base) = name.strip_suffix(ROOTS_SUFFIX) {
                let found = lookup.roots(cx, &[&own], &namespace, base);
                return found.iter().flat_map(|roots| roots_rows(layer, [resource.to_string()], roots)).collect();
            }
            let SecretLayer::Referenced { provider, .. } = layer else { return Vec::new() };
            let found = lookup.certificate(cx, &[&own], &namespace, &name);
            let row = |certificate: &CertificateKeyPair| {
                let secret = build_certificate(resource, certificate, provider.as_ref());
                (key(layer, resource), Resource::Encoded(wire::encode(&secret)))
            };
            found.iter().map(row).collect()
        }
    })
}

fn roots_rows<const N: usize>(
    layer: &SecretLayer,
    names: [String; N],
    roots: &RootCertificates,
) -> Vec<(ResourceKey, Resource)> {
    let row = |name: String| (key(layer, &name), Resource::Encoded(wire::encode(&build_roots(&name, roots))));
    names.map(row).into()
}

fn key(layer: &SecretLayer, name: &str) -> ResourceKey {
    ResourceKey { resource_type: ResourceType::Secret, layer: layer.layer(), name: name.into() }
}
