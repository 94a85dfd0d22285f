//! Through which waypoint something is reached (A05).

use sluice_engine::{Collection, Context, Dep, Deps, Graph};
use sluice_model::{
    GATEWAY_NAME_LABEL, InboundBinding, Labels, Namespace, ObjectKey, ServiceWaypoints, Text, Waypoint, is_true,
};

use super::{AmbientInputs, namespace_labels, namespace_of};

const USE: &str = "istio.io/use-waypoint";
const USE_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
const CANARY: &str = "istio.io/use-waypoint-canary";
const CANARY_NAMESPACE: &str = "istio.io/use-waypoint-canary-namespace";
/// Annotation: share of the traffic for the other waypoint, in percent.
const CANARY_WEIGHT: &str = "istio.io/use-waypoint-canary-weight";
const FOR_INGRESS: &str = "istio.io/ingress-use-waypoint";
/// Label of what a controller made for a Gateway.
const MANAGED: &str = "gateway.istio.io/managed";
/// What it says of gateways that have no waypoint: waypoints themselves, and those between networks.
const WITHOUT_WAYPOINT: [&str; 2] = ["istio.io-mesh-controller", "istio.io-eastwest-controller"];
/// Name that stands for no waypoint.
const NONE: &str = "none";

/// Waypoints, and what namespaces say about them.
#[derive(Clone)]
pub(super) struct Waypoints<'s> {
    all: Collection<'s, ObjectKey, Waypoint>,
    /// Of each namespace that says anything: the labels and annotations that concern waypoints.
    declared: Collection<'s, ObjectKey, Declared>,
    namespaces: Collection<'s, ObjectKey, Namespace>,
}

/// Labels and annotations that concern waypoints.
type Declared = (Labels, Labels);

impl<'s> Waypoints<'s> {
    pub(super) fn new(graph: &Graph<'s>, inputs: &AmbientInputs<'_, 's>) -> Self {
        let all = graph.fixed("waypoints", []);
        let declared = inputs.objects.namespaces.filter_map("namespace_waypoints", |_, namespace| {
            let mut labels = namespace.labels.clone();
            labels.retain(|label, _| {
                [USE, USE_NAMESPACE, CANARY, CANARY_NAMESPACE, FOR_INGRESS].contains(&label.as_str())
            });
            let mut annotations = namespace.annotations.clone();
            annotations.retain(|name, _| *name == *CANARY_WEIGHT);
            (!labels.is_empty()).then_some((labels, annotations))
        });
        Self { all, declared, namespaces: inputs.objects.namespaces.clone() }
    }

    /// Every waypoint.
    pub(super) fn all(&self) -> &Collection<'s, ObjectKey, Waypoint> {
        &self.all
    }
}

/// Looks waypoints up, inside a `derive`.
pub(super) struct WaypointReads {
    all: Dep<ObjectKey, Waypoint>,
    declared: Dep<ObjectKey, Declared>,
    namespaces: Dep<ObjectKey, Namespace>,
}

/// What a label says.
enum Wish {
    /// Nothing.
    Unsaid,
    /// No waypoint.
    None,
    /// This one.
    Named(ObjectKey),
}

