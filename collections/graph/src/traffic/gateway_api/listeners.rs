//! Listeners: each becomes a Gateway with one server, so that a route can be bound to it alone (G02).

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index, IndexDep};
use sluice_model::gateway_api::{
    AddressKind, GROUP, Gateway, GatewayClass, GroupKind, Listener, ListenerSet, ListenerTlsMode, NamespaceSelection,
};
use sluice_model::{
    Gateway as IstioGateway, GatewayOwner, GatewayServer, HBONE_PORT, Host, LabelSelector, Labels, Namespace,
    ObjectKey, ObjectMeta, Protocol, Text, label,
};

use super::classes::{GatewayController, find_controller};
use super::conflicts::find_conflicts;
use super::credentials::{CredentialIndex, CredentialLookup};
use super::grants::{GrantIndex, GrantLookup};
use super::listener_report::{ListenerChecks, ListenerReport};
use super::tls::{TlsOwner, TlsReads, agentgateway_tls, server_tls};
use super::{GENERATED, generated};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// Label that every namespace has.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// An object with listeners.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ParentKey {
    /// It is a ListenerSet, not a Gateway.
    pub(super) is_set: bool,
    /// Its cluster and namespace.
    pub(super) object: ObjectKey,
}

/// A listener of an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ListenerKey {
    /// The object.
    pub(super) parent: ParentKey,
    /// Name of the listener.
    pub(super) section: Text,
}

/// A listener, and its generated Gateway.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct BoundListener {
    /// The Gateway with its one server.
    pub(super) gateway: IstioGateway,
    /// It can be served. Routes are attached to it in any case.
    pub(super) valid: bool,
    /// Kinds of routes that it accepts.
    pub(super) kinds: Vec<GroupKind>,
    /// Its host as declared, empty for any.
    pub(super) hostname: Text,
    /// Its port.
    pub(super) port: u16,
    /// Its protocol as declared.
    pub(super) protocol: Text,
    /// What agentgateways need to know; `None` if routers serve it.
    pub(super) agentgateway: Option<AgentgatewayListener>,
}

/// A listener that agentgateways serve.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct AgentgatewayListener {
    /// The Gateway.
    pub(super) gateway: ObjectKey,
    /// The Gateway is a waypoint.
    pub(super) is_waypoint: bool,
    /// Its place among the listeners of the Gateway and its ListenerSets: of several on a port, the first decides its protocol.
    pub(super) place: usize,
}

/// A listener that a Gateway has or that a ListenerSet adds to it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ListenerRow {
    /// The Gateway.
    pub(super) gateway: ObjectKey,
    /// `None` if no routes can be bound to it.
    pub(super) bound: Option<BoundListener>,
    /// Its state, for its status.
    pub(super) report: ListenerReport,
}

/// ListenerSets by the Gateway that they name.
pub(super) type ListenerSetIndex<'s> = Index<'s, ObjectKey, ObjectKey, ListenerSet>;

/// ListenerSets by the Gateway that they name.
pub(super) fn index_sets<'s>(objects: &ObjectCollections<'s>) -> ListenerSetIndex<'s> {
    objects.listener_sets.index("listener_sets/by-gateway", |key, set| {
        let ours = set.parent.kind.is(GROUP, "Gateway");
        let namespace = set.parent.namespace_in(&key.namespace);
        ours.then(|| (ObjectKey::new(key.cluster.clone(), namespace, set.parent.name.clone()), set.clone()))
    })
}

/// Listeners of the Gateways of our classes, and those that ListenerSets add to them.
/// Key: `ListenerKey`. From: `kubernetes_gateways`, `listener_sets`, `gateway_classes`, `reference_grants`,
/// `namespaces` (of listeners that select namespaces by label), `secrets` and `root_bundles` (their presence).
/// Changes when: the Gateway does, a ListenerSet of it or its class; a grant in a namespace of its certificates, or the
/// presence of these; a namespace, if it selects namespaces. Size: listeners. Rejects: none; no routes are bound to a listener
/// that conflicts with another.
pub(super) fn derive_listeners<'s>(
    objects: &ObjectCollections<'s>,
    sets: &ListenerSetIndex<'s>,
    grants: &GrantIndex<'s>,
    credentials: &CredentialIndex<'s>,
    options: &GraphOptions,
) -> Collection<'s, ListenerKey, ListenerRow> {
    let options = options.clone();
    objects.kubernetes_gateways.derive_many("gateway_api/listener_rows", |deps| {
        let reads = ListenerReads {
            classes: deps.on(&objects.gateway_classes),
            namespaces: deps.on(&objects.namespaces),
            sets: deps.by(sets),
            tls: TlsReads {
                grants: GrantLookup::on(deps, grants),
                credentials: CredentialLookup::on(deps, credentials),
            },
            experimental: options.gateway_api.experimental,
        };
        move |cx, key, gateway| reads.listeners(cx, key, gateway, &options)
    })
}

