//! EnvoyFilters: the patches of each proxy, and their order (T06).
//!
//! The patches of a proxy are its *patch set*. Proxies with the same set share the patched resources. These have their
//! own layers, which overlay the shared layers ([`PatchSet::add_layers`]).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index, IndexDep};
use sluice_model::{
    ApplyTo, Attachment, EnvoyFilter, EnvoyPatch, Labels, Layer, MeshConfig, ObjectKey, PatchContext, Proxy, ProxyKey,
    ProxyType, ResourceType, Text, Timestamp, VersionMatch, VersionPattern, View,
};

use crate::content_names::content_hash;

/// A patch of an EnvoyFilter.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PatchKey {
    filter: ObjectKey,
    /// Its index in the EnvoyFilter.
    place: usize,
    apply_to: ApplyTo,
}

/// The patches of a proxy, in the order in which they apply.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PatchSet {
    proxy_type: ProxyType,
    patches: Vec<PatchKey>,
}

/// Names the content of a [`PatchSet`].
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PatchSetName(Text);

impl PatchSetName {
    /// The layer of the resources of `layer` that the set changes.
    pub(crate) fn patched_layer(&self, layer: &Layer) -> Layer {
        Layer { view: layer.view.clone(), profile: format!("{}+{}", layer.profile, self.0).into() }
    }

    /// The layer of the resources that the set adds.
    pub(crate) fn added_layer(&self) -> Layer {
        Layer { view: View::Workload(self.0.clone()), profile: Text::default() }
    }
}

impl PatchSet {
    /// Its name: a hash of the keys of its patches, not of their content.
    pub(crate) fn name(&self) -> PatchSetName {
        PatchSetName(format!("patches#{}", content_hash(self)).into())
    }

    /// The EnvoyFilters of its patches.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &ObjectKey> {
        self.patches.iter().map(|patch| &patch.filter)
    }

    /// Whether a patch changes resources of that type.
    pub(crate) fn changes_type(&self, resource_type: ResourceType) -> bool {
        self.patches.iter().any(|patch| patch.apply_to.resource_types().contains(&resource_type))
    }

    /// Puts the layers of changed resources before the layers they overlay, and the layer of added resources last.
    pub(crate) fn add_layers(&self, layers: &mut BTreeMap<ResourceType, Vec<Layer>>) {
        let name = self.name();
        for (resource_type, layers) in layers.iter_mut().filter(|(of, _)| self.changes_type(**of)) {
            let below = std::mem::take(layers);
            if *resource_type == ResourceType::ExtensionConfig {
                layers.push(name.added_layer());
                layers.extend(below);
                continue;
            }
            for layer in below {
                layers.extend([name.patched_layer(&layer), layer]);
            }
            layers.push(name.added_layer());
        }
    }
}

/// The patches of a set that apply to one resource type.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PatchProgram {
    /// The type of the proxies with the set.
    pub(crate) proxy_type: ProxyType,
    /// Patches in the order in which they apply.
    pub(crate) patches: Vec<EnvoyPatch>,
}

/// The patches of proxies.
#[derive(Clone)]
pub(crate) struct Patches<'s> {
    /// The patch set of each proxy that has patches.
    pub(crate) of_proxies: Collection<'s, ProxyKey, PatchSet>,
    /// The patches of each set in use, by resource type.
    pub(crate) programs: Collection<'s, (PatchSetName, ResourceType), PatchProgram>,
    /// The conditions of patches on what proxies state, with the namespace of the EnvoyFilter.
    pub(crate) conditions: Collection<'s, (Text, PatchCondition), ()>,
}

/// EnvoyFilters within the limits of their namespaces.
type Filters<'s> = Collection<'s, ObjectKey, EnvoyFilter>;

/// Derives the patch set of each proxy, and the patches of each set.
pub(crate) fn derive_patches<'s>(
    filters: &Filters<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
) -> Patches<'s> {
    let of_proxies = derive_proxy_patches(filters, mesh, proxies);
    let programs = derive_programs(filters, &of_proxies);
    Patches { of_proxies, programs, conditions: derive_conditions(filters) }
}

/// The conditions of patches on what proxies state: a client chooses its patch set with these.
/// Key: namespace of the EnvoyFilter, and condition. From: `envoy_filters`.
/// Changes when: the first patch with a condition is added or the last is removed. Size: different conditions. Rejects: none.
fn derive_conditions<'s>(filters: &Filters<'s>) -> Collection<'s, (Text, PatchCondition), ()> {
    let conditions = filters.index("patch_conditions/by-content", |key, filter| {
        let conditions = filter.patches.iter().flatten().flat_map(PatchCondition::of);
        conditions.map(|condition| ((key.namespace.clone(), condition), ())).collect::<Vec<_>>()
    });
    conditions.distinct("patch_conditions")
}

