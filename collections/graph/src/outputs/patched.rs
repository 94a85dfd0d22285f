//! Resources that EnvoyFilters patch (T06): the stage after all other outputs.
//!
//! For each patch set, the resources of the layers of its proxies are patched. A changed resource is written to a layer
//! of the patch set, which overlays the original layer. Thus other proxies are not affected, and a set that changes
//! nothing in a layer adds no rows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sluice_engine::{Collection, Dep};
use sluice_envoy::{marker_slots, template};
use sluice_model::{
    ApplyTo, Layer, PatchContext, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, Segment, SegmentKey,
    SlotValues, Text, View,
};
use sluice_patch::{
    PatchOutcome, RouteTableContext, added_resources, patch_cluster, patch_listener, patch_route_table,
    patch_virtual_host,
};

use super::Outputs;
use super::layers::{LayerInputs, LayerReader};
use crate::proxies::envoy_filters::{PatchProgram, PatchSet, PatchSetName};
use crate::traffic::gateways::MergedGateway;
use crate::traffic::gateways::routers::Router;

/// The patch sets of the proxies that have each layer.
pub(crate) type PatchedLayers<'s> = Collection<'s, (ResourceType, Layer), Vec<PatchSetName>>;

/// The patches of each set that apply to a resource type.
type Programs<'s> = Collection<'s, (PatchSetName, ResourceType), PatchProgram>;

/// Inputs of the derivation of patched resources, besides the resources and `patched_layers`.
pub(crate) struct PatchedInputs<'a, 's> {
    /// The patches of each set that apply to a resource type.
    pub(crate) programs: &'a Programs<'s>,
    /// The merged Gateways of each distinct router.
    pub(crate) merged_gateways: &'a Collection<'s, Router, MergedGateway>,
}

/// Adds the patched clusters and listeners (whole resources), the patched segments, and the resources that patches add.
pub(crate) fn derive_patched<'s>(
    inputs: &PatchedInputs<'_, 's>,
    layers: &PatchedLayers<'s>,
    whole: &[Collection<'s, ResourceKey, Resource>],
    outputs: &mut Outputs<'s>,
) {
    let ports = derive_gateway_ports(inputs.merged_gateways);
    let segments: Vec<_> =
        outputs.segments.iter().map(|of| derive_patched_segments(inputs.programs, layers, &ports, of)).collect();
    outputs.segments.extend(segments);
    outputs.resources.extend(whole.iter().map(|of| derive_patched_resources(inputs.programs, layers, of)));
    outputs.resources.push(derive_added(inputs.programs));
}

/// Patched resources.
/// Key: layer of the patch set and name. From: the output, `patched_layers`, `patch_programs`.
/// Changes when: a resource that patches change does, or an EnvoyFilter that changes one.
/// Size: patched resources of each set. Rejects: none.
fn derive_patched_resources<'s>(
    programs: &Programs<'s>,
    layers: &PatchedLayers<'s>,
    of: &Collection<'s, ResourceKey, Resource>,
) -> Collection<'s, ResourceKey, Resource> {
    let name = of.name();
    let by_layer = of.index(&format!("{name}/by-layer"), |key, resource| {
        (*resource != Resource::Hidden).then(|| ((key.resource_type, key.layer.clone()), resource.clone()))
    });
    let claimed = by_layer.join(&format!("{name}/claimed"), layers, |_, key, resource, sets| {
        Some((key.clone(), (resource.clone(), sets.clone())))
    });
    claimed.derive_many(&format!("{name}/patched"), |deps| {
        let programs = deps.on(programs);
        let markers = marker_slots();
        move |cx, key: &ResourceKey, (resource, sets)| {
            let patched = |set: &PatchSetName| {
                let program = cx.get(&programs, &(set.clone(), key.resource_type))?;
                let patched = patch_resource(key, resource, &program, &markers)?;
                Some((ResourceKey { layer: set.patched_layer(&key.layer), ..key.clone() }, patched))
            };
            sets.iter().filter_map(patched).collect()
        }
    })
}

