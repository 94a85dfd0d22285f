//! Settings from environment variables, with the names of istiod.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sluice_graph::{AddressPools, ClusterSwitches, GatewayApiOptions, JwksFetch, MultiClusterOptions};
use sluice_model::gateway_api::{EXPERIMENTAL_GROUP, INFERENCE_GROUP};
use sluice_model::{Kind, MultiClusterApi, SessionLabels, Text};
use sluice_parse::KINDS;

use crate::values::Variables;

const REMOTE_CLUSTER_TIMEOUT: Duration = Duration::from_secs(30);
const GATEWAY_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for which the WorkloadEntry of a disconnected proxy stays.
const WORKLOAD_GRACE_PERIOD: Duration = Duration::from_secs(10);
const JWKS_REFRESH_INTERVAL: Duration = Duration::from_secs(20 * 60);

/// Environment variables that have an effect, with the names and the defaults of istiod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Features {
    /// `PILOT_ENABLE_AMBIENT`: ztunnel and waypoints are served.
    pub ambient: bool,
    /// `PILOT_AUTO_ALLOW_WAYPOINT_POLICY`: in ambient mode, workloads behind a waypoint accept traffic only from its
    /// instances, unless a policy says otherwise.
    pub allows_waypoints: bool,
    /// `ENABLE_INGRESS_WAYPOINT_ROUTING`: in ambient mode, gateways send through the waypoints of services with the label
    /// `istio.io/ingress-use-waypoint`.
    pub ingress_waypoints: bool,
    /// `AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY`: ztunnel receives dry-run policies.
    pub dry_run_policies: bool,
    /// `PILOT_ENABLE_IP_AUTOALLOCATE`: addresses are allocated to hosts of ServiceEntries that have none, and written to
    /// the status. This needs the Kubernetes API: files have no status. Otherwise proxies with
    /// `ISTIO_META_DNS_AUTO_ALLOCATE` use addresses that follow from a hash of the host name.
    pub allocate_addresses: bool,
    /// `PILOT_IP_AUTOALLOCATE_IPV4_PREFIX`: the CIDR block of allocated IPv4 addresses.
    pub allocation_v4: Ipv4Net,
    /// `PILOT_IP_AUTOALLOCATE_IPV6_PREFIX`: the CIDR block of allocated IPv6 addresses.
    pub allocation_v6: Ipv6Net,
    /// `AMBIENT_ENABLE_STATUS`: conditions about waypoints and ztunnel are written into the statuses of objects; without
    /// ambient mode, only those of security policies with targets that waypoints serve.
    pub writes_conditions: bool,
    /// `PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS`: a taint is removed from nodes whose CNI agent is ready.
    pub untaints_nodes: bool,
    /// `PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME`: key of this taint.
    pub node_taint: Text,
    /// `PILOT_ENABLE_SENDING_HBONE`: in ambient mode, sidecars and gateways use HBONE for destinations that accept it.
    pub sends_hbone: bool,
    /// `PILOT_PREFER_SENDING_HBONE`: HBONE is also used for destinations that accept mutual TLS as well.
    pub prefers_hbone: bool,
    /// `ISTIO_DUAL_STACK`: both address families are used where both exist.
    pub dual_stack: bool,
    /// `K8S_INGRESS_NS`: namespace of the routers that serve Ingresses.
    pub ingress_namespace: Text,
    /// `PILOT_ENABLE_QUIC_LISTENERS`: routers also serve HTTPS over HTTP/3.
    pub http3: bool,
    /// `PILOT_SCOPE_GATEWAY_TO_NAMESPACE`: a Gateway applies only to routers of its own namespace.
    pub scope_gateways: bool,
    /// `PILOT_ENABLE_STRICT_GATEWAY_MERGING`: a router of a managed Gateway of the Gateway API serves no Istio Gateway of another
    /// namespace.
    pub strict_gateway_merging: bool,
    /// `PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE`: of the services of several namespaces with the host that a route of a Sidecar has
    /// as destination, the one of Kubernetes or the oldest is reached, else the first by namespace.
    pub reaches_best_service: bool,
    /// `PILOT_FILTER_GATEWAY_CLUSTER_CONFIG`: routers receive only the clusters that they send requests to.
    pub filter_gateway_clusters: bool,
    /// `PILOT_ENABLE_ALPHA_GATEWAY_API`: experimental Gateway API kinds are read.
    pub alpha_gateway_api: bool,
    /// `ENABLE_GATEWAY_API_INFERENCE_EXTENSION`: InferencePools are read.
    pub inference_extension: bool,
    /// `ENABLE_MCS_SERVICE_DISCOVERY`, `ENABLE_MCS_HOST`, `ENABLE_MCS_CLUSTER_LOCAL`: ServiceExports and ServiceImports are read.
    pub multi_cluster: Option<MultiClusterOptions>,
    /// `MCS_API_GROUP`, `MCS_API_VERSION`: group and version of these kinds.
    pub multi_cluster_api: MultiClusterApi,
    /// `ENABLE_MCS_AUTO_EXPORT`: ServiceExports are created for Services.
    pub exports_services: bool,
    /// `PILOT_IGNORE_RESOURCES`: definitions of kinds that are not read: `PLURAL.GROUP` or `*.SUFFIX`.
    pub ignored_resources: Vec<String>,
    /// `PILOT_INCLUDE_RESOURCES`: definitions of kinds that are read nevertheless.
    pub included_resources: Vec<String>,
    /// `PILOT_ENABLE_GATEWAY_API`: Gateway API kinds are read.
    pub gateway_api: bool,
    /// `PILOT_GATEWAY_API_CONTROLLER_NAME`: controller of the GatewayClasses whose Gateways routers serve.
    pub gateway_controller: Text,
    /// `PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME`: a GatewayClass that is served even if it does not exist.
    pub gateway_class: Text,
    /// `PILOT_ENABLE_AGENTGATEWAY`: Gateways of the class `istio-agentgateway` are served by agentgateways.
    pub agentgateway: bool,
    /// `PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER`: GatewayClasses that do not exist are created.
    pub gateway_classes: bool,
    /// `PILOT_ENABLE_GATEWAY_API_STATUS`: statuses of the Gateway API are written.
    pub gateway_statuses: bool,
    /// `PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER`: proxies are deployed for Gateways.
    pub deploys_gateways: bool,
    /// `PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS`: deployed objects have the labels and annotations of their Gateway.
    pub copies_gateway_labels: bool,
    /// `ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT`: a Gateway may refer to the Service of a gateway that is deployed
    /// separately.
    pub manual_gateways: bool,
    /// `PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API`: Gateways of the Gateway API can be gateways of networks.
    pub remote_gateways: bool,
    /// `AMBIENT_ENABLE_MULTI_NETWORK`: gateways between networks of ambient meshes are served.
    pub ambient_multi_network: bool,
    /// `AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT`: waypoints send to other networks.
    pub waypoint_networks: bool,
    /// `AMBIENT_ENABLE_MULTI_NETWORK_INGRESS`: ingress gateways send to other networks.
    pub ingress_networks: bool,
    /// `AMBIENT_ENABLE_BAGGAGE`: peer metadata is sent and read as baggage.
    pub baggage: bool,
    /// `RESOLVE_HOSTNAME_GATEWAYS`: host names of gateways between networks are resolved.
    pub resolve_gateway_names: bool,
    /// `ENABLE_DEBUG_ON_HTTP`: `/debug` is served on the HTTP and the monitoring port.
    pub debug_on_http: bool,
    /// `UNSAFE_ENABLE_ADMIN_ENDPOINTS`: there is a debug page that closes the streams of proxies.
    pub changing_pages: bool,
    /// `ENABLE_DEBUG_ENDPOINT_AUTH`: the identity of a caller decides which debug pages it sees.
    pub debug_auth: bool,
    /// `ENABLE_XDS_API_GENERATOR_AUTH`: configuration is served only to service accounts of the root namespace.
    pub configuration_auth: bool,
    /// `DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES`: namespaces, in addition to that of the control plane, whose service
    /// accounts see all debug pages.
    pub debug_namespaces: BTreeSet<Text>,
    /// `ENABLE_LEADER_ELECTION`: only one of several replicas writes to the cluster.
    pub leader_election: bool,
    /// `PILOT_HTTP10`: all proxies accept HTTP/1.0.
    pub http10: bool,
    /// `PILOT_TRACE_SAMPLING` in thousandths of a percent: share of requests that are traced unless
    /// configured otherwise.
    pub trace_sampling_millipercent: u32,
    /// `PILOT_ENABLE_MONGO_FILTER`: Envoy's MongoDB filter is used.
    pub mongo_filter: bool,
    /// `PILOT_ENABLE_REDIS_FILTER`: Envoy's Redis filter is used.
    pub redis_filter: bool,
    /// `PILOT_ENABLE_MYSQL_FILTER`: Envoy's MySQL filter is used.
    pub mysql_filter: bool,
    /// `ENABLE_100_CONTINUE_HEADERS`: proxies forward responses with status 100.
    pub continue_responses: bool,
    /// `PILOT_SIDECAR_USE_REMOTE_ADDRESS`: sidecars append the address of the application to `X-Forwarded-For`.
    pub sidecar_remote_address: bool,
    /// `PILOT_ENABLE_SIDECAR_LISTENING_HBONE`: in ambient mode, sidecars with `ENABLE_HBONE` in their metadata receive HBONE.
    pub sidecars_receive_hbone: bool,
    /// `ENABLE_TLS_ON_SIDECAR_INGRESS`: ingress listeners of Sidecars terminate the TLS they declare.
    pub sidecar_ingress_tls: bool,
    /// `PILOT_ENABLE_PERSISTENT_SESSION_FILTER`: sticky sessions for services with the label
    /// `PILOT_PERSISTENT_SESSION_LABEL` (a cookie) or `PILOT_PERSISTENT_SESSION_HEADER_LABEL`.
    pub sessions: SessionLabels,
    /// `PILOT_ENABLE_SERVICEENTRY_SELECT_PODS`: selectors of ServiceEntries also select pods.
    pub service_entry_selects_pods: bool,
    /// `PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES`: selectors of Services also select WorkloadEntries.
    pub service_selects_workload_entries: bool,
    /// `PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS`: `CUSTOM` policies of several providers are allowed for one workload.
    pub multiple_custom_providers: bool,
    /// `ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY`: policies can select gateways of the Gateway API by
    /// label.
    pub gateway_policies_by_selector: bool,
    /// `PILOT_SKIP_VALIDATE_TRUST_DOMAIN`: servers accept clients of all trust domains.
    pub any_trust_domain: bool,
    /// `PILOT_JWT_ENABLE_REMOTE_JWKS`: which side fetches JWKS: the control plane or the proxies.
    pub jwks_fetch: JwksFetch,
    /// `PILOT_JWT_PUB_KEY_REFRESH_INTERVAL`: interval at which JWKS are fetched again.
    pub jwks_refresh: Duration,
    /// `JWKS_RESOLVER_INSECURE_SKIP_VERIFY`: certificates of JWKS servers are not verified.
    pub jwks_skip_verify: bool,
    /// `BLOCKED_CIDRS_IN_JWKS_URIS`: CIDR blocks from which JWKS are never fetched.
    pub jwks_blocked: Vec<IpNet>,
    /// `PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION`: proxies that name a WorkloadGroup get a WorkloadEntry.
    pub register_workloads: bool,
    /// `PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS`: the health that proxies report is written to WorkloadEntries.
    pub workload_health: bool,
    /// `PILOT_WORKLOAD_ENTRY_GRACE_PERIOD`: time after which the entry of a proxy that has disconnected is removed.
    pub workload_grace_period: Duration,
    /// `ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY`: the identity of a proxy must be that of its WorkloadEntry.
    pub workload_identity_check: bool,
    /// `XDS_AUTH`: xDS clients are authenticated.
    pub xds_auth: bool,
    /// `XDS_AUTH_PLAINTEXT`: authentication is required on the plaintext port as well.
    pub xds_auth_plaintext: bool,
    /// `PILOT_PUSH_THROTTLE`: number of streams that receive first responses or changes of many resources at a time;
    /// two for each CPU if 0 or not set.
    pub push_throttle: Option<NonZeroUsize>,
    /// `ISTIO_GPRC_MAXRECVMSGSIZE`: largest request in bytes; 4 MiB if 0 or not set.
    pub max_request_bytes: Option<NonZeroUsize>,
    /// `ISTIO_GPRC_MAXSTREAMS`: concurrent streams of one connection; 1000 if 0 or not set.
    pub max_streams_per_connection: Option<NonZeroU32>,
    /// `PILOT_MAX_REQUESTS_PER_SECOND`: new streams for each second; limited by load only if 0 or not
    /// set.
    pub max_streams_a_second: Option<NonZeroU32>,
    /// `SLUICE_VHDS`, experimental: delta clients whose metadata has `VHDS: "true"` receive virtual hosts as resources of
    /// their own, not in route tables.
    pub virtual_hosts: bool,
    /// `SLUICE_ON_DEMAND_CLUSTERS`, experimental: delta clients whose metadata has `ON_DEMAND_CLUSTERS: "true"` receive the clusters
    /// that only routes refer to when they name them (ODCDS).
    pub on_demand_clusters: bool,
    /// `SLUICE_LEDS`, experimental: delta clients whose metadata has `LEDS: "true"` receive the endpoints of each locality as resources
    /// of their own (LEDS), not in the assignments of clusters.
    pub endpoints_by_locality: bool,
    /// `SLUICE_HTTP2_FRAMES`: split large HTTP/2 data frames of clients, which saves 8 KiB of memory for each connection.
    pub small_http2_frames: bool,
    /// `PILOT_REMOTE_CLUSTER_TIMEOUT`: longest time for which proxies wait until a remote cluster is read; zero is
    /// unlimited.
    pub remote_cluster_timeout: Duration,
    /// `PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS`: options that kubeconfigs of remote clusters may use
    /// although they are unsafe.
    pub insecure_kubeconfig: BTreeSet<String>,
    /// `PILOT_MULTICLUSTER_KUBECONFIG_PATH`: a directory with kubeconfigs of remote clusters, which replaces the Secrets.
    pub kubeconfig_directory: Option<PathBuf>,
    /// `EXTERNAL_ISTIOD`: clusters without a control plane of their own are served, and receive root certificates if an
    /// annotation says so.
    pub external_istiod: bool,
    /// `LOCAL_CLUSTER_SECRET_WATCHER` with `EXTERNAL_ISTIOD`: Secrets of remote clusters are read in the cluster that the
    /// control plane runs in, not in that of `--kubeconfig`.
    pub local_cluster_secrets: bool,
    /// `PILOT_ENABLE_XDS_IDENTITY_CHECK`: the identity of a caller must be that of its proxy.
    pub xds_identity_check: bool,
    /// `INJECT_ENABLED`: pods are injected, if there is a configuration of the injector.
    pub inject: bool,
    /// `ENABLE_NATIVE_SIDECARS`: whether proxies are native sidecars; `None` (`auto`) decides by the kubelets.
    pub native_sidecars: Option<bool>,
    /// `INJECTION_WEBHOOK_CONFIG_NAME` is not empty: roots are written into the webhook configurations for injection.
    pub patches_injection: bool,
    /// `VALIDATION_WEBHOOK_CONFIG_NAME` is not empty: roots are written into the webhook configurations for validation.
    pub patches_validation: bool,
    /// `PLATFORM` is `openshift`: users and groups of proxies are those that OpenShift allocates.
    pub openshift: bool,
    /// Switches of clusters and endpoints: `DISABLE_TRACK_REMAINING_CB_METRICS`, `PILOT_DNS_CARES_UDP_MAX_QUERIES`,
    /// `PILOT_DNS_JITTER_DURATION`, `PILOT_SEND_UNHEALTHY_ENDPOINTS`, `PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS`,
    /// `PILOT_DISABLE_MX_ALPN`, `PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS`, `PILOT_HBONE_INITIAL_*_WINDOW_SIZE`.
    pub clusters: ClusterSwitches,
    /// Not `DISABLE_SHADOW_HOST_SUFFIX`: the host of mirrored requests has the suffix `-shadow`.
    pub shadow_suffix: bool,
    /// `MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP`: connections that a listener accepts for each socket event; 0 is unlimited.
    pub connections_per_event: u32,
    /// `PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT`: time limit of TLS handshakes at gateways; zero is unlimited.
    pub gateway_handshake_timeout: Duration,
    /// `TRUSTED_GATEWAY_CIDR`: addresses whose forwarded client certificates are trusted.
    pub trusted_gateways: Vec<IpNet>,
}

