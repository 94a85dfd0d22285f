//! Variables of what is read of a mesh, and how it is configured.

use crate::ValueKind::{Block, Bool, Choice, Duration, List, Number, Text};
use crate::{Variable, followed};

/// What is read of a mesh, and how proxies are configured.
pub(super) const MESH: &[Variable] = &[
    followed(
        "SHARED_MESH_CONFIG",
        Text,
        "",
        "Name of a ConfigMap in the control plane's namespace; the own mesh config overrides the mesh config in it",
    ),
    followed(
        "SERVICE_ACCOUNT",
        Text,
        "istiod",
        "Service account of the control plane, for certificates that it presents to sources of configuration (ISTIO_MUTUAL)",
    ),
    followed(
        "PILOT_IGNORE_RESOURCES",
        List,
        "",
        "Kinds of CustomResourceDefinitions that are not read: names of definitions, such as wasmplugins.extensions.istio.io, or *.SUFFIX",
    ),
    followed(
        "PILOT_INCLUDE_RESOURCES",
        List,
        "",
        "Kinds that are read although PILOT_IGNORE_RESOURCES has them, in the same form",
    ),
    followed("ISTIO_DUAL_STACK", Bool, "false", "Use both address families where both exist"),
    followed("K8S_INGRESS_NS", Text, "istio-system", "Namespace of the routers that serve Ingresses"),
    followed("ENABLE_LEADER_ELECTION", Bool, "true", "Only one of several replicas writes to the cluster"),
    followed(
        "PILOT_ENABLE_IP_AUTOALLOCATE",
        Bool,
        "true",
        "Allocate addresses to hosts of ServiceEntries that have none, and write them to the status",
    ),
    followed(
        "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX",
        Block,
        "240.240.0.0/16",
        "CIDR block of the allocated IPv4 addresses",
    ),
    followed("PILOT_IP_AUTOALLOCATE_IPV6_PREFIX", Block, "2001:2::/48", "CIDR block of the allocated IPv6 addresses"),
    followed(
        "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS",
        Bool,
        "false",
        "Remove a taint from nodes with a ready pod with the label k8s-app=istio-cni-node",
    ),
    followed("PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME", Text, "cni.istio.io/not-ready", "Key of this taint"),
    followed("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", Bool, "true", "Selectors of ServiceEntries also select pods"),
    followed(
        "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES",
        Bool,
        "true",
        "Selectors of Services also select WorkloadEntries",
    ),
    followed(
        "RESOLVE_HOSTNAME_GATEWAYS",
        Bool,
        "true",
        "Resolve host names of gateways between networks, every 30 seconds",
    ),
    followed(
        "PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE",
        Bool,
        "true",
        "Where several namespaces have the host of a destination, a Sidecar imports the Service of Kubernetes or else the oldest, not the first by namespace; compatibility versions up to 1.29 set it",
    ),
    followed("PILOT_TRACE_SAMPLING", Number, "1", "Percentage of requests that are traced unless configured otherwise"),
    followed("PILOT_HTTP10", Bool, "false", "All proxies accept HTTP/1.0"),
    followed("PILOT_ENABLE_MONGO_FILTER", Bool, "true", "Use Envoy's MongoDB filter on ports of that protocol"),
    followed("PILOT_ENABLE_REDIS_FILTER", Bool, "false", "Use Envoy's Redis filter on ports of that protocol"),
    followed("PILOT_ENABLE_MYSQL_FILTER", Bool, "false", "Use Envoy's MySQL filter on ports of that protocol"),
    followed(
        "ENABLE_TLS_ON_SIDECAR_INGRESS",
        Bool,
        "false",
        "Ingress listeners of Sidecars terminate the TLS they declare",
    ),
    followed(
        "PILOT_ENABLE_PERSISTENT_SESSION_FILTER",
        Bool,
        "false",
        "Sticky sessions for services with one of the next two labels",
    ),
    followed(
        "PILOT_PERSISTENT_SESSION_LABEL",
        Text,
        "istio.io/persistent-session",
        "Label of a service that names the cookie",
    ),
    followed(
        "PILOT_PERSISTENT_SESSION_HEADER_LABEL",
        Text,
        "istio.io/persistent-session-header",
        "Label of a service that names the header",
    ),
];

