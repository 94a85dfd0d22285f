//! Attachment: which listeners a route is attached to (G02), and why it is not attached to others (G05).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::gateway_api::{GROUP, GroupKind, ParentRef};
use sluice_model::{Host, Labels, MESH_GATEWAY, NETWORKING_GROUP, ObjectKey, ServiceEntry, ServiceKey, Text, label};

use super::listeners::{BoundListener, ListenerKey, ParentKey};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;
use crate::statuses::StatusProblem;

/// The indexes of objects that routes can be attached to.
pub(super) struct RouteParents<'s> {
    listeners: Index<'s, ParentKey, ListenerKey, BoundListener>,
    /// Services of Kubernetes: whether they have a waypoint.
    services: Collection<'s, ObjectKey, bool>,
    entries: Collection<'s, ObjectKey, ParentEntry>,
    /// Namespaces: whether they have a waypoint.
    namespaces: Collection<'s, ObjectKey, bool>,
    services_as_parents: ServicesAsParents<Collection<'s, ObjectKey, Vec<ObjectKey>>>,
    domain: Text,
}

/// What routes of Services are attached to.
#[derive(Clone)]
enum ServicesAsParents<W> {
    /// The Service itself: sidecars and waypoints follow them.
    Mesh,
    /// The listeners of the waypoints of each Service, as far as agentgateways serve these.
    Waypoints(W),
}

/// A ServiceEntry as a parent.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ParentEntry {
    hosts: Vec<Host>,
    /// It has a waypoint.
    has_waypoint: bool,
}

/// Whether labels name a waypoint.
fn has_waypoint(labels: &Labels) -> bool {
    labels.get(label::USE_WAYPOINT).is_some_and(|name| !name.is_empty() && !name.eq_ignore_ascii_case("none"))
}

impl<'s> RouteParents<'s> {
    /// Indexes all listeners, Services and ServiceEntries.
    pub(super) fn new(
        objects: &ObjectCollections<'s>,
        listeners: &Collection<'s, ListenerKey, BoundListener>,
        options: &GraphOptions,
    ) -> Self {
        Self {
            listeners: listeners.index("gateway_api/by-parent", |key, bound| [(key.parent.clone(), bound.clone())]),
            services: objects
                .kubernetes_services
                .map("gateway_api/services", |_, service| has_waypoint(&service.meta.labels)),
            entries: objects.service_entries.map("gateway_api/service_entries", |_, entry: &ServiceEntry| {
                ParentEntry { hosts: entry.hosts.clone(), has_waypoint: has_waypoint(&entry.meta.labels) }
            }),
            namespaces: objects
                .namespaces
                .map("gateway_api/waypoint_namespaces", |_, namespace| has_waypoint(&namespace.labels)),
            services_as_parents: ServicesAsParents::Mesh,
            domain: options.domain.clone(),
        }
    }

    /// The same with listeners of agentgateways, which serve the routes of Services whose waypoints they are.
    pub(super) fn of_agentgateways(
        &self,
        listeners: &Collection<'s, ListenerKey, BoundListener>,
        waypoints: &Collection<'s, ObjectKey, Vec<ObjectKey>>,
    ) -> Self {
        Self {
            listeners: listeners.index("agentgateway/by-parent", |key, bound| [(key.parent.clone(), bound.clone())]),
            services: self.services.clone(),
            entries: self.entries.clone(),
            namespaces: self.namespaces.clone(),
            services_as_parents: ServicesAsParents::Waypoints(waypoints.clone()),
            domain: self.domain.clone(),
        }
    }
}

/// Looks up parents.
#[derive(Clone)]
pub(super) struct ParentLookup {
    listeners: IndexDep<ParentKey, ListenerKey, BoundListener>,
    services: Dep<ObjectKey, bool>,
    entries: Dep<ObjectKey, ParentEntry>,
    namespaces: Dep<ObjectKey, bool>,
    services_as_parents: ServicesAsParents<Dep<ObjectKey, Vec<ObjectKey>>>,
    domain: Text,
}

/// The result of a reference to a parent: one for each listener of a Gateway or ListenerSet, and one for a Service.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ParentResult {
    /// Index of the reference in the route.
    pub(super) reference: usize,
    /// The parent is a Service or ServiceEntry, and not a listener.
    pub(super) is_mesh: bool,
    /// The listener is one of an agentgateway that is a waypoint.
    pub(super) of_waypoint: bool,
    /// Why the route is not attached.
    pub(super) denied: Option<StatusProblem>,
    /// What is said about the waypoint of a Service.
    pub(super) waypoint: Option<&'static str>,
}

