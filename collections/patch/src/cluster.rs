//! Patches of clusters.

use prost_reflect::{DynamicMessage, Value};
use sluice_model::{ApplyTo, ClusterMatch, EnvoyPatch, ObjectMatch, PatchContext, PatchOperation, ProxyType};

use crate::merge::{merge, merge_any};
use crate::{PatchOutcome, dynamic, patched, patches_for, value};

/// Applies patches to a cluster of a proxy of this type. At waypoints, only outbound clusters are patched.
#[must_use]
pub fn patch_cluster(name: &str, encoded: &[u8], patches: &[EnvoyPatch], proxy_type: ProxyType) -> PatchOutcome {
    let inbound = name.starts_with("inbound|") || name == "InboundPassthroughCluster";
    let context = match proxy_type {
        ProxyType::Router => PatchContext::Gateway,
        ProxyType::Waypoint if !name.starts_with("outbound|") => return PatchOutcome::Unchanged,
        ProxyType::Sidecar if inbound => PatchContext::SidecarInbound,
        ProxyType::Sidecar | ProxyType::Waypoint | ProxyType::Ztunnel => PatchContext::SidecarOutbound,
        ProxyType::Agentgateway => return PatchOutcome::Unchanged,
    };
    let key = ClusterName::parse(name);
    let changes = patches_for(patches, ApplyTo::Cluster, context)
        .filter(|patch| patch.operation == PatchOperation::Remove || patch.operation.is_merge());
    // Most clusters match no patch by name, and need not be decoded.
    let may_match = |patch: &EnvoyPatch| key.matches(patch, None);
    if !changes.clone().any(may_match) {
        return PatchOutcome::Unchanged;
    }
    patched(ApplyTo::Cluster, encoded, |cluster| {
        let hosts: Vec<String> = if key.direction == "inbound" { served_hosts(cluster) } else { Vec::new() };
        let hosts = if hosts.is_empty() { vec![key.host.to_owned()] } else { hosts };
        let mut changed = false;
        for patch in changes.filter(|patch| key.matches(patch, Some(&hosts))) {
            if patch.operation == PatchOperation::Remove {
                return None;
            }
            if let Some(over) = value(patch) {
                merge_cluster(patch.operation, cluster, &over);
                changed = true;
            }
        }
        Some(changed)
    })
}

/// The parts of a cluster name: `direction|port|subset|host`, or the same with `_.` as separator.
struct ClusterName<'a> {
    whole: &'a str,
    direction: &'a str,
    port: u32,
    subset: &'a str,
    host: &'a str,
}

impl<'a> ClusterName<'a> {
    fn parse(whole: &'a str) -> Self {
        let separator = if whole.starts_with("outbound_.") || whole.starts_with("inbound_.") { "_." } else { "|" };
        let mut parts = whole.splitn(4, separator);
        let mut next = || parts.next().unwrap_or_default();
        let (direction, port, subset, host) = (next(), next().parse().unwrap_or_default(), next(), next());
        let direction = if whole.contains(separator) { direction } else { "" };
        Self { whole, direction, port, subset, host: if host.contains(separator) { "" } else { host } }
    }

    /// Whether a patch matches the cluster. `hosts`: the services of an inbound cluster; `None` if they are not known
    /// yet.
    fn matches(&self, patch: &EnvoyPatch, hosts: Option<&[String]>) -> bool {
        let ObjectMatch::Cluster(ClusterMatch { name, service, subset, port }) = &patch.object else { return true };
        if !name.is_empty() {
            return *name.as_str() == *self.whole;
        }
        let known = hosts.is_some() || self.direction != "inbound";
        let own = [self.host.to_owned()];
        let served = || hosts.unwrap_or(&own).iter().any(|host| *host == *service.as_str());
        (subset.is_empty() || *subset.as_str() == *self.subset)
            && (service.is_empty() || !known || served())
            && (*port == 0 || *port == self.port)
    }
}

/// Hosts of the services of an inbound cluster, from its `istio` metadata.
fn served_hosts(cluster: &DynamicMessage) -> Vec<String> {
    let istio = || {
        let metadata = dynamic::message(cluster, "metadata")?;
        let by_filter = dynamic::get(metadata, "filter_metadata")?.as_map()?;
        let istio = by_filter.iter().find(|(key, _)| key.as_str() == Some("istio"))?.1.as_message()?;
        let services = dynamic::get(istio, "fields")?.as_map()?;
        let services = services.iter().find(|(key, _)| key.as_str() == Some("services"))?.1.as_message()?;
        dynamic::message(services, "list_value").cloned()
    };
    let Some(services) = istio() else { return Vec::new() };
    let host = |service: &DynamicMessage| {
        let fields = dynamic::get(dynamic::message(service, "struct_value")?, "fields")?.as_map()?;
        let host = fields.iter().find(|(key, _)| key.as_str() == Some("host"))?.1.as_message()?;
        Some(dynamic::text(host, "string_value").to_owned())
    };
    dynamic::messages(&services, "values").filter_map(host).collect()
}

/// A value with a transport socket is merged into the socket of that name and nowhere else. The sockets in
/// `transport_socket_matches` come first.
fn merge_cluster(operation: PatchOperation, cluster: &mut DynamicMessage, over: &DynamicMessage) {
    let Some(socket) = dynamic::message(over, "transport_socket") else {
        merge(operation, cluster, over);
        return;
    };
    let named = |other: &DynamicMessage| dynamic::text(other, "name") == dynamic::text(socket, "name");
    let mut choices = dynamic::take_messages(cluster, "transport_socket_matches");
    if !choices.is_empty() {
        let found = choices.iter_mut().find_map(|choice| {
            let socket = dynamic::message_mut(choice, "transport_socket")?;
            named(socket).then_some(socket)
        });
        if let Some(found) = found {
            merge_socket(found, socket);
        }
        dynamic::put_messages(cluster, "transport_socket_matches", choices);
        return;
    }
    match dynamic::message_mut(cluster, "transport_socket").filter(|own| named(own)) {
        Some(own) => merge_socket(own, socket),
        None => dynamic::set(cluster, "transport_socket", Value::Message(socket.clone())),
    }
}

/// Merges the typed configuration of a transport socket.
pub(crate) fn merge_socket(socket: &mut DynamicMessage, over: &DynamicMessage) {
    if let (Some(config), Some(over)) =
        (dynamic::message_mut(socket, "typed_config"), dynamic::message(over, "typed_config"))
    {
        merge_any(config, over);
    }
}