/// The listeners of routers and waypoints that routes can be bound to.
/// Key: `ListenerKey`. From: `gateway_api/listener_rows`. Changes when: the listener does. Size: listeners. Rejects: none.
pub(super) fn derive_bound_listeners<'s>(
    rows: &Collection<'s, ListenerKey, ListenerRow>,
) -> Collection<'s, ListenerKey, BoundListener> {
    rows.filter_map("gateway_api/listeners", |_, row| row.bound.clone().filter(|bound| bound.agentgateway.is_none()))
}

/// The listeners of agentgateways that routes can be bound to.
/// Key: `ListenerKey`. From: `gateway_api/listener_rows`. Changes when: the listener does. Size: listeners. Rejects: none.
pub(super) fn derive_agentgateway_listeners<'s>(
    rows: &Collection<'s, ListenerKey, ListenerRow>,
) -> Collection<'s, ListenerKey, BoundListener> {
    rows.filter_map("agentgateway/bound_listeners", |_, row| {
        row.bound.clone().filter(|bound| bound.agentgateway.is_some())
    })
}

/// The generated Gateways of listeners.
/// Key: `ObjectKey`. From: `gateway_api/listeners`. Changes when: the listener does. Size: listeners that can be served.
/// Rejects: none.
pub(super) fn derive_gateways<'s>(
    listeners: &Collection<'s, ListenerKey, BoundListener>,
) -> Collection<'s, ObjectKey, IstioGateway> {
    listeners.flat_map("gateways/of-gateway-api", |key, bound| {
        let name = generated(&key.parent.object.cluster, &bound.gateway.namespace, &bound.gateway.name);
        // A ListenerSet may have the name of a Gateway.
        let name =
            if key.parent.is_set { ObjectKey { name: format!("{}/set", name.name).into(), ..name } } else { name };
        bound.valid.then(|| (name, bound.gateway.clone()))
    })
}

struct ListenerReads {
    classes: Dep<ObjectKey, GatewayClass>,
    namespaces: Dep<ObjectKey, Namespace>,
    sets: IndexDep<ObjectKey, ObjectKey, ListenerSet>,
    tls: TlsReads,
    /// Agentgateways serve TCP.
    experimental: bool,
}

/// An object with listeners, and the Gateway it is or belongs to.
struct ListenerOwner<'a> {
    key: ParentKey,
    meta: &'a ObjectMeta,
    gateway: &'a Gateway,
    gateway_key: &'a ObjectKey,
    controller: GatewayController,
    owner: GatewayOwner,
}