/// What a route is attached to.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Attachments {
    /// The listeners and Services, by gateway name.
    pub(super) attached: Vec<AttachedListeners>,
    /// The results of all references to parents of our controllers, in the order of the references as texts.
    pub(super) results: Vec<ParentResult>,
}

impl Attachments {
    /// Whether there is a result of a Service, or of a listener.
    pub(super) fn concerns(&self, is_mesh: bool) -> bool {
        self.results.iter().any(|result| result.is_mesh == is_mesh)
    }
}

/// A listener or service that a route is attached to.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct AttachedListeners {
    /// The listener; `None` for a Service.
    pub(super) listener: Option<ListenerKey>,
    /// The Gateway, if agentgateways serve it.
    pub(super) agentgateway: Option<ObjectKey>,
    /// The Gateway as `namespace/name`, or [`MESH_GATEWAY`].
    pub(super) gateway: Text,
    /// Index of the reference in the route.
    pub(super) reference: usize,
    /// Port in the reference, 0 if none.
    pub(super) port: u16,
    /// For a Service or ServiceEntry: its hosts.
    pub(super) hosts: Vec<Host>,
    /// For a listener of a waypoint: the Service whose requests the route is for.
    pub(super) service: Option<ServiceKey>,
    /// Host of the listener as declared, empty for any.
    pub(super) hostname: Text,
    /// Hosts of other listeners of the same port, which have precedence for their hosts.
    banned: BTreeSet<Text>,
}

impl AttachedListeners {
    /// Whether the route is for sidecars.
    pub(super) fn is_mesh(&self) -> bool {
        self.gateway == *MESH_GATEWAY
    }

    /// Whether requests for a host of the route are routed by this listener, and not by a more specific one.
    pub(super) fn gets(&self, host: &str) -> bool {
        let (host, own) = (Host::new(host), Host::new(&self.hostname));
        let own_length = self.hostname.len();
        if own_length > 0 && !own.is_wildcard() {
            return true;
        }
        if own_length > 0 && !host.overlaps(&own) {
            return false;
        }
        !self.banned.iter().any(|other| own_length <= other.len() && Host::new(other).contains(&host))
    }
}

/// The fields of a route that attachment depends on.
pub(super) struct AttachingRoute<'a> {
    /// Its kind.
    pub(super) kind: &'a GroupKind,
    /// Its cluster and namespace.
    pub(super) key: &'a ObjectKey,
    /// Its parents.
    pub(super) parents: &'a [ParentRef],
    /// Its hosts.
    pub(super) hostnames: &'a [Text],
    /// Sidecars and waypoints follow routes of its kind.
    pub(super) is_for_mesh: bool,
}

