//! Outputs: encoded resources by layer, one file for each resource type.
//!
//! An output module has
//! - a *profile*: a struct of the facts of a proxy that change the resource, and a function that reads them from a
//!   proxy;
//! - `layers(&LayerFacts) -> Vec<Layer>`: the layers of the type that a proxy gets, in order (see [`LAYERS`]);
//! - an inputs struct, and `derive_…(inputs, outputs)`, which adds whole resources, or segments of assembled resources,
//!   for every profile in use.

pub(crate) mod addresses;
pub(crate) mod clusters;
pub(crate) mod endpoints;
pub(crate) mod extension_configs;
pub(crate) mod layers;
pub(crate) mod listeners;
pub(crate) mod name_tables;
pub(crate) mod on_demand_clusters;
pub(crate) mod patched;
pub(crate) mod routes;
pub(crate) mod secrets;
pub(crate) mod trust_bundle;
pub(crate) mod vhds;

use sluice_engine::{Collection, Key};
use sluice_envoy::cluster::ClusterProfile;
use sluice_envoy::listener_settings::ListenerProfile;
use sluice_model::{
    ClientLocation, ClientProfile, Layer, Proxy, ProxyConfig, ProxyKey, Resource, ResourceKey, ResourceType, Segment,
    SegmentKey,
};

use crate::content_names::content_hashes;
use crate::outputs::layers::LayerFacts;
use crate::outputs::routes::virtual_hosts::RouteProfile;
use crate::proxies::envoy_filters::PatchCondition;

/// The layers of a type that a proxy gets: the first layer that has or hides a name decides.
pub(crate) type Layers = fn(&LayerFacts<'_>) -> Vec<Layer>;

/// The resource types in push order, and the function that gives the layers of each.
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

/// All outputs. Every key is in only one of the collections.
pub(crate) struct Outputs<'s> {
    /// Whole resources.
    pub(crate) resources: Vec<Collection<'s, ResourceKey, Resource>>,
    /// Segments of assembled resources.
    pub(crate) segments: Vec<Collection<'s, SegmentKey, Segment>>,
}

/// Hashes of everything that a client states about itself and that the resources it shares with others are built for.
/// `conditions` are those of the patches in its namespace and in the root namespace.
pub(crate) fn client_profile<'a>(proxy: &Proxy, conditions: impl Iterator<Item = &'a PatchCondition>) -> ClientProfile {
    // Each combination of these is a patch set, with a copy of what it patches.
    let met: Vec<&PatchCondition> = conditions.filter(|condition| condition.is_met(proxy)).collect();
    let elsewhere = Proxy { location: Some(ClientLocation::default()), ..proxy.clone() };
    let properties = (
        ClusterProfile::of(&elsewhere),
        ListenerProfile::of(&elsewhere, &ProxyConfig::default()),
        RouteProfile::of(&elsewhere),
        proxy.config.as_ref().and_then(|config| config.private_key_provider.as_ref()),
        proxy.endpoints_by_locality,
        met,
    );
    let location = (proxy.shared_location(), &proxy.network_view, &proxy.locality);
    ClientProfile { properties: content_hashes(&properties), location: content_hashes(&location) }
}

/// The profiles in use: distinct over connected proxies.
/// Key: the profile. From: `proxies`, or those of them that are clients of a rare tier.
/// Changes when: the first proxy with a profile connects or the last leaves.
/// Size: a handful. Rejects: none.
pub(crate) fn derive_profiles<'s, P: Key>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    name: &str,
    profile: impl Fn(&Proxy) -> P + 'static,
) -> Collection<'s, P, ()> {
    proxies.index(&format!("{name}/by-content"), move |_, proxy| [(profile(proxy), ())]).distinct(name)
}

/// The profiles in use by proxies with an Envoy, see [`derive_profiles`].
pub(crate) fn derive_envoy_profiles<'s, P: Key>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    name: &str,
    profile: impl Fn(&Proxy) -> P + 'static,
) -> Collection<'s, P, ()> {
    let of_envoys = move |_: &ProxyKey, proxy: &Proxy| (!proxy.grpc).then(|| (profile(proxy), ()));
    proxies.index(&format!("{name}/by-content"), of_envoys).distinct(name)
}

/// The profiles in use by routers with a server of TLS mode AUTO_PASSTHROUGH.
/// Key: the profile. From: `proxies`, `routers/auto-passthrough`.
/// Changes when: the first such router with a profile connects or the last leaves, or a router gets its first such
/// server.
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