impl ListenerReads {
    fn listeners(
        &self,
        cx: &Context,
        key: &ObjectKey,
        gateway: &Gateway,
        options: &GraphOptions,
    ) -> Vec<(ListenerKey, ListenerRow)> {
        let class = find_controller(cx, &self.classes, &key.cluster, &gateway.class, &options.gateway_api);
        let Some(controller) = class.filter(|controller| *controller != GatewayController::Remote) else {
            return Vec::new();
        };
        let hosts = services(gateway, controller, options);
        // Without a Service no router serves it.
        if hosts.is_empty() {
            return Vec::new();
        }
        let owner = GatewayOwner {
            services: hosts,
            namespace: key.namespace.clone(),
            service_account: service_account(gateway, controller, options),
            is_set: false,
        };
        let sets = match controller.takes_listener_sets() {
            true => eligible_sets(cx, &self.sets, &self.namespaces, (key, gateway)),
            false => Vec::new(),
        };
        let own = ParentKey { is_set: false, object: key.clone() };
        let own = ListenerOwner { key: own, meta: &gateway.meta, gateway, gateway_key: key, controller, owner };
        let mut parents = vec![(own, &gateway.listeners)];
        for (set_key, set) in &sets {
            let own = ParentKey { is_set: true, object: set_key.clone() };
            let owner = GatewayOwner { is_set: true, ..parents[0].0.owner.clone() };
            let of_set = ListenerOwner { key: own, meta: &set.meta, gateway, gateway_key: key, controller, owner };
            parents.push((of_set, &set.listeners));
        }
        let all =
            parents.iter().flat_map(|(parent, listeners)| listeners.iter().map(move |listener| (parent, listener)));
        let all: Vec<(&ListenerOwner<'_>, &Listener)> = all.collect();
        let lost = if controller.takes_listener_sets() {
            let listeners = all.iter().map(|(parent, listener)| (*listener, port_of(parent, listener)));
            find_conflicts(listeners, options.gateway_api.experimental)
        } else {
            vec![None; all.len()]
        };
        let mut rows: Vec<(ListenerKey, ListenerRow)> = Vec::new();
        for ((parent, listener), lost) in all.into_iter().zip(lost) {
            let listener_key = ListenerKey { parent: parent.key.clone(), section: listener.name.clone() };
            // Of two listeners with one name the first counts.
            if rows.iter().any(|(known, _)| *known == listener_key) {
                continue;
            }
            let protocol = protocol(controller, &listener.protocol, options);
            let kinds = kinds(controller, listener, protocol);
            let (bound, report) = match lost {
                Some(reason) => (None, ListenerReport::conflict(listener, kinds, reason)),
                None => self.bind(cx, parent, (rows.len(), listener, protocol), kinds),
            };
            rows.push((listener_key, ListenerRow { gateway: key.clone(), bound, report }));
        }
        rows
    }

    /// The Gateway of a listener, unless no routes can be bound to it; and the state of the listener.
    fn bind(
        &self,
        cx: &Context,
        parent: &ListenerOwner<'_>,
        (place, listener, protocol): (usize, &Listener, Option<Protocol>),
        kinds: Vec<GroupKind>,
    ) -> (Option<BoundListener>, ListenerReport) {
        let port = port_of(parent, listener);
        let ObjectMeta { namespace, name, labels, created, .. } = parent.meta;
        let kind = if parent.key.is_set { "ListenerSet" } else { "Gateway" };
        let of = TlsOwner {
            kind: GroupKind { group: GROUP.into(), kind: kind.into() },
            cluster: &parent.key.object.cluster,
            namespace,
            labels,
            gateway: parent.gateway,
        };
        let is_agentgateway = parent.controller.is_agentgateway();
        let (tls, tls_problem) = match is_agentgateway {
            true => agentgateway_tls(cx, self.tls, &of, listener),
            false => server_tls(cx, self.tls, &of, listener),
        };
        let protocol = protocol.filter(|protocol| !is_agentgateway || self.experimental || *protocol != Protocol::Tcp);
        let has_server = tls.is_some() || !matches!(listener.protocol.as_str(), "HTTPS" | "TLS");
        let checks = ListenerChecks {
            listener,
            controller: parent.controller,
            is_set: parent.key.is_set,
            port,
            is_served: protocol.is_some(),
            has_server,
            tls_problem: tls_problem.as_ref(),
        };
        let report = ListenerReport::new(&checks, kinds);
        let routed = match parent.controller {
            GatewayController::Router | GatewayController::Agentgateway | GatewayController::AgentgatewayWaypoint => {
                true
            }
            GatewayController::EastWest => port != HBONE_PORT,
            GatewayController::Waypoint | GatewayController::Remote => false,
        };
        if !routed || !has_server {
            return (None, report);
        }
        let gateway = IstioGateway {
            namespace: namespace.clone(),
            name: format!("{name}~{GENERATED}~{}", listener.name).into(),
            created: *created,
            selector: Labels::new(),
            servers: vec![GatewayServer {
                port: port.into(),
                port_name: "default".into(),
                protocol: protocol.unwrap_or_default(),
                protocol_text: listener.protocol.clone(),
                hosts: self.hosts(cx, &parent.key.object, listener),
                tls,
                ..GatewayServer::default()
            }],
            owner: Some(parent.owner.clone()),
        };
        let bound = BoundListener {
            gateway,
            valid: tls_problem.is_none() && protocol.is_some() && port != 0,
            kinds: report.kinds.clone(),
            hostname: listener.hostname.clone(),
            port,
            protocol: listener.protocol.clone(),
            agentgateway: is_agentgateway.then(|| AgentgatewayListener {
                gateway: parent.gateway_key.clone(),
                is_waypoint: parent.controller == GatewayController::AgentgatewayWaypoint,
                place,
            }),
        };
        (Some(bound), report)
    }

    /// Hosts of the server: those of the listener, in the namespaces from which routes are accepted.
    fn hosts(&self, cx: &Context, object: &ObjectKey, listener: &Listener) -> Vec<Text> {
        let host = if listener.hostname.is_empty() { "*" } else { listener.hostname.as_str() };
        match &listener.allowed_routes.namespaces {
            NamespaceSelection::All | NamespaceSelection::Selected(None) => vec![host.into()],
            NamespaceSelection::Unset | NamespaceSelection::Same => {
                vec![format!("{}/{host}", object.namespace).into()]
            }
            NamespaceSelection::None => vec![format!("~/{host}").into()],
            NamespaceSelection::Selected(Some(selector)) => {
                let all = cx.all(&self.namespaces).into_iter().filter(|(key, _)| key.cluster == object.cluster);
                let selected = all.filter(|(key, namespace)| selects(selector, &key.name, &namespace.labels));
                let hosts: Vec<Text> = selected.map(|(key, _)| format!("{}/{host}", key.name).into()).collect();
                if hosts.is_empty() { vec![format!("~/{host}").into()] } else { hosts }
            }
        }
    }
}

/// ListenerSets that may add listeners to a Gateway, the oldest first.
pub(super) fn eligible_sets(
    cx: &Context,
    sets: &IndexDep<ObjectKey, ObjectKey, ListenerSet>,
    namespaces: &Dep<ObjectKey, Namespace>,
    (key, gateway): (&ObjectKey, &Gateway),
) -> Vec<(ObjectKey, Arc<ListenerSet>)> {
    let mut sets = cx.by(sets, key);
    sets.retain(|(set, _)| allows_set(cx, namespaces, (key, gateway), set));
    sets.sort_by(|(a, x), (b, y)| {
        (x.meta.created, &a.namespace, &a.name).cmp(&(y.meta.created, &b.namespace, &b.name))
    });
    sets
}

/// Whether a Gateway lets a ListenerSet add listeners.
pub(super) fn allows_set(
    cx: &Context,
    namespaces: &Dep<ObjectKey, Namespace>,
    (key, gateway): (&ObjectKey, &Gateway),
    set: &ObjectKey,
) -> bool {
    match &gateway.allowed_listeners {
        NamespaceSelection::All => true,
        NamespaceSelection::Same => set.namespace == key.namespace,
        NamespaceSelection::Unset | NamespaceSelection::None => false,
        NamespaceSelection::Selected(selector) => selector.as_ref().is_some_and(|selector| {
            let name = ObjectKey::new(key.cluster.clone(), Text::default(), set.namespace.clone());
            let namespace = cx.get(namespaces, &name);
            namespace.is_some_and(|namespace| selects(selector, &set.namespace, &namespace.labels))
        }),
    }
}

fn selects(selector: &LabelSelector, name: &Text, labels: &Labels) -> bool {
    let mut labels = labels.clone();
    labels.insert(NAMESPACE_NAME.into(), name.clone());
    selector.matches(&labels)
}

/// The port of a listener: in a ListenerSet it may be absent, then it is the default of the protocol.
fn port_of(parent: &ListenerOwner<'_>, listener: &Listener) -> u16 {
    match (listener.port, listener.protocol.as_str()) {
        (0, "HTTP") if parent.key.is_set => 80,
        (0, "HTTPS") if parent.key.is_set => 443,
        (port, _) => port,
    }
}

/// The protocol of a listener; `None` if it is not served.
fn protocol(controller: GatewayController, written: &str, options: &GraphOptions) -> Option<Protocol> {
    match written {
        "HTTP" => Some(Protocol::Http),
        "HTTPS" => Some(Protocol::Https),
        "TLS" => Some(Protocol::Tls),
        "TCP" => Some(Protocol::Tcp),
        "UDP" => (controller == GatewayController::Router && options.gateway_api.experimental).then_some(Protocol::Udp),
        "HBONE" => {
            use GatewayController::{EastWest, Waypoint};
            let has_tunnels = controller.is_agentgateway() || matches!(controller, Waypoint | EastWest);
            has_tunnels.then_some(Protocol::Hbone)
        }
        _ => None,
    }
}

/// Kinds of routes that a listener accepts. `protocol` is `None` if it is not served.
fn kinds(controller: GatewayController, listener: &Listener, protocol: Option<Protocol>) -> Vec<GroupKind> {
    let terminates = listener.tls.as_ref().is_some_and(|tls| tls.mode == Some(ListenerTlsMode::Terminate));
    let suitable: &[&str] = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => &["HTTPRoute", "GRPCRoute"],
        "TCP" => &["TCPRoute"],
        "UDP" if protocol.is_some() => &["UDPRoute"],
        "TLS" if terminates => &["TLSRoute", "TCPRoute"],
        "TLS" => &["TLSRoute"],
        // The tunnel carries any protocol.
        "HBONE" if controller.is_agentgateway() => &["HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute"],
        _ => &[],
    };
    let allowed = &listener.allowed_routes.kinds;
    let suitable = suitable.iter().map(|kind| GroupKind { group: GROUP.into(), kind: (*kind).into() });
    suitable.filter(|kind| allowed.is_empty() || allowed.contains(kind)).collect()
}