impl Features {
    /// Kinds that are not read.
    #[must_use]
    pub fn ignored_kinds(&self) -> BTreeSet<Kind> {
        let ignored = KINDS.iter().filter(|info| {
            let experimental =
                (info.group == EXPERIMENTAL_GROUP || info.kind == Kind::UDPRoute) && !self.alpha_gateway_api;
            let inference = info.group == INFERENCE_GROUP && !self.inference_extension;
            let disabled = info.is_gateway_api() && (experimental || inference || !self.gateway_api);
            let unused = info.is_multi_cluster() && !self.reads_multi_cluster(info.kind);
            let definition = format!("{}.{}", info.plural, info.group);
            let excluded = info.is_custom()
                && matches_any(&definition, &self.ignored_resources)
                && !matches_any(&definition, &self.included_resources);
            disabled || unused || excluded
        });
        ignored.map(|info| info.kind).collect()
    }

    /// Whether Gateways of the Gateway API in remote clusters have an effect: as gateways of networks, or in ambient mode.
    #[must_use]
    pub fn reads_remote_gateways(&self) -> bool {
        self.remote_gateways || (self.ambient && self.ambient_multi_network)
    }

    /// Whether a kind of the Multi-Cluster Services API has an effect.
    fn reads_multi_cluster(&self, kind: Kind) -> bool {
        let is_export = kind == Kind::ServiceExport;
        let is_read = self.multi_cluster.is_some_and(|multi_cluster| is_export || multi_cluster.imported_hosts);
        is_read || (is_export && self.exports_services)
    }

