//! Names of labels and annotations that several modules read.

use crate::{Labels, Text};

/// Label of nodes and endpoints: the region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Label of nodes and endpoints: the zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of nodes and endpoints: the sub-zone.
pub const SUBZONE: &str = "topology.istio.io/subzone";
/// Label of proxies and workloads: the locality, instead of that of the node.
pub const LOCALITY: &str = "istio-locality";
/// Label of endpoints: the cluster.
pub const CLUSTER: &str = "topology.istio.io/cluster";
/// Label of workloads, gateways and system namespaces: the network.
pub const NETWORK: &str = "topology.istio.io/network";
/// Label of nodes and endpoints: the name of the node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label of gateways to a network: their port for mutual TLS.
pub const GATEWAY_PORT: &str = "networking.istio.io/gatewayPort";

/// Label of objects and namespaces: the revision of the control plane that they are of.
pub const REVISION: &str = "istio.io/rev";
/// Tag of a revision.
pub const TAG: &str = "istio.io/tag";
/// Annotation of Istio's objects: whether the condition `Reconciled` is written to their status.
pub const RECONCILED_CONDITION: &str = "sluice/reconciled-condition";
/// Label of gateway and waypoint proxies: the name of their Gateway (Gateway API).
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Label of the objects that a controller creates for a Gateway: the controller.
pub const GATEWAY_MANAGED: &str = "gateway.istio.io/managed";
/// The value of [`GATEWAY_MANAGED`] for gateways of the class `istio`.
pub const MANAGED_BY_GATEWAY_CONTROLLER: &str = "istio.io-gateway-controller";
/// The value of [`GATEWAY_MANAGED`] for waypoints.
pub const MANAGED_BY_MESH_CONTROLLER: &str = "istio.io-mesh-controller";
/// The value of [`GATEWAY_MANAGED`] for east-west gateways.
pub const MANAGED_BY_EAST_WEST_CONTROLLER: &str = "istio.io-eastwest-controller";

/// Whether a waypoint proxy with these labels is an east-west gateway, which leads into its network.
#[must_use]
pub fn is_east_west(labels: &crate::Labels) -> bool {
    labels.get(GATEWAY_MANAGED).is_some_and(|by| *by == *MANAGED_BY_EAST_WEST_CONTROLLER)
}

/// Label of the pods of the ingress gateway, with its value.
pub const INGRESS_GATEWAY: (&str, &str) = ("istio", "ingressgateway");

/// Whether a router with these labels is an ingress gateway: it is deployed for a Gateway of the class `istio`, or has
/// [`INGRESS_GATEWAY`].
#[must_use]
pub fn is_ingress_gateway(labels: &crate::Labels) -> bool {
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|own| **own == *value);
    has(GATEWAY_MANAGED, MANAGED_BY_GATEWAY_CONTROLLER) || has(INGRESS_GATEWAY.0, INGRESS_GATEWAY.1)
}

/// Annotation of a Gateway: the service account of its proxies.
pub const GATEWAY_SERVICE_ACCOUNT: &str = "gateway.istio.io/service-account";
/// Annotation of a Gateway: name of the objects that are deployed for it.
pub const GATEWAY_NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// Annotation of a Gateway: version of the controller that deploys objects for it.
pub const CONTROLLER_VERSION: &str = "gateway.istio.io/controller-version";
/// Annotation of a Gateway: type of the Service that is deployed for it.
pub const SERVICE_TYPE: &str = "networking.istio.io/service-type";
/// Label of a ConfigMap: the class of Gateways whose defaults it contains.
pub const DEFAULTS_FOR_CLASS: &str = "gateway.istio.io/defaults-for-class";
/// Label: how the traffic of a workload is captured in ambient mode.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";

/// Label of the Service of an InferencePool: the name of the pool.
pub const POOL_NAME: &str = "istio.io/inferencepool-name";
/// Label of the Service of an InferencePool: the Service that picks endpoints.
pub const PICKER_SERVICE: &str = "istio.io/inferencepool-extension-service";
/// Label of the Service of an InferencePool: the port of [`PICKER_SERVICE`].
pub const PICKER_PORT: &str = "istio.io/inferencepool-extension-port";
/// Label of the Service of an InferencePool: what happens to requests while [`PICKER_SERVICE`] fails.
pub const PICKER_FAILURE_MODE: &str = "istio.io/inferencepool-extension-failure-mode";
/// Label of a Service that has other rules than a Kubernetes Service: which rules.
pub const SERVICE_SEMANTICS: &str = "internal.istio.io/service-semantics";
/// The value of [`SERVICE_SEMANTICS`] for the Service of an InferencePool.
pub const POOL_SEMANTICS: &str = "inferencepool";

/// Label of a workload: its name in telemetry, instead of that of its controller.
pub const WORKLOAD_NAME: &str = "service.istio.io/workload-name";
/// Label of a workload: the name of its canonical service.
pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
/// Label of a workload: the revision of its canonical service.
pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
/// Label of a workload: the name of its application.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Label of the pods of a Deployment: the hash in the name of their ReplicaSet.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// The same label for a Rollout of Argo.
pub const ROLLOUTS_POD_TEMPLATE_HASH: &str = "rollouts-pod-template-hash";
/// Label of a workload: `istio` if it accepts mutual TLS.
pub const TLS_MODE: &str = "security.istio.io/tlsMode";
/// Label of a workload: the tunnel protocols that it accepts itself.
const TUNNEL: &str = "networking.istio.io/tunnel";
/// Annotation of a pod: `enabled` if its traffic is redirected to ztunnel.
pub const AMBIENT_REDIRECTION: &str = "ambient.istio.io/redirection";
/// Label of workloads, services and namespaces: the name of their waypoint, or `none`.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";

/// Annotation of an object that the webhook for validation always refuses: a test whether the API server calls it (W12).
pub const ALWAYS_REJECT: &str = "internal.istio.io/webhook-always-reject";

/// Annotation of an AuthorizationPolicy: whether it only reports what it would deny.
pub const DRY_RUN: &str = "istio.io/dry-run";

/// Whether a workload with these labels accepts HBONE without ztunnel.
#[must_use]
pub fn accepts_http_tunnel(labels: &Labels) -> bool {
    labels.get(TUNNEL).is_some_and(|protocols| protocols.split(',').any(|protocol| protocol == "http"))
}

/// Whether the traffic of a pod with these annotations is redirected to ztunnel.
#[must_use]
pub fn is_redirected_to_ztunnel(annotations: &Labels) -> bool {
    annotations.get(AMBIENT_REDIRECTION).map(Text::as_str) == Some("enabled")
}
