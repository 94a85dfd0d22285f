//! Virtual hosts of routers: the VirtualServices bound to the Gateways of each route table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use sluice_envoy::route::{
    DestinationService, RouteClient, RouteInputs, VirtualHostInputs, advertise_http3, build_not_found, build_routes,
    build_virtual_host, catch_all_last, has_routes, virtual_host_name,
};
use sluice_model::{Destination, Host, HttpMatch, HttpRoute, ObjectKey, Resolution, Service, Text, VirtualService};
use sluice_proto::envoy::config::route::v3::Route;

use super::virtual_hosts::{RouteContext, RouteHeaders, RouteProfile, RouteScope, destination_hash};
use crate::traffic::gateways::GatewayTable;
use crate::traffic::virtual_services::{destinations, is_visible, precedence};

/// The VirtualServices bound to a gateway, by the gateway's `namespace/name`, in any order. Only the fields that
/// [`outline`] keeps are read.
pub(crate) type BoundLookup<'a> = &'a dyn Fn(&Text) -> Vec<BoundVirtualService>;

/// A VirtualService and its key.
pub(crate) type BoundVirtualService = (ObjectKey, Arc<VirtualService>);

/// The source of routes of a virtual host.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouteSource {
    /// The VirtualService.
    pub(crate) virtual_service: ObjectKey,
    /// The Gateway it is bound to, as `namespace/name`.
    pub(crate) gateway: Text,
    /// Port of the server.
    pub(crate) port: u32,
    /// The server terminates TLS, or redirects to HTTPS.
    pub(crate) is_tls: bool,
    /// Responses advertise HTTP/3 (`alt-svc`).
    pub(crate) http3: bool,
}

/// A virtual host before its routes are built.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PlannedHost {
    /// Its name.
    pub(crate) name: Text,
    /// Its domains; none if it replaces the virtual hosts of an empty table.
    pub(crate) domains: Vec<Text>,
    /// Port of the first server.
    pub(crate) port: u32,
    /// Plain requests are redirected to HTTPS.
    pub(crate) require_tls: bool,
    /// The sources of its routes, in order.
    pub(crate) sources: Vec<RouteSource>,
}

/// A virtual host under construction.
struct VirtualHostDraft {
    port: u32,
    require_tls: bool,
    /// Positions in the list of all sources.
    sources: Vec<usize>,
}

/// The fields of a VirtualService that decide which virtual hosts exist; other fields change only the routes.
#[must_use]
pub(crate) fn outline(virtual_service: &VirtualService) -> VirtualService {
    let condition = |matched: &HttpMatch| HttpMatch {
        port: matched.port,
        gateways: matched.gateways.clone(),
        source_labels: matched.source_labels.clone(),
        source_namespace: matched.source_namespace.clone(),
        ..HttpMatch::default()
    };
    let route = |route: &HttpRoute| HttpRoute {
        matches: route.matches.iter().map(condition).collect(),
        ..HttpRoute::default()
    };
    VirtualService {
        namespace: virtual_service.namespace.clone(),
        name: virtual_service.name.clone(),
        created: virtual_service.created,
        hosts: virtual_service.hosts.clone(),
        gateways: virtual_service.gateways.clone(),
        export_to: virtual_service.export_to.clone(),
        http: virtual_service.http.iter().map(route).collect(),
        semantics: virtual_service.semantics,
        ..VirtualService::default()
    }
}

