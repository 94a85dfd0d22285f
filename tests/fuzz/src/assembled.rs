//! Rules of Envoy that are about complete resources.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use sluice_engine::Snapshot;
use sluice_graph::Handles;
use sluice_model::{Layer, Resource, ResourceType, SegmentKey, SlotValues, Text};
use sluice_proto::envoy::config::route::v3::VirtualHost;

/// Virtual hosts of a layer of a table.
type Hosts<'a> = Vec<(&'a Text, &'a Resource)>;

/// Checks that no domain is in two virtual hosts of a route table: Envoy would reject the table.
///
/// # Errors
/// The table and the domain.
pub fn check_domains(snapshot: &Snapshot, handles: &Handles) -> Result<(), String> {
    let mut tables: BTreeMap<&Text, BTreeMap<&Layer, Hosts<'_>>> = BTreeMap::new();
    let is_route = |key: &SegmentKey| key.resource_type == ResourceType::Route;
    for (key, segment) in handles.segments.iter().flat_map(|of| snapshot.iter(of)).filter(|(key, _)| is_route(key)) {
        let layers = tables.entry(&key.name).or_default();
        layers.entry(&key.layer).or_default().push((&key.segment, segment));
    }
    let scopes = snapshot.iter(&handles.scopes).filter_map(|(_, scope)| scope.layers.get(&ResourceType::Route));
    for layers in scopes.collect::<BTreeSet<_>>() {
        for (name, table) in &tables {
            let mut segments_so_far = BTreeMap::new();
            let mut domains = BTreeMap::new();
            for (segment, resource) in layers.iter().filter_map(|layer| table.get(layer)).flatten() {
                // The first layer with a segment decides.
                if segments_so_far.insert(*segment, ()).is_some() || segment.is_empty() {
                    continue;
                }
                let Some(bytes) = resource.bytes(&SlotValues::new()) else { continue };
                let Ok(host) = VirtualHost::decode(bytes) else { continue };
                for domain in host.domains {
                    if let Some(other) = domains.insert(domain.clone(), *segment) {
                        return Err(format!("route table {name}: {domain} is in {other} and in {segment}"));
                    }
                }
            }
        }
    }
    Ok(())
}