/// Details of the configuration of proxies.
pub(super) const PROXIES: &[Variable] = &[
    followed(
        "DISABLE_SHADOW_HOST_SUFFIX",
        Bool,
        "true",
        "Mirrored requests keep their host; else it has the suffix -shadow",
    ),
    followed(
        "DISABLE_TRACK_REMAINING_CB_METRICS",
        Bool,
        "true",
        "Circuit breakers do not count what remains before they open",
    ),
    followed("ENABLE_100_CONTINUE_HEADERS", Bool, "true", "Proxies forward responses with status 100"),
    followed(
        "PILOT_SIDECAR_USE_REMOTE_ADDRESS",
        Bool,
        "false",
        "Sidecars append the address of the application to X-Forwarded-For",
    ),
    followed(
        "PILOT_DISABLE_MX_ALPN",
        Bool,
        "false",
        "TLS in the mesh does not have the ALPN of the metadata exchange, so that TCP has no metadata of its peer",
    ),
    followed(
        "PILOT_DRAINING_LABEL",
        Text,
        "istio.io/draining",
        "Label of workloads that receive requests of persistent sessions only; empty disables it",
    ),
    followed(
        "PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS",
        Number,
        "1024",
        "Number of hosts in the DNS cache of sidecars with ALLOW_ANY_DYNAMIC_DNS",
    ),
    followed(
        "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP",
        Number,
        "1",
        "Connections that a listener accepts for each socket event; 0 is unlimited",
    ),
    followed(
        "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS",
        Bool,
        "true",
        "Proxies receive endpoints that are not ready, and do not use them, unless outlier detection has a minimum health percentage",
    ),
    followed(
        "PILOT_SEND_UNHEALTHY_ENDPOINTS",
        Bool,
        "false",
        "Proxies receive endpoints that are not ready in any case",
    ),
    followed(
        "PILOT_DNS_CARES_UDP_MAX_QUERIES",
        Number,
        "100",
        "DNS queries of a proxy over one socket; 0 is unlimited",
    ),
    followed("PILOT_DNS_JITTER_DURATION", Duration, "100ms", "Jitter of DNS queries of proxies; 0 disables it"),
    followed(
        "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT",
        Duration,
        "15s",
        "Time limit of TLS handshakes at gateways; 0 is unlimited",
    ),
];

/// Remote clusters.
pub(super) const CLUSTERS: &[Variable] = &[
    followed(
        "KUBERNETES_SERVICE_HOST",
        Text,
        "",
        "Host of the API server, if neither --kubeconfig nor --configDir is set; Kubernetes sets it",
    ),
    followed(
        "PILOT_REMOTE_CLUSTER_TIMEOUT",
        Duration,
        "30s",
        "Longest time for which proxies wait until a remote cluster is read; 0 is unlimited. Secrets with the label istio/multiCluster declare remote clusters",
    ),
    followed(
        "PILOT_MULTICLUSTER_KUBECONFIG_PATH",
        Text,
        "",
        "Directory with kubeconfigs of remote clusters, *.yaml and *.yml, which are followed and replace these Secrets. The cluster of the current context is the id",
    ),
    followed(
        "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS",
        List,
        "",
        "Options that kubeconfigs in these Secrets or files may use although they run programs or read files, comma separated: `exec`, `tokenFile`, `clientCertificate`, `clientKey`, or the name of an auth provider",
    ),
    followed(
        "LOCAL_CLUSTER_SECRET_WATCHER",
        Bool,
        "false",
        "With EXTERNAL_ISTIOD, read these Secrets in the cluster that the control plane runs in",
    ),
    followed(
        "EXTERNAL_ISTIOD",
        Bool,
        "false",
        "Serve clusters without a control plane of their own. Root certificates are written into their namespaces if annotation topology.istio.io/controlPlaneClusters of their system namespace names this cluster, or *",
    ),
];

