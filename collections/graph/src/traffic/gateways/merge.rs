//! Merges the servers of Gateways: decides which server gets a port.

use std::collections::{BTreeMap, BTreeSet};

use sluice_envoy::sds::credential_resource;
use sluice_model::{CredentialKind, CredentialName, Gateway, GatewayServer, Protocol, ServerTls, ServerTlsMode, Text};

use super::{BoundServer, GatewayPort, GatewayTable, MergedGateway, PortTarget, SecretReference};

/// Settings of merging.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeOptions {
    /// HTTPS is also served over HTTP/3, where the router's service has a UDP port.
    pub(crate) http3: bool,
}

/// A Gateway that selects a router.
#[derive(Clone, Debug)]
pub(crate) struct SelectingGateway<'a> {
    /// The Gateway.
    pub(crate) gateway: &'a Gateway,
    /// Ports of those Services of the router that the Gateway may use.
    pub(crate) targets: Vec<PortTarget>,
}

/// Merges the Gateways that select a router of `namespace`, which are in order of precedence.
///
/// Plain HTTP servers of a port share one route table. TLS servers of a port are selected by server name. Any other
/// server of a port that is taken is omitted.
#[must_use]
pub(crate) fn merge_gateways<'a>(
    namespace: &str,
    gateways: impl IntoIterator<Item = SelectingGateway<'a>>,
    options: MergeOptions,
) -> MergedGateway {
    let mut merging = GatewayMerger::default();
    let mut references = BTreeSet::new();
    for SelectingGateway { gateway, targets } in gateways {
        let tls = gateway.servers.iter().filter_map(|server| server.tls.as_ref());
        references.extend(tls.flat_map(|tls| references_of(gateway, tls)));
        let ports = |server: &GatewayServer| {
            let is_udp = takes_datagrams(gateway, server);
            let targets = targets.iter().filter(|target| target.udp || !is_udp);
            resolve_ports(server.port, targets, gateway.owner.is_none())
        };
        let servers =
            gateway.servers.iter().flat_map(|server| ports(server).into_iter().map(move |port| (server, port)));
        for (server, port) in servers {
            let Some((at, bound)) = merging.add(gateway, server, port) else { continue };
            let has_udp_port = targets.iter().any(|target| target.udp && u32::from(target.port) == server.port);
            if options.http3 && server.terminates_https() && has_udp_port && !merging.has_udp(port) {
                merging.http3.insert(bound.route_name.clone());
                merging.ports[at].http3.push(bound);
            }
        }
    }
    let http3 = merging.http3;
    let tables = merging.tables.into_iter().map(|(name, servers)| {
        let http3 = http3.contains(&name);
        GatewayTable { name, servers, http3 }
    });
    MergedGateway { namespace: namespace.into(), tables: tables.collect(), ports: merging.ports, references }
}

/// Whether a server takes datagrams. Protocol UDP of a Gateway of Istio stands for TCP, as in the reference.
fn takes_datagrams(gateway: &Gateway, server: &GatewayServer) -> bool {
    gateway.owner.is_some() && server.protocol == Protocol::Udp
}

/// The Secrets that a server of a Gateway refers to and that the Gateway needs a permission for.
fn references_of<'a>(gateway: &'a Gateway, tls: &'a ServerTls) -> impl Iterator<Item = SecretReference> + 'a {
    let own = std::slice::from_ref(&tls.credential_name);
    let names = if tls.credential_names.is_empty() { own } else { tls.credential_names.as_slice() };
    let verifies = matches!(tls.mode, ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual);
    let all = names.iter().map(move |name| (name, verifies)).chain([(&tls.ca_cert_credential_name, false)]);
    all.filter_map(|(name, with_roots)| {
        let resource = credential_resource(name);
        let kind = CredentialName::parse(&resource)?.kind;
        let gateway_namespace = gateway.namespace.clone();
        (kind == CredentialKind::GatewaySecret).then(|| SecretReference {
            gateway_namespace,
            resource: resource.into(),
            with_roots,
        })
    })
}

