//! TLSRoutes, TCPRoutes and UDPRoutes as VirtualServices (G02).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Context};
use sluice_model::gateway_api::{BackendRef, GROUP, GroupKind, L4Route};
use sluice_model::{
    Destination, Host, Kind, L4Match, ObjectKey, RouteDestination, RouteSemantics, TcpRoute, Text, TlsMatch, TlsRoute,
    VirtualService,
};

use super::attachment::{AttachedListeners, AttachingRoute, ParentLookup, RouteParents};
use super::backends::{BackendIndex, BackendLookup, Referrer, ResolvedBackend};
use super::http_routes::{RouteRejects, rejects};
use super::route_report::{RouteReport, RouteReports};
use super::{GENERATED, generated};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::statuses::StatusProblem;

/// The VirtualServices of a route, and its findings.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct BoundL4Route {
    virtual_services: Vec<VirtualService>,
    /// Findings in its references: path and reason.
    problems: Vec<(Text, Text)>,
    report: RouteReport,
}

/// What is derived from TLSRoutes, TCPRoutes and UDPRoutes.
pub(super) struct L4Routes<'s> {
    /// Their VirtualServices.
    pub(super) virtual_services: Collection<'s, ObjectKey, VirtualService>,
    /// Findings in their references.
    pub(super) rejects: RouteRejects<'s>,
    /// Their states.
    pub(super) reports: RouteReports<'s>,
    /// The ports of hosts that UDPRoutes lead to; `None` if UDPRoutes have no effect.
    pub(super) udp_backends: Option<Collection<'s, Host, BTreeSet<u16>>>,
}

/// VirtualServices of TCPRoutes, TLSRoutes and UDPRoutes, one for each parent and host, and findings in their references.
/// Key: `ObjectKey`. From: `tls_routes`, `tcp_routes`, `udp_routes`, `gateway_api/listeners`, `services`, `reference_grants`.
/// Changes when: the route does, a listener of a parent, or a grant in a namespace that it refers to; a Service that it
/// refers to is added or removed. Size: routes × their parents × their hosts. Rejects: references to absent or
/// forbidden objects.
pub(super) fn derive_l4_routes<'s>(
    objects: &ObjectCollections<'s>,
    parents: &RouteParents<'s>,
    backends: &BackendIndex<'_, 's>,
    options: &GraphOptions,
) -> L4Routes<'s> {
    let bind = |kind: Kind, routes: &Collection<'s, ObjectKey, L4Route>| {
        let name = kind.name();
        let cluster = options.cluster.clone();
        let bound = routes.derive(&format!("gateway_api/{name}"), |deps| {
            let binder = L4RouteBinder {
                parents: ParentLookup::on(deps, parents),
                backends: BackendLookup::on(deps, backends),
                kind: GroupKind { group: GROUP.into(), kind: name.clone().into() },
                sort: kind,
            };
            move |cx, key, route| Some(binder.bind(cx, key, route))
        });
        let services = bound.flat_map(&format!("gateway_api/{name}/virtual_services"), move |_, bound| {
            let row =
                |service: &VirtualService| (generated(&cluster, &service.namespace, &service.name), service.clone());
            bound.virtual_services.iter().map(row).collect::<Vec<_>>()
        });
        let rejects = bound
            .flat_map(&format!("gateway_api/{name}/rejects"), move |key, bound| rejects(kind, key, &bound.problems));
        (services, rejects, bound.map(&format!("gateway_api/{name}/report"), |_, bound| bound.report.clone()))
    };
    let (tls, tls_rejects, tls_reports) = bind(Kind::TLSRoute, &objects.tls_routes);
    let (tcp, tcp_rejects, tcp_reports) = bind(Kind::TCPRoute, &objects.tcp_routes);
    let (udp, udp_rejects, udp_reports) = bind(Kind::UDPRoute, &objects.udp_routes);
    L4Routes {
        rejects: vec![tls_rejects, tcp_rejects, udp_rejects],
        reports: vec![(Kind::TLSRoute, tls_reports), (Kind::TCPRoute, tcp_reports), (Kind::UDPRoute, udp_reports)],
        udp_backends: options.gateway_api.experimental.then(|| derive_udp_backends(&udp)),
        virtual_services: tls.union("gateway_api/l4", &[tcp, udp]),
    }
}

