//! Variables of Istio that `sluiced` does not follow, with the reason. Defaults are the behaviour of `sluiced`.

use crate::ValueKind::{Bool, Choice, Duration, List, Number, Text};
use crate::{Variable, default_only, no_effect};

/// Switches of configuration that `sluiced` always builds in one way: the way of Istio's default.
pub(super) const PROXIES: &[Variable] = &[
    default_only(
        "ENABLE_ENHANCED_DESTINATIONRULE_MERGE",
        Bool,
        "true",
        "DestinationRules of a host with different exportTo are never merged",
    ),
    default_only(
        "ENABLE_HCM_INTERNAL_NETWORKS",
        Bool,
        "false",
        "addresses of mesh networks are not internal addresses",
    ),
    default_only(
        "ENABLE_LOCALITY_WEIGHTED_LB_CONFIG",
        Bool,
        "false",
        "weights of localities apply where locality load balancing is configured",
    ),
    default_only(
        "ENABLE_MULTICLUSTER_HEADLESS",
        Bool,
        "true",
        "name tables have the endpoints of headless services in all clusters",
    ),
    default_only("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", Bool, "false", "clients could choose any host by SNI"),
    default_only(
        "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL",
        Bool,
        "false",
        "Envoy's status listener has no PROXY protocol",
    ),
    default_only(
        "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES",
        Bool,
        "false",
        "endpoints outside of the mesh have no canonical service",
    ),
    default_only(
        "PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE",
        Bool,
        "false",
        "ingress listeners of a Sidecar replace those of its services",
    ),
    default_only(
        "PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN",
        Bool,
        "true",
        "virtual hosts also have domains with a dot at the end",
    ),
    default_only("PILOT_ENABLE_ALPN_FILTER", Bool, "true", "detection of protocols needs the ALPN filter"),
    default_only("PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY", Bool, "true", "WorkloadEntries of all clusters are read"),
    default_only(
        "PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES",
        Bool,
        "false",
        "clusters of headless services are of type ORIGINAL_DST",
    ),
    default_only(
        "PILOT_ENABLE_HEADLESS_FILTER_CHAIN_LISTENER",
        Bool,
        "false",
        "each address of a headless service has a listener of its own",
    ),
    default_only("PILOT_ENABLE_METADATA_EXCHANGE", Bool, "true", "telemetry needs the metadata exchange"),
    default_only(
        "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION",
        Bool,
        "true",
        "virtual hosts with equal routes are merged",
    ),
    default_only(
        "PILOT_ENABLE_TELEMETRY_LABEL",
        Bool,
        "true",
        "telemetry needs the metadata of clusters and endpoints",
    ),
    default_only("PILOT_ENDPOINT_TELEMETRY_LABEL", Bool, "true", "telemetry needs the metadata of endpoints"),
    default_only("PILOT_MX_ADDITIONAL_LABELS", List, "", "the labels of the metadata exchange are fixed"),
    default_only("PILOT_UNIFIED_SIDECAR_SCOPE", Bool, "true", "there is one implementation of Sidecars"),
    default_only(
        "PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES",
        Bool,
        "true",
        "TLS of a DestinationRule goes before the metadata of endpoints outside of the mesh",
    ),
    default_only(
        "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS",
        Bool,
        "false",
        "proxies listen on IPv4 only if they have an IPv4 address",
    ),
    no_effect(
        "PILOT_SPAWN_UPSTREAM_SPAN_FOR_GATEWAY",
        Bool,
        "true",
        "Istio does not read it any more either; compatibility versions still set it",
    ),
];