/// The target ports of a port of the router's Services. For a Gateway that selects by label, a port that no Service has
/// is its own target port, and of several target ports the first is used.
fn resolve_ports<'t>(port: u32, targets: impl Iterator<Item = &'t PortTarget>, by_label: bool) -> BTreeSet<u32> {
    let mut found = targets.filter(|target| u32::from(target.port) == port).map(|target| target.target.into());
    if by_label { [found.next().unwrap_or(port)].into() } else { found.collect() }
}

/// Name of the route table of a server; empty if it is not routed by HTTP.
fn route_name(gateway: &Gateway, server: &GatewayServer, port: u32) -> Text {
    let bind = if server.bind.is_empty() { String::new() } else { format!(".{}", server.bind) };
    if server.protocol.is_http() {
        format!("http.{port}{bind}").into()
    } else if server.protocol == Protocol::Https && !server.is_passthrough() {
        let Gateway { name, namespace, .. } = gateway;
        format!("https.{}.{}.{name}.{namespace}{bind}", server.port, server.port_name).into()
    } else {
        Text::default()
    }
}

#[derive(Default)]
struct GatewayMerger {
    ports: Vec<GatewayPort>,
    tables: BTreeMap<Text, Vec<BoundServer>>,
    /// Index in `ports` of the plain server of a port.
    plain: BTreeMap<u32, usize>,
    /// Tables of servers that are also served over HTTP/3.
    http3: BTreeSet<Text>,
    /// Hosts of TLS servers, by port and address.
    tls_hosts: BTreeSet<(u32, Text, Text)>,
}

impl GatewayMerger {
    /// Adds a server and returns the port it is added to; `None` if it is omitted.
    fn add(&mut self, gateway: &Gateway, server: &GatewayServer, port: u32) -> Option<(usize, BoundServer)> {
        let route_name = route_name(gateway, server, port);
        if server.tls.is_some() && !self.claim_hosts(server, port) {
            return None;
        }
        let bound = BoundServer {
            gateway: format!("{}/{}", gateway.namespace, gateway.name).into(),
            server: server.clone(),
            route_name: route_name.clone(),
        };
        if takes_datagrams(gateway, server) {
            let at = self.open_udp(bound.clone(), port)?;
            return Some((at, bound));
        }
        let taken = self.ports.iter().any(|existing| existing.port == port && !existing.udp);
        let at = match self.plain.get(&port).copied() {
            Some(current) => self.beside_plain(bound.clone(), port, current)?,
            None if taken && server.is_tls() => {
                if server.is_http() {
                    // Two route tables cannot have one name.
                    if route_name.is_empty() || self.tables.contains_key(&route_name) {
                        return None;
                    }
                    self.tables.insert(route_name, vec![bound.clone()]);
                }
                match self.find(port, server) {
                    Some(existing) => {
                        self.ports[existing].servers.push(bound.clone());
                        existing
                    }
                    None => self.open(bound.clone(), port, false),
                }
            }
            None => self.first(bound.clone(), port),
        };
        Some((at, bound))
    }

    /// Adds a server to a port with a plain server: plain HTTP is merged; a server with another address has a listener
    /// of its own.
    fn beside_plain(&mut self, bound: BoundServer, port: u32, current: usize) -> Option<usize> {
        let existing = &self.ports[current];
        let existing_protocol = existing.servers.first().map_or(Protocol::Unsupported, |first| first.server.protocol);
        let protocol = bound.server.protocol;
        let mergeable = (protocol.is_http() || protocol == existing_protocol) && existing_protocol.is_http();
        let at = if existing.bind == bound.server.bind {
            if !mergeable || bound.route_name.is_empty() {
                return None;
            }
            current
        } else {
            let Some(other) = self.find(port, &bound.server) else { return Some(self.first(bound, port)) };
            self.ports[other].route_name = bound.route_name.clone();
            other
        };
        self.tables.entry(bound.route_name.clone()).or_default().push(bound.clone());
        self.ports[at].servers.push(bound);
        Some(at)
    }

    /// A server with a port and address of its own.
    fn first(&mut self, bound: BoundServer, port: u32) -> usize {
        if bound.server.is_http() {
            self.tables.insert(bound.route_name.clone(), vec![bound.clone()]);
        }
        let is_plain = !bound.server.is_tls();
        let at = self.open(bound, port, true);
        if is_plain {
            self.plain.insert(port, at);
        }
        at
    }

