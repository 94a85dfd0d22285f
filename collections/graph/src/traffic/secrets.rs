//! The Secrets that each proxy may read (P17).
//!
//! Only a proxy whose identity is verified gets Secrets. What it may read follows from that identity, not from its node
//! metadata: certificates and root certificates of the identity's namespace, root certificates in ConfigMaps, and the
//! Secrets that Gateways which select it may refer to.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::{Collection, Context, IndexDep};
use sluice_model::gateway_api::{GROUP, GroupKind, ReferenceGrant};
use sluice_model::{
    CredentialName, Layer, MeshConfig, ObjectKey, PrivateKeyProvider, Proxy, ProxyKey, ROOTS_SUFFIX, RootCertificates,
    SecretReader, Text, View,
};

use crate::content_names::content_hash;
use crate::content_names::profile_text;
use crate::inputs::ObjectCollections;
use crate::inputs::RawInputs;
use crate::options::GraphOptions;
use crate::traffic::credentials::CredentialNamespaces;
use crate::traffic::gateways::SecretReference;
use crate::traffic::gateways::routers::Routers;
use crate::traffic::secret_accounts::{AccountLookup, PodAccounts, SecretAccount};

/// A set of secrets that proxies share.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) enum SecretLayer {
    /// Secrets that Gateways of the Gateway API refer to.
    Referenced {
        /// Names the resources.
        content: Text,
        /// Private key provider of the proxies.
        provider: Option<PrivateKeyProvider>,
    },
    /// Certificates in Secrets of a namespace.
    Certificates {
        /// The namespace.
        namespace: Text,
        /// The cluster whose Secrets are looked up first.
        cluster: Text,
        /// Private key provider of the proxies.
        provider: Option<PrivateKeyProvider>,
    },
    /// Roots in Secrets of a namespace.
    Roots {
        /// The namespace.
        namespace: Text,
        /// The cluster whose Secrets are looked up first.
        cluster: Text,
    },
    /// Roots in ConfigMaps.
    Bundles,
}

impl SecretLayer {
    /// The layer of its resources.
    #[must_use]
    pub(crate) fn layer(&self) -> Layer {
        let view = match self {
            Self::Referenced { content, .. } => View::Workload(format!("secrets#{content}").into()),
            Self::Certificates { namespace, .. } | Self::Roots { namespace, .. } => View::Namespace(namespace.clone()),
            Self::Bundles => View::Base,
        };
        Layer { view, profile: profile_text(self) }
    }

    /// The namespace whose Secrets are in it.
    pub(crate) fn namespace(&self) -> Option<&Text> {
        match self {
            Self::Certificates { namespace, .. } | Self::Roots { namespace, .. } => Some(namespace),
            Self::Referenced { .. } | Self::Bundles => None,
        }
    }
}

/// The Secrets that a proxy may read.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SecretAccess {
    /// Its layers; none if its identity is not verified.
    pub(crate) layers: Vec<SecretLayer>,
    /// The resources of the first layer, if that is of references.
    pub(crate) references: BTreeSet<Text>,
}

/// The Secrets that proxies may read.
#[derive(Clone)]
pub(crate) struct Secrets<'s> {
    /// ConfigMaps with roots.
    pub(crate) bundles: Collection<'s, ObjectKey, RootCertificates>,
    /// The access of each proxy that subscribes to Secrets.
    pub(crate) access: Collection<'s, ProxyKey, SecretAccess>,
    /// The service account of each proxy that may be served Secrets.
    pub(crate) readers: Collection<'s, ProxyKey, SecretAccount>,
    /// Whether these may read Secrets, if that is reviewed.
    pub(crate) reviews: Option<Collection<'s, SecretReader, bool>>,
    /// Service accounts whose access is to be reviewed.
    pub(crate) wanted_reviews: Collection<'s, SecretReader, ()>,
}

impl<'s> Secrets<'s> {
    #[expect(clippy::too_many_arguments, reason = "each is a collection of its own")]
    pub(crate) fn new(
        raw: &RawInputs<'s>,
        objects: &ObjectCollections<'s>,
        bundles: Collection<'s, ObjectKey, RootCertificates>,
        mesh: &Collection<'s, (), MeshConfig>,
        proxies: &Collection<'s, ProxyKey, Proxy>,
        routers: &Routers<'s>,
        credential_namespaces: &Collection<'s, Text, ()>,
        accounts: &PodAccounts<'s>,
        options: &GraphOptions,
    ) -> Self {
        let readers = derive_readers(&raw.secret_clients, proxies, credential_namespaces, accounts, options);
        let wanted = readers.index("secret_readers/by-content", |_, account| {
            account.readers().map(|reader| (reader, ())).collect::<Vec<_>>()
        });
        Self {
            bundles,
            access: derive_access(raw, objects, &readers, mesh, proxies, routers, options),
            readers,
            reviews: options.reviews_secrets.then(|| raw.secret_reviews.clone()),
            wanted_reviews: wanted.distinct("wanted_secret_reviews"),
        }
    }
}