    /// Options of the Gateway API.
    #[must_use]
    pub fn gateway_api_options(&self) -> GatewayApiOptions {
        GatewayApiOptions {
            controller: self.gateway_controller.clone(),
            default_class: self.gateway_class.clone(),
            manual_deployment: self.manual_gateways,
            remote: self.remote_gateways,
            waypoints: self.ambient,
            east_west: self.ambient && self.ambient_multi_network,
            experimental: self.alpha_gateway_api,
            inference: self.inference_extension,
            agentgateway: self.agentgateway,
            creates_classes: self.gateway_classes,
            writes_statuses: self.gateway_statuses,
            deploys: self.deploys_gateways,
            copies_labels: self.copies_gateway_labels,
        }
    }

    /// Reads the environment.
    pub(crate) fn read(variables: &mut Variables<'_>, warnings: &mut Vec<String>) -> Self {
        let external_istiod = variables.flag("EXTERNAL_ISTIOD", false);
        let local_cluster_secrets = variables.flag("LOCAL_CLUSTER_SECRET_WATCHER", false);
        if local_cluster_secrets && !external_istiod {
            warnings
                .push("variable LOCAL_CLUSTER_SECRET_WATCHER: true has no effect without EXTERNAL_ISTIOD".to_owned());
        }
        let labels = SessionLabels::default();
        let sessions = SessionLabels {
            cookie: variables.raw("PILOT_PERSISTENT_SESSION_LABEL").map_or(labels.cookie, Text::from),
            header: variables.raw("PILOT_PERSISTENT_SESSION_HEADER_LABEL").map_or(labels.header, Text::from),
            enabled: variables.flag("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", false),
            draining: variables.raw("PILOT_DRAINING_LABEL").map_or(labels.draining, Text::from),
        };
        let imported_hosts = variables.flag("ENABLE_MCS_HOST", false);
        let cluster_local = variables.flag("ENABLE_MCS_CLUSTER_LOCAL", false);
        // Each of these switches has an effect only with the former one.
        let multi_cluster = variables
            .flag("ENABLE_MCS_SERVICE_DISCOVERY", false)
            .then_some(MultiClusterOptions { imported_hosts, cluster_local: imported_hosts && cluster_local });
        let default_api = MultiClusterApi::default();
        let allocate_addresses = variables.flag("PILOT_ENABLE_IP_AUTOALLOCATE", true);
        let pools = AddressPools::default();
        Self {
            ingress_namespace: variables.text_or("K8S_INGRESS_NS", "istio-system").into(),
            allocate_addresses,
            sends_hbone: variables.flag("PILOT_ENABLE_SENDING_HBONE", true),
            prefers_hbone: variables.flag("PILOT_PREFER_SENDING_HBONE", false),
            ambient: variables.flag("PILOT_ENABLE_AMBIENT", false),
            writes_conditions: variables.flag("AMBIENT_ENABLE_STATUS", true),
            untaints_nodes: variables.flag("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", false),
            node_taint: variables.text_or("PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME", "cni.istio.io/not-ready").into(),
            allows_waypoints: variables.flag("PILOT_AUTO_ALLOW_WAYPOINT_POLICY", false),
            ingress_waypoints: variables.flag("ENABLE_INGRESS_WAYPOINT_ROUTING", true),
            dry_run_policies: variables.flag("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", false),
            dual_stack: variables.flag("ISTIO_DUAL_STACK", false),
            http3: variables.flag("PILOT_ENABLE_QUIC_LISTENERS", false),
            scope_gateways: variables.flag("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", false),
            strict_gateway_merging: variables.flag("PILOT_ENABLE_STRICT_GATEWAY_MERGING", true),
            reaches_best_service: variables.flag("PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE", true),
            filter_gateway_clusters: variables.flag("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", false),
            alpha_gateway_api: variables.flag("PILOT_ENABLE_ALPHA_GATEWAY_API", false),
            inference_extension: variables.flag("ENABLE_GATEWAY_API_INFERENCE_EXTENSION", false),
            gateway_api: variables.flag("PILOT_ENABLE_GATEWAY_API", true),
            agentgateway: variables.flag("PILOT_ENABLE_AGENTGATEWAY", false),
            multi_cluster,
            multi_cluster_api: MultiClusterApi {
                group: variables.raw("MCS_API_GROUP").map_or(default_api.group, Text::from),
                version: variables.raw("MCS_API_VERSION").map_or(default_api.version, Text::from),
            },
            exports_services: variables.flag("ENABLE_MCS_AUTO_EXPORT", false),
            ignored_resources: variables.list("PILOT_IGNORE_RESOURCES"),
            included_resources: variables.list("PILOT_INCLUDE_RESOURCES"),
            gateway_controller: variables
                .text_or("PILOT_GATEWAY_API_CONTROLLER_NAME", "istio.io/gateway-controller")
                .into(),
            gateway_class: variables.text_or("PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME", "istio").into(),
            gateway_classes: variables.flag("PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER", true),
            gateway_statuses: variables.flag("PILOT_ENABLE_GATEWAY_API_STATUS", true),
            deploys_gateways: variables.flag("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", true),
            copies_gateway_labels: variables.flag("PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS", true),
            manual_gateways: variables.flag("ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT", true),
            remote_gateways: variables.flag("PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API", true),
            ambient_multi_network: variables.flag("AMBIENT_ENABLE_MULTI_NETWORK", false),
            waypoint_networks: variables.flag("AMBIENT_ENABLE_MULTI_NETWORK_WAYPOINT", true),
            ingress_networks: variables.flag("AMBIENT_ENABLE_MULTI_NETWORK_INGRESS", false),
            baggage: variables.flag("AMBIENT_ENABLE_BAGGAGE", false),
            resolve_gateway_names: variables.flag("RESOLVE_HOSTNAME_GATEWAYS", true),
            debug_on_http: variables.flag("ENABLE_DEBUG_ON_HTTP", true),
            changing_pages: variables.flag("UNSAFE_ENABLE_ADMIN_ENDPOINTS", false),
            debug_auth: variables.flag("ENABLE_DEBUG_ENDPOINT_AUTH", true),
            configuration_auth: variables.flag("ENABLE_XDS_API_GENERATOR_AUTH", true),
            debug_namespaces: variables.list("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES"),
            leader_election: variables.flag("ENABLE_LEADER_ELECTION", true),
            http10: variables.flag("PILOT_HTTP10", false),
            mongo_filter: variables.flag("PILOT_ENABLE_MONGO_FILTER", true),
            redis_filter: variables.flag("PILOT_ENABLE_REDIS_FILTER", false),
            mysql_filter: variables.flag("PILOT_ENABLE_MYSQL_FILTER", false),
            continue_responses: variables.flag("ENABLE_100_CONTINUE_HEADERS", true),
            sidecar_remote_address: variables.flag("PILOT_SIDECAR_USE_REMOTE_ADDRESS", false),
            sidecars_receive_hbone: variables.flag("PILOT_ENABLE_SIDECAR_LISTENING_HBONE", true),
            sidecar_ingress_tls: variables.flag("ENABLE_TLS_ON_SIDECAR_INGRESS", false),
            sessions,
            service_entry_selects_pods: variables.flag("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", true),
            service_selects_workload_entries: variables.flag("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", true),
            multiple_custom_providers: variables.flag("PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS", false),
            gateway_policies_by_selector: variables.flag("ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY", true),
            any_trust_domain: variables.flag("PILOT_SKIP_VALIDATE_TRUST_DOMAIN", false),
            virtual_hosts: variables.flag("SLUICE_VHDS", false),
            on_demand_clusters: variables.flag("SLUICE_ON_DEMAND_CLUSTERS", false),
            endpoints_by_locality: variables.flag("SLUICE_LEDS", false),
            small_http2_frames: variables.flag("SLUICE_HTTP2_FRAMES", true),
            jwks_skip_verify: variables.flag("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", false),
            xds_auth: variables.flag("XDS_AUTH", true),
            xds_auth_plaintext: variables.flag("XDS_AUTH_PLAINTEXT", false),
            register_workloads: variables.flag("PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION", true),
            workload_health: variables.flag("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", true),
            workload_grace_period: variables.duration("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", WORKLOAD_GRACE_PERIOD),
            workload_identity_check: variables.flag("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY", true),
            xds_identity_check: variables.flag("PILOT_ENABLE_XDS_IDENTITY_CHECK", true),
            jwks_fetch: read_jwks_fetch(variables),
            inject: variables.flag("INJECT_ENABLED", true),
            native_sidecars: read_native_sidecars(variables),
            patches_injection: variables.raw("INJECTION_WEBHOOK_CONFIG_NAME").is_none_or(|name| !name.is_empty()),
            patches_validation: variables.raw("VALIDATION_WEBHOOK_CONFIG_NAME").is_none_or(|name| !name.is_empty()),
            openshift: variables.text_or("PLATFORM", "") == "openshift",
            allocation_v4: variables.block("PILOT_IP_AUTOALLOCATE_IPV4_PREFIX", pools.v4),
            allocation_v6: variables.block("PILOT_IP_AUTOALLOCATE_IPV6_PREFIX", pools.v6),
            push_throttle: variables.limit("PILOT_PUSH_THROTTLE"),
            max_streams_per_connection: variables.limit("ISTIO_GPRC_MAXSTREAMS"),
            max_request_bytes: variables.limit("ISTIO_GPRC_MAXRECVMSGSIZE"),
            remote_cluster_timeout: variables.duration("PILOT_REMOTE_CLUSTER_TIMEOUT", REMOTE_CLUSTER_TIMEOUT),
            kubeconfig_directory: variables.text("PILOT_MULTICLUSTER_KUBECONFIG_PATH").map(PathBuf::from),
            insecure_kubeconfig: variables.list("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS"),
            external_istiod,
            local_cluster_secrets: local_cluster_secrets && external_istiod,
            max_streams_a_second: variables.limit("PILOT_MAX_REQUESTS_PER_SECOND"),
            jwks_refresh: variables.interval("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", JWKS_REFRESH_INTERVAL),
            clusters: read_cluster_switches(variables),
            shadow_suffix: !variables.flag("DISABLE_SHADOW_HOST_SUFFIX", true),
            connections_per_event: variables.count("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP", 1),
            gateway_handshake_timeout: variables
                .duration("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT", GATEWAY_HANDSHAKE_TIMEOUT),
            trusted_gateways: variables.blocks("TRUSTED_GATEWAY_CIDR"),
            jwks_blocked: variables.blocks("BLOCKED_CIDRS_IN_JWKS_URIS"),
            trace_sampling_millipercent: variables.millipercent("PILOT_TRACE_SAMPLING", 1_000),
        }
    }
}