/// The fields of an EnvoyFilter that decide where it applies.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct EnvoyFilterHead {
    priority: i32,
    created: Timestamp,
    attachment: Attachment,
    patches: Vec<Option<PatchHead>>,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PatchHead {
    apply_to: ApplyTo,
    context: PatchContext,
    version: VersionMatch,
    metadata: Labels,
}

impl EnvoyFilterHead {
    fn of(filter: &EnvoyFilter) -> Self {
        let patch = |patch: &EnvoyPatch| PatchHead {
            apply_to: patch.apply_to,
            context: patch.context,
            version: patch.version.clone(),
            metadata: patch.metadata.clone(),
        };
        Self {
            priority: filter.priority,
            created: filter.created,
            attachment: filter.attachment.clone(),
            patches: filter.patches.iter().map(|found| found.as_ref().map(patch)).collect(),
        }
    }
}

impl PatchHead {
    fn applies(&self, proxy: &Proxy) -> bool {
        let contexts: &[PatchContext] = match proxy.proxy_type {
            // As in Istio, waypoints have the contexts of sidecars.
            ProxyType::Sidecar | ProxyType::Waypoint => &[PatchContext::SidecarInbound, PatchContext::SidecarOutbound],
            ProxyType::Router => &[PatchContext::Gateway],
            ProxyType::Ztunnel | ProxyType::Agentgateway => &[],
        };
        // Extension configs are subscribed by name, for both directions of traffic.
        let in_context =
            self.apply_to == ApplyTo::ExtensionConfig || contexts.iter().any(|context| self.context.covers(*context));
        let of_version = || match &self.version {
            VersionMatch::Any => true,
            VersionMatch::Matches(pattern) => has_version(proxy, pattern),
            VersionMatch::Never => false,
        };
        in_context && self.metadata.iter().all(|(name, text)| has_metadata(proxy, name, text)) && of_version()
    }
}

/// Whether patches can apply to the proxy. Ztunnels and agentgateways are no Envoys, and gRPC libraries reject most of
/// what a patch may add.
pub(crate) fn can_have_patches(proxy: &Proxy) -> bool {
    matches!(proxy.proxy_type, ProxyType::Sidecar | ProxyType::Router | ProxyType::Waypoint) && !proxy.grpc
}

/// Whether the version of the proxy matches. A client chooses its version. It is matched once with an expression, and
/// not on the dataflow thread: the result is kept from when the proxy connected (`Handles::client_profile`) or the
/// EnvoyFilter was written (`Inputs::apply`).
fn has_version(proxy: &Proxy, pattern: &VersionPattern) -> bool {
    !proxy.istio_version.is_empty() && pattern.is_match(&proxy.istio_version)
}

/// Whether the proxy states this text for the name.
fn has_metadata(proxy: &Proxy, name: &Text, text: &Text) -> bool {
    let stated = proxy.metadata.get(name);
    stated.is_some_and(|json| *json.as_str() == *serde_json::Value::from(text.as_str()).to_string())
}

/// A condition of a patch on what a proxy states about itself.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PatchCondition {
    /// It has metadata with this name and text.
    Metadata(Text, Text),
    /// Its version matches an expression.
    Version(VersionPattern),
}

impl PatchCondition {
    /// The lowest in order: those of a namespace follow it.
    pub(crate) fn first() -> Self {
        Self::Metadata(Text::default(), Text::default())
    }

    fn of(patch: &EnvoyPatch) -> impl Iterator<Item = Self> {
        let version = match &patch.version {
            VersionMatch::Matches(pattern) => Some(Self::Version(pattern.clone())),
            VersionMatch::Any | VersionMatch::Never => None,
        };
        let metadata = patch.metadata.iter().map(|(name, text)| Self::Metadata(name.clone(), text.clone()));
        version.into_iter().chain(metadata)
    }

    /// Whether the proxy meets it.
    #[must_use]
    pub(crate) fn is_met(&self, proxy: &Proxy) -> bool {
        match self {
            Self::Metadata(name, text) => has_metadata(proxy, name, text),
            Self::Version(pattern) => has_version(proxy, pattern),
        }
    }
}

