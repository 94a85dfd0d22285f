//! GatewayClasses: the Gateways of our controllers (G01).

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep};
use sluice_model::gateway_api::{
    AGENTGATEWAY_CLASS, AGENTGATEWAY_WAYPOINT_CLASS, EAST_WEST_CLASS, GatewayClass, REMOTE_CLASS, WAYPOINT_CLASS,
};
use sluice_model::{Kind, ObjectKey, Text};

use crate::inputs::{ObjectCollections, ServedKind};
use crate::options::{GatewayApiOptions, GraphOptions};

/// Which proxies serve the Gateways of a class.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GatewayController {
    /// Routers.
    Router,
    /// Gateways of other networks: they are only read.
    Remote,
    /// Waypoints.
    Waypoint,
    /// East-west waypoints.
    EastWest,
    /// Agentgateways.
    Agentgateway,
    /// Agentgateways that are waypoints.
    AgentgatewayWaypoint,
}

impl GatewayController {
    /// Whether the names of deployed objects end with the class.
    #[must_use]
    pub(crate) fn has_name_suffix(self) -> bool {
        matches!(self, Self::Router | Self::Remote)
    }

    /// Whether its proxies are agentgateways.
    #[must_use]
    pub(crate) fn is_agentgateway(self) -> bool {
        matches!(self, Self::Agentgateway | Self::AgentgatewayWaypoint)
    }

    /// Whether ListenerSets may add listeners to its Gateways.
    #[must_use]
    pub(crate) fn takes_listener_sets(self) -> bool {
        matches!(self, Self::Router | Self::Agentgateway)
    }
}

/// A GatewayClass that the control plane creates.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MissingGatewayClass {
    /// Its controller.
    pub controller: Text,
    /// Its description.
    pub description: Text,
}

/// A class that needs no object, and its controller.
struct KnownClass<'a> {
    name: &'a str,
    controller_name: &'a str,
    controller: GatewayController,
}

/// Name of the controller of waypoints.
pub(crate) const MESH_CONTROLLER: &str = "istio.io/mesh-controller";
/// Name of the controller of agentgateways.
pub(crate) const AGENTGATEWAY_CONTROLLER: &str = "istio.io/agentgateway-controller";
/// Name of the controller of agentgateways that are waypoints.
pub(crate) const AGENTGATEWAY_WAYPOINT_CONTROLLER: &str = "istio.io/agentgateway-waypoint-controller";

impl GatewayController {
    /// The description of the class that is created for the controller.
    fn description(self) -> &'static str {
        match self {
            Self::Router => "The default Istio GatewayClass",
            Self::Remote => "Remote to this cluster. Does not deploy or affect configuration.",
            Self::Waypoint => "The default Istio waypoint GatewayClass",
            Self::EastWest => "The default GatewayClass for Istio East West Gateways",
            Self::Agentgateway => "Istio with Agentgateway",
            Self::AgentgatewayWaypoint => "Istio with Agentgateway Waypoint",
        }
    }
}

impl GatewayApiOptions {
    /// The classes that need no object.
    fn known(&self) -> impl Iterator<Item = KnownClass<'_>> {
        let all = [
            (self.default_class.as_str(), GatewayController::Router, true),
            (REMOTE_CLASS, GatewayController::Remote, self.remote),
            (WAYPOINT_CLASS, GatewayController::Waypoint, self.waypoints),
            (EAST_WEST_CLASS, GatewayController::EastWest, self.east_west),
            (AGENTGATEWAY_CLASS, GatewayController::Agentgateway, self.agentgateway),
            (AGENTGATEWAY_WAYPOINT_CLASS, GatewayController::AgentgatewayWaypoint, self.agentgateway && self.waypoints),
        ];
        let enabled = all.into_iter().filter(|(.., enabled)| *enabled);
        enabled.map(|(name, controller, _)| KnownClass {
            name,
            controller_name: self.controller_name(controller),
            controller,
        })
    }

    /// The name of a controller, as GatewayClasses have it.
    #[must_use]
    pub(super) fn controller_name(&self, controller: GatewayController) -> &str {
        match controller {
            GatewayController::Router => &self.controller,
            GatewayController::Remote => "istio.io/unmanaged-gateway",
            GatewayController::Waypoint => MESH_CONTROLLER,
            GatewayController::EastWest => "istio.io/eastwest-controller",
            GatewayController::Agentgateway => AGENTGATEWAY_CONTROLLER,
            GatewayController::AgentgatewayWaypoint => AGENTGATEWAY_WAYPOINT_CONTROLLER,
        }
    }

    /// The controller of that name, if it is one of ours.
    #[must_use]
    pub(crate) fn controller_named(&self, name: &str) -> Option<GatewayController> {
        self.known().find(|known| known.controller_name == name).map(|known| known.controller)
    }

    /// The controller of a class, with the object of the class if there is one; `None` if it is not ours.
    #[must_use]
    pub(crate) fn controller_of(&self, class: &str, object: Option<&GatewayClass>) -> Option<GatewayController> {
        let by_object = object.and_then(|object| self.controller_named(&object.controller));
        by_object.or_else(|| self.known().find(|known| known.name == class).map(|known| known.controller))
    }
}