/// Gateways.
pub(super) const GATEWAYS: &[Variable] = &[
    followed("PILOT_ENABLE_QUIC_LISTENERS", Bool, "false", "Routers also serve HTTPS over HTTP/3"),
    followed(
        "PILOT_SCOPE_GATEWAY_TO_NAMESPACE",
        Bool,
        "false",
        "A Gateway applies only to routers of its own namespace",
    ),
    followed(
        "PILOT_ENABLE_STRICT_GATEWAY_MERGING",
        Bool,
        "true",
        "A router of a managed Gateway of the Gateway API serves no Istio Gateway of another namespace; compatibility versions up to 1.30 set it",
    ),
    followed(
        "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG",
        Bool,
        "false",
        "Routers receive only the clusters that they send requests to",
    ),
    followed(
        "ENABLE_MCS_SERVICE_DISCOVERY",
        Bool,
        "false",
        "Clients of other clusters reach the endpoints of a cluster only if it has a ServiceExport of the Service",
    ),
    followed(
        "ENABLE_MCS_HOST",
        Bool,
        "false",
        "Serve the hosts NAME.NAMESPACE.svc.clusterset.local of ServiceImports; needs ENABLE_MCS_SERVICE_DISCOVERY",
    ),
    followed(
        "ENABLE_MCS_CLUSTER_LOCAL",
        Bool,
        "false",
        "Hosts of Services in the domain of the cluster reach endpoints of the cluster of the client only; needs ENABLE_MCS_HOST",
    ),
    followed(
        "ENABLE_MCS_AUTO_EXPORT",
        Bool,
        "false",
        "Create a ServiceExport for each Service that the mesh config does not limit to its cluster",
    ),
    followed(
        "MCS_API_GROUP",
        Text,
        "multicluster.x-k8s.io",
        "API group of ServiceExports and ServiceImports in the Kubernetes API, and of references to them in routes. Files have the default",
    ),
    followed(
        "MCS_API_VERSION",
        Text,
        "v1alpha1",
        "API version of ServiceExports and ServiceImports in the Kubernetes API",
    ),
    followed("PILOT_ENABLE_GATEWAY_API", Bool, "true", "Read the kinds of the Gateway API"),
    followed(
        "ENABLE_GATEWAY_API_INFERENCE_EXTENSION",
        Bool,
        "false",
        "Also read InferencePools, and write their Services",
    ),
    followed(
        "PILOT_ENABLE_AGENTGATEWAY",
        Bool,
        "false",
        "Serve Gateways of the class `istio-agentgateway` by agentgateway proxies",
    ),
    followed(
        "PILOT_ENABLE_ALPHA_GATEWAY_API",
        Bool,
        "false",
        "Also read the experimental kinds of the Gateway API, and UDPRoutes",
    ),
    followed(
        "PILOT_GATEWAY_API_CONTROLLER_NAME",
        Text,
        "istio.io/gateway-controller",
        "Controller of the GatewayClasses whose Gateways are served",
    ),
    followed(
        "PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME",
        Text,
        "istio",
        "A GatewayClass that is served even if it does not exist",
    ),
    followed(
        "PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER",
        Bool,
        "true",
        "Create the GatewayClasses of the own controllers that do not exist",
    ),
    followed("PILOT_ENABLE_GATEWAY_API_STATUS", Bool, "true", "Write the statuses of the kinds of the Gateway API"),
    followed(
        "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER",
        Bool,
        "true",
        "Deploy the proxies of Gateways of the Gateway API",
    ),
    followed(
        "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS",
        Bool,
        "true",
        "Objects that are deployed for a Gateway have its labels and annotations, unless `spec.infrastructure` has others",
    ),
    followed(
        "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT",
        Bool,
        "true",
        "A Gateway may refer to the Service of a gateway that is deployed separately",
    ),
    followed(
        "PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API",
        Bool,
        "true",
        "Gateways of the Gateway API can be gateways of networks",
    ),
];

