//! Waypoints, and the waypoint through which a workload or service is reached (A05).

use std::net::IpAddr;

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::gateway_api::{AddressKind, Gateway, Listener, NamespaceSelection};
use sluice_model::{
    HBONE_PORT, HboneAddress, HboneDestination, Host, InboundBinding, Labels, Namespace, ObjectKey, ObjectMeta,
    ServiceKey, ServiceWaypoints, Text, Waypoint, WaypointClients, WaypointProblem, WaypointProblemKind, is_true,
    label,
};

use super::{AmbientInputs, ClusterNetworks, namespace_labels, namespace_of};
use crate::options::GraphOptions;

const USE_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
const CANARY: &str = "istio.io/use-waypoint-canary";
const CANARY_NAMESPACE: &str = "istio.io/use-waypoint-canary-namespace";
/// Annotation: share of the traffic for the other waypoint, in percent.
const CANARY_WEIGHT: &str = "istio.io/use-waypoint-canary-weight";
const FOR_INGRESS: &str = "istio.io/ingress-use-waypoint";
/// Its value for gateways without a waypoint: waypoints themselves, and east-west gateways.
const WITHOUT_WAYPOINT: [&str; 2] = [label::MANAGED_BY_MESH_CONTROLLER, label::MANAGED_BY_EAST_WEST_CONTROLLER];
/// Label of a Gateway or its class: the traffic that it processes.
const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
const SERVICES: &str = "service";
/// Annotation of a Gateway or its class: how node proxies connect to its instances.
const BINDING: &str = "ambient.istio.io/waypoint-inbound-binding";
/// Protocol of a listener that accepts the PROXY protocol.
const PROXY_PROTOCOL: &str = "istio.io/PROXY";
/// Name for "no waypoint".
const NONE: &str = "none";

/// Waypoints, and the labels of namespaces that refer to them.
#[derive(Clone)]
pub(super) struct Waypoints<'s> {
    all: Collection<'s, ObjectKey, Waypoint>,
    /// Those of the config cluster.
    local: Collection<'s, ObjectKey, Waypoint>,
    /// The labels and annotations of each namespace that concern waypoints, if it has any.
    declared: Collection<'s, ObjectKey, WaypointMarks>,
    namespaces: Collection<'s, ObjectKey, Namespace>,
}

/// Labels and annotations that concern waypoints.
pub(crate) type WaypointMarks = (Labels, Labels);

impl<'s> Waypoints<'s> {
    pub(super) fn new(
        inputs: &AmbientInputs<'_, 's>,
        gateways: &Collection<'s, ObjectKey, Gateway>,
        networks: &Collection<'s, (), ClusterNetworks>,
        options: &GraphOptions,
    ) -> Self {
        let all = derive_waypoints(inputs, gateways, networks, options);
        let cluster = options.cluster.clone();
        let local = all.filter("waypoints/local", move |key, _| key.cluster == cluster);
        let declared = inputs.objects.namespaces.filter_map("namespace_waypoints", |_, namespace| {
            let mut labels = namespace.labels.clone();
            labels.retain(|label, _| {
                [label::USE_WAYPOINT, USE_NAMESPACE, CANARY, CANARY_NAMESPACE, FOR_INGRESS].contains(&label.as_str())
            });
            let mut annotations = namespace.annotations.clone();
            annotations.retain(|name, _| *name == *CANARY_WEIGHT);
            (!labels.is_empty()).then_some((labels, annotations))
        });
        Self { all, local, declared, namespaces: inputs.objects.namespaces.clone() }
    }

    /// The waypoints of the config cluster.
    pub(super) fn local(&self) -> &Collection<'s, ObjectKey, Waypoint> {
        &self.local
    }
}