/// The patched resource, if the program changes it.
fn patch_resource(
    key: &ResourceKey,
    resource: &Resource,
    program: &PatchProgram,
    markers: &SlotValues,
) -> Option<Resource> {
    let encoded = resource.bytes(markers)?;
    let proxy_type = program.proxy_type;
    let outcome = match key.resource_type {
        ResourceType::Cluster => patch_cluster(&key.name, &encoded, &program.patches, proxy_type),
        ResourceType::Listener => patch_listener(&encoded, &program.patches, proxy_type),
        _ => PatchOutcome::Unchanged,
    };
    match outcome {
        PatchOutcome::Unchanged => None,
        PatchOutcome::Changed(bytes) => Some(template(bytes)),
        PatchOutcome::Removed => {
            // A patch may add a resource with the name of the removed one. Hiding the name would hide both.
            let other = added_by(program, key.resource_type).into_iter().find(|(name, _)| *name == key.name);
            Some(other.map_or(Resource::Hidden, |(_, bytes)| Resource::Encoded(bytes)))
        }
    }
}

/// Whole resources that a program adds, with their names.
fn added_by(program: &PatchProgram, resource_type: ResourceType) -> Vec<(Text, Bytes)> {
    match resource_type {
        ResourceType::Cluster => added_resources(&program.patches, ApplyTo::Cluster, program.proxy_type),
        ResourceType::Listener => added_resources(&program.patches, ApplyTo::Listener, program.proxy_type),
        _ => Vec::new(),
    }
}

/// Clusters and listeners that patches add.
/// Key: layer of the patch set and name. From: `patch_programs`. Changes when: an EnvoyFilter in use does.
/// Size: resources that EnvoyFilters add, for each set. Rejects: none.
fn derive_added<'s>(programs: &Programs<'s>) -> Collection<'s, ResourceKey, Resource> {
    programs.flat_map("patches/added", |(set, resource_type), program| {
        let (resource_type, layer) = (*resource_type, set.added_layer());
        let key = move |name| ResourceKey { resource_type, layer: layer.clone(), name };
        added_by(program, resource_type)
            .into_iter()
            .map(|(name, bytes)| (key(name), Resource::Encoded(bytes)))
            .collect::<Vec<_>>()
    })
}

/// Ports of a gateway's services, by the target port of its pods.
type GatewayPorts = BTreeMap<u32, BTreeSet<u32>>;

/// Ports of the route tables of gateways, by the view of the gateway.
/// Key: `View`. From: `merged_gateways`. Changes when: they do. Size: distinct routers. Rejects: none.
fn derive_gateway_ports<'s>(
    merged_gateways: &Collection<'s, Router, MergedGateway>,
) -> Collection<'s, View, GatewayPorts> {
    merged_gateways.flat_map("gateway_ports", |router, merged| {
        let mut ports = GatewayPorts::new();
        for table in &merged.tables {
            let servers = table.servers.iter().map(|bound| bound.server.port);
            ports.entry(RouteTableContext::gateway_port(&table.name)).or_default().extend(servers);
        }
        [(router.view(), ports)]
    })
}

