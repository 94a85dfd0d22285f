//! What is within HTTP connection managers: HTTP filters, and routes of a workload's own ports.

use prost_reflect::{DynamicMessage, ReflectMessage};
use sluice_model::{ApplyTo, EnvoyPatch, PatchContext, PatchOperation, Text};

use crate::listener::Place;
use crate::merge::merge_filter;
use crate::network_filter::{filter_match, matches};
use crate::route::{RouteTableContext, patch_table};
use crate::{dynamic, of, sequence, value};

pub(crate) const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
const MANAGER_TYPE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// The HTTP filter that a patch looks for.
fn sub_filter(patch: &EnvoyPatch) -> Option<&Text> {
    filter_match(patch)?.sub_filter.as_ref()
}

fn open(filter: &DynamicMessage) -> Option<DynamicMessage> {
    let manager = dynamic::unpack(dynamic::message(filter, "typed_config")?)?;
    (manager.descriptor().full_name() == MANAGER_TYPE).then_some(manager)
}

fn close(filter: &mut DynamicMessage, manager: &DynamicMessage) {
    if let Some(config) = dynamic::message_mut(filter, "typed_config") {
        dynamic::repack(config, manager);
    }
}

/// First all that come, go and change places, then what is merged into each.
pub(crate) fn patch_http_filters(
    place: &Place,
    chain: &DynamicMessage,
    filter: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    context: PatchContext,
) -> bool {
    let within = &*filter;
    let found: Vec<&EnvoyPatch> = of(patches, ApplyTo::HttpFilter, context)
        .filter(|patch| place.chain_matches(chain, patch) && matches(within, patch))
        .collect();
    if found.is_empty() {
        return false;
    }
    let Some(mut manager) = open(filter) else { return false };
    let mut filters = dynamic::take_messages(&mut manager, "http_filters");
    let mut changed = false;
    let named = |filter: &DynamicMessage, name: &Text| *dynamic::text(filter, "name") == *name.as_str();
    for patch in &found {
        let finds = sub_filter(patch).map(|name| move |filter: &DynamicMessage| named(filter, name));
        changed |= sequence::apply(&mut filters, patch, finds);
    }
    for http_filter in &mut filters {
        for patch in found.iter().filter(|patch| patch.operation == PatchOperation::Merge) {
            if sub_filter(patch).is_none_or(|name| named(http_filter, name))
                && let Some(over) = value(patch)
            {
                changed |= merge_filter(http_filter, &over, true);
            }
        }
    }
    if changed {
        dynamic::put_messages(&mut manager, "http_filters", filters);
        close(filter, &manager);
    }
    changed
}

/// Patches the route tables that stand within an inbound listener.
pub(crate) fn patch_routes(listener: &mut DynamicMessage, patches: &[EnvoyPatch]) -> bool {
    let parts = [ApplyTo::RouteConfiguration, ApplyTo::VirtualHost, ApplyTo::HttpRoute];
    let concerned = |part: ApplyTo| of(patches, part, PatchContext::SidecarInbound).next().is_some();
    if !parts.into_iter().any(concerned) {
        return false;
    }
    let mut changed = false;
    let mut chains = dynamic::take_messages(listener, "filter_chains");
    let default = dynamic::message_mut(listener, "default_filter_chain");
    for chain in chains.iter_mut().chain(default) {
        let mut filters = dynamic::take_messages(chain, "filters");
        for filter in &mut filters {
            let Some(mut manager) = open(filter) else { continue };
            let Some(table) = dynamic::message_mut(&mut manager, "route_config") else { continue };
            let name = dynamic::text(table, "name").to_owned();
            let facts = RouteTableContext { name: &name, context: PatchContext::SidecarInbound, service_ports: None };
            if patch_table(table, patches, &facts) {
                close(filter, &manager);
                changed = true;
            }
        }
        dynamic::put_messages(chain, "filters", filters);
    }
    dynamic::put_messages(listener, "filter_chains", chains);
    changed
}
