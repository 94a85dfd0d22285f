//! The virtual hosts of one host for one client (N18, N20).
//!
//! Everything is a function of the host and the client: the service of the host, the VirtualServices that match, and
//! the domains. The calling collections decide what the sidecars of a namespace share.

mod addresses;
mod special;
mod table_scope;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use sluice_envoy::route::{
    DestinationService, RouteInputs, ServiceDomains, VirtualHostInputs, build_default_route, build_routes,
    build_virtual_host, service_domains, virtual_host_name,
};
use sluice_model::{
    ConsistentHash, Destination, DestinationRule, Host, HttpRetry, Labels, MESH_GATEWAY, Protocol, Resolution,
    RouteSemantics, Service, ServicePort, SessionLabels, Text, TrafficPolicy, VirtualService,
};
use sluice_proto::envoy::config::route::v3::Route;

use crate::host_patterns::covering_hosts;
use crate::registry::services::HostServices;
use crate::traffic::sidecars::EgressScope;
use crate::traffic::virtual_services::precedence;

use table_scope::TableScope;

pub(crate) use addresses::{RouteHeaders, RouteProfile, addresses_for};
pub(crate) use special::{special_namespaces, uses_labels};

/// The client of routes; the empty namespace is any client without rules of its own.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouteScope {
    /// Its namespace.
    pub(crate) namespace: Text,
    /// Its labels that rules select.
    pub(crate) labels: Labels,
    /// The egress listeners of its Sidecar, if it has one.
    pub(crate) scope: Option<Arc<EgressScope>>,
}

/// Inputs of virtual hosts besides the host and the client.
pub(crate) trait RouteContext {
    /// All services of a host.
    fn services(&self, host: &Host) -> HostServices;
    /// All services that are aliases of a host (N27).
    fn aliases(&self, host: &Host) -> Vec<Arc<Service>>;
    /// Hosts of services with an address and port.
    fn hosts_at(&self, address: &Text, port: u16) -> Vec<Host>;
    /// Hosts of services that a wildcard covers or that cover it.
    fn hosts_matching(&self, wildcard: &Host) -> Vec<Host>;
    /// VirtualServices of sidecars with exactly this host, wildcards as declared, in any order.
    fn virtual_services(&self, host: &Host) -> Vec<Arc<VirtualService>>;
    /// The DestinationRule that a client follows for a host.
    fn destination_rule(&self, client: &RouteScope, host: &Host) -> Option<DestinationRule>;
    /// Namespaces whose clients may follow another DestinationRule for the host than the base.
    fn destination_rule_namespaces(&self, host: &Host) -> BTreeSet<Text>;
    /// Whether such a DestinationRule selects clients by label.
    fn rules_use_labels(&self, host: &Host) -> bool;
    /// Domain of the mesh, such as `cluster.local`.
    fn domain(&self) -> &str;
    /// The retry policy of routes without one.
    fn default_retry(&self) -> Option<&HttpRetry>;
    /// The host of mirrored requests has a suffix.
    fn shadow_suffix(&self) -> bool;
    /// The headers of proxies without a header configuration of their own.
    fn default_headers(&self) -> RouteHeaders;
    /// Addresses of both families are used.
    fn dual_stack(&self) -> bool;
    /// Every sidecar has an HTTP proxy listener.
    fn has_http_proxy(&self) -> bool;
    /// Labels by which services enable persistent sessions.
    fn sessions(&self) -> &SessionLabels;
}

/// Virtual hosts by route table and name, encoded.
pub(crate) type VirtualHosts = BTreeMap<(Text, Text), Bytes>;

/// All virtual hosts of `host` in all tables of sidecars.
#[must_use]
pub(crate) fn virtual_hosts(
    mesh: &dyn RouteContext,
    host: &Host,
    client: &RouteScope,
    profile: &RouteProfile,
) -> VirtualHosts {
    let headers = profile.headers.unwrap_or_else(|| mesh.default_headers());
    let http_proxy = profile.http_proxy || mesh.has_http_proxy();
    let mut out = VirtualHosts::new();
    for table_scope in TableScope::all(client) {
        let evaluation = VirtualHostBuilder { mesh, client, profile, headers, http_proxy, table_scope };
        let service = evaluation.service(host);
        let declared = evaluation.virtual_services(host);
        if let Some(service) = &service {
            evaluation.of_service(service, &declared, &mut out);
        }
        // A route of the Gateway API applies only to ports of the service.
        for virtual_service in declared.iter().filter(|vs| vs.semantics != RouteSemantics::GatewayApi) {
            evaluation.of_virtual_service(virtual_service, host, service.as_deref(), &mut out);
        }
    }
    out
}

/// Whether requests on the port are routed by HTTP, or may be after protocol detection.
fn is_http_or_sniffed(port: &ServicePort) -> bool {
    port.protocol.is_http() || port.protocol == Protocol::Unsupported
}