/// How a workload is reached.
#[derive(Debug, Default)]
pub(super) struct WorkloadWaypoint {
    /// Through this one.
    pub(super) waypoint: Option<std::sync::Arc<Waypoint>>,
    /// It is an instance of one, and is handed connections like this.
    pub(super) binding: Option<InboundBinding>,
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
        let gateway = labels.get(GATEWAY_NAME_LABEL).filter(|name| !name.is_empty());
        let instance = gateway.map(|name| ObjectKey { name: name.clone(), ..key.clone() });
        if let Some(own) = instance.and_then(|instance| cx.get(&self.all, &instance)) {
            return WorkloadWaypoint { waypoint: None, binding: own.binding };
        }
        let waypoint = self.target(cx, key, labels).filter(|waypoint| waypoint.serves_workloads);
        WorkloadWaypoint { waypoint, binding: None }
    }

    /// The waypoints of a service; `key` is the declaring object, with these labels and annotations. A service that only
    /// its namespace may know has none elsewhere.
    pub(super) fn of_service(
        &self,
        cx: &Context,
        key: &ObjectKey,
        labels: &Labels,
        annotations: &Labels,
        private: bool,
    ) -> ServiceWaypoints {
        if labels.get(MANAGED).is_some_and(|by| WITHOUT_WAYPOINT.contains(&by.as_str())) {
            return ServiceWaypoints::default();
        }
        let near = |waypoint: &Waypoint| !private || waypoint.key.namespace == key.namespace;
        let found = self.target(cx, key, labels).filter(|waypoint| waypoint.serves_services && near(waypoint));
        let Some(waypoint) = found else { return ServiceWaypoints::default() };
        let of_namespace = cx.get(&self.declared, &namespace_of(key));
        let namespace_labels = of_namespace.as_ref().map(|declared| &declared.0);
        let word = labels.get(FOR_INGRESS).or_else(|| namespace_labels.and_then(|labels| labels.get(FOR_INGRESS)));
        ServiceWaypoints {
            waypoint: Some(waypoint.key.clone()),
            address: waypoint.address.clone(),
            for_ingress: word.is_some_and(|word| is_true(word)),
            weighted: self.weighted(cx, key, (labels, annotations), of_namespace.as_deref(), &waypoint),
        }
    }

    /// The shares of two waypoints, if some of the traffic goes to another. What of it is wrong leaves all with the first.
    fn weighted(
        &self,
        cx: &Context,
        key: &ObjectKey,
        (labels, annotations): (&Labels, &Labels),
        of_namespace: Option<&Declared>,
        primary: &Waypoint,
    ) -> Vec<(sluice_model::HboneAddress, u32)> {
        // The namespace's word counts only where its waypoint does.
        let inherited = of_namespace.filter(|_| !matches!(wish(labels, key, USE, USE_NAMESPACE), Wish::Named(_)));
        let declaring = match inherited {
            Some((of_namespace, _)) if !labels.contains_key(CANARY) && of_namespace.contains_key(CANARY) => {
                of_namespace
            }
            _ => labels,
        };
        let Wish::Named(named) = wish(declaring, key, CANARY, CANARY_NAMESPACE) else { return Vec::new() };
        let share = annotations.get(CANARY_WEIGHT).or_else(|| inherited.and_then(|(_, of)| of.get(CANARY_WEIGHT)));
        let share = share.map_or(Some(0), |text| text.parse::<u32>().ok().filter(|share| *share <= 100));
        let canary = cx.get(&self.all, &named).filter(|canary| self.allows(cx, canary, key) && canary.serves_services);
        match (share, canary, &primary.address) {
            (Some(share), Some(canary), Some(address)) if canary.key != primary.key => {
                let other = canary.address.iter().map(|other| (other.clone(), share));
                [(address.clone(), 100 - share)].into_iter().chain(other).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The waypoint that an object names or, if it names none, its namespace; one that is not there or does not let it
    /// use it is no reason to take another.
    fn target(&self, cx: &Context, key: &ObjectKey, labels: &Labels) -> Option<std::sync::Arc<Waypoint>> {
        let named = match wish(labels, key, USE, USE_NAMESPACE) {
            Wish::None => return None,
            Wish::Named(named) => named,
            Wish::Unsaid => {
                let declared = cx.get(&self.declared, &namespace_of(key))?;
                let Wish::Named(named) = wish(&declared.0, key, USE, USE_NAMESPACE) else { return None };
                named
            }
        };
        cx.get(&self.all, &named).filter(|waypoint| self.allows(cx, waypoint, key))
    }

    fn allows(&self, cx: &Context, waypoint: &Waypoint, key: &ObjectKey) -> bool {
        let selects = matches!(waypoint.clients, sluice_model::WaypointClients::Selected(_));
        let labels = if selects { namespace_labels(cx, &self.namespaces, key) } else { Labels::new() };
        waypoint.allows(&key.namespace, &labels)
    }
}

fn wish(labels: &Labels, key: &ObjectKey, name: &str, namespace: &str) -> Wish {
    match labels.get(name) {
        None => Wish::Unsaid,
        Some(value) if value.is_empty() || *value == *NONE => Wish::None,
        Some(value) => {
            let namespace: &Text = labels.get(namespace).unwrap_or(&key.namespace);
            Wish::Named(ObjectKey::new(key.cluster.clone(), namespace.clone(), value.clone()))
        }
    }
}
