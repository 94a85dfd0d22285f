//! GatewayClasses: the Gateways of our controllers (G01).

use sluice_engine::{Context, Dep};
use sluice_model::gateway_api::{GatewayClass, REMOTE_CLASS};
use sluice_model::{ObjectKey, Text};

use crate::options::GatewayApiOptions;

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
}

impl GatewayController {
    /// Whether the names of deployed objects end with the class.
    #[must_use]
    pub(crate) fn has_name_suffix(self) -> bool {
        matches!(self, Self::Router | Self::Remote)
    }

    /// Whether ListenerSets may add listeners to its Gateways.
    #[must_use]
    pub(crate) fn takes_listener_sets(self) -> bool {
        self == Self::Router
    }
}

impl GatewayApiOptions {
    /// The classes that need no object, with the names of their controllers.
    fn known(&self) -> [(&str, &str, GatewayController, bool); 4] {
        [
            (&self.default_class, &self.controller, GatewayController::Router, true),
            (REMOTE_CLASS, "istio.io/unmanaged-gateway", GatewayController::Remote, self.remote),
            ("istio-waypoint", "istio.io/mesh-controller", GatewayController::Waypoint, self.waypoints),
            ("istio-east-west", "istio.io/eastwest-controller", GatewayController::EastWest, self.east_west),
        ]
    }

    /// The controller of a class, with the object of the class if there is one; `None` if it is not ours.
    #[must_use]
    pub(crate) fn controller_of(&self, class: &str, object: Option<&GatewayClass>) -> Option<GatewayController> {
        let find = |matches: &dyn Fn(&str, &str) -> bool| {
            let known = self.known().into_iter().filter(|(.., enabled)| *enabled);
            known.into_iter().find(|(class, controller, ..)| matches(class, controller)).map(|(_, _, found, _)| found)
        };
        let by_object = object.and_then(|object| find(&|_, controller| *controller == *object.controller));
        by_object.or_else(|| find(&|name, _| name == class))
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
        let ambient = GatewayApiOptions { waypoints: true, ..options };
        assert_eq!(ambient.controller_of("istio-waypoint", None), Some(GatewayController::Waypoint));
    }
}