/// The virtual hosts of a table.
///
/// `client` is the router: its namespace and the labels that rules select.
#[must_use]
pub(crate) fn plan_virtual_hosts(
    table: &GatewayTable,
    bound_to: BoundLookup<'_>,
    client: &RouteScope,
) -> Vec<PlannedHost> {
    let mut sources: Vec<RouteSource> = Vec::new();
    let mut known: BTreeMap<(Text, ObjectKey), Option<usize>> = BTreeMap::new();
    let mut hosts: BTreeMap<Host, VirtualHostDraft> = BTreeMap::new();
    for bound in &table.servers {
        let server = &bound.server;
        for (key, virtual_service) in visible(bound_to(&bound.gateway), &client.namespace) {
            let common = common_hosts(&server.hosts, &virtual_service);
            if common.is_empty() {
                continue;
            }
            // If several servers have the VirtualService, its routes are those for the first one.
            let source = *known.entry((bound.gateway.clone(), key)).or_insert_with_key(|(_, key)| {
                let of = RouteClient {
                    port: server.port,
                    gateway: &bound.gateway,
                    namespace: &client.namespace,
                    labels: Some(&client.labels),
                };
                has_routes(&virtual_service, &of).then(|| {
                    sources.push(RouteSource {
                        virtual_service: key.clone(),
                        gateway: bound.gateway.clone(),
                        port: server.port,
                        is_tls: server.tls.is_some(),
                        http3: table.http3,
                    });
                    sources.len() - 1
                })
            });
            let Some(source) = source else { continue };
            for host in common {
                let new = VirtualHostDraft { port: server.port, require_tls: false, sources: Vec::new() };
                let planned_host = hosts.entry(host).or_insert(new);
                planned_host.sources.push(source);
                planned_host.require_tls |= server.redirects_to_https();
            }
        }
        if server.redirects_to_https() {
            for host in &server.hosts {
                let new = VirtualHostDraft { port: server.port, require_tls: true, sources: Vec::new() };
                hosts.entry(Host::new(host)).or_insert(new).require_tls = true;
            }
        }
    }
    if hosts.is_empty() {
        let port = table.servers.first().map_or(0, |bound| bound.server.port);
        return vec![PlannedHost { name: build_not_found(port).name.into(), port, ..PlannedHost::default() }];
    }
    let planned = collapse(hosts).into_iter().map(|HostGroup { first, port, domains, require_tls, routes }| {
        let name = virtual_host_name(first.as_str(), port).into();
        let sources = routes.into_iter().filter_map(|at| sources.get(at)).cloned().collect();
        PlannedHost { name, domains, port, require_tls, sources }
    });
    planned.collect()
}

/// Encodes a planned virtual host. `find` gives the VirtualService of a source.
#[must_use]
pub(crate) fn build_planned_host(
    mesh: &dyn RouteContext,
    planned: &PlannedHost,
    find: &dyn Fn(&RouteSource) -> Option<Arc<VirtualService>>,
    client: &RouteScope,
    profile: &RouteProfile,
) -> Bytes {
    if planned.domains.is_empty() {
        return sluice_proto::wire::encode(&build_not_found(planned.port)).into();
    }
    let headers = profile.headers.unwrap_or_else(|| mesh.default_headers());
    let routes = planned.sources.iter().filter_map(|source| Some((source, find(source)?)));
    let routes = routes.flat_map(|(source, found)| routes_of(mesh, source, &found, client, headers)).collect();
    let session = planned.domains.first().and_then(|domain| {
        let host = Host::new(domain);
        let leads = |source| find(source).is_some_and(|found| destinations(&found).any(|to| to.host == host));
        // The host of a service that the routes send to.
        planned.sources.first().filter(|source| leads(source))?;
        let services = mesh.services(&host);
        let service = services.visible_to(&client.namespace)?;
        mesh.sessions().session(&service.labels)
    });
    let virtual_host = build_virtual_host(VirtualHostInputs {
        name: planned.name.to_string(),
        domains: planned.domains.iter().map(Text::to_string).collect(),
        routes: catch_all_last(routes),
        include_attempt_count: !headers.attempt_count_disabled,
        require_tls: planned.require_tls,
        session,
    });
    sluice_proto::wire::encode(&virtual_host).into()
}

/// Hosts with the same routes.
struct HostGroup {
    /// The most specific of them, which gives the name.
    first: Host,
    port: u32,
    domains: Vec<Text>,
    require_tls: bool,
    /// See [`VirtualHostDraft`].
    routes: Vec<usize>,
}