/// The ports of hosts that UDPRoutes lead to.
/// Key: `Host`. From: the VirtualServices of UDPRoutes. Changes when: the first route to a port is added or the last one
/// removed. Size: distinct backends of UDPRoutes. Rejects: none.
fn derive_udp_backends<'s>(routes: &Collection<'s, ObjectKey, VirtualService>) -> Collection<'s, Host, BTreeSet<u16>> {
    let by_host = routes.index("gateway_api/udp-backends-of-routes", |_, routes| {
        let mut ports: BTreeMap<Host, BTreeSet<u16>> = BTreeMap::new();
        for Destination { host, port, .. } in routes.tcp.iter().flat_map(|route| &route.route).map(|to| &to.destination)
        {
            if let Some(port) = port.and_then(|port| u16::try_from(port).ok()) {
                ports.entry(host.clone()).or_default().insert(port);
            }
        }
        ports.into_iter().collect::<Vec<_>>()
    });
    by_host.group("gateway_api/udp-backends", |_, rows| {
        Some(rows.iter().flat_map(|(_, ports)| ports.iter().copied()).collect())
    })
}

struct L4RouteBinder {
    parents: ParentLookup,
    backends: BackendLookup,
    kind: GroupKind,
    /// TLSRoute, whose connections are routed by server name, TCPRoute or UDPRoute.
    sort: Kind,
}

impl L4RouteBinder {
    fn bind(&self, cx: &Context, key: &ObjectKey, route: &L4Route) -> BoundL4Route {
        let problems = RefCell::new(Vec::new());
        let note = |path: String, reason: &str| problems.borrow_mut().push((Text::from(path), Text::from(reason)));
        let is_udp = self.sort == Kind::UDPRoute;
        let attaching = AttachingRoute {
            kind: &self.kind,
            key,
            parents: &route.parents,
            hostnames: &route.hostnames,
            is_for_mesh: !is_udp,
        };
        if is_udp && route.rules.len() > 1 {
            note("spec.rules[1]".to_owned(), "datagrams have nothing to match, so only the first rule has an effect");
        }
        let attachments =
            self.parents.attach(cx, &attaching, |place, reason| note(format!("spec.parentRefs[{place}]"), reason));
        let rules = |is_mesh: bool| {
            if !attachments.concerns(is_mesh) {
                return (Vec::new(), None);
            }
            let is_attached = attachments.attached.iter().any(|attached| attached.is_mesh() == is_mesh);
            let by = Referrer { kind: &self.kind, key, is_mesh };
            let (mut last, mut rules) = (None, Vec::new());
            for (n, backends) in route.rules.iter().enumerate() {
                let found = self.destinations(cx, by, backends, |m, finding| {
                    // Nothing is sent to the backends of a route that is not attached.
                    if is_attached {
                        note(format!("spec.rules[{n}].backendRefs[{m}]"), finding);
                    }
                });
                match found {
                    Ok((destinations, problem)) => {
                        last = problem.or(last);
                        rules.push(destinations);
                    }
                    Err(problem) => return (Vec::new(), Some(problem)),
                }
            }
            (rules, last)
        };
        let ((of_mesh, mesh_problem), (of_gateways, gateway_problem)) = (rules(true), rules(false));
        let mut virtual_services: Vec<VirtualService> = Vec::new();
        for attached in &attachments.attached {
            let rules = if attached.is_mesh() { &of_mesh } else { &of_gateways };
            if rules.is_empty() {
                continue;
            }
            let (sort, of_parent) = match self.sort {
                Kind::TLSRoute => ("tls", tls(route, attached, rules)),
                Kind::UDPRoute => ("udp", tcp(attached, rules)),
                _ => ("tcp", tcp(attached, rules)),
            };
            for (host, routes) in of_parent {
                virtual_services.push(VirtualService {
                    namespace: key.namespace.clone(),
                    name: format!("{}~{sort}~{}~{GENERATED}", key.name, virtual_services.len()).into(),
                    created: route.meta.created,
                    hosts: vec![host],
                    gateways: vec![attached.gateway.clone()],
                    semantics: RouteSemantics::GatewayApi,
                    ..routes
                });
            }
        }
        let mut problems = problems.into_inner();
        problems.sort();
        problems.dedup();
        let report = RouteReport::new(attachments, mesh_problem, gateway_problem);
        BoundL4Route { virtual_services, problems, report }
    }

