//! Patches of route tables, virtual hosts and routes.

use std::collections::BTreeSet;

use prost_reflect::DynamicMessage;
use sluice_model::{
    ApplyTo, EnvoyPatch, ObjectMatch, PatchContext, PatchOperation, RouteActionMatch, RouteTableMatch, VirtualHostMatch,
};

use crate::merge::merge;
use crate::{PatchOutcome, dynamic, patched, patches_for, value};

/// The facts of a route table that patches match.
#[derive(Clone, Copy, Debug)]
pub struct RouteTableContext<'a> {
    /// Name of the table.
    pub name: &'a str,
    /// The context that patches must apply in.
    pub context: PatchContext,
    /// For a gateway: the service ports that forward to the port of the table; `None` to match the port of the table.
    pub service_ports: Option<&'a BTreeSet<u32>>,
}

/// Applies patches to a route table without its virtual hosts. Virtual hosts that patches add are in the result.
#[must_use]
pub fn patch_route_table(
    encoded: &[u8],
    patches: &[EnvoyPatch],
    table_context: &RouteTableContext<'_>,
) -> PatchOutcome {
    patched(ApplyTo::RouteConfiguration, encoded, |table| Some(patch_table(table, patches, table_context)))
}

/// Applies patches to a virtual host of a route table.
#[must_use]
pub fn patch_virtual_host(
    encoded: &[u8],
    patches: &[EnvoyPatch],
    table_context: &RouteTableContext<'_>,
) -> PatchOutcome {
    let parts = [ApplyTo::VirtualHost, ApplyTo::HttpRoute];
    let has_patches =
        |part| patches_for(patches, part, table_context.context).any(|patch| table_context.matches(patch));
    let replaces_hosts = |patch: &EnvoyPatch| {
        let value = value(patch).filter(|_| patch.operation == PatchOperation::MergeAndReplaceList);
        value.is_some_and(|value| !dynamic::list(&value, "virtual_hosts").is_empty())
    };
    // The patch of the table replaces all virtual hosts.
    if patches_for(patches, ApplyTo::RouteConfiguration, table_context.context)
        .any(|patch| table_context.matches(patch) && replaces_hosts(patch))
    {
        return PatchOutcome::Removed;
    }
    if !parts.into_iter().any(has_patches) {
        return PatchOutcome::Unchanged;
    }
    patched(ApplyTo::VirtualHost, encoded, |host| patch_host(host, patches, table_context))
}

impl RouteTableContext<'_> {
    fn matches(&self, patch: &EnvoyPatch) -> bool {
        let Some(RouteTableMatch { name, port, port_name, gateway, .. }) = table_match(patch) else { return true };
        if !name.is_empty() && *name.as_str() != *self.name {
            return false;
        }
        if self.context != PatchContext::Gateway {
            return *port == 0 || *port == sidecar_port(self.name);
        }
        let table = GatewayTableName::parse(self.name);
        let port_matches = match self.service_ports {
            Some(ports) => ports.contains(port),
            None => *port == table.port,
        };
        (port_name.is_empty() || *port_name.as_str() == *table.port_name)
            && (gateway.is_empty() || *gateway.as_str() == *table.gateway)
            && (*port == 0 || port_matches)
    }

    /// Port in the name of a route table of a gateway.
    #[must_use]
    pub fn gateway_port(name: &str) -> u32 {
        GatewayTableName::parse(name).port
    }
}

/// Port in the name of a route table of a sidecar, such as `80` or `inbound|8080||`; 0 if there is none.
fn sidecar_port(name: &str) -> u32 {
    let port = name.strip_prefix("inbound|").and_then(|rest| rest.split('|').next()).unwrap_or(name);
    port.parse().unwrap_or_default()
}

/// The parts of the name of a gateway's route table: `http.PORT` or `https.PORT.PORT_NAME.GATEWAY.NAMESPACE`.
#[derive(Default)]
struct GatewayTableName<'a> {
    port: u32,
    port_name: &'a str,
    gateway: String,
}

impl<'a> GatewayTableName<'a> {
    fn parse(name: &'a str) -> Self {
        if let Some(port) = name.strip_prefix("http.") {
            return Self { port: port.parse().unwrap_or_default(), ..Self::default() };
        }
        match name.split('.').collect::<Vec<_>>().as_slice() {
            ["https", port, port_name, gateway, namespace] => {
                Self { port: port.parse().unwrap_or_default(), port_name, gateway: format!("{namespace}/{gateway}") }
            }
            _ => Self::default(),
        }
    }
}

fn table_match(patch: &EnvoyPatch) -> Option<&RouteTableMatch> {
    match &patch.object {
        ObjectMatch::RouteTable(table) => Some(table),
        _ => None,
    }
}

fn host_match(patch: &EnvoyPatch) -> Option<&VirtualHostMatch> {
    table_match(patch)?.virtual_host.as_ref()
}

