//! Patches inside HTTP connection managers: HTTP filters, and inline route tables of inbound listeners.

use prost_reflect::{DynamicMessage, ReflectMessage};
use sluice_model::{ApplyTo, EnvoyPatch, PatchContext, PatchOperation, Text};

use crate::listener_match::{ListenerAddress, filter_match, filter_matches};
use crate::merge::merge_filter;
use crate::route::{RouteTableContext, patch_table};
use crate::{dynamic, patches_for, sequence, value};

const MANAGER_TYPE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Name of the HTTP filter that a patch matches.
fn sub_filter(patch: &EnvoyPatch) -> Option<&Text> {
    filter_match(patch)?.sub_filter.as_ref()
}

fn decode_manager(filter: &DynamicMessage) -> Option<DynamicMessage> {
    let manager = dynamic::unpack(dynamic::message(filter, "typed_config")?)?;
    (manager.descriptor().full_name() == MANAGER_TYPE).then_some(manager)
}

fn encode_manager(filter: &mut DynamicMessage, manager: &DynamicMessage) {
    if let Some(config) = dynamic::message_mut(filter, "typed_config") {
        dynamic::repack(config, manager);
    }
}

/// Applies insertions, removals and replacements in the order of the patches, then merges.
pub(crate) fn patch_http_filters(
    listener: &ListenerAddress,
    chain: &DynamicMessage,
    filter: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    context: PatchContext,
) -> bool {
    let manager_filter = &*filter;
    let matching: Vec<&EnvoyPatch> = patches_for(patches, ApplyTo::HttpFilter, context)
        .filter(|patch| listener.chain_matches(chain, patch) && filter_matches(manager_filter, patch))
        .collect();
    if matching.is_empty() {
        return false;
    }
    let Some(mut manager) = decode_manager(filter) else { return false };
    let mut filters = dynamic::take_messages(&mut manager, "http_filters");
    let mut changed = false;
    let named = |filter: &DynamicMessage, name: &Text| *dynamic::text(filter, "name") == *name.as_str();
    for patch in &matching {
        let is_match = sub_filter(patch).map(|name| move |filter: &DynamicMessage| named(filter, name));
        changed |= sequence::apply(&mut filters, patch, is_match);
    }
    for http_filter in &mut filters {
        for patch in matching.iter().filter(|patch| patch.operation == PatchOperation::Merge) {
            if sub_filter(patch).is_none_or(|name| named(http_filter, name))
                && let Some(over) = value(patch)
            {
                changed |= merge_filter(http_filter, &over, true);
            }
        }
    }
    if changed {
        dynamic::put_messages(&mut manager, "http_filters", filters);
        encode_manager(filter, &manager);
    }
    changed
}

/// Patches the inline route tables of an inbound listener.
pub(crate) fn patch_routes(listener: &mut DynamicMessage, patches: &[EnvoyPatch]) -> bool {
    let parts = [ApplyTo::RouteConfiguration, ApplyTo::VirtualHost, ApplyTo::HttpRoute];
    let has_patches = |part: ApplyTo| patches_for(patches, part, PatchContext::SidecarInbound).next().is_some();
    if !parts.into_iter().any(has_patches) {
        return false;
    }
    let mut changed = false;
    let mut chains = dynamic::take_messages(listener, "filter_chains");
    let default = dynamic::message_mut(listener, "default_filter_chain");
    for chain in chains.iter_mut().chain(default) {
        let mut filters = dynamic::take_messages(chain, "filters");
        for filter in &mut filters {
            let Some(mut manager) = decode_manager(filter) else { continue };
            let Some(table) = dynamic::message_mut(&mut manager, "route_config") else { continue };
            let name = dynamic::text(table, "name").to_owned();
            let context = RouteTableContext { name: &name, context: PatchContext::SidecarInbound, service_ports: None };
            if patch_table(table, patches, &context) {
                encode_manager(filter, &manager);
                changed = true;
            }
        }
        dynamic::put_messages(chain, "filters", filters);
    }
    dynamic::put_messages(listener, "filter_chains", chains);
    changed
}