/// Switches of features that do not exist here.
pub(super) const FEATURES: &[Variable] = &[
    default_only(
        "ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES",
        Bool,
        "false",
        "policies with a selector do not apply to waypoints",
    ),
    default_only("PILOT_ENABLE_AMBIENT_WAYPOINTS", Bool, "true", "waypoints are served with PILOT_ENABLE_AMBIENT"),
    default_only(
        "PILOT_ENABLE_ANALYSIS",
        Bool,
        "false",
        "configuration is not analysed; /debug/rejects and the webhook report invalid objects",
    ),
    no_effect("PILOT_ANALYSIS_INTERVAL", Duration, "10s", "configuration is not analysed"),
    no_effect("PILOT_STATUS_MAX_WORKERS", Number, "100", "configuration is not analysed"),
    default_only("ENABLE_PROXY_FIND_POD_BY_IP", Bool, "false", "a proxy belongs to the pod that its node id names"),
    default_only("AUDIENCE", Text, "", "TOKEN_AUDIENCES lists the accepted audiences"),
];

/// Details of Istio's implementation that have no counterpart here. The same proxies receive the same configuration.
pub(super) const DETAILS: &[Variable] = &[
    no_effect(
        "AMBIENT_SCOPED_ADDRESS_PUSHES",
        Bool,
        "true",
        "only what differs is sent, and only to the proxies it concerns",
    ),
    no_effect("ENABLE_LAZY_SIDECAR_EVALUATION", Bool, "true", "configuration is derived incrementally"),
    no_effect("ENABLE_VTPROTOBUF", Bool, "true", "there is one encoder"),
    no_effect("ISTIO_ENABLE_CONTROLLER_QUEUE_METRICS", Bool, "false", "there are no work queues"),
    no_effect(
        "ISTIO_KUBE_CLIENT_CONTENT_TYPE",
        Choice(&["json", "protobuf"]),
        "json",
        "the Kubernetes API is read as JSON",
    ),
    no_effect("K_REVISION", Text, "", "Knative is not supported"),
    no_effect("MUTEX_PROFILE_FRACTION", Number, "1000", "there is no profile of locks"),
    no_effect("PILOT_CONVERT_SIDECAR_SCOPE_CONCURRENCY", Number, "1", "configuration is derived incrementally"),
    no_effect(
        "PILOT_DEBOUNCE_AFTER",
        Duration,
        "100ms",
        "there is no fixed delay: changes that arrive during one epoch form the next",
    ),
    no_effect(
        "PILOT_DEBOUNCE_MAX",
        Duration,
        "10s",
        "there is no fixed delay: changes that arrive during one epoch form the next",
    ),
    no_effect(
        "PILOT_ENABLE_EDS_DEBOUNCE",
        Bool,
        "true",
        "there is no fixed delay: changes that arrive during one epoch form the next",
    ),
    no_effect("PILOT_ENABLE_CDS_CACHE", Bool, "true", "resources are stored once for all proxies that share them"),
    no_effect("PILOT_ENABLE_RDS_CACHE", Bool, "true", "resources are stored once for all proxies that share them"),
    no_effect("PILOT_ENABLE_XDS_CACHE", Bool, "true", "resources are stored once for all proxies that share them"),
    no_effect(
        "PILOT_XDS_CACHE_INDEX_CLEAR_INTERVAL",
        Duration,
        "5s",
        "resources are stored once for all proxies that share them",
    ),
    no_effect("PILOT_XDS_CACHE_SIZE", Number, "60000", "resources are stored once for all proxies that share them"),
    no_effect("PILOT_XDS_CACHE_STATS", Bool, "false", "resources are stored once for all proxies that share them"),
    no_effect(
        "PILOT_ENABLE_REMOTE_CREDENTIALS_CONTROLLER",
        Bool,
        "true",
        "Secrets of remote clusters are read without a controller of their own",
    ),
    no_effect("PILOT_ENVOY_FILTER_STATS", Bool, "false", "the findings about EnvoyFilters are in /debug/rejects"),
    no_effect("UNSAFE_PILOT_ENABLE_RUNTIME_ASSERTIONS", Bool, "false", "assertions exist in debug builds only"),
    no_effect("DEBUG_CONFIG_DUMP", Bool, "false", "only tests of Istio read it"),
];