/// The service account of each proxy that subscribes to Secrets, or may have clusters that need some.
/// Key: `ProxyKey`. From: `proxies`, `secret_clients`, `credential_namespaces`, `pod_accounts`. Changes when: a proxy with a
/// verified identity subscribes to secrets for the first time or disconnects, the first rule with credentials is for it, or,
/// if its cluster is not proven, another cluster has the first pod of its service account, or no longer has one.
/// Size: such proxies. Rejects: none.
fn derive_readers<'s>(
    clients: &Collection<'s, ProxyKey, ()>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
    credential_namespaces: &Collection<'s, Text, ()>,
    accounts: &PodAccounts<'s>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, SecretAccount> {
    let own = options.cluster.clone();
    proxies.derive("secret_readers", |deps| {
        let clients = deps.on(clients);
        let namespaces = CredentialNamespaces::on(deps, credential_namespaces);
        let accounts = AccountLookup::on(deps, accounts, &own);
        move |cx, key, proxy| {
            if cx.get(&clients, key).is_none() && !namespaces.concern(cx, proxy) {
                return None;
            }
            accounts.get(cx, proxy)
        }
    })
}

/// The access of each proxy that subscribes to Secrets; a proxy whose access is not reviewed yet is absent.
/// Key: `ProxyKey`. From: `secret_clients`, `secret_readers`, `secret_reviews`, `proxies`, `mesh_config` (hardware for
/// keys), `merged_gateways` (what they refer to), `reference_grants`.
/// Changes when: a proxy first subscribes to Secrets, its access is reviewed with another result, or a Gateway that
/// selects it refers to another Secret. Size: proxies that subscribe to Secrets. Rejects: none.
fn derive_access<'s>(
    raw: &RawInputs<'s>,
    objects: &ObjectCollections<'s>,
    readers: &Collection<'s, ProxyKey, SecretAccount>,
    mesh: &Collection<'s, (), MeshConfig>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
    routers: &Routers<'s>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, SecretAccess> {
    let provider = mesh.map("secrets/key_provider", |(), mesh| mesh.default_config.private_key_provider.clone());
    let cluster = options.cluster.clone();
    let grants = objects.reference_grants.index("reference_grants/by-namespace", move |key, grant| {
        (key.cluster == cluster).then(|| (key.namespace.clone(), grant.clone()))
    });
    let reviewed = options.reviews_secrets;
    raw.secret_clients.derive("secret_access", |deps| {
        let (proxies, readers, reviews) = (deps.on(proxies), deps.on(readers), deps.on(&raw.secret_reviews));
        let (routers, merged) = (deps.on(&routers.proxies), deps.on(&routers.merged));
        let provider = deps.on(&provider);
        let grants = SecretGrants { by_namespace: deps.by(&grants) };
        move |cx, key, ()| {
            let proxy = cx.get(&proxies, key)?;
            let Some(account) = cx.get(&readers, key) else { return Some(SecretAccess::default()) };
            let review = |reader: &SecretReader| cx.get(&reviews, reader).map(|review| *review);
            let may_read = if reviewed { account.may_read(review)? } else { true };
            let SecretReader { cluster, namespace, .. } = account.reader.clone();
            let provider = match &proxy.config {
                Some(config) => config.private_key_provider.clone(),
                None => cx.get(&provider, &()).and_then(|provider| (*provider).clone()),
            };
            let router = cx.get(&routers, key);
            let merged = router.and_then(|router| cx.get(&merged, &router));
            let references = merged.iter().flat_map(|merged| &merged.references);
            let allowed = references.filter(|reference| grants.allow(cx, &namespace, reference));
            let references: BTreeSet<Text> = allowed.flat_map(SecretReference::resources).collect();

            let mut layers = Vec::new();
            if !references.is_empty() {
                layers.push(SecretLayer::Referenced {
                    content: content_hash(&references).into(),
                    provider: provider.clone(),
                });
            }
            if may_read {
                layers.push(SecretLayer::Certificates {
                    namespace: namespace.clone(),
                    cluster: cluster.clone(),
                    provider,
                });
            }
            layers.extend([SecretLayer::Roots { namespace, cluster }, SecretLayer::Bundles]);
            Some(SecretAccess { layers, references })
        }
    })
}

impl SecretReference {
    /// The SDS resources of the reference.
    fn resources(&self) -> impl Iterator<Item = Text> + use<> {
        let roots = self.with_roots.then(|| format!("{}{ROOTS_SUFFIX}", self.resource).into());
        [Some(self.resource.clone()), roots].into_iter().flatten()
    }
}

/// Reads ReferenceGrants by namespace, inside a `derive`.
#[derive(Clone, Copy)]
struct SecretGrants {
    by_namespace: IndexDep<Text, ObjectKey, ReferenceGrant>,
}

impl SecretGrants {
    /// Whether a proxy of `namespace` may read what a Gateway that selects it refers to: Gateway, Secret and proxy are
    /// in one namespace, or a ReferenceGrant in the Secret's namespace allows it for Gateways of the proxy's namespace.
    fn allow(self, cx: &Context, namespace: &Text, reference: &SecretReference) -> bool {
        let Some(CredentialName { namespace: Some(of), name, .. }) = CredentialName::parse(&reference.resource) else {
            return false;
        };
        if reference.gateway_namespace == *namespace && of == *namespace {
            return true;
        }
        let gateway = GroupKind { group: GROUP.into(), kind: "Gateway".into() };
        let secret = GroupKind { group: Text::default(), kind: "Secret".into() };
        cx.by(&self.by_namespace, &of).iter().any(|(_, grant)| grant.allows(&gateway, namespace, &secret, &name))
    }
}