/// The patch set of each proxy.
/// Key: `ProxyKey`. From: `proxies`, `envoy_filters`, `mesh_config` (the root namespace).
/// Changes when: an EnvoyFilter of the proxy's namespace or of the root namespace is added, removed or selects other
/// proxies, or facts of the proxy change that are selected on; not when the content of a patch changes.
/// Size: proxies that have patches. Rejects: none.
fn derive_proxy_patches<'s>(
    filters: &Filters<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
) -> Collection<'s, ProxyKey, PatchSet> {
    let by_namespace: Index<'s, Text, ObjectKey, EnvoyFilterHead> = filters
        .index("envoy_filters/by-namespace", |key, filter| [(key.namespace.clone(), EnvoyFilterHead::of(filter))]);
    let root = mesh.map("envoy_filters/root-namespace", |(), mesh| mesh.root_namespace.clone());
    proxies.derive("proxy_patches", |deps| {
        let selection = Selection { filters: deps.by(&by_namespace), root: deps.on(&root) };
        move |cx, _, proxy| {
            if !can_have_patches(proxy) {
                return None;
            }
            let patches = selection.of(cx, proxy);
            (!patches.is_empty()).then_some(PatchSet { proxy_type: proxy.proxy_type, patches })
        }
    })
}

struct Selection {
    filters: IndexDep<Text, ObjectKey, EnvoyFilterHead>,
    root: Dep<(), Text>,
}

impl Selection {
    fn of(&self, cx: &Context, proxy: &Proxy) -> Vec<PatchKey> {
        let root = cx.get(&self.root, &()).map(|root| (*root).clone()).unwrap_or_default();
        let mut filters = cx.by(&self.filters, &proxy.namespace);
        if root != proxy.namespace {
            filters.extend(cx.by(&self.filters, &root));
        }
        let is_waypoint = proxy.proxy_type == ProxyType::Waypoint;
        filters.retain(|(key, head)| {
            head.attachment.is_for_proxy(key, is_waypoint, &proxy.namespace, &proxy.labels, &root)
        });
        filters.sort_by(|a, b| order(&root, a, b));
        let mut patches = Vec::new();
        for (filter, head) in filters {
            for (place, patch) in head.patches.iter().enumerate() {
                if let Some(patch) = patch
                    && patch.applies(proxy)
                {
                    patches.push(PatchKey { filter: filter.clone(), place, apply_to: patch.apply_to });
                }
            }
        }
        patches
    }
}

/// Of equal priority, those of the root namespace come first, then older ones.
fn order(root: &Text, a: &(ObjectKey, Arc<EnvoyFilterHead>), b: &(ObjectKey, Arc<EnvoyFilterHead>)) -> Ordering {
    let name = |key: &ObjectKey| format!("{}.{}", key.name, key.namespace);
    let ((a_key, a), (b_key, b)) = (a, b);
    (a.priority.cmp(&b.priority))
        .then_with(|| (a_key.namespace != *root).cmp(&(b_key.namespace != *root)))
        .then_with(|| a.created.cmp(&b.created))
        .then_with(|| name(a_key).cmp(&name(b_key)))
}

/// The patches of each set in use, by resource type.
/// Key: set and type. From: `proxy_patches`, `envoy_filters`.
/// Changes when: the first proxy with a set connects or the last leaves, or the content of one of its patches changes.
/// Size: distinct sets. Rejects: none.
fn derive_programs<'s>(
    filters: &Filters<'s>,
    sets: &Collection<'s, ProxyKey, PatchSet>,
) -> Collection<'s, (PatchSetName, ResourceType), PatchProgram> {
    let distinct = sets.index("patch_sets/by-content", |_, set| [(set.clone(), ())]).distinct("patch_sets");
    distinct.derive_many("patch_programs", |deps| {
        let filters = deps.on(filters);
        move |cx, set: &PatchSet, ()| {
            let patches: Vec<EnvoyPatch> = (set.patches.iter())
                .filter_map(|key| cx.get(&filters, &key.filter)?.patches.get(key.place)?.clone())
                .collect();
            let types = ResourceType::ALL.into_iter().filter(|resource_type| set.changes_type(*resource_type));
            let program = |resource_type: ResourceType| {
                let of_type = patches.iter().filter(|patch| patch.apply_to.resource_types().contains(&resource_type));
                let program = PatchProgram { proxy_type: set.proxy_type, patches: of_type.cloned().collect() };
                ((set.name(), resource_type), program)
            };
            types.map(program).collect()
        }
    })
}