impl ParentLookup {
    /// Declares the look-ups.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, parents: &RouteParents<'s>) -> Self {
        Self {
            listeners: deps.by(&parents.listeners),
            services: deps.on(&parents.services),
            entries: deps.on(&parents.entries),
            namespaces: deps.on(&parents.namespaces),
            services_as_parents: match &parents.services_as_parents {
                ServicesAsParents::Mesh => ServicesAsParents::Mesh,
                ServicesAsParents::Waypoints(of) => ServicesAsParents::Waypoints(deps.on(of)),
            },
            domain: parents.domain.clone(),
        }
    }

    /// What a route is attached to. Findings in a reference go to `problem`, with its index.
    pub(super) fn attach(
        &self,
        cx: &Context,
        route: &AttachingRoute<'_>,
        mut problem: impl FnMut(usize, &str),
    ) -> Attachments {
        let mut order: Vec<(usize, &ParentRef)> = route.parents.iter().enumerate().collect();
        order.sort_by_key(|(_, parent)| reference_text(parent));
        let mut found = Attachments::default();
        for (place, parent) in order {
            let key = ObjectKey::new(route.key.cluster.clone(), parent.namespace.clone(), parent.name.clone());
            let is_set = parent.kind.is(GROUP, "ListenerSet");
            if is_set || parent.kind.is(GROUP, "Gateway") {
                let parent_key = ParentKey { is_set, object: key };
                let before = found.attached.len();
                let reason = self.attach_to_listeners(cx, route, (place, Some(parent)), &parent_key, &mut found);
                if let Some(reason) = reason.filter(|_| found.attached.len() == before) {
                    problem(place, reason);
                }
                continue;
            }
            if let ServicesAsParents::Waypoints(of) = &self.services_as_parents {
                let waypoints = cx.get(of, &key).filter(|_| parent.kind.is("", "Service"));
                for gateway in waypoints.iter().flat_map(|waypoints| waypoints.iter()) {
                    let parent_key = ParentKey { is_set: false, object: gateway.clone() };
                    let before = found.attached.len();
                    if let Some(reason) = self.attach_to_listeners(cx, route, (place, None), &parent_key, &mut found) {
                        problem(place, reason);
                    }
                    let host = service_host(&key.name, &key.namespace, &self.domain);
                    for attached in found.attached.iter_mut().skip(before) {
                        attached.service = Some(ServiceKey { namespace: key.namespace.clone(), host: host.clone() });
                    }
                }
                continue;
            }
            // A parent of another kind belongs to another controller.
            let Some(parent_found) = self.mesh_parent(cx, parent, &key) else { continue };
            let mut result =
                ParentResult { reference: place, is_mesh: true, of_waypoint: false, denied: None, waypoint: None };
            match parent_found {
                Ok(_) if !route.is_for_mesh => {
                    problem(place, "routes of this kind have no effect for Services and ServiceEntries");
                    let GroupKind { kind, .. } = route.kind;
                    let message = format!("{kind} is supported for Gateways and ListenerSets only");
                    result.denied = Some(StatusProblem::new(UNSUPPORTED_VALUE, message));
                }
                Ok((hosts, has_waypoint)) => {
                    result.waypoint = self.waypoint_message(cx, &key, has_waypoint);
                    found.attached.push(AttachedListeners {
                        listener: None,
                        agentgateway: None,
                        gateway: MESH_GATEWAY.into(),
                        reference: place,
                        port: parent.port,
                        hosts,
                        service: None,
                        hostname: Text::default(),
                        banned: BTreeSet::new(),
                    });
                }
                Err((reason, denied)) => {
                    problem(place, reason);
                    result.denied = Some(denied);
                    result.waypoint = Some("parent not found");
                }
            }
            found.results.push(result);
        }
        found.attached.sort_by(|a, b| a.gateway.cmp(&b.gateway));
        found
    }

    /// The hosts of a Service or ServiceEntry, and whether it has a waypoint; or the finding. `None` for another kind.
    #[expect(clippy::type_complexity, reason = "it is used once")]
    fn mesh_parent(
        &self,
        cx: &Context,
        parent: &ParentRef,
        key: &ObjectKey,
    ) -> Option<Result<(Vec<Host>, bool), (&'static str, StatusProblem)>> {
        let absent = |finding: &'static str, what: &str| {
            (finding, StatusProblem::new(NO_MATCHING_PARENT, format!("parent {what}: \"{}\" not found", parent.name)))
        };
        if parent.kind.is("", "Service") {
            let host = service_host(&parent.name, &parent.namespace, &self.domain);
            let found = cx.get(&self.services, key).map(|has_waypoint| (vec![host], *has_waypoint));
            Some(found.ok_or_else(|| absent("there is no such Service", "service")))
        } else if parent.kind.is(NETWORKING_GROUP, "ServiceEntry") {
            let found = cx.get(&self.entries, key).map(|entry| (entry.hosts.clone(), entry.has_waypoint));
            Some(found.ok_or_else(|| absent("there is no such ServiceEntry", "service entry")))
        } else {
            None
        }
    }

    /// What is said about the waypoint of a parent.
    fn waypoint_message(&self, cx: &Context, parent: &ObjectKey, has_waypoint: bool) -> Option<&'static str> {
        let namespace = ObjectKey::new(parent.cluster.clone(), "", parent.namespace.clone());
        let of_namespace = || cx.get(&self.namespaces, &namespace).is_none_or(|has_waypoint| *has_waypoint);
        (!has_waypoint && !of_namespace()).then_some(
            "istio.io/use-waypoint label missing from parent and parent namespace; in ambient mode, route will not be respected",
        )
    }

    /// Attaches a route to the listeners of an object that accept it; returns the reason if one of them does not. Without a reference,
    /// the object is a waypoint of the Service that the route refers to: only agentgateways that are waypoints attach to it.
    fn attach_to_listeners(
        &self,
        cx: &Context,
        route: &AttachingRoute<'_>,
        (place, reference): (usize, Option<&ParentRef>),
        key: &ParentKey,
        found: &mut Attachments,
    ) -> Option<&'static str> {
        let listeners: Vec<(ListenerKey, Arc<BoundListener>)> = cx.by(&self.listeners, key);
        let mut reason = None;
        for (listener, bound) in &listeners {
            let of_waypoint = bound.agentgateway.as_ref().is_some_and(|of| of.is_waypoint);
            let denied = match reference {
                Some(reference) => allowed(route, reference, &listener.section, bound).err(),
                None if !of_waypoint => continue,
                None => allowed_kind(route, bound).err(),
            };
            let result = ParentResult { reference: place, is_mesh: false, of_waypoint, denied: None, waypoint: None };
            if let Some((finding, denied)) = denied {
                reason = Some(finding);
                found.results.push(ParentResult { denied: Some(denied), ..result });
                continue;
            }
            found.results.push(result);
            let others = listeners.iter().filter(|(key, other)| {
                key.section != listener.section && other.port == bound.port && other.protocol == bound.protocol
            });
            let mut banned: BTreeSet<Text> = others.map(|(_, other)| other.hostname.clone()).collect();
            banned.remove(&bound.hostname);
            found.attached.push(AttachedListeners {
                listener: Some(listener.clone()),
                agentgateway: bound.agentgateway.as_ref().map(|of| of.gateway.clone()),
                gateway: format!("{}/{}", bound.gateway.namespace, bound.gateway.name).into(),
                reference: place,
                port: reference.map(|reference| reference.port).unwrap_or_default(),
                hosts: Vec::new(),
                service: None,
                hostname: bound.hostname.clone(),
                banned,
            });
        }
        reason
    }
}

