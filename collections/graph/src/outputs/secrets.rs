//! Secrets (P17): certificates and root certificates by their SDS names.

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Value};
use sluice_envoy::secret::{build_certificate, build_roots};
use sluice_envoy::wire;
use sluice_model::{
    CertificateKeyPair, CredentialKind, CredentialName, ObjectKey, ProxyKey, ROOTS_SUFFIX, Resource, ResourceKey,
    ResourceType, RootCertificates, Secret, Text,
};

use super::Outputs;
use crate::traffic::credentials::CredentialAccess;
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

/// Derives the Secrets of all layers.
pub(crate) fn derive_secrets<'s>(inputs: &SecretInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let access = inputs.access;
    let in_use = access.index("secret_layers/by-content", |_, access| {
        access.layers.iter().map(|layer| (layer.clone(), ())).collect::<Vec<_>>()
    });
    let layers = in_use.distinct("secret_layers");
    outputs.resources.extend([derive_own(inputs, &layers), derive_bundles(inputs, &layers), derive_referenced(inputs)]);
}

/// What a Secret contains. A renewed certificate changes nothing here.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct SecretContent {
    certificate: bool,
    roots: bool,
}

/// The Secrets and ConfigMaps that can be served, without their bytes.
#[derive(Clone)]
pub(crate) struct ServableSecrets<'s> {
    cluster: Text,
    contents: Collection<'s, ObjectKey, SecretContent>,
    bundles: Collection<'s, ObjectKey, ()>,
}

impl<'s> ServableSecrets<'s> {
    pub(crate) fn new(inputs: &SecretInputs<'_, 's>) -> Self {
        let content = |secret: &Secret| SecretContent {
            certificate: secret.certificate.is_some(),
            roots: secret.roots.is_some(),
        };
        Self {
            cluster: inputs.cluster.clone(),
            contents: inputs.secrets.map("secrets/contents", move |_, secret| content(secret)),
            bundles: inputs.bundles.map("secrets/bundle-names", |_, _| ()),
        }
    }
}

/// Looks up whether proxies are served a Secret, inside a `derive`.
#[derive(Clone)]
pub(crate) struct ServedSecretLookup {
    cluster: Text,
    contents: Dep<ObjectKey, SecretContent>,
    bundles: Dep<ObjectKey, ()>,
}

impl ServedSecretLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, secrets: &ServableSecrets<'s>) -> Self {
        Self {
            cluster: secrets.cluster.clone(),
            contents: deps.on(&secrets.contents),
            bundles: deps.on(&secrets.bundles),
        }
    }

    /// Whether proxies with these rights are served the Secret of an SDS resource name for their clusters. Those of Gateways
    /// (`kubernetes-gateway://`) are for servers only.
    pub(crate) fn is_served(&self, cx: &Context, access: &CredentialAccess, resource: &str) -> bool {
        let Some(CredentialName { kind, namespace, name }) = CredentialName::parse(resource) else { return false };
        let base = name.strip_suffix(ROOTS_SUFFIX);
        match kind {
            CredentialKind::ConfigMap => {
                let name = base.unwrap_or(&name);
                let object = namespace.map(|namespace| ObjectKey::new(self.cluster.clone(), namespace, name));
                !name.ends_with(ROOTS_SUFFIX) && object.is_some_and(|object| cx.get(&self.bundles, &object).is_some())
            }
            CredentialKind::Secret if namespace.as_ref().is_none_or(|namespace| *namespace == access.namespace) => {
                let secrets = SecretLookup {
                    secrets: self.contents,
                    clusters: &clusters(&access.cluster, &self.cluster),
                    namespace: &access.namespace,
                };
                match base {
                    Some(base) => secrets.roots(cx, base, |content| content.roots.then_some(())).is_some(),
                    None if access.certificates => {
                        secrets.certificate(cx, &name, |content| content.certificate.then_some(())).is_some()
                    }
                    None => false,
                }
            }
            CredentialKind::Secret | CredentialKind::GatewaySecret => false,
        }
    }
}

/// Looks up Secrets of a namespace, in the first of the clusters that has one, inside a `derive`.
struct SecretLookup<'a, S> {
    secrets: Dep<ObjectKey, S>,
    clusters: &'a [&'a Text],
    namespace: &'a Text,
}

impl<S: Value> SecretLookup<'_, S> {
    fn get(&self, cx: &Context, cluster: &Text, name: &str) -> Option<Arc<S>> {
        cx.get(&self.secrets, &ObjectKey::new(cluster.clone(), self.namespace.clone(), name))
    }

    /// The certificate in the Secret of that name.
    fn certificate<T>(&self, cx: &Context, name: &str, certificate: impl Fn(&S) -> Option<T>) -> Option<T> {
        self.clusters.iter().filter_map(|cluster| self.get(cx, cluster, name)).find_map(|secret| certificate(&secret))
    }

    /// The root certificates of that name: those of the Secret with the suffix, else those in the Secret of the
    /// certificate.
    fn roots<T>(&self, cx: &Context, base: &str, roots: impl Fn(&S) -> Option<T>) -> Option<T> {
        let own = format!("{base}{ROOTS_SUFFIX}");
        self.clusters.iter().find_map(|cluster| {
            let secret = self.get(cx, cluster, &own).or_else(|| self.get(cx, cluster, base))?;
            roots(&secret)
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
        let secrets = deps.on(inputs.secrets);
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
                        let lookup = SecretLookup { secrets, clusters: &clusters(cluster, &own), namespace };
                        let found = lookup.certificate(cx, name, |secret: &Secret| secret.certificate.clone());
                        rows.extend(found.iter().flat_map(|certificate| {
                            names("").map(|name| {
                                let secret = build_certificate(&name, certificate, provider.as_ref());
                                (key(&layer, &name), Resource::Encoded(wire::encode(&secret)))
                            })
                        }));
                    }
                    SecretLayer::Roots { cluster, .. } => {
                        let lookup = SecretLookup { secrets, clusters: &clusters(cluster, &own), namespace };
                        let found = lookup.roots(cx, name, |secret: &Secret| secret.roots.clone());
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
        let secrets = deps.on(inputs.secrets);
        move |cx, (layer, resource), ()| {
            let Some(CredentialName { namespace: Some(namespace), name, .. }) = CredentialName::parse(resource) else {
                return Vec::new();
            };
            let lookup = SecretLookup { secrets, clusters: &[&own], namespace: &namespace };
            if let Some(base) = name.strip_suffix(ROOTS_SUFFIX) {
                let found = lookup.roots(cx, base, |secret: &Secret| secret.roots.clone());
                return found.iter().flat_map(|roots| roots_rows(layer, [resource.to_string()], roots)).collect();
            }
            let SecretLayer::Referenced { provider, .. } = layer else { return Vec::new() };
            let found = lookup.certificate(cx, &name, |secret: &Secret| secret.certificate.clone());
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