fn read_cluster_switches(variables: &mut Variables<'_>) -> ClusterSwitches {
    let default = ClusterSwitches::default();
    ClusterSwitches {
        tracks_remaining: !variables.flag("DISABLE_TRACK_REMAINING_CB_METRICS", !default.tracks_remaining),
        dns_udp_queries: variables.count("PILOT_DNS_CARES_UDP_MAX_QUERIES", default.dns_udp_queries),
        dns_jitter: variables.duration("PILOT_DNS_JITTER_DURATION", default.dns_jitter),
        sends_unhealthy: variables.flag("PILOT_SEND_UNHEALTHY_ENDPOINTS", default.sends_unhealthy),
        sends_unhealthy_by_default: variables
            .flag("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", default.sends_unhealthy_by_default),
        peer_exchange: !variables.flag("PILOT_DISABLE_MX_ALPN", !default.peer_exchange),
        dns_cache_hosts: variables.count("PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS", default.dns_cache_hosts),
        hbone_stream_window: variables.count("PILOT_HBONE_INITIAL_STREAM_WINDOW_SIZE", default.hbone_stream_window),
        hbone_connection_window: variables
            .count("PILOT_HBONE_INITIAL_CONNECTION_WINDOW_SIZE", default.hbone_connection_window),
        // Only ambient mode has tunnels between networks: the graph takes them from its options of ambient mode.
        tunnels: default.tunnels,
    }
}

/// Whether a name equals one of the patterns, or has the suffix of a pattern `*.SUFFIX`.
fn matches_any(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_prefix("*.") {
        Some(suffix) => name.ends_with(suffix),
        None => name == pattern,
    })
}

/// `None` is `auto`.
fn read_native_sidecars(variables: &mut Variables<'_>) -> Option<bool> {
    let accepted = [("true", Some(true)), ("false", Some(false)), ("auto", None)];
    variables.choice("ENABLE_NATIVE_SIDECARS", &accepted).flatten()
}

fn read_jwks_fetch(variables: &mut Variables<'_>) -> JwksFetch {
    let accepted = [
        ("false", JwksFetch::ControlPlane),
        ("istiod", JwksFetch::ControlPlane),
        ("hybrid", JwksFetch::Hybrid),
        ("true", JwksFetch::Hybrid),
        ("envoy", JwksFetch::Proxy),
    ];
    variables.choice("PILOT_JWT_ENABLE_REMOTE_JWKS", &accepted).unwrap_or(JwksFetch::ControlPlane)
}
