//! Attachment: which listeners a route is attached to (G02).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::gateway_api::{GROUP, GroupKind, ParentRef};
use sluice_model::{Host, MESH_GATEWAY, NETWORKING_GROUP, ObjectKey, ServiceEntry, Text};

use super::listeners::{BoundListener, ListenerKey, ParentKey};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// The indexes of objects that routes can be attached to.
pub(super) struct RouteParents<'s> {
    listeners: Index<'s, ParentKey, ListenerKey, BoundListener>,
    /// Services of Kubernetes, by key only.
    pub(super) services: Collection<'s, ObjectKey, ()>,
    entries: Collection<'s, ObjectKey, Vec<Host>>,
    domain: Text,
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
            services: objects.kubernetes_services.map("gateway_api/services", |_, _| ()),
            entries: objects
                .service_entries
                .map("gateway_api/service_entries", |_, entry: &ServiceEntry| entry.hosts.clone()),
            domain: options.domain.clone(),
        }
    }
}

/// Looks up parents.
#[derive(Clone)]
pub(super) struct ParentLookup {
    listeners: IndexDep<ParentKey, ListenerKey, BoundListener>,
    services: Dep<ObjectKey, ()>,
    entries: Dep<ObjectKey, Vec<Host>>,
    domain: Text,
}

/// A listener or service that a route is attached to.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct AttachedListeners {
    /// The Gateway as `namespace/name`, or [`MESH_GATEWAY`].
    pub(super) gateway: Text,
    /// Index of the reference in the route.
    pub(super) reference: usize,
    /// Port in the reference, 0 if none.
    pub(super) port: u16,
    /// For a Service or ServiceEntry: its hosts.
    pub(super) hosts: Vec<Host>,
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
}

impl ParentLookup {
    /// Declares the look-ups.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, parents: &RouteParents<'s>) -> Self {
        Self {
            listeners: deps.by(&parents.listeners),
            services: deps.on(&parents.services),
            entries: deps.on(&parents.entries),
            domain: parents.domain.clone(),
        }
    }

    /// The listeners and services that a route is attached to, by gateway name. Findings in a reference go to
    /// `problem`, with its index.
    pub(super) fn attach(
        &self,
        cx: &Context,
        route: &AttachingRoute<'_>,
        mut problem: impl FnMut(usize, &str),
    ) -> Vec<AttachedListeners> {
        let mut order: Vec<(usize, &ParentRef)> = route.parents.iter().enumerate().collect();
        order.sort_by_key(|(_, parent)| {
            let ParentRef { kind: GroupKind { group, kind }, name, section, port, namespace, .. } = parent;
            format!("{group}/{kind}/{name}/{section}/{port}.{namespace}")
        });
        let mut attached = Vec::new();
        for (place, parent) in order {
            let key = ObjectKey::new(route.key.cluster.clone(), parent.namespace.clone(), parent.name.clone());
            let found = if parent.kind.is("", "Service") {
                let host = service_host(&parent.name, &parent.namespace, &self.domain);
                cx.get(&self.services, &key).map(|_| vec![host]).ok_or("there is no such Service")
            } else if parent.kind.is(NETWORKING_GROUP, "ServiceEntry") {
                let hosts = cx.get(&self.entries, &key);
                hosts.map(|hosts| (*hosts).clone()).ok_or("there is no such ServiceEntry")
            } else {
                let is_set = parent.kind.is(GROUP, "ListenerSet");
                if is_set || parent.kind.is(GROUP, "Gateway") {
                    let parent_key = ParentKey { is_set, object: key };
                    let before = attached.len();
                    let reason = self.attach_to_listeners(cx, route, (place, parent), &parent_key, &mut attached);
                    if let Some(reason) = reason.filter(|_| attached.len() == before) {
                        problem(place, reason);
                    }
                }
                // A parent of another kind belongs to another controller.
                continue;
            };
            match found {
                Ok(hosts) => attached.push(AttachedListeners {
                    gateway: MESH_GATEWAY.into(),
                    reference: place,
                    port: parent.port,
                    hosts,
                    hostname: Text::default(),
                    banned: BTreeSet::new(),
                }),
                Err(reason) => problem(place, reason),
            }
        }
        attached.sort_by(|a, b| a.gateway.cmp(&b.gateway));
        attached
    }

    /// Attaches a route to the listeners of an object that accept it; returns the reason if one of them does not.
    fn attach_to_listeners(
        &self,
        cx: &Context,
        route: &AttachingRoute<'_>,
        (place, reference): (usize, &ParentRef),
        key: &ParentKey,
        attached: &mut Vec<AttachedListeners>,
    ) -> Option<&'static str> {
        let listeners: Vec<(ListenerKey, Arc<BoundListener>)> = cx.by(&self.listeners, key);
        let mut reason = None;
        for (ListenerKey { section, .. }, bound) in &listeners {
            if let Err(denied) = allowed(route, reference, section, bound) {
                reason = Some(denied);
                continue;
            }
            let others = listeners.iter().filter(|(key, other)| {
                key.section != *section && other.port == bound.port && other.protocol == bound.protocol
            });
            let mut banned: BTreeSet<Text> = others.map(|(_, other)| other.hostname.clone()).collect();
            banned.remove(&bound.hostname);
            attached.push(AttachedListeners {
                gateway: format!("{}/{}", bound.gateway.namespace, bound.gateway.name).into(),
                reference: place,
                port: reference.port,
                hosts: Vec::new(),
                hostname: bound.hostname.clone(),
                banned,
            });
        }
        reason
    }
}

/// Whether a listener accepts a route; if not, the reason.
fn allowed(
    route: &AttachingRoute<'_>,
    reference: &ParentRef,
    section: &Text,
    bound: &BoundListener,
) -> Result<(), &'static str> {
    if reference.port != 0 && reference.port != bound.port {
        return Err("no listener has this port");
    }
    if !reference.section.is_empty() && reference.section != *section {
        return Err("no listener has this name");
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
    if !matched {
        let namespace = "the listener takes no routes of this namespace";
        return Err(if host_matched { namespace } else { "the listener has no host in common with the route" });
    }
    if bound.kinds.contains(route.kind) { Ok(()) } else { Err("the listener takes no routes of this kind") }
}