/// Ambient mode.
pub(super) const AMBIENT: &[Variable] = &[
    followed(
        "AMBIENT_ENABLE_STATUS",
        Bool,
        "true",
        "Write conditions about waypoints and ztunnel into the statuses of Services, ServiceEntries, WorkloadEntries, AuthorizationPolicies and RequestAuthentications",
    ),
    followed("PILOT_ENABLE_AMBIENT", Bool, "false", "Ambient mode: serve ztunnel and waypoints"),
    followed(
        "PILOT_ENABLE_SENDING_HBONE",
        Bool,
        "true",
        "In ambient mode, sidecars and gateways use HBONE for destinations that accept it",
    ),
    followed(
        "PILOT_PREFER_SENDING_HBONE",
        Bool,
        "false",
        "Use HBONE also for destinations that accept mutual TLS as well",
    ),
    followed(
        "PILOT_AUTO_ALLOW_WAYPOINT_POLICY",
        Bool,
        "false",
        "Workloads behind a waypoint accept traffic only from its instances, unless a policy says otherwise",
    ),
    followed(
        "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY",
        Bool,
        "false",
        "ztunnel receives dry-run authorization policies",
    ),
    followed(
        "PILOT_ENABLE_SIDECAR_LISTENING_HBONE",
        Bool,
        "true",
        "In ambient mode, sidecars with ENABLE_HBONE in their metadata receive HBONE",
    ),
    followed(
        "PILOT_HBONE_INITIAL_STREAM_WINDOW_SIZE",
        Number,
        "0",
        "Initial window of the streams of HBONE connections in bytes; 0 is the default of Envoy",
    ),
    followed(
        "PILOT_HBONE_INITIAL_CONNECTION_WINDOW_SIZE",
        Number,
        "0",
        "Initial window of HBONE connections in bytes; 0 is the default of Envoy",
    ),
    followed(
        "ENABLE_INGRESS_WAYPOINT_ROUTING",
        Bool,
        "true",
        "In ambient mode, gateways send through the waypoints of services with the label istio.io/ingress-use-waypoint",
    ),
    followed(
        "AMBIENT_ENABLE_MULTI_NETWORK",
        Bool,
        "false",
        "In ambient mode, read workloads and global Services of remote clusters, and configure gateways between networks",
    ),
    followed(
        "AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT",
        Bool,
        "true",
        "Waypoints send to other networks, with AMBIENT_ENABLE_MULTI_NETWORK=true",
    ),
    followed(
        "AMBIENT_ENABLE_MULTI_NETWORK_INGRESS",
        Bool,
        "false",
        "Ingress gateways send to other networks by HBONE, with AMBIENT_ENABLE_MULTI_NETWORK=true",
    ),
    followed(
        "AMBIENT_ENABLE_BAGGAGE",
        Bool,
        "false",
        "In ambient mode, proxies send their metadata to peers as baggage of tunnels, and read that of peers",
    ),
];

/// Policies.
pub(super) const POLICIES: &[Variable] = &[
    followed(
        "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS",
        Bool,
        "false",
        "A workload may have CUSTOM policies of several providers",
    ),
    followed(
        "ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY",
        Bool,
        "true",
        "Policies can select gateways of the Gateway API by label",
    ),
    followed("PILOT_SKIP_VALIDATE_TRUST_DOMAIN", Bool, "false", "Servers accept clients of all trust domains"),
    followed(
        "PILOT_JWT_ENABLE_REMOTE_JWKS",
        Choice(&["false", "istiod", "hybrid", "true", "envoy"]),
        "false",
        "Which side fetches JWKS: `false` or `istiod` (the control plane), `hybrid` or `true` (the proxies if the JWKS server is in the mesh, else the control plane), `envoy` (the proxies)",
    ),
    followed(
        "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL",
        Duration,
        "20m",
        "Interval at which the control plane fetches JWKS again",
    ),
    followed("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", Bool, "false", "Do not verify the certificates of JWKS servers"),
    followed("BLOCKED_CIDRS_IN_JWKS_URIS", List, "", "CIDR blocks from which JWKS are never fetched, comma separated"),
];