/// Patches a table and its virtual hosts. Returns whether anything changed.
pub(crate) fn patch_table(
    table: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    table_context: &RouteTableContext<'_>,
) -> bool {
    let mut changed = false;
    for patch in patches_for(patches, ApplyTo::RouteConfiguration, table_context.context)
        .filter(|patch| table_context.matches(patch))
    {
        if let Some(over) = value(patch).filter(|_| patch.operation.is_merge()) {
            merge(patch.operation, table, &over);
            changed = true;
        }
    }
    let mut hosts = dynamic::take_messages(table, "virtual_hosts");
    hosts.retain_mut(|host| {
        let outcome = patch_host(host, patches, table_context);
        changed |= outcome != Some(false);
        outcome.is_some()
    });
    let adds = patches_for(patches, ApplyTo::VirtualHost, table_context.context)
        .filter(|patch| patch.operation == PatchOperation::Add);
    for host in adds.filter(|patch| table_context.matches(patch)).filter_map(value) {
        hosts.push(host);
        changed = true;
    }
    dynamic::put_messages(table, "virtual_hosts", hosts);
    changed
}

/// Patches a virtual host and its routes. Returns whether it changed; `None` if it is removed.
fn patch_host(
    host: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    table_context: &RouteTableContext<'_>,
) -> Option<bool> {
    let mut changed = false;
    for patch in patches_for(patches, ApplyTo::VirtualHost, table_context.context) {
        if !table_context.matches(patch) || !host_matches(host, patch) {
            continue;
        }
        match patch.operation {
            PatchOperation::Remove => return None,
            PatchOperation::Merge | PatchOperation::MergeAndReplaceList => {
                if let Some(over) = value(patch) {
                    merge(patch.operation, host, &over);
                    changed = true;
                }
            }
            PatchOperation::Replace => {
                if let Some(other) = value(patch) {
                    *host = other;
                    changed = true;
                }
            }
            _ => {}
        }
    }
    Some(patch_routes(host, patches, table_context) | changed)
}

fn host_matches(host: &DynamicMessage, patch: &EnvoyPatch) -> bool {
    host_match(patch).is_none_or(|VirtualHostMatch { name, domain, .. }| {
        (name.is_empty() || *name.as_str() == *dynamic::text(host, "name"))
            && (domain.is_empty() || dynamic::contains_text(host, "domains", domain))
    })
}

/// Applies merges and removals, then insertions. A removed route keeps its position until the end, so that the
/// positions of the others stay the same.
fn patch_routes(host: &mut DynamicMessage, patches: &[EnvoyPatch], table_context: &RouteTableContext<'_>) -> bool {
    let unpatched = &*host;
    let matching: Vec<&EnvoyPatch> = patches_for(patches, ApplyTo::HttpRoute, table_context.context)
        .filter(|patch| table_context.matches(patch) && host_matches(unpatched, patch))
        .collect();
    if matching.is_empty() {
        return false;
    }
    let mut changed = false;
    let routes = dynamic::take_messages(host, "routes").into_iter();
    let mut routes: Vec<Option<DynamicMessage>> = routes
        .map(|mut route| {
            for patch in &matching {
                if !route_matches(&route, patch) {
                    continue;
                }
                if patch.operation == PatchOperation::Remove {
                    changed = true;
                    return None;
                }
                if let Some(over) = value(patch).filter(|_| patch.operation.is_merge()) {
                    merge(patch.operation, &mut route, &over);
                    changed = true;
                }
            }
            Some(route)
        })
        .collect();
    for patch in matching {
        let has_match = host_match(patch).is_some_and(|host| host.route.is_some());
        let position =
            || routes.iter().position(|route| route.as_ref().is_some_and(|route| route_matches(route, patch)));
        let at = match (patch.operation, has_match) {
            (PatchOperation::Add, _) | (PatchOperation::InsertAfter, false) => Some(routes.len()),
            (PatchOperation::InsertFirst | PatchOperation::InsertBefore, false) => Some(0),
            (PatchOperation::InsertFirst, true) => position().map(|_| 0),
            (PatchOperation::InsertBefore, true) => position(),
            (PatchOperation::InsertAfter, true) => position().map(|position| position + 1),
            _ => None,
        };
        if let (Some(at), Some(route)) = (at, value(patch)) {
            routes.insert(at, Some(route));
            changed = true;
        }
    }
    dynamic::put_messages(host, "routes", routes.into_iter().flatten().collect());
    changed
}

fn route_matches(route: &DynamicMessage, patch: &EnvoyPatch) -> bool {
    let Some(route_match) = host_match(patch).and_then(|host| host.route.as_ref()) else { return true };
    if !route_match.name.is_empty() && *route_match.name.as_str() != *dynamic::text(route, "name") {
        return false;
    }
    // Other actions, such as non-forwarding, match any action.
    let actions = [
        ("route", RouteActionMatch::Route),
        ("redirect", RouteActionMatch::Redirect),
        ("direct_response", RouteActionMatch::DirectResponse),
    ];
    let action = actions.into_iter().find(|(field, _)| route.has_field_by_name(field)).map(|(_, action)| action);
    route_match.action == RouteActionMatch::Any || action.is_none_or(|action| action == route_match.action)
}