/// The controller of a Gateway's class.
pub(super) fn find_controller(
    cx: &Context,
    classes: &Dep<ObjectKey, GatewayClass>,
    cluster: &Text,
    class: &Text,
    options: &GatewayApiOptions,
) -> Option<GatewayController> {
    let object = cx.get(classes, &ObjectKey::new(cluster.clone(), Text::default(), class.clone()));
    options.controller_of(class, object.as_deref())
}

/// GatewayClasses that the control plane creates: those of its controllers that do not exist (G01). Existing ones are left as
/// they are.
/// Key: the class, without a namespace. From: `served_kinds`, `gateway_classes`. Changes when: a class is created or deleted, or
/// the kind is defined. Size: none once all exist. Rejects: none.
pub(crate) fn derive_missing_classes<'s>(
    served: &Collection<'s, ServedKind, ()>,
    objects: &ObjectCollections<'s>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, MissingGatewayClass> {
    let (cluster, options) = (options.cluster.clone(), options.gateway_api.clone());
    served.derive_many("missing_gateway_classes", |deps| {
        let classes = deps.on(&objects.gateway_classes);
        move |cx, served, ()| {
            if !options.creates_classes || served.kind != Kind::GatewayClass || served.cluster != cluster {
                return Vec::new();
            }
            let missing = |known: KnownClass<'_>| {
                let key = ObjectKey::new(cluster.clone(), "", known.name);
                let class = MissingGatewayClass {
                    controller: known.controller_name.into(),
                    description: known.controller.description().into(),
                };
                cx.get(&classes, &key).is_none().then_some((key, class))
            };
            options.known().filter_map(missing).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_ours_by_its_controller_or_by_its_name() {
        let options = GatewayApiOptions::default();
        let class = |controller: &str| GatewayClass { controller: controller.into(), ..GatewayClass::default() };
        assert_eq!(options.controller_of("istio", None), Some(GatewayController::Router));
        assert_eq!(options.controller_of("mine", None), None);
        let mine = class("istio.io/gateway-controller");
        assert_eq!(options.controller_of("mine", Some(&mine)), Some(GatewayController::Router));
        // As in the reference, one of our class names stays ours.
        assert_eq!(options.controller_of("istio", Some(&class("other"))), Some(GatewayController::Router));
        assert_eq!(options.controller_of("istio-waypoint", None), None, "without ambient mode");
        assert_eq!(options.controller_of("istio-agentgateway", None), None, "not enabled");
        let enabled = GatewayApiOptions { agentgateway: true, ..options.clone() };
        assert_eq!(enabled.controller_of("istio-agentgateway", None), Some(GatewayController::Agentgateway));
        assert_eq!(enabled.controller_of("istio-agentgateway-waypoint", None), None, "without ambient mode");
        let both = GatewayApiOptions { waypoints: true, ..enabled };
        let of_waypoints = both.controller_of("istio-agentgateway-waypoint", None);
        assert_eq!(of_waypoints, Some(GatewayController::AgentgatewayWaypoint));
        let ambient = GatewayApiOptions { waypoints: true, ..options };
        assert_eq!(ambient.controller_of("istio-waypoint", None), Some(GatewayController::Waypoint));
    }
}
