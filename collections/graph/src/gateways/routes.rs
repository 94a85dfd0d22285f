//! Route tables of routers: the VirtualServices bound to the Gateways of each table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sluice_envoy::route::{
    DestinationService, RouteInputs, VirtualHostInputs, build_not_found, build_routes, build_virtual_host,
    catch_all_last, virtual_host_name,
};
use sluice_model::{Destination, Host, Resolution, Service, Text, VirtualService};
use sluice_proto::envoy::config::route::v3::Route;

use super::{BoundServer, GatewayTable};
use crate::virtual_hosts::{Client, Mesh, RouteHeaders, RouteProfile, destination_hash, visible_service};
use crate::virtual_services::{is_visible, precedence};

/// The VirtualServices bound to a gateway, by the gateway's `namespace/name`, in any order.
pub type BoundTo<'a> = &'a dyn Fn(&Text) -> Vec<Arc<VirtualService>>;

/// A virtual host while it is gathered.
struct Gathered {
    port: u32,
    require_tls: bool,
    /// Positions in the list of all routes that were built.
    routes: Vec<usize>,
}

/// The virtual hosts of a table by name, encoded.
///
/// `client` is the router: its namespace and those of its labels that some rule asks for.
#[must_use]
pub fn gateway_virtual_hosts(
    mesh: &dyn Mesh,
    table: &GatewayTable,
    bound_to: BoundTo<'_>,
    client: &Client,
    profile: &RouteProfile,
) -> BTreeMap<Text, Bytes> {
    let headers = profile.headers.unwrap_or_else(|| mesh.default_headers());
    let mut built: Vec<Vec<Route>> = Vec::new();
    let mut built_for: BTreeMap<(Text, Text, Text), Option<usize>> = BTreeMap::new();
    let mut hosts: BTreeMap<Host, Gathered> = BTreeMap::new();
    for bound in &table.servers {
        let server = &bound.server;
        for virtual_service in visible(bound_to(&bound.gateway), client) {
            let common = common_hosts(&server.hosts, &virtual_service);
            if common.is_empty() {
                continue;
            }
            let key = (bound.gateway.clone(), virtual_service.namespace.clone(), virtual_service.name.clone());
            let routes = *built_for.entry(key).or_insert_with(|| {
                let routes = routes_of(mesh, bound, &virtual_service, client, headers);
                (!routes.is_empty()).then(|| {
                    built.push(routes);
                    built.len() - 1
                })
            });
            let Some(routes) = routes else { continue };
            for host in common {
                let gathered =
                    hosts.entry(host).or_insert(Gathered { port: server.port, require_tls: false, routes: Vec::new() });
                gathered.routes.push(routes);
                gathered.require_tls |= server.redirects_to_https();
            }
        }
        if server.redirects_to_https() {
            for host in &server.hosts {
                let new = Gathered { port: server.port, require_tls: true, routes: Vec::new() };
                hosts.entry(Host::new(host)).or_insert(new).require_tls = true;
            }
        }
    }
    let mut out = BTreeMap::new();
    if hosts.is_empty() {
        let port = table.servers.first().map_or(0, |bound| bound.server.port);
        let not_found = build_not_found(port);
        out.insert(not_found.name.as_str().into(), sluice_proto::wire::encode(&not_found).into());
        return out;
    }
    for Collapsed { first, port, domains, require_tls, routes } in collapse(hosts) {
        let routes = routes.into_iter().filter_map(|at| built.get(at)).flatten().cloned().collect();
        let virtual_host = build_virtual_host(VirtualHostInputs {
            name: virtual_host_name(first.as_str(), port),
            domains,
            routes: catch_all_last(routes),
            include_attempt_count: !headers.attempt_count_disabled,
            require_tls,
        });
        out.insert(virtual_host.name.as_str().into(), sluice_proto::wire::encode(&virtual_host).into());
    }
    out
}

/// Hosts with the same routes.
struct Collapsed {
    /// The most specific of them, which gives the name.
    first: Host,
    port: u32,
    domains: Vec<String>,
    require_tls: bool,
    /// See [`Gathered`].
    routes: Vec<usize>,
}

/// Hosts with the same routes are one virtual host, named after the most specific of them.
fn collapse(hosts: BTreeMap<Host, Gathered>) -> Vec<Collapsed> {
    let mut hosts: Vec<(Host, Gathered)> = hosts.into_iter().collect();
    hosts.sort_by_cached_key(|(host, _)| {
        (host.is_wildcard(), std::cmp::Reverse(host.as_str().len()), host.as_str().to_owned())
    });
    let mut collapsed: Vec<Collapsed> = Vec::new();
    let mut known: BTreeMap<(bool, Vec<usize>), usize> = BTreeMap::new();
    for (first, Gathered { port, require_tls, routes }) in hosts {
        let domain = first.to_string();
        let same = known.get(&(require_tls, routes.clone())).and_then(|at| collapsed.get_mut(*at));
        match same {
            Some(same) => same.domains.push(domain),
            None => {
                known.insert((require_tls, routes.clone()), collapsed.len());
                collapsed.push(Collapsed { first, port, domains: vec![domain], require_tls, routes });
            }
        }
    }
    collapsed
}

fn visible(mut bound: Vec<Arc<VirtualService>>, client: &Client) -> Vec<Arc<VirtualService>> {
    let namespace = client.namespace.as_str();
    bound.retain(|vs| is_visible(vs, namespace));
    bound.sort_by(|a, b| precedence(a, namespace).cmp(&precedence(b, namespace)));
    bound
}

/// Hosts that both a server and a VirtualService have, each the more special of the two.
fn common_hosts(server_hosts: &[Text], virtual_service: &VirtualService) -> Vec<Host> {
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
    mesh: &dyn Mesh,
    bound: &BoundServer,
    virtual_service: &VirtualService,
    client: &Client,
    headers: RouteHeaders,
) -> Vec<Route> {
    let service = |host: &Host| -> Option<DestinationService> {
        let services = mesh.services(host);
        // The VirtualService's own namespace knows best which Service it means.
        let own = services.iter().find(|service: &&Arc<Service>| {
            service.namespace == virtual_service.namespace && service.export_to.allows(&client.namespace)
        });
        let service = own.cloned().or_else(|| visible_service(&services, &client.namespace))?;
        Some(DestinationService {
            only_port: match service.ports.as_slice() {
                [only] => Some(u32::from(only.port)),
                _ => None,
            },
            alias_of: service.external_name.clone().filter(|_| service.resolution == Resolution::Alias),
        })
    };
    let hash = |destination: &Destination| {
        let rule = mesh.destination_rule(client, &destination.host)?;
        destination_hash(&rule, destination)
    };
    build_routes(&RouteInputs {
        virtual_service,
        port: bound.server.port,
        gateway: &bound.gateway,
        namespace: &client.namespace,
        labels: &client.labels,
        is_tls: bound.server.tls.is_some(),
        append_x_forwarded_host: headers.append_x_forwarded_host,
        default_retry: mesh.default_retry(),
        service: &service,
        hash: &hash,
    })
}

#[cfg(test)]
mod tests;