/// A reference as text, by which references are sorted.
pub(super) fn reference_text(parent: &ParentRef) -> String {
    let ParentRef { kind: GroupKind { group, kind }, name, section, port, namespace, .. } = parent;
    format!("{group}/{kind}/{name}/{section}/{port}.{namespace}")
}

/// Reason: no parent matches the reference.
const NO_MATCHING_PARENT: &str = "NoMatchingParent";
/// Reason: the parent cannot have routes of this kind.
const UNSUPPORTED_VALUE: &str = "UnsupportedValue";
/// Reason: the listener does not allow the route.
pub(super) const NOT_ALLOWED: &str = "NotAllowedByListeners";
/// Reason: the listener and the route have no host in common.
pub(super) const NO_HOSTNAME: &str = "NoMatchingListenerHostname";

/// Whether a listener accepts a route; if not, the finding and the problem for its status.
fn allowed(
    route: &AttachingRoute<'_>,
    reference: &ParentRef,
    section: &Text,
    bound: &BoundListener,
) -> Result<(), (&'static str, StatusProblem)> {
    let no_parent = |message: String| StatusProblem::new(NO_MATCHING_PARENT, message);
    if reference.port != 0 && reference.port != bound.port {
        return Err(("no listener has this port", no_parent(format!("port {} not found", reference.port))));
    }
    if !reference.section.is_empty() && reference.section != *section {
        let message = format!("sectionName \"{}\" not found", reference.section);
        return Err(("no listener has this name", no_parent(message)));
    }
    let any = [Text::from("*")];
    let hostnames = if route.hostnames.is_empty() { &any } else { route.hostnames };
    let server = bound.gateway.servers.first();
    let (mut matched, mut host_matched) = (false, false);
    for host in server.iter().flat_map(|server| &server.hosts) {
        let (namespace, name) = host.split_once('/').unwrap_or(("*", host));
        let name = Host::new(name);
        let overlaps = hostnames.iter().any(|hostname| name.overlaps(&Host::new(hostname)));
        host_matched |= overlaps;
        matched |= overlaps && (namespace == "*" || namespace == route.key.namespace.as_str());
    }
    let (hostname, namespace) = (&bound.hostname, &route.key.namespace);
    if !matched && host_matched {
        let message = format!(
            "hostnames matched parent hostname \"{hostname}\", but namespace \"{namespace}\" is not allowed by the parent"
        );
        let finding = "the listener takes no routes of this namespace";
        return Err((finding, StatusProblem::new(NOT_ALLOWED, message)));
    }
    if !matched {
        let message = format!("no hostnames matched parent hostname \"{hostname}\"");
        let finding = "the listener has no host in common with the route";
        return Err((finding, StatusProblem::new(NO_HOSTNAME, message)));
    }
    allowed_kind(route, bound)
}

/// Whether a listener accepts routes of a kind; if not, the finding and the problem for its status.
fn allowed_kind(route: &AttachingRoute<'_>, bound: &BoundListener) -> Result<(), (&'static str, StatusProblem)> {
    if !bound.kinds.contains(route.kind) {
        let message = format!("kind {GROUP}/v1/{} is not allowed", route.kind.kind);
        let finding = "the listener takes no routes of this kind";
        return Err((finding, StatusProblem::new(NOT_ALLOWED, message)));
    }
    Ok(())
}