/// Hosts with the same routes form one virtual host, named after the most specific of them.
fn collapse(hosts: BTreeMap<Host, VirtualHostDraft>) -> Vec<HostGroup> {
    let mut hosts: Vec<(Host, VirtualHostDraft)> = hosts.into_iter().collect();
    hosts.sort_by_cached_key(|(host, _)| {
        (host.is_wildcard(), std::cmp::Reverse(host.as_str().len()), host.as_str().to_owned())
    });
    let mut collapsed: Vec<HostGroup> = Vec::new();
    // Only the last virtual host with these routes is extended.
    let mut known: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    for (first, VirtualHostDraft { port, require_tls, sources: routes }) in hosts {
        let domain = first.0.clone();
        let last = known.get(&routes).and_then(|at| collapsed.get_mut(*at));
        match last.filter(|last| last.require_tls == require_tls) {
            Some(same) => same.domains.push(domain),
            None => {
                known.insert(routes.clone(), collapsed.len());
                collapsed.push(HostGroup { first, port, domains: vec![domain], require_tls, routes });
            }
        }
    }
    collapsed
}

/// Those that a router in `namespace` sees, in order of precedence.
#[must_use]
pub(crate) fn visible(mut bound: Vec<BoundVirtualService>, namespace: &str) -> Vec<BoundVirtualService> {
    bound.retain(|(_, vs)| is_visible(vs, namespace));
    bound.sort_by(|(_, a), (_, b)| precedence(a, namespace).cmp(&precedence(b, namespace)));
    bound
}

/// Hosts that both a server and a VirtualService have: of two overlapping hosts the more specific one.
pub(crate) fn common_hosts(server_hosts: &[Text], virtual_service: &VirtualService) -> Vec<Host> {
    let mut common = Vec::new();
    for written in server_hosts {
        let name = match written.split_once('/') {
            Some((namespace, _)) if namespace != virtual_service.namespace.as_str() && namespace != "*" => continue,
            Some((_, name)) => name,
            None => written.as_str(),
        };
        let host = Host::new(name);
        for other in &virtual_service.hosts {
            let narrower = if other.contains(&host) {
                &host
            } else if host.contains(other) {
                other
            } else {
                continue;
            };
            if !common.contains(narrower) {
                common.push(narrower.clone());
            }
        }
    }
    common
}

fn routes_of(
    mesh: &dyn RouteContext,
    source: &RouteSource,
    virtual_service: &VirtualService,
    client: &RouteScope,
    headers: RouteHeaders,
) -> Vec<Route> {
    let service = |host: &Host| -> Option<DestinationService> {
        let services = mesh.services(host);
        // The service in the VirtualService's own namespace has precedence.
        let own = services.iter().find(|service: &&Arc<Service>| {
            service.namespace == virtual_service.namespace && service.export_to.allows(&client.namespace)
        });
        let service = own.or_else(|| services.visible_to(&client.namespace))?;
        Some(DestinationService {
            only_port: service.only_port(),
            alias_of: service.external_name.clone().filter(|_| service.resolution == Resolution::Alias),
            session: mesh.sessions().session(&service.labels),
            vip_kinds: None,
        })
    };
    let hash = |destination: &Destination| {
        let rule = mesh.destination_rule(client, &destination.host)?;
        destination_hash(&rule, destination)
    };
    let mut routes = build_routes(&RouteInputs {
        virtual_service,
        port: source.port,
        gateway: &source.gateway,
        namespace: &client.namespace,
        labels: &client.labels,
        is_tls: source.is_tls,
        waypoint: false,
        append_x_forwarded_host: headers.append_x_forwarded_host,
        default_retry: mesh.default_retry(),
        shadow_suffix: mesh.shadow_suffix(),
        grpc: false,
        service: &service,
        hash: &hash,
    });
    if source.http3 {
        routes.iter_mut().for_each(|route| advertise_http3(route, source.port));
    }
    routes
}

#[cfg(test)]
mod tests;
