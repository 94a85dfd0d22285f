//! What is deployed for a Gateway (G04).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Gateway, Infrastructure};
use crate::{Labels, ObjectKey, StoredStatus, Text, Timestamp};

/// A kind of deployed object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum DeployedKind {
    /// The account of the proxies.
    ServiceAccount,
    /// The proxies.
    Deployment,
    /// Their Service.
    Service,
    /// Their number by load. Only an overlay leads to one.
    HorizontalPodAutoscaler,
    /// How many stay in service. Only an overlay leads to one.
    PodDisruptionBudget,
}

impl DeployedKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::ServiceAccount,
        Self::Deployment,
        Self::Service,
        Self::HorizontalPodAutoscaler,
        Self::PodDisruptionBudget,
    ];

    /// Its `apiVersion` and `kind`.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("v1", "ServiceAccount"),
            Self::Deployment => ("apps/v1", "Deployment"),
            Self::Service => ("v1", "Service"),
            Self::HorizontalPodAutoscaler => ("autoscaling/v2", "HorizontalPodAutoscaler"),
            Self::PodDisruptionBudget => ("policy/v1", "PodDisruptionBudget"),
        }
    }

    /// The key of its overlay in a ConfigMap.
    #[must_use]
    pub const fn overlay_key(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceAccount",
            Self::Deployment => "deployment",
            Self::Service => "service",
            Self::HorizontalPodAutoscaler => "horizontalPodAutoscaler",
            Self::PodDisruptionBudget => "podDisruptionBudget",
        }
    }
}

/// Keys of the data of a ConfigMap with overlays: one for each kind of deployed object, in the order of their names.
pub const OVERLAY_KEYS: [&str; 5] = [
    DeployedKind::Deployment.overlay_key(),
    DeployedKind::HorizontalPodAutoscaler.overlay_key(),
    DeployedKind::PodDisruptionBudget.overlay_key(),
    DeployedKind::Service.overlay_key(),
    DeployedKind::ServiceAccount.overlay_key(),
];

/// A ConfigMap with overlays of deployed objects: the parameters of Gateways, or the defaults of a class.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayParameters {
    /// The class whose defaults it contains (label `gateway.istio.io/defaults-for-class`); empty if none.
    pub defaults_for_class: Text,
    /// Creation time: of several ConfigMaps with the defaults of a class, the oldest is used.
    pub created: Timestamp,
    /// YAML texts by their key in `data`, which is one of [`OVERLAY_KEYS`].
    pub overlays: BTreeMap<Text, Text>,
    /// What is wrong with its data, each with the path of the field. A ConfigMap with a problem cannot be used.
    pub problems: Vec<Text>,
}

/// A port of the Service of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DeployedPort {
    /// Its name, unique in the Service.
    pub name: Text,
    /// The port.
    pub port: u16,
    /// Transport: `TCP` or `UDP`.
    pub transport: Text,
    /// `appProtocol`: the protocol of the listener in lower case.
    pub app_protocol: Text,
}

/// The data from which the templates of the injector's configuration render the objects of a Gateway (G04), except what that
/// configuration itself contains.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayDeployment {
    /// The Gateway, without its status.
    pub gateway: Gateway,
    /// The controller of its class, such as `istio.io/gateway-controller`.
    pub controller: Text,
    /// Name of the template.
    pub template: Text,
    /// Name of all objects but the service account.
    pub name: Text,
    /// Name of the service account.
    pub service_account: Text,
    /// Type of the Service.
    pub service_type: Text,
    /// Ports of the Service, each number once for a transport.
    pub ports: Vec<DeployedPort>,
    /// Labels of the objects.
    pub labels: Labels,
    /// Annotations of the objects.
    pub annotations: Labels,
    /// The proxies serve another network, or the services of one.
    pub is_east_west: bool,
    /// The proxies are in a network if nothing else says so: the one that the values of the installation name.
    pub takes_default_network: bool,
    /// Annotations of the namespace, by which OpenShift allocates user ids; others are left out.
    pub namespace_ids: BTreeMap<String, String>,
    /// The overlays of the objects, in the order in which they are applied, with their ConfigMaps.
    pub overlays: Vec<(ObjectKey, GatewayParameters)>,
    /// Why the objects cannot be rendered; empty if no reason is known.
    pub problem: Text,
}

impl GatewayDeployment {
    /// Metadata and spec of a Gateway, which templates read.
    #[must_use]
    pub fn without_status(gateway: &Gateway) -> Gateway {
        Gateway {
            status: StoredStatus { json: Text::default(), generation: 0, ..gateway.status.clone() },
            assigned_addresses: Vec::new(),
            infrastructure: Infrastructure::default(),
            ..gateway.clone()
        }
    }

    /// The value of the label by which deployed objects are known to be managed.
    #[must_use]
    pub fn controller_label(&self) -> String {
        self.controller.replace('/', "-")
    }
}