/// Waypoints: Gateways of the Gateway API with addresses, of any class that the config cluster has.
/// Key: the Gateway. From: `kubernetes_gateways`, `remote_gateways`, `gateway_classes`, `pods` (accounts of instances), `networks`.
/// Changes when: the Gateway does, its class, or the service accounts of its instances.
/// Size: such Gateways. Rejects: none.
fn derive_waypoints<'s>(
    inputs: &AmbientInputs<'_, 's>,
    gateways: &Collection<'s, ObjectKey, Gateway>,
    networks: &Collection<'s, (), ClusterNetworks>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, Waypoint> {
    let instances = inputs.objects.pods.index("waypoints/accounts-by-pod", |key, pod| {
        let gateway = pod.labels.get(label::GATEWAY_NAME).filter(|name| !name.is_empty());
        gateway.map(|name| ((ObjectKey { name: name.clone(), ..key.clone() }, pod.service_account.clone()), ()))
    });
    let accounts = instances
        .distinct("waypoints/account")
        .index("waypoints/accounts", |(gateway, account), ()| [(gateway.clone(), account.clone())]);
    let cluster = options.cluster.clone();
    gateways.derive("waypoints", |deps| {
        let (classes, accounts) = (deps.on(&inputs.objects.gateway_classes), deps.by(&accounts));
        let networks = deps.on(networks);
        move |cx, key, gateway| {
            if gateway.assigned_addresses.is_empty() {
                return None;
            }
            let class = cx.get(&classes, &ObjectKey::new(cluster.clone(), "", gateway.class.clone()));
            let class = class.as_deref().map(|class| &class.meta);
            let of_class = |class: &ObjectMeta| class.labels.get(WAYPOINT_FOR).cloned();
            let traffic = gateway.meta.labels.get(WAYPOINT_FOR).cloned().or_else(|| class.and_then(of_class));
            let traffic = traffic.unwrap_or_else(|| SERVICES.into());
            let word = gateway.meta.annotations.get(BINDING);
            let binding = word.or_else(|| class.and_then(|class| class.annotations.get(BINDING)));
            let binding = binding.and_then(|word| inbound_binding(word));
            let network = cx.get(&networks, &()).map(|networks| networks.of(&key.cluster).clone()).unwrap_or_default();
            let mut accounts: Vec<Text> =
                cx.by(&accounts, key).into_iter().map(|(_, account)| (*account).clone()).collect();
            accounts.sort();
            Some(Waypoint {
                key: key.clone(),
                address: address(key, gateway, network),
                binding,
                serves_services: *traffic == *SERVICES || *traffic == *"all",
                serves_workloads: *traffic == *"workload" || *traffic == *"all",
                clients: clients(gateway, binding),
                accounts,
            })
        }
    })
}

/// `NONE` or `PROXY`, optionally with a port.
fn inbound_binding(word: &str) -> Option<InboundBinding> {
    let (protocol, port) = word.split_once('/').unwrap_or((word, "0"));
    let proxy_protocol = match protocol {
        "NONE" => false,
        "PROXY" => true,
        _ => return None,
    };
    if port.contains('/') {
        return None;
    }
    Some(InboundBinding { proxy_protocol, port: port.parse().unwrap_or_default() })
}

/// Its address: the host name if it has one, because addresses change.
fn address(key: &ObjectKey, gateway: &Gateway, network: Text) -> Option<HboneAddress> {
    let all = || gateway.assigned_addresses.iter();
    let named = all().find(|address| address.kind == AddressKind::Hostname).map(|address| {
        let host = Host::new(&address.value);
        HboneDestination::Service(ServiceKey { namespace: key.namespace.clone(), host })
    });
    let ips = || all().filter(|address| address.kind == AddressKind::Ip);
    let by_ip = || ips().find_map(|address| address.value.parse::<IpAddr>().ok());
    let destination = named.or_else(|| by_ip().map(|address| HboneDestination::Address { network, address }))?;
    Some(HboneAddress { destination, port: u32::from(HBONE_PORT) })
}