/// Patched segments of route tables.
/// Key: layer of the patch set, table and segment. From: the output, `patched_layers`, `patch_programs`, `gateway_ports`.
/// Changes when: a segment that patches change does, or an EnvoyFilter that changes one.
/// Size: patched segments of each set. Rejects: none.
fn derive_patched_segments<'s>(
    programs: &Programs<'s>,
    layers: &PatchedLayers<'s>,
    ports: &Collection<'s, View, GatewayPorts>,
    of: &Collection<'s, SegmentKey, Segment>,
) -> Collection<'s, SegmentKey, Segment> {
    let name = of.name();
    let by_layer = of.index(&format!("{name}/by-layer"), |key, segment| {
        (*segment != Resource::Hidden).then(|| ((key.resource_type, key.layer.clone()), segment.clone()))
    });
    let claimed = by_layer.join(&format!("{name}/claimed"), layers, |_, key, segment, sets| {
        Some((key.clone(), (segment.clone(), sets.clone())))
    });
    claimed.derive_many(&format!("{name}/patched"), |deps| {
        let programs = deps.on(programs);
        let ports: Dep<View, GatewayPorts> = deps.on(ports);
        move |cx, key: &SegmentKey, (segment, sets)| {
            let ports = if key.layer.view.namespace().is_empty() { cx.get(&ports, &key.layer.view) } else { None };
            let service_ports = ports.as_ref().and_then(|ports| ports.get(&RouteTableContext::gateway_port(&key.name)));
            let patched = |set: &PatchSetName| {
                let program = cx.get(&programs, &(set.clone(), key.resource_type))?;
                let context = match program.proxy_type {
                    ProxyType::Sidecar | ProxyType::Waypoint => PatchContext::SidecarOutbound,
                    _ => PatchContext::Gateway,
                };
                let facts = RouteTableContext { name: &key.name, context, service_ports };
                let patched = patch_segment(key, segment, &program, &facts)?;
                Some((SegmentKey { layer: set.patched_layer(&key.layer), ..key.clone() }, patched))
            };
            sets.iter().filter_map(patched).collect()
        }
    })
}

/// The patched segment, if the program changes it.
fn patch_segment(
    key: &SegmentKey,
    segment: &Segment,
    program: &PatchProgram,
    facts: &RouteTableContext<'_>,
) -> Option<Segment> {
    let encoded = segment.bytes(&SlotValues::new())?;
    let outcome = if key.segment.is_empty() {
        patch_route_table(&encoded, &program.patches, facts)
    } else {
        patch_virtual_host(&encoded, &program.patches, facts)
    };
    match outcome {
        PatchOutcome::Unchanged => None,
        PatchOutcome::Changed(bytes) => Some(Resource::Encoded(bytes)),
        PatchOutcome::Removed => Some(Resource::Hidden),
    }
}

/// The patch sets that change each layer.
/// Key: type and layer. From: what `scopes` are from.
/// Changes when: the first proxy with a set and layer connects or the last leaves.
/// Size: layers of proxies with patches. Rejects: none.
pub(crate) fn derive_patched_layers<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    proxy_patches: &Collection<'s, ProxyKey, PatchSet>,
    inputs: &LayerInputs<'_, 's>,
) -> PatchedLayers<'s> {
    let of_proxies = proxy_patches.derive("proxy_patched_layers", |deps| {
        let clients = LayerReader::on(deps, inputs);
        let proxies = deps.on(proxies);
        move |cx, key, set| {
            let proxy = cx.get(&proxies, key)?;
            let layers = clients.layers(cx, key, &proxy)?.into_iter();
            let changed: BTreeMap<ResourceType, Vec<Layer>> = layers.filter(|(of, _)| set.changes_type(*of)).collect();
            Some((set.name(), changed))
        }
    });
    let distinct = of_proxies.index("patched_layers/by-content", |_, (set, layers)| {
        let each = |(of, layers): (&ResourceType, &Vec<Layer>)| {
            let of = *of;
            layers.iter().map(move |layer| ((of, layer.clone(), set.clone()), ())).collect::<Vec<_>>()
        };
        layers.iter().flat_map(each).collect::<Vec<_>>()
    });
    let by_layer = distinct
        .distinct("patched_layers/sets")
        .index("patched_layers/by-layer", |(of, layer, set), ()| [((*of, layer.clone()), set.clone())]);
    by_layer.group("patched_layers", |_, sets| Some(sets.iter().map(|(_, set)| (*set).clone()).collect()))
}