    fn open(&mut self, bound: BoundServer, port: u32, with_route: bool) -> usize {
        self.ports.push(GatewayPort {
            port,
            protocol: bound.server.protocol_text.clone(),
            bind: bound.server.bind.clone(),
            route_name: if with_route { bound.route_name.clone() } else { Text::default() },
            servers: vec![bound],
            http3: Vec::new(),
            udp: false,
        });
        self.ports.len() - 1
    }

    /// A server for datagrams. Another one of the port, or one for HTTP/3, has precedence.
    fn open_udp(&mut self, bound: BoundServer, port: u32) -> Option<usize> {
        let is_taken = self.ports.iter().any(|it| it.port == port && (it.udp || !it.http3.is_empty()));
        if is_taken {
            return None;
        }
        let at = self.open(bound, port, false);
        self.ports[at].udp = true;
        Some(at)
    }

    fn has_udp(&self, port: u32) -> bool {
        self.ports.iter().any(|existing| existing.port == port && existing.udp)
    }

    fn find(&self, port: u32, server: &GatewayServer) -> Option<usize> {
        self.ports.iter().position(|existing| {
            let is_same = existing.port == port && existing.bind == server.bind;
            is_same && existing.protocol == server.protocol_text && !existing.udp
        })
    }

    /// Reserves the hosts of a TLS server; if one of them is taken, the server is omitted.
    fn claim_hosts(&mut self, server: &GatewayServer, port: u32) -> bool {
        let keys: Vec<_> = server.hosts.iter().map(|host| (port, server.bind.clone(), host.clone())).collect();
        let free = !keys.iter().any(|key| self.tls_hosts.contains(key));
        if free {
            self.tls_hosts.extend(keys);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::{GatewayOwner, ServerTls, ServerTlsMode};

    use super::*;

    fn server(port: u32, protocol: Protocol, hosts: &[&str]) -> GatewayServer {
        let tls = protocol.is_tls().then(|| ServerTls { mode: ServerTlsMode::Simple, ..ServerTls::default() });
        GatewayServer {
            port,
            port_name: format!("p{port}-{}", hosts.first().copied().unwrap_or_default()).into(),
            protocol,
            protocol_text: format!("{protocol:?}").to_uppercase().into(),
            hosts: hosts.iter().map(|host| Text::from(*host)).collect(),
            tls,
            ..GatewayServer::default()
        }
    }

    fn gateway(name: &str, servers: Vec<GatewayServer>) -> Gateway {
        Gateway { namespace: "edge".into(), name: name.into(), servers, ..Gateway::default() }
    }

    /// Merges Gateways that select a router by label.
    fn merge(gateways: &[&Gateway], targets: &[PortTarget], options: MergeOptions) -> MergedGateway {
        let selecting = gateways.iter().map(|gateway| SelectingGateway { gateway, targets: targets.to_vec() });
        merge_gateways("edge", selecting, options)
    }

    fn summary(merged: &MergedGateway) -> Vec<(u32, &str, usize)> {
        merged.ports.iter().map(|port| (port.port, port.route_name.as_str(), port.servers.len())).collect()
    }

    #[test]
    fn plain_http_servers_share_a_table_on_the_target_port() {
        let a = gateway("a", vec![server(80, Protocol::Http, &["a.com"])]);
        let b = gateway("b", vec![server(80, Protocol::Http2, &["b.com"])]);
        let targets = [PortTarget { port: 80, target: 8080, udp: false }];
        let merged = merge(&[&a, &b], &targets, MergeOptions::default());
        assert_eq!(summary(&merged), [(8080, "http.8080", 2)]);
        assert_eq!(merged.tables.len(), 1);
        assert_eq!(merged.tables[0].servers.len(), 2);
    }

    #[test]
    fn a_gateway_of_the_gateway_api_has_the_ports_of_its_service_only() {
        let owner = sluice_model::GatewayOwner::default();
        let owned = Gateway { owner: Some(owner), ..gateway("a", vec![server(80, Protocol::Http, &["a.com"])]) };
        let to = |target: u16| PortTarget { port: 80, target, udp: false };
        let ports = |targets: &[PortTarget]| {
            let merged = merge(&[&owned], targets, MergeOptions::default());
            merged.ports.iter().map(|port| port.port).collect::<Vec<_>>()
        };
        assert_eq!(ports(&[to(8080), to(9080)]), [8080, 9080]);
        assert!(ports(&[]).is_empty());
    }

    #[test]
    fn tls_servers_have_a_table_each_and_no_host_twice() {
        let a = gateway("a", vec![server(443, Protocol::Https, &["a.com"]), server(443, Protocol::Https, &["b.com"])]);
        let b = gateway("b", vec![server(443, Protocol::Https, &["b.com"]), server(443, Protocol::Tls, &["c.com"])]);
        let merged = merge(&[&a, &b], &[], MergeOptions::default());
        let tables: Vec<_> = merged.tables.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(tables, ["https.443.p443-a.com.a.edge", "https.443.p443-b.com.a.edge"]);
        let servers: Vec<_> = merged.ports.iter().map(|port| (port.protocol.as_str(), port.servers.len())).collect();
        assert_eq!(servers, [("HTTPS", 2), ("TLS", 1)]);
    }

    #[test]
    fn another_protocol_does_not_get_a_taken_port_but_another_address_does() {
        let a = gateway("a", vec![server(80, Protocol::Http, &["a.com"])]);
        let mut elsewhere = server(80, Protocol::Http, &["*"]);
        elsewhere.bind = "10.0.0.9".into();
        let b = gateway("b", vec![server(80, Protocol::Tcp, &["*"]), server(80, Protocol::Https, &["x"]), elsewhere]);
        let merged = merge(&[&a, &b], &[], MergeOptions::default());
        assert_eq!(summary(&merged), [(80, "http.80", 1), (80, "http.80.10.0.0.9", 1)]);
    }

    #[test]
    fn http3_is_for_https_where_the_service_takes_datagrams() {
        let servers = vec![server(443, Protocol::Https, &["a.com"]), server(8443, Protocol::Https, &["b.com"])];
        let front = gateway("front", servers);
        let targets = [PortTarget { port: 443, target: 443, udp: true }];
        let merged = |http3: bool| {
            let merged = merge(&[&front], &targets, MergeOptions { http3 });
            let ports: Vec<_> = merged.ports.iter().map(|port| (port.port, port.http3.len())).collect();
            (ports, merged.tables.iter().filter(|table| table.http3).count())
        };
        assert_eq!(merged(false), (vec![(443, 0), (8443, 0)], 0));
        assert_eq!(merged(true), (vec![(443, 1), (8443, 0)], 1));
    }

    #[test]
    fn ports_for_datagrams_are_beside_those_of_tcp() {
        let udp_server = |port| GatewayServer { protocol_text: "UDP".into(), ..server(port, Protocol::Udp, &["*"]) };
        let owned = |name: &str, servers| Gateway { owner: Some(GatewayOwner::default()), ..gateway(name, servers) };
        let tcp = owned("tcp", vec![server(53, Protocol::Tcp, &["*"])]);
        let (first, second) = (owned("a", vec![udp_server(53)]), owned("b", vec![udp_server(53)]));
        let targets = [
            PortTarget { port: 53, target: 5300, udp: false },
            PortTarget { port: 53, target: 5353, udp: true },
            PortTarget { port: 54, target: 54, udp: false },
        ];
        let select = |gateway| SelectingGateway { gateway, targets: targets.to_vec() };
        let merged = merge_gateways("edge", [&first, &tcp, &second].map(select), MergeOptions::default());
        let ports: Vec<_> =
            merged.ports.iter().map(|port| (port.port, port.udp, port.servers[0].gateway.as_str())).collect();
        assert_eq!(ports, [(5353, true, "edge/a"), (5300, false, "edge/tcp"), (5353, false, "edge/tcp")]);
        // The Service has no UDP port of that number.
        let other = owned("c", vec![udp_server(54)]);
        assert!(merge_gateways("edge", [select(&other)], MergeOptions::default()).ports.is_empty());
        // A Gateway of Istio has a listener of TCP.
        let of_istio = gateway("d", vec![udp_server(53)]);
        let merged = merge_gateways("edge", [select(&of_istio)], MergeOptions::default());
        assert_eq!(merged.ports.iter().map(|port| (port.port, port.udp)).collect::<Vec<_>>(), [(5300, false)]);
    }
}