/// The namespaces that may use it: those that its listener allows, else those of the HBONE listener.
fn clients(gateway: &Gateway, binding: Option<InboundBinding>) -> WaypointClients {
    let find = |fits: &dyn Fn(&Listener) -> bool| gateway.listeners.iter().find(|listener| fits(listener));
    let bound = match binding {
        Some(InboundBinding { port, .. }) if port > 0 => find(&|listener| u32::from(listener.port) == port),
        Some(InboundBinding { proxy_protocol: true, .. }) => find(&|listener| *listener.protocol == *PROXY_PROTOCOL),
        _ => None,
    };
    let hbone = || find(&|listener| *listener.protocol == *"HBONE" && listener.port == HBONE_PORT);
    let Some(listener) = bound.or_else(hbone) else { return WaypointClients::Same };
    match &listener.allowed_routes.namespaces {
        NamespaceSelection::All => WaypointClients::All,
        // An absent selector selects nothing.
        NamespaceSelection::Selected(Some(selector)) => WaypointClients::Selected(selector.clone()),
        NamespaceSelection::Selected(None) => WaypointClients::NoNamespace,
        NamespaceSelection::Unset | NamespaceSelection::None | NamespaceSelection::Same => WaypointClients::Same,
    }
}

/// Looks up waypoints, inside a `derive`.
pub(super) struct WaypointReads {
    all: Dep<ObjectKey, Waypoint>,
    declared: Dep<ObjectKey, WaypointMarks>,
    namespaces: Dep<ObjectKey, Namespace>,
}

/// The value of a label that refers to a waypoint.
enum WaypointLabel {
    /// The label is absent.
    Absent,
    /// No waypoint.
    None,
    /// This waypoint.
    Named(ObjectKey),
}

/// How a workload is reached.
#[derive(Debug, Default)]
pub(super) struct WorkloadWaypoint {
    /// Through this waypoint.
    pub(super) waypoint: Option<std::sync::Arc<Waypoint>>,
    /// It is an instance of a waypoint, and accepts connections in this form.
    pub(super) binding: Option<InboundBinding>,
    /// Why the waypoint that it refers to is not used.
    pub(super) problem: Option<WaypointProblem>,
}

