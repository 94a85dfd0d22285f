//! Outputs: encoded resources by layer, a file a type.
//!
//! An output module has
//! - a *profile*: a small struct of those facts of a proxy that change how the type is written, and a function that reads
//!   it off a proxy;
//! - `layers(&Client) -> Vec<Layer>`: which layers of the type a proxy gets, the most special first (see [`LAYERS`]);
//! - `derive_…(graph, context) -> Collection<ResourceKey, Resource>` for whole resources, or
//!   `Collection<SegmentKey, Segment>` for those assembled from segments, for every profile in use.

pub(crate) mod addresses;
pub(crate) mod clusters;
pub(crate) mod endpoints;
pub(crate) mod extension_configs;
pub(crate) mod layers;
pub(crate) mod listeners;
pub(crate) mod name_tables;
pub(crate) mod patched;
pub(crate) mod routes;
pub(crate) mod secrets;
pub(crate) mod trust_bundle;
pub(crate) mod vhds;

use sluice_engine::{Collection, Key};
use sluice_model::{Layer, Proxy, ProxyKey, Resource, ResourceKey, ResourceType, Segment, SegmentKey};

use crate::outputs::layers::LayerFacts;

/// Which layers of a type a proxy gets, the most special first.
pub(crate) type Layers = fn(&LayerFacts<'_>) -> Vec<Layer>;

/// The types that are made, in push order, and who gets which layers of them.
pub(crate) const LAYERS: &[(ResourceType, Layers)] = &[
    (ResourceType::Cluster, clusters::layers),
    (ResourceType::Endpoint, endpoints::layers),
    (ResourceType::Listener, listeners::layers),
    (ResourceType::Route, routes::layers),
    (ResourceType::NameTable, name_tables::layers),
    (ResourceType::ExtensionConfig, extension_configs::layers),
    (ResourceType::ProxyConfig, trust_bundle::layers),
    (ResourceType::Address, addresses::layers),
    (ResourceType::Workload, addresses::layers),
    (ResourceType::Authorization, addresses::layers),
];

/// All outputs. Every key is in one of the collections only.
pub(crate) struct Outputs<'s> {
    /// Whole resources.
    pub(crate) resources: Vec<Collection<'s, ResourceKey, Resource>>,
    /// Segments of assembled resources.
    pub(crate) segments: Vec<Collection<'s, SegmentKey, Segment>>,
}

/// The profiles in use: distinct over connected proxies.
/// Key: the profile. From: `proxies`, or of them the clients of a rare tier.
/// Changes when: the first proxy with a profile connects or the last leaves.
/// Size: a handful. Rejects: none.
pub(crate) fn derive_profiles<'s, P: Key>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    name: &str,
    profile: impl Fn(&Proxy) -> P + 'static,
) -> Collection<'s, P, ()> {
    proxies.index(&format!("{name}/by-content"), move |_, proxy| [(profile(proxy), ())]).distinct(name)
}

/// The profiles in use by routers that route to clusters by server name.
/// Key: the profile. From: `proxies`, `routers/auto-passthrough`.
/// Changes when: the first such router with a profile connects or the last leaves, or is given such a server.
/// Size: a handful. Rejects: none.
pub(crate) fn derive_passing_profiles<'s, P: Key>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    auto_passthrough: &Collection<'s, ProxyKey, ()>,
    name: &str,
    profile: impl Fn(&Proxy) -> P + 'static,
) -> Collection<'s, P, ()> {
    let passing = auto_passthrough.derive(&format!("{name}/of-proxies"), |deps| {
        let proxies = deps.on(proxies);
        move |cx, key, ()| Some(profile(&*cx.get(&proxies, key)?))
    });
    passing.index(&format!("{name}/by-content"), |_, profile| [(profile.clone(), ())]).distinct(name)
}