/// The host and port of a virtual host.
#[derive(Clone, Copy)]
struct VirtualHostTarget<'a> {
    host: &'a Host,
    port: u32,
    /// The service, if it has the port.
    service: Option<&'a Service>,
}

impl<'a> VirtualHostTarget<'a> {
    fn service(service: &'a Service, port: u32) -> Self {
        Self { host: &service.host, port, service: Some(service) }
    }
}

struct VirtualHostBuilder<'a> {
    mesh: &'a dyn RouteContext,
    client: &'a RouteScope,
    profile: &'a RouteProfile,
    headers: RouteHeaders,
    http_proxy: bool,
    table_scope: TableScope<'a>,
}

impl VirtualHostBuilder<'_> {
    fn service(&self, host: &Host) -> Option<Arc<Service>> {
        self.table_scope.service(&self.mesh.services(host), &self.client.namespace)
    }

    /// VirtualServices with exactly this host that apply to the client, in order of precedence.
    fn virtual_services(&self, host: &Host) -> Vec<Arc<VirtualService>> {
        let namespace = self.client.namespace.as_str();
        let mut visible = self.mesh.virtual_services(host);
        visible.retain(|vs| self.table_scope.follows(vs, namespace));
        if visible.iter().any(|vs| vs.semantics == RouteSemantics::GatewayApi) {
            // A route of the Gateway API applies to clients of its own namespace, or is in the namespace of the
            // service.
            let service = self.service(host);
            visible.retain(|vs| {
                let of_owner = || service.as_ref().is_some_and(|service| service.namespace == vs.namespace);
                let own = vs.namespace.as_str() == namespace && service.is_some();
                vs.semantics != RouteSemantics::GatewayApi || own || of_owner()
            });
        }
        visible.sort_by(|a, b| precedence(a, namespace).cmp(&precedence(b, namespace)));
        visible
    }

    /// The VirtualServices that may route a host: those with the host, else the first of the most specific wildcard.
    fn candidates(&self, host: &Host, declared: &[Arc<VirtualService>]) -> Vec<Arc<VirtualService>> {
        if !declared.is_empty() {
            return declared.to_vec();
        }
        covering_hosts(host)
            .skip(1)
            .find_map(|wildcard| self.virtual_services(&wildcard).into_iter().next())
            .into_iter()
            .collect()
    }

    /// Routes of a VirtualService for requests to `port`, 0 if the client uses an HTTP proxy.
    fn routes(&self, virtual_service: &VirtualService, port: u32) -> Vec<Route> {
        let hash = |destination: &Destination| self.hash(destination);
        let service = |host: &Host| {
            let service = self.service(host)?;
            let listed = port == 0 || service.ports.iter().any(|p| u32::from(p.port) == port);
            listed.then(|| DestinationService {
                only_port: service.only_port().filter(|_| port == 0),
                alias_of: service.external_name.clone().filter(|_| service.resolution == Resolution::Alias),
                session: self.mesh.sessions().session(&service.labels),
                vip_kinds: None,
            })
        };
        build_routes(&RouteInputs {
            virtual_service,
            port,
            gateway: MESH_GATEWAY,
            namespace: &self.client.namespace,
            labels: &self.client.labels,
            is_tls: false,
            waypoint: false,
            append_x_forwarded_host: self.headers.append_x_forwarded_host,
            default_retry: self.mesh.default_retry(),
            shadow_suffix: self.mesh.shadow_suffix(),
            grpc: self.profile.grpc,
            service: &service,
            hash: &hash,
        })
    }

    /// Consistent hashing for a destination: that of the subset's port, the subset, the port, then the rule as a whole.
    fn hash(&self, destination: &Destination) -> Option<ConsistentHash> {
        let rule = self.mesh.destination_rule(self.client, &destination.host)?;
        destination_hash(&rule, destination)
    }

    fn of_service(&self, service: &Service, declared: &[Arc<VirtualService>], out: &mut VirtualHosts) {
        let candidates = self.candidates(&service.host, declared);
        for port in service.ports.iter().filter(|port| is_http_or_sniffed(port)) {
            let number = u32::from(port.port);
            if self.table_scope.has_table(port.port)
                && let Some(routes) = self.service_routes(service, &candidates, number, number)
            {
                let table = Text::from(number.to_string());
                // A gRPC library does not ignore the port when it selects the virtual host.
                let domains = self.domains(service, port.port, self.profile.grpc.then_some(port.port));
                self.emit(out, &table, VirtualHostTarget::service(service, number), domains, routes.clone());
                if self.table_scope.is_sniffed(port) {
                    // The listener of a port with protocol detection belongs to this service, so the table matches
                    // every domain.
                    let own = Text::from(virtual_host_name(service.host.as_str(), number));
                    self.emit(out, &own, VirtualHostTarget::service(service, number), vec!["*".into()], routes);
                }
            }
            if let Some(table) = self.table_scope.common_table(self.http_proxy)
                && let Some(routes) = self.service_routes(service, &candidates, 0, number)
            {
                let mut domains = self.domains(service, port.port, Some(port.port));
                if port.port != 80 {
                    domains.retain(|domain| domain.contains(':'));
                }
                self.emit(out, &table, VirtualHostTarget::service(service, number), domains, routes);
            }
        }
    }

    /// Routes to a service: those of the first VirtualService that has any, else the default route.
    fn service_routes(
        &self,
        service: &Service,
        candidates: &[Arc<VirtualService>],
        listen_port: u32,
        port: u32,
    ) -> Option<Vec<Route>> {
        let routed = candidates.iter().map(|vs| self.routes(vs, listen_port)).find(|routes| !routes.is_empty());
        if routed.is_some() {
            return routed;
        }
        // An alias has no virtual host of its own: its names are domains of the service that it refers to.
        if service.resolution == Resolution::Alias {
            return None;
        }
        let rule = self.mesh.destination_rule(self.client, &service.host);
        let hash = rule.and_then(|rule| service_hash(&rule, port));
        Some(vec![build_default_route(service.host.as_str(), port, hash.as_ref(), self.mesh.default_retry())])
    }

    /// The domains of a service, without those that belong to another host.
    fn domains(&self, service: &Service, port: u16, with_port: Option<u16>) -> Vec<String> {
        let mut aliases: Vec<Host> = Vec::new();
        for alias in self.mesh.aliases(&service.host) {
            let own_routes = self.candidates(&alias.host, &self.virtual_services(&alias.host));
            if alias.export_to.allows(&self.client.namespace)
                && self.table_scope.has_alias(service, &alias.host)
                && own_routes.iter().all(|vs| self.routes(vs, u32::from(port)).is_empty())
            {
                aliases.push(alias.host.clone());
            }
        }
        aliases.sort();
        let shown = service.covered_by.as_deref().filter(|covering| covering.port(port).is_some()).unwrap_or(service);
        let mut addresses = addresses_for(shown, self.profile, self.mesh.dual_stack());
        addresses.retain(|address| self.owns_address(service, address, port));
        let (mut domains, alt) = service_domains(&ServiceDomains {
            host: &service.host,
            aliases: &aliases,
            addresses: &addresses,
            has_pod_names: shown.is_headless(),
            namespace: &self.client.namespace,
            domain: self.mesh.domain(),
            port: with_port,
        });
        let taken = |domain: &String| {
            !domain.contains(':') && !domain.ends_with('.') && self.is_host_itself(&Host::new(domain), port)
        };
        let taken: BTreeSet<&String> = alt.iter().filter(|domain| taken(domain)).collect();
        if !taken.is_empty() {
            domains.retain(|domain| !taken.contains(domain));
        }
        let mut seen = BTreeSet::new();
        domains.retain(|domain| seen.insert(domain.to_ascii_lowercase()));
        domains
    }

    /// Whether a short name of another host is itself a host of this table.
    fn is_host_itself(&self, host: &Host, port: u16) -> bool {
        let service = self.service(host);
        let has_service = service.is_some_and(|s| s.port(port).is_some_and(is_http_or_sniffed));
        has_service || (port == 80 && !self.virtual_services(host).is_empty())
    }

    /// Of several services with one address and port, the oldest has the address.
    fn owns_address(&self, service: &Service, address: &Text, port: u16) -> bool {
        let others = self.mesh.hosts_at(address, port).into_iter().filter(|host| *host != service.host);
        let mut others = others.filter_map(|host| self.service(&host));
        !others.any(|other| {
            let has_address = other.port(port).is_some_and(is_http_or_sniffed)
                && addresses_for(&other, self.profile, self.mesh.dual_stack()).contains(address);
            has_address && (other.created, &other.host) < (service.created, &service.host)
        })
    }

    /// Virtual hosts of a host in the tables in which no service has it.
    fn of_virtual_service(
        &self,
        virtual_service: &VirtualService,
        host: &Host,
        service: Option<&Service>,
        out: &mut VirtualHosts,
    ) {
        // Port 80 has all hosts; other ports have those whose VirtualService also routes a service of the port.
        let mut ports = self.ports_of(virtual_service);
        let common = self.table_scope.common_table(self.http_proxy).filter(|_| ports.contains(&80));
        ports.insert(80);
        ports.retain(|port| self.table_scope.has_table(*port));
        let matching = if host.is_wildcard() { self.mesh.hosts_matching(host) } else { Vec::new() };
        let has_service = |port: u16| {
            let listed = |service: &Service| service.port(port).is_some();
            service.is_some_and(listed) || matching.iter().any(|host| self.service(host).is_some_and(|s| listed(&s)))
        };
        let domains = || vec![if host.as_str().contains(':') { format!("[{host}]") } else { host.to_string() }];
        for port in ports.into_iter().filter(|port| !has_service(*port)) {
            let table = Text::from(port.to_string());
            if !out.contains_key(&(table.clone(), key_name(host, port))) {
                let routes = self.routes(virtual_service, u32::from(port));
                if !routes.is_empty() {
                    self.emit(
                        out,
                        &table,
                        VirtualHostTarget { host, port: u32::from(port), service: None },
                        domains(),
                        routes,
                    );
                }
            }
        }
        if let Some(table) = common
            && service.is_none()
            && matching.is_empty()
            && !out.contains_key(&(table.clone(), key_name(host, 80)))
        {
            let routes = self.routes(virtual_service, 0);
            if !routes.is_empty() {
                self.emit(out, &table, VirtualHostTarget { host, port: 80, service: None }, domains(), routes);
            }
        }
    }

    /// HTTP ports of the services whose hosts a VirtualService routes.
    fn ports_of(&self, virtual_service: &VirtualService) -> BTreeSet<u16> {
        let mut ports = BTreeSet::new();
        for host in &virtual_service.hosts {
            let mut services: Vec<_> = self.service(host).filter(|_| !host.is_wildcard()).into_iter().collect();
            if host.is_wildcard() {
                for covered in self.mesh.hosts_matching(host) {
                    let routed_by = self.candidates(&covered, &self.virtual_services(&covered));
                    let ours = routed_by
                        .first()
                        .is_some_and(|vs| vs.name == virtual_service.name && vs.namespace == virtual_service.namespace);
                    services.extend(self.service(&covered).filter(|_| ours));
                }
            }
            let http = services.iter().flat_map(|service| service.ports.iter()).filter(|port| is_http_or_sniffed(port));
            ports.extend(http.map(|port| port.port));
        }
        ports
    }

    fn emit(
        &self,
        out: &mut VirtualHosts,
        table: &Text,
        VirtualHostTarget { host, port, service }: VirtualHostTarget<'_>,
        domains: Vec<String>,
        routes: Vec<Route>,
    ) {
        if domains.is_empty() {
            return;
        }
        let name = virtual_host_name(host.as_str(), port);
        let key = (table.clone(), Text::from(name.as_str()));
        let built = build_virtual_host(VirtualHostInputs {
            name,
            domains,
            routes,
            include_attempt_count: !self.headers.attempt_count_disabled,
            require_tls: false,
            session: service.and_then(|service| self.mesh.sessions().session(&service.labels)),
        });
        out.insert(key, sluice_proto::wire::encode(&built).into());
    }
}