    /// The destinations of a rule; without any weight, a destination that fails. Also the last problem.
    ///
    /// # Errors
    /// The route is omitted because of it.
    fn destinations(
        &self,
        cx: &Context,
        by: Referrer<'_>,
        backends: &[BackendRef],
        mut note: impl FnMut(usize, &str),
    ) -> Result<(Vec<RouteDestination>, Option<StatusProblem>), StatusProblem> {
        let counted = backends.iter().enumerate().filter(|(_, backend)| backend.weight != 0);
        let count = counted.clone().count();
        if count == 0 {
            let nowhere =
                Destination { host: "internal.cluster.local".into(), subset: "zero-weight".into(), port: Some(65535) };
            return Ok((vec![RouteDestination { destination: nowhere, weight: 0 }], None));
        }
        let (mut last, mut destinations) = (None, Vec::new());
        for (m, backend) in counted {
            let ResolvedBackend { destination, problem, .. } = match self.sort {
                Kind::UDPRoute => self.backends.resolve_udp(cx, by, backend),
                _ => self.backends.resolve(cx, by, backend),
            };
            if let Some(problem) = problem {
                if let Some(finding) = problem.finding {
                    note(m, finding);
                }
                if problem.omits_route() {
                    return Err(problem.status);
                }
                last = Some(problem.status);
            }
            destinations.push(RouteDestination { destination, weight: if count == 1 { 0 } else { backend.weight } });
        }
        Ok((destinations, last))
    }
}

/// The rules of a TCPRoute for a parent: there is one host for all connections of a listener. Those of a UDPRoute are the same for
/// datagrams, as the listener has the protocol.
fn tcp(attached: &AttachedListeners, rules: &[Vec<RouteDestination>]) -> Vec<(Host, VirtualService)> {
    let port = if attached.is_mesh() { u32::from(attached.port) } else { 0 };
    let route = |route: &Vec<RouteDestination>| TcpRoute {
        matches: if port == 0 { Vec::new() } else { vec![L4Match { port, ..L4Match::default() }] },
        route: route.clone(),
    };
    let routes = VirtualService { tcp: rules.iter().map(route).collect(), ..VirtualService::default() };
    let hosts = if attached.is_mesh() { attached.hosts.clone() } else { vec!["*".into()] };
    hosts.into_iter().map(|host| (host, routes.clone())).collect()
}

/// The rules of a TLSRoute for a parent, by host: server names are those that both have.
fn tls(route: &L4Route, attached: &AttachedListeners, rules: &[Vec<RouteDestination>]) -> Vec<(Host, VirtualService)> {
    let any = [Text::from("*")];
    let written = if route.hostnames.is_empty() { &any[..] } else { &route.hostnames };
    let with_names = |names: &[Text], port: u16| {
        let route = |destinations: &Vec<RouteDestination>| {
            let nowhere = destinations.iter().all(|to| to.destination.subset == *"zero-weight");
            let on = TlsMatch { sni_hosts: names.to_vec(), port: port.into(), ..TlsMatch::default() };
            TlsRoute { matches: if nowhere { Vec::new() } else { vec![on] }, route: destinations.clone() }
        };
        VirtualService { tls: rules.iter().map(route).collect(), ..VirtualService::default() }
    };
    if attached.is_mesh() {
        let of_host = |host: &Host| {
            let names: Vec<Text> = match written {
                [all] if *all == *"*" => attached.hosts.iter().map(|host| host.0.clone()).collect(),
                names => names.to_vec(),
            };
            // Of several names only those that the host covers count.
            let fits = |name: &&Text| names.len() == 1 || host.overlaps(&Host::new(name));
            let names: Vec<Text> = names.iter().filter(fits).cloned().collect();
            (host.clone(), with_names(&names, attached.port))
        };
        return attached.hosts.iter().map(of_host).collect();
    }
    let names = if attached.hostname.is_empty() { written.to_vec() } else { common(written, &attached.hostname) };
    names.iter().map(|name| (Host::new(name), with_names(&names, 0))).collect()
}

/// Names that both have: of two overlapping names the more specific one.
fn common(names: &[Text], hostname: &Text) -> Vec<Text> {
    let listener = Host::new(hostname);
    let mut common: Vec<Text> = Vec::new();
    for name in names {
        let host = Host::new(name);
        let narrower = if listener.contains(&host) {
            name
        } else if host.contains(&listener) {
            hostname
        } else {
            continue;
        };
        if !common.contains(narrower) {
            common.push(narrower.clone());
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_listener_and_route() {
        let of = |names: &[&str], listener: &str| -> Vec<String> {
            let names: Vec<Text> = names.iter().map(|name| Text::from(*name)).collect();
            common(&names, &listener.into()).iter().map(Text::to_string).collect()
        };
        assert_eq!(of(&["*.com", "a.example.com", "b.org"], "*.example.com"), ["*.example.com", "a.example.com"]);
        assert_eq!(of(&["*"], "a.b"), ["a.b"]);
        assert!(of(&["c.d"], "a.b").is_empty());
    }
}