/// Whether routers are deployed for a Gateway, or it names the Service of routers that are deployed manually.
pub(super) fn is_managed(gateway: &Gateway, options: &GraphOptions) -> bool {
    !options.gateway_api.manual_deployment
        || match gateway.addresses.as_slice() {
            [] => true,
            [only] => matches!(only.kind, AddressKind::Unset | AddressKind::Ip),
            _ => false,
        }
}

/// Name of the objects deployed for a Gateway, unless it sets another.
fn default_name(gateway: &Gateway, controller: GatewayController) -> Text {
    let name = &gateway.meta.name;
    if controller.has_name_suffix() { format!("{name}-{}", gateway.class).into() } else { name.clone() }
}

/// Name of the objects deployed for a Gateway, except its service account.
pub(super) fn deployed_name(gateway: &Gateway, controller: GatewayController) -> Text {
    annotated(gateway, label::GATEWAY_NAME_OVERRIDE).unwrap_or_else(|| default_name(gateway, controller))
}

/// Name of the service account deployed for a Gateway.
pub(super) fn deployed_account(gateway: &Gateway, controller: GatewayController) -> Text {
    annotated(gateway, label::GATEWAY_SERVICE_ACCOUNT).unwrap_or_else(|| default_name(gateway, controller))
}

/// The value of an annotation of a Gateway; an empty one counts as absent.
fn annotated(gateway: &Gateway, name: &str) -> Option<Text> {
    gateway.meta.annotations.get(name).filter(|value| !value.is_empty()).cloned()
}

/// Hosts of the Services of the routers that serve a Gateway.
pub(super) fn services(gateway: &Gateway, controller: GatewayController, options: &GraphOptions) -> Vec<Host> {
    let host = |name: &str| service_host(name, &gateway.meta.namespace, &options.domain);
    if is_managed(gateway, options) {
        return vec![host(&deployed_name(gateway, controller))];
    }
    let named = gateway.addresses.iter().filter(|it| matches!(it.kind, AddressKind::Unset | AddressKind::Hostname));
    named.map(|it| if it.value.contains('.') { Host::new(&it.value) } else { host(&it.value) }).collect()
}

/// The ServiceAccount of its routers; empty if it is unknown.
fn service_account(gateway: &Gateway, controller: GatewayController, options: &GraphOptions) -> Text {
    if !is_managed(gateway, options) {
        return Text::default();
    }
    deployed_account(gateway, controller)
}
