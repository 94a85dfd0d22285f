//! Clusters (N01, N04, N12 to N14).

use std::collections::BTreeMap;

use sluice_engine::Graph;
use sluice_envoy::cluster::{
    ClusterProfile, ClusterSettings, OutboundInputs, build_black_hole, build_outbound, build_passthrough,
};
use sluice_model::{Layer, Resource, ResourceKey, ResourceType, Service, Text, View};

use super::{Outputs, derive_profiles};
use crate::{Client, Hosts, Overlay, Spine, namespace_views, profile_text};

/// A sidecar's own clusters, then what it sees of the mesh.
pub(crate) fn layers(client: &Client<'_>) -> Vec<Layer> {
    let profile = profile_text(&ClusterProfile::of(client.proxy));
    let mut layers = vec![client.inbound(&profile)];
    layers.extend(client.outbound(&profile));
    layers
}

/// Clusters.
/// Key: layer and name. From: `hosts`, `services`, `identities`, `mesh_config`, `proxies` (their profiles).
/// Changes when: a service does, the identities behind it, or a setting of clusters; not when endpoints come and go.
/// Size: ports of services × profiles, plus what special namespaces see otherwise. Rejects: none.
pub(crate) fn derive_clusters<'s>(_graph: &Graph<'s>, spine: &Spine<'s>, outputs: &mut Outputs<'s>) {
    let profiles = derive_profiles(spine, "cluster_profiles", ClusterProfile::of);
    let dual_stack = spine.options.dual_stack;
    let settings = spine.mesh.map("cluster_settings", move |(), mesh| ClusterSettings::new(mesh, dual_stack));
    let fixed = profiles.derive_many("clusters/fixed", |deps| {
        let settings = deps.on(&settings);
        move |cx, profile, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let text = profile_text(profile);
            let clusters = [build_black_hole(&settings), build_passthrough(&settings, profile)];
            clusters.iter().map(|cluster| row(View::Base, &text, &cluster.name, encode(cluster))).collect()
        }
    });
    let outbound = spine.hosts.derive_many("clusters/outbound", |deps| {
        let (hosts, settings) = (Hosts::on(deps, spine), deps.on(&settings));
        let (profiles, identities) = (deps.on(&profiles), deps.on(&spine.identities));
        move |cx, host, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let services = hosts.get(cx, host);
            let mut rows = Vec::new();
            for (profile, _) in cx.all(&profiles) {
                let text = profile_text(&profile);
                let special = namespace_views(services.special_namespaces());
                let seen = Overlay::rows(special, |view| {
                    let Some(service) = services.visible_to(view.namespace()) else { return BTreeMap::new() };
                    let identities = cx.get(&identities, &service.key()).map(|found| (*found).clone());
                    of_service(&settings, &profile, service, &identities.unwrap_or_default())
                });
                rows.extend(seen.into_iter().map(|(view, name, cluster)| row(view, &text, &name, cluster)));
            }
            rows
        }
    });
    outputs.resources.extend([fixed, outbound]);
}

fn of_service(
    settings: &ClusterSettings,
    profile: &ClusterProfile,
    service: &Service,
    identities: &[Text],
) -> BTreeMap<String, Resource> {
    let clusters = service.ports.iter().flat_map(|port| {
        build_outbound(&OutboundInputs {
            settings,
            profile,
            service,
            port,
            rule: None,
            takes_mtls: true,
            all_endpoints_mtls: false,
            identities,
            dns_load: &|_| None,
        })
    });
    clusters.map(|cluster| (cluster.name.clone(), encode(&cluster))).collect()
}

fn encode(message: &impl prost::Message) -> Resource {
    Resource::Encoded(message.encode_to_vec().into())
}

fn row(view: View, profile: &Text, name: &str, resource: Resource) -> (ResourceKey, Resource) {
    let layer = Layer { view, profile: profile.clone() };
    (ResourceKey { resource_type: ResourceType::Cluster, layer, name: name.into() }, resource)
}