impl WaypointReads {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, waypoints: &Waypoints<'s>) -> Self {
        Self {
            all: deps.on(&waypoints.all),
            declared: deps.on(&waypoints.declared),
            namespaces: deps.on(&waypoints.namespaces),
        }
    }

    /// The waypoint of that name.
    pub(super) fn get(&self, cx: &Context, key: &ObjectKey) -> Option<std::sync::Arc<Waypoint>> {
        cx.get(&self.all, key)
    }

    /// How the workload with these labels is reached; `key` is the declaring object.
    pub(super) fn of_workload(&self, cx: &Context, key: &ObjectKey, labels: &Labels) -> WorkloadWaypoint {
        let gateway = labels.get(label::GATEWAY_NAME).filter(|name| !name.is_empty());
        let instance = gateway.map(|name| ObjectKey { name: name.clone(), ..key.clone() });
        if let Some(own) = instance.and_then(|instance| cx.get(&self.all, &instance)) {
            return WorkloadWaypoint { binding: own.binding, ..WorkloadWaypoint::default() };
        }
        let problem = |problem| WorkloadWaypoint { problem, ..WorkloadWaypoint::default() };
        match self.target(cx, key, labels) {
            Ok(waypoint) if waypoint.as_ref().is_none_or(|waypoint| waypoint.serves_workloads) => {
                WorkloadWaypoint { waypoint, ..WorkloadWaypoint::default() }
            }
            // A waypoint of the namespace may be for services only.
            Ok(waypoint) => problem(
                waypoint
                    .filter(|_| labels.contains_key(label::USE_WAYPOINT))
                    .map(|waypoint| problem_of(&waypoint.key, WaypointProblemKind::NoWorkloadTraffic)),
            ),
            Err(found) => problem(Some(found)),
        }
    }

    /// The waypoints of a service; `key` is the declaring object, with these labels and annotations. A service that is
    /// visible only in its namespace has none elsewhere.
    pub(super) fn of_service(
        &self,
        cx: &Context,
        key: &ObjectKey,
        labels: &Labels,
        annotations: &Labels,
        private: bool,
    ) -> ServiceWaypoints {
        if labels.get(label::GATEWAY_MANAGED).is_some_and(|by| WITHOUT_WAYPOINT.contains(&by.as_str())) {
            return ServiceWaypoints::default();
        }
        let failed = |problem| ServiceWaypoints { problem: Some(problem), ..ServiceWaypoints::default() };
        let waypoint = match self.target(cx, key, labels) {
            Ok(Some(waypoint)) => waypoint,
            Ok(None) => return ServiceWaypoints::default(),
            Err(problem) => return failed(problem),
        };
        if !waypoint.serves_services {
            return failed(problem_of(&waypoint.key, WaypointProblemKind::NoServiceTraffic));
        }
        if private && waypoint.key.namespace != key.namespace {
            return failed(problem_of(&waypoint.key, WaypointProblemKind::OtherNamespace));
        }
        let of_namespace = cx.get(&self.declared, &namespace_of(key));
        let namespace_labels = of_namespace.as_ref().map(|declared| &declared.0);
        let word = labels.get(FOR_INGRESS).or_else(|| namespace_labels.and_then(|labels| labels.get(FOR_INGRESS)));
        let shares = self.weighted(cx, key, (labels, annotations), of_namespace.as_deref(), &waypoint);
        let (weighted, problem) = match shares {
            Ok(weighted) => (weighted, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        ServiceWaypoints {
            waypoint: Some(waypoint.key.clone()),
            address: waypoint.address.clone(),
            for_ingress: word.is_some_and(|word| is_true(word)),
            has_ingress_label: word.is_some(),
            weighted,
            problem,
        }
    }

    /// The shares of two waypoints, if some traffic goes to the second one. If that one cannot be used, all traffic goes to
    /// the first.
    fn weighted(
        &self,
        cx: &Context,
        key: &ObjectKey,
        (labels, annotations): (&Labels, &Labels),
        of_namespace: Option<&WaypointMarks>,
        primary: &Waypoint,
    ) -> Result<Vec<(HboneAddress, u32)>, WaypointProblem> {
        let own = waypoint_label(labels, key, label::USE_WAYPOINT, USE_NAMESPACE);
        let inherited = of_namespace.filter(|_| !matches!(own, WaypointLabel::Named(_)));
        let Some((named, share)) = second_waypoint(key, (labels, annotations), inherited) else {
            return Ok(Vec::new());
        };
        let problem = |kind| Err(problem_of(&named, kind));
        if named == primary.key {
            return problem(WaypointProblemKind::SameAsPrimary);
        }
        let Some(share) = share else {
            return problem(WaypointProblemKind::InvalidShare);
        };
        let canary = self.allowed(cx, &named, key)?;
        if !canary.serves_services {
            return problem(WaypointProblemKind::NoServiceTraffic);
        }
        Ok(match (&canary.address, &primary.address) {
            (Some(canary), Some(address)) => vec![(address.clone(), 100 - share), (canary.clone(), share)],
            _ => Vec::new(),
        })
    }

    /// The waypoint that an object refers to or, if it refers to none, that of its namespace. A reference to an absent
    /// or forbidden waypoint is not replaced by another.
    fn target(
        &self,
        cx: &Context,
        key: &ObjectKey,
        labels: &Labels,
    ) -> Result<Option<std::sync::Arc<Waypoint>>, WaypointProblem> {
        let own = waypoint_label(labels, key, label::USE_WAYPOINT, USE_NAMESPACE);
        let reads_namespace = matches!(own, WaypointLabel::Absent);
        let of_namespace = reads_namespace.then(|| cx.get(&self.declared, &namespace_of(key))).flatten();
        let Some((named, _)) = first_waypoint(own, key, of_namespace.as_deref()) else { return Ok(None) };
        self.allowed(cx, &named, key).map(Some)
    }

    /// The waypoint of that name, if it is ready and allows the namespace of the object `key`.
    fn allowed(
        &self,
        cx: &Context,
        named: &ObjectKey,
        key: &ObjectKey,
    ) -> Result<std::sync::Arc<Waypoint>, WaypointProblem> {
        let found = cx.get(&self.all, named).ok_or_else(|| problem_of(named, WaypointProblemKind::NotReady))?;
        let selects = matches!(found.clients, WaypointClients::Selected(_));
        let labels = if selects { namespace_labels(cx, &self.namespaces, key) } else { Labels::new() };
        if found.allows(&key.namespace, &labels) {
            return Ok(found);
        }
        Err(problem_of(named, WaypointProblemKind::AttachmentDenied))
    }
}

/// The waypoints that an object names by its labels and annotations, or by those of its namespace: the first one, and the one that gets
/// a share of the traffic. Whether they exist and may be used is not checked.
pub(crate) fn named_waypoints(
    key: &ObjectKey,
    (labels, annotations): &WaypointMarks,
    of_namespace: Option<&WaypointMarks>,
) -> Vec<ObjectKey> {
    let own = waypoint_label(labels, key, label::USE_WAYPOINT, USE_NAMESPACE);
    let Some((first, is_inherited)) = first_waypoint(own, key, of_namespace) else { return Vec::new() };
    let second = second_waypoint(key, (labels, annotations), of_namespace.filter(|_| is_inherited));
    let second = second.filter(|(named, share)| share.is_some() && *named != first);
    std::iter::once(first).chain(second.map(|(named, _)| named)).collect()
}

/// The waypoint that the object `key` refers to by its own label or, if it has none, by that of its namespace; and whether by that of
/// its namespace.
fn first_waypoint(
    own: WaypointLabel,
    key: &ObjectKey,
    of_namespace: Option<&WaypointMarks>,
) -> Option<(ObjectKey, bool)> {
    match own {
        WaypointLabel::None => None,
        WaypointLabel::Named(named) => Some((named, false)),
        WaypointLabel::Absent => {
            let (labels, _) = of_namespace?;
            match waypoint_label(labels, key, label::USE_WAYPOINT, USE_NAMESPACE) {
                WaypointLabel::Named(named) => Some((named, true)),
                WaypointLabel::Absent | WaypointLabel::None => None,
            }
        }
    }
}

/// The waypoint for a share of the traffic, and the share, see [`canary_share`]. `inherited` are the labels and annotations of the
/// namespace, if the first waypoint is that of the namespace.
fn second_waypoint(
    key: &ObjectKey,
    (labels, annotations): (&Labels, &Labels),
    inherited: Option<&WaypointMarks>,
) -> Option<(ObjectKey, Option<u32>)> {
    let declaring = inherited.filter(|(of, _)| !labels.contains_key(CANARY) && of.contains_key(CANARY));
    let declaring = declaring.map_or(labels, |(of, _)| of);
    let WaypointLabel::Named(named) = waypoint_label(declaring, key, CANARY, CANARY_NAMESPACE) else { return None };
    let share = annotations.get(CANARY_WEIGHT).or_else(|| inherited.and_then(|(_, of)| of.get(CANARY_WEIGHT)));
    Some((named, canary_share(share)))
}

/// The share of the traffic for a second waypoint in percent, 0 if none is declared; `None` if it is invalid.
fn canary_share(declared: Option<&Text>) -> Option<u32> {
    declared.map_or(Some(0), |text| text.parse::<u32>().ok().filter(|share| *share <= 100))
}

fn problem_of(waypoint: &ObjectKey, kind: WaypointProblemKind) -> WaypointProblem {
    WaypointProblem { waypoint: format!("{}/{}", waypoint.namespace, waypoint.name).into(), kind }
}

fn waypoint_label(labels: &Labels, key: &ObjectKey, name: &str, namespace: &str) -> WaypointLabel {
    match labels.get(name) {
        None => WaypointLabel::Absent,
        // An empty name is that of a waypoint that is never ready. For the second waypoint it means none.
        Some(value) if *value == *NONE || (value.is_empty() && name == CANARY) => WaypointLabel::None,
        Some(value) => {
            let namespace: &Text = labels.get(namespace).unwrap_or(&key.namespace);
            WaypointLabel::Named(ObjectKey::new(key.cluster.clone(), namespace.clone(), value.clone()))
        }
    }
}