fn key_name(host: &Host, port: u16) -> Text {
    virtual_host_name(host.as_str(), u32::from(port)).into()
}

fn hash_of(policy: Option<&TrafficPolicy>) -> Option<&ConsistentHash> {
    policy?.load_balancer.as_ref()?.consistent_hash.as_ref()
}

fn port_hash(policy: Option<&TrafficPolicy>, port: u32) -> Option<&ConsistentHash> {
    let level = policy?.port_level.iter().find(|level| level.port == port)?;
    level.load_balancer.as_ref()?.consistent_hash.as_ref()
}

/// Whether any part of a rule sets consistent hashing.
#[must_use]
pub(crate) fn asks_for_hashing(rule: &DestinationRule) -> bool {
    let mut balancers = rule.policies().flat_map(|policy| {
        policy.load_balancer.iter().chain(policy.port_level.iter().filter_map(|level| level.load_balancer.as_ref()))
    });
    balancers.any(|balancer| balancer.consistent_hash.is_some())
}

/// The consistent hashing of a rule for a destination.
#[must_use]
pub(crate) fn destination_hash(rule: &DestinationRule, destination: &Destination) -> Option<ConsistentHash> {
    let subset = rule.subsets.iter().find(|subset| subset.name == destination.subset);
    let subset = subset.and_then(|subset| subset.traffic_policy.as_deref());
    let policy = rule.traffic_policy.as_ref();
    let at_port = |policy| destination.port.and_then(|port| port_hash(policy, port));
    at_port(subset).or_else(|| hash_of(subset)).or_else(|| at_port(policy)).or_else(|| hash_of(policy)).cloned()
}

/// The consistent hashing of a rule for a port of its service.
fn service_hash(rule: &DestinationRule, port: u32) -> Option<ConsistentHash> {
    let policy = rule.traffic_policy.as_ref();
    port_hash(policy, port).or_else(|| hash_of(policy)).cloned()
}

#[cfg(test)]
pub(crate) mod tests;
