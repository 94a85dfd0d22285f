//! Route tables, virtual hosts and routes.

use std::collections::BTreeSet;

use prost_reflect::DynamicMessage;
use sluice_model::{
    ApplyTo, EnvoyPatch, ObjectMatch, PatchContext, PatchOperation, RouteActionMatch, RouteTableMatch, VirtualHostMatch,
};

use crate::merge::merge;
use crate::{PatchOutcome, dynamic, of, patched, value};

/// What of a route table patches find it by.
#[derive(Clone, Copy, Debug)]
pub struct RouteTableContext<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whose it is.
    pub context: PatchContext,
    /// Of a gateway: ports of its services that lead to the table's; `None` if the port stands for itself.
    pub service_ports: Option<&'a BTreeSet<u32>>,
}

/// A route table without its virtual hosts, as patches make it; virtual hosts they add are in it.
#[must_use]
pub fn patch_route_table(encoded: &[u8], patches: &[EnvoyPatch], facts: &RouteTableContext<'_>) -> PatchOutcome {
    patched(ApplyTo::RouteConfiguration, encoded, |table| Some(patch_table(table, patches, facts)))
}

/// A virtual host of a route table, as patches make it.
#[must_use]
pub fn patch_virtual_host(encoded: &[u8], patches: &[EnvoyPatch], facts: &RouteTableContext<'_>) -> PatchOutcome {
    let parts = [ApplyTo::VirtualHost, ApplyTo::HttpRoute];
    let concerned = |part| of(patches, part, facts.context).any(|patch| facts.matches(patch));
    let exchanges = |patch: &EnvoyPatch| {
        let value = value(patch).filter(|_| patch.operation == PatchOperation::MergeAndReplaceList);
        value.is_some_and(|value| !dynamic::list(&value, "virtual_hosts").is_empty())
    };
    // Other virtual hosts come with the table.
    if of(patches, ApplyTo::RouteConfiguration, facts.context).any(|patch| facts.matches(patch) && exchanges(patch)) {
        return PatchOutcome::Removed;
    }
    if !parts.into_iter().any(concerned) {
        return PatchOutcome::Unchanged;
    }
    patched(ApplyTo::VirtualHost, encoded, |host| patch_host(host, patches, facts))
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

    /// Port in the name of a gateway's table.
    #[must_use]
    pub fn gateway_port(name: &str) -> u32 {
        GatewayTableName::parse(name).port
    }
}

/// The port of a sidecar's table, 0 if its name tells none: `80`, `inbound|8080||`.
fn sidecar_port(name: &str) -> u32 {
    let port = name.strip_prefix("inbound|").and_then(|rest| rest.split('|').next()).unwrap_or(name);
    port.parse().unwrap_or_default()
}

/// What the name of a gateway's table tells: `http.PORT` or `https.PORT.PORT_NAME.GATEWAY.NAMESPACE`.
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

/// Patches a table and the virtual hosts in it; says whether anything changed.
pub(crate) fn patch_table(table: &mut DynamicMessage, patches: &[EnvoyPatch], facts: &RouteTableContext<'_>) -> bool {
    let mut changed = false;
    for patch in of(patches, ApplyTo::RouteConfiguration, facts.context).filter(|patch| facts.matches(patch)) {
        if let Some(over) = value(patch).filter(|_| patch.operation.is_merge()) {
            merge(patch.operation, table, &over);
            changed = true;
        }
    }
    let mut hosts = dynamic::take_messages(table, "virtual_hosts");
    hosts.retain_mut(|host| {
        let outcome = patch_host(host, patches, facts);
        changed |= outcome != Some(false);
        outcome.is_some()
    });
    let adds = of(patches, ApplyTo::VirtualHost, facts.context).filter(|patch| patch.operation == PatchOperation::Add);
    for host in adds.filter(|patch| facts.matches(patch)).filter_map(value) {
        hosts.push(host);
        changed = true;
    }
    dynamic::put_messages(table, "virtual_hosts", hosts);
    changed
}

/// Whether the virtual host changed; `None` if it is gone.
fn patch_host(host: &mut DynamicMessage, patches: &[EnvoyPatch], facts: &RouteTableContext<'_>) -> Option<bool> {
    let mut changed = false;
    for patch in of(patches, ApplyTo::VirtualHost, facts.context) {
        if !facts.matches(patch) || !host_matches(host, patch) {
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
    Some(patch_routes(host, patches, facts) | changed)
}

fn host_matches(host: &DynamicMessage, patch: &EnvoyPatch) -> bool {
    host_match(patch).is_none_or(|VirtualHostMatch { name, domain, .. }| {
        (name.is_empty() || *name.as_str() == *dynamic::text(host, "name"))
            && (domain.is_empty() || dynamic::lists(host, "domains", domain))
    })
}

/// First what is merged into routes and which of them go, then those that come. One that is gone keeps its place until
/// the end.
fn patch_routes(host: &mut DynamicMessage, patches: &[EnvoyPatch], facts: &RouteTableContext<'_>) -> bool {
    let named = &*host;
    let found: Vec<&EnvoyPatch> = of(patches, ApplyTo::HttpRoute, facts.context)
        .filter(|patch| facts.matches(patch) && host_matches(named, patch))
        .collect();
    if found.is_empty() {
        return false;
    }
    let mut changed = false;
    let routes = dynamic::take_messages(host, "routes").into_iter();
    let mut routes: Vec<Option<DynamicMessage>> = routes
        .map(|mut route| {
            for patch in &found {
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
    for patch in found {
        let wanted = host_match(patch).is_some_and(|host| host.route.is_some());
        let place = || routes.iter().position(|route| route.as_ref().is_some_and(|route| route_matches(route, patch)));
        let at = match (patch.operation, wanted) {
            (PatchOperation::Add, _) | (PatchOperation::InsertAfter, false) => Some(routes.len()),
            (PatchOperation::InsertFirst | PatchOperation::InsertBefore, false) => Some(0),
            (PatchOperation::InsertFirst, true) => place().map(|_| 0),
            (PatchOperation::InsertBefore, true) => place(),
            (PatchOperation::InsertAfter, true) => place().map(|place| place + 1),
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
    let Some(wanted) = host_match(patch).and_then(|host| host.route.as_ref()) else { return true };
    if !wanted.name.is_empty() && *wanted.name.as_str() != *dynamic::text(route, "name") {
        return false;
    }
    // What a route does otherwise is not told apart.
    let known = [
        ("route", RouteActionMatch::Route),
        ("redirect", RouteActionMatch::Redirect),
        ("direct_response", RouteActionMatch::DirectResponse),
    ];
    let does = known.into_iter().find(|(field, _)| route.has_field_by_name(field)).map(|(_, action)| action);
    wanted.action == RouteActionMatch::Any || does.is_none_or(|does| does == wanted.action)
}
