//! The objects that the graph of the mesh is made of, with links to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_engine::Engine;
use sluice_graph::Inputs;
use sluice_model::{Kind, ObjectKey, RouteSemantics, Text, VirtualService};

use crate::answers::object_text;
use crate::console::collections::record_path;

/// VirtualServices as declared, and those that routes of the Gateway API and Ingresses are read as.
const ROUTES: &str = "virtual_services/all";
/// Routes of the Gateway API by the parent and host that they are attached to.
const PLACED_ROUTES: &str = "gateway_api/http";

/// An object with a link to its record.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct ObjectLink {
    /// `KIND/NAMESPACE/NAME`.
    pub(super) text: String,
    pub(super) address: String,
}

impl ObjectLink {
    /// The object of a kind that is read.
    pub(super) fn new(kind: Kind, key: &ObjectKey) -> Self {
        let text = object_text(&kind.name(), &key.namespace, &key.name);
        Self { text, address: record_path(Inputs::collection(kind).unwrap_or_default(), &json(key)) }
    }
}

/// JSON of a key.
pub(super) fn json(key: &impl Serialize) -> String {
    serde_json::to_string(key).unwrap_or_default()
}

/// Routes in the form of a VirtualService, and the objects that declare them.
pub(super) struct DeclaredRoutes {
    pub(super) key: ObjectKey,
    pub(super) objects: BTreeSet<ObjectLink>,
    pub(super) routes: VirtualService,
}

/// All routes of the mesh.
pub(super) fn declared_routes(engine: &Engine) -> Vec<DeclaredRoutes> {
    let placed = placed_routes(engine);
    let Some(dump) = engine.dump(ROUTES) else { return Vec::new() };
    let declared = |(key, routes): (&ObjectKey, &VirtualService)| DeclaredRoutes {
        key: key.clone(),
        objects: match routes.semantics {
            RouteSemantics::Istio => [ObjectLink::new(Kind::VirtualService, key)].into(),
            RouteSemantics::GatewayApi => {
                placed.get(&routes.name).cloned().unwrap_or_else(|| layer_4_route(key, routes))
            }
            RouteSemantics::Ingress => {
                let host = routes.hosts.first().map(ToString::to_string).unwrap_or_default();
                [ObjectLink { text: format!("Ingresses of {host}"), address: record_path(ROUTES, &json(key)) }].into()
            }
        },
        routes: routes.clone(),
    };
    dump.typed::<ObjectKey, VirtualService>().map(declared).collect()
}

/// The HTTPRoutes and GRPCRoutes of each VirtualService that they are read as, by its name.
fn placed_routes(engine: &Engine) -> BTreeMap<Text, BTreeSet<ObjectLink>> {
    let mut by_name: BTreeMap<Text, BTreeSet<ObjectLink>> = BTreeMap::new();
    for (key, value) in engine.dump(PLACED_ROUTES).iter().flat_map(|dump| dump.records()) {
        let place = value["place"].as_str().unwrap_or_default().replace('/', "~");
        if let (Some(kind), Some(route)) = (read::<Kind>(&key["kind"]), read::<ObjectKey>(&key["route"])) {
            by_name.entry(place.into()).or_default().insert(ObjectLink::new(kind, &route));
        }
    }
    by_name
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// The TCPRoute, TLSRoute or UDPRoute that a VirtualService is read from: its name begins with that of the route and the kind.
fn layer_4_route(key: &ObjectKey, routes: &VirtualService) -> BTreeSet<ObjectLink> {
    let mut parts = routes.name.split('~');
    let (name, sort) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kind = match sort {
        "tls" => Kind::TLSRoute,
        "udp" => Kind::UDPRoute,
        _ => Kind::TCPRoute,
    };
    let route = ObjectKey { namespace: routes.namespace.clone(), name: name.into(), ..key.clone() };
    [ObjectLink::new(kind, &route)].into()
}
