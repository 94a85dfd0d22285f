//! The variables of the environment that `sluiced` reads beside those of flags, as `--help` lists them.

use std::fmt::Write as _;

/// A variable: name, default, meaning.
type Variable = (&'static str, &'static str, &'static str);

/// What is read of a mesh, and how it is served.
const MESH: &[Variable] = &[
    (
        "SHARED_MESH_CONFIG",
        "",
        "Name of a ConfigMap in the control plane's namespace; the own mesh config overrides the mesh config in it",
    ),
    ("ISTIO_DUAL_STACK", "false", "Use both address families where both exist"),
    ("K8S_INGRESS_NS", "istio-system", "Namespace of the routers that serve Ingresses"),
    ("ENABLE_LEADER_ELECTION", "true", "Only one of several replicas writes to the cluster"),
    (
        "PILOT_ENABLE_IP_AUTOALLOCATE",
        "true",
        "Allocate addresses to hosts of ServiceEntries that have none, and write them to the status",
    ),
    ("PILOT_IP_AUTOALLOCATE_IPV4_PREFIX", "240.240.0.0/16", "CIDR block of the allocated IPv4 addresses"),
    ("PILOT_IP_AUTOALLOCATE_IPV6_PREFIX", "2001:2::/48", "CIDR block of the allocated IPv6 addresses"),
    ("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", "true", "Selectors of ServiceEntries also select pods"),
    ("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", "true", "Selectors of Services also select WorkloadEntries"),
    ("RESOLVE_HOSTNAME_GATEWAYS", "true", "Resolve host names of gateways between networks, every 30 seconds"),
    ("PILOT_TRACE_SAMPLING", "1", "Percentage of requests that are traced unless configured otherwise"),
    ("PILOT_HTTP10", "false", "All proxies accept HTTP/1.0"),
    ("PILOT_ENABLE_MONGO_FILTER", "true", "Use Envoy's MongoDB filter on ports of that protocol"),
    ("PILOT_ENABLE_REDIS_FILTER", "false", "Use Envoy's Redis filter on ports of that protocol"),
    ("PILOT_ENABLE_MYSQL_FILTER", "false", "Use Envoy's MySQL filter on ports of that protocol"),
    ("ENABLE_TLS_ON_SIDECAR_INGRESS", "false", "Ingress listeners of Sidecars terminate the TLS they declare"),
    ("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", "false", "Sticky sessions for services with one of the next two labels"),
    ("PILOT_PERSISTENT_SESSION_LABEL", "istio.io/persistent-session", "Label of a service that names the cookie"),
    (
        "PILOT_PERSISTENT_SESSION_HEADER_LABEL",
        "istio.io/persistent-session-header",
        "Label of a service that names the header",
    ),
];

/// Remote clusters.
const CLUSTERS: &[Variable] = &[
    (
        "PILOT_REMOTE_CLUSTER_TIMEOUT",
        "30s",
        "Longest time for which proxies wait until a remote cluster is read; 0 is unlimited. Secrets with the label \
         istio/multiCluster declare remote clusters",
    ),
    (
        "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS",
        "",
        "Options that kubeconfigs in these Secrets may use although they run programs or read files, comma separated: \
         `exec`, `tokenFile`, `clientCertificate`, `clientKey`, or the name of an auth provider",
    ),
    (
        "LOCAL_CLUSTER_SECRET_WATCHER",
        "false",
        "With EXTERNAL_ISTIOD, read these Secrets in the cluster that the control plane runs in",
    ),
    (
        "EXTERNAL_ISTIOD",
        "false",
        "Serve clusters without a control plane of their own. Root certificates are written into their namespaces if \
         annotation topology.istio.io/controlPlaneClusters of their system namespace names this cluster, or *",
    ),
];

/// Gateways.
const GATEWAYS: &[Variable] = &[
    ("PILOT_ENABLE_QUIC_LISTENERS", "false", "Routers also serve HTTPS over HTTP/3"),
    ("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "false", "A Gateway applies only to routers of its own namespace"),
    ("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "false", "Routers receive only the clusters that they send requests to"),
    ("PILOT_ENABLE_GATEWAY_API", "true", "Read the kinds of the Gateway API"),
    ("PILOT_ENABLE_ALPHA_GATEWAY_API", "false", "Also read the experimental kinds of the Gateway API"),
    (
        "PILOT_GATEWAY_API_CONTROLLER_NAME",
        "istio.io/gateway-controller",
        "Controller of the GatewayClasses whose Gateways are served",
    ),
    ("PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME", "istio", "A GatewayClass that is served even if it does not exist"),
    (
        "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT",
        "true",
        "A Gateway may refer to the Service of a gateway that is deployed separately",
    ),
    ("PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API", "true", "Gateways of the Gateway API can be gateways of networks"),
];

/// Ambient mode.
const AMBIENT: &[Variable] = &[
    ("PILOT_ENABLE_AMBIENT", "false", "Ambient mode: serve ztunnel. Waypoints are not configured yet"),
    (
        "PILOT_ENABLE_SENDING_HBONE",
        "true",
        "In ambient mode, sidecars and gateways use HBONE for destinations that accept it",
    ),
    ("PILOT_PREFER_SENDING_HBONE", "false", "Use HBONE also for destinations that accept mutual TLS as well"),
    (
        "PILOT_AUTO_ALLOW_WAYPOINT_POLICY",
        "false",
        "Workloads behind a waypoint accept traffic only from its instances, unless a policy says otherwise",
    ),
    ("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", "false", "ztunnel receives dry-run authorization policies"),
    ("AMBIENT_ENABLE_MULTI_NETWORK", "false", "Serve gateways between networks of ambient meshes"),
];

/// Policies.
const POLICIES: &[Variable] = &[
    (
        "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS",
        "false",
        "A workload may have CUSTOM policies of several providers",
    ),
    ("ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY", "true", "Policies can select gateways of the Gateway API by label"),
    ("PILOT_SKIP_VALIDATE_TRUST_DOMAIN", "false", "Servers accept clients of all trust domains"),
    (
        "PILOT_JWT_ENABLE_REMOTE_JWKS",
        "false",
        "Which side fetches JWKS: `false` or `istiod` (the control plane), `hybrid` or `true` (the proxies if the JWKS server is \
         in the mesh, else the control plane), `envoy` (the proxies)",
    ),
    ("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "20m", "Interval at which the control plane fetches JWKS again"),
    ("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", "false", "Do not verify the certificates of JWKS servers"),
    ("BLOCKED_CIDRS_IN_JWKS_URIS", "", "CIDR blocks from which JWKS are never fetched, comma separated"),
];

/// Load.
const LOAD: &[Variable] = &[
    (
        "PILOT_PUSH_THROTTLE",
        "two for each CPU",
        "Number of streams that receive first responses or changes of many resources at a time; 0 is the default",
    ),
    (
        "ISTIO_GPRC_MAXRECVMSGSIZE",
        "4194304",
        "Largest request in bytes; 0 is the default. A delta proxy that reconnects lists all resources it holds",
    ),
    ("ISTIO_GPRC_MAXSTREAMS", "1000", "Maximum number of concurrent streams of a connection; 0 is the default"),
    ("PILOT_MAX_REQUESTS_PER_SECOND", "by load", "New streams for each second; 0 is the default"),
    (
        "SLUICE_VHDS",
        "false",
        "Experimental: delta proxies with VHDS: \"true\" in their metadata receive virtual hosts as resources of \
         their own",
    ),
    (
        "SLUICE_HTTP2_FRAMES",
        "true",
        "Split large HTTP/2 data frames of clients, which saves 8 KiB of memory for each connection",
    ),
];

/// Authentication of callers.
const CALLERS: &[Variable] = &[
    ("XDS_AUTH", "true", "Authenticate callers of xDS"),
    ("XDS_AUTH_PLAINTEXT", "false", "Require authentication on the plaintext port as well"),
    ("PILOT_ENABLE_XDS_IDENTITY_CHECK", "true", "The identity of a caller must be that of its proxy"),
    (
        "TRUSTED_GATEWAY_CIDR",
        "",
        "CIDR blocks whose X-Forwarded-Client-Cert is trusted, comma separated; 127.0.0.0/8,::1/128 is the loopback. Their \
         connections have no limits for each address",
    ),
    ("TOKEN_AUDIENCES", "istio-ca", "Accepted audiences of tokens, comma separated"),
    ("JWT_RULE", "", "JSON with issuer, jwks_uri and audiences of accepted OIDC tokens"),
    ("ENABLE_DEBUG_ON_HTTP", "true", "Serve /debug on the HTTP and the monitoring port"),
    ("ENABLE_DEBUG_ENDPOINT_AUTH", "true", "The identity of a caller decides which debug pages it sees"),
    (
        "DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES",
        "",
        "Namespaces, in addition to that of the control plane, whose service accounts see all debug pages, \
         comma separated",
    ),
];

/// Certificates.
const CERTIFICATES: &[Variable] = &[
    ("ENABLE_CA_SERVER", "true", "Issue certificates to workloads"),
    (
        "COMPLIANCE_POLICY",
        "",
        "Limits all TLS, of proxies and of the secure port, whatever else is configured: `fips-140-2` (TLS 1.2, \
         AES-GCM, P-256), `fips-140-3` (1.2 and 1.3, P-384 as well), `pqc` (1.3, X25519MLKEM768)",
    ),
    ("ROOT_CA_DIR", "./etc/cacerts", "Directory of a plugged-in certificate authority"),
    ("CITADEL_SELF_SIGNED_CA_CERT_TTL", "87600h", "Lifetime of a self-signed root"),
    (
        "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL",
        "1h",
        "Interval at which the self-signed root is checked for renewal; 0 disables the checks",
    ),
    (
        "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE",
        "20",
        "Percentage of the lifetime that is left when the self-signed root is renewed",
    ),
    ("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", "true", "Replicas check the root at different times"),
    (
        "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE",
        "",
        "Bits of the RSA key of a self-signed root: 2048 (the default in a cluster), 3072, 4096 or 8192",
    ),
    (
        "SLUICE_SELF_SIGNED_CA_ECC_CURVE",
        "",
        "P256 (the default without a cluster) or P384: the self-signed root has an EC key, which signs many times as \
         fast as an RSA key",
    ),
    ("USE_CACERTS_FOR_SELF_SIGNED_CA", "false", "Keep the self-signed root in Secret `cacerts`"),
    ("USE_REMOTE_CERTS", "false", "Read the authority from Secret `cacerts`"),
    ("DEFAULT_WORKLOAD_CERT_TTL", "24h", "Lifetime of a certificate whose request states none"),
    ("MAX_WORKLOAD_CERT_TTL", "2160h", "Longest lifetime that a request may state"),
    (
        "CA_TRUSTED_NODE_ACCOUNTS",
        "",
        "NAMESPACE/NAME of service accounts of node proxies, comma separated. They may request certificates for the \
         pods of their node",
    ),
    (
        "PILOT_CERT_PROVIDER",
        "istiod",
        "Issuer of the server certificate: `istiod`, `k8s.io/DOMAIN/NAME` (a signer of the Kubernetes API, whose \
         roots are in mesh config), `custom` or `none`",
    ),
    ("ISTIOD_CUSTOM_HOST", "", "Further DNS names of the server certificate, comma separated"),
    ("PILOT_ENABLE_CA_CRL", "true", "Write revocation lists of the authority into every namespace"),
    ("PILOT_CA_CERT_CONFIGMAP", "istio-ca-root-cert", "ConfigMap with the root certificates in every namespace"),
    ("PILOT_CRL_CONFIGMAP", "istio-ca-crl", "ConfigMap with the revocation lists in every namespace"),
    (
        "ENABLE_CLUSTER_TRUST_BUNDLE_API",
        "false",
        "Write the root certificates into a ClusterTrustBundle instead of ConfigMaps",
    ),
    ("ISTIO_MULTIROOT_MESH", "false", "Proxies receive the root certificates of all sources"),
    ("EXTERNAL_CA", "", "`ISTIOD_RA_KUBERNETES_API`: a signer of the Kubernetes API issues workload certificates"),
    ("K8S_SIGNER", "", "Name of that signer"),
    ("CERT_SIGNER_DOMAIN", "", "Domain of the signers that workloads may request"),
];

/// Switches of istiod that change its output, with the only value that is supported.
pub(crate) const UNSUPPORTED_SWITCHES: &[(&str, &str)] = &[
    ("DISABLE_SHADOW_HOST_SUFFIX", "true"),
    ("DISABLE_TRACK_REMAINING_CB_METRICS", "true"),
    ("ENABLE_100_CONTINUE_HEADERS", "true"),
    ("ENABLE_ENHANCED_DESTINATIONRULE_MERGE", "true"),
    ("ENABLE_GATEWAY_API_INFERENCE_EXTENSION", "false"),
    ("ENABLE_HCM_INTERNAL_NETWORKS", "false"),
    ("ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES", "false"),
    ("ENABLE_LOCALITY_WEIGHTED_LB_CONFIG", "false"),
    ("ENABLE_MCS_AUTO_EXPORT", "false"),
    ("ENABLE_MCS_CLUSTER_LOCAL", "false"),
    ("ENABLE_MCS_HOST", "false"),
    ("ENABLE_MCS_SERVICE_DISCOVERY", "false"),
    ("ENABLE_MULTICLUSTER_HEADLESS", "true"),
    ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "false"),
    ("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", "false"),
    ("LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES", "false"),
    ("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP", "1"),
    ("PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE", "false"),
    ("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", "true"),
    ("PILOT_DISABLE_MX_ALPN", "false"),
    ("PILOT_DNS_CARES_UDP_MAX_QUERIES", "100"),
    ("PILOT_DNS_JITTER_DURATION", "100ms"),
    ("PILOT_DRAINING_LABEL", "istio.io/draining"),
    ("PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN", "true"),
    ("PILOT_ENABLE_ALPN_FILTER", "true"),
    ("PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY", "true"),
    ("PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES", "false"),
    ("PILOT_ENABLE_HEADLESS_FILTER_CHAIN_LISTENER", "false"),
    ("PILOT_ENABLE_METADATA_EXCHANGE", "true"),
    ("PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", "true"),
    ("PILOT_ENABLE_STRICT_GATEWAY_MERGING", "true"),
    ("PILOT_ENABLE_TELEMETRY_LABEL", "true"),
    ("PILOT_ENDPOINT_TELEMETRY_LABEL", "true"),
    ("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT", "15s"),
    ("PILOT_IGNORE_RESOURCES", ""),
    ("PILOT_MULTICLUSTER_KUBECONFIG_PATH", ""),
    ("PILOT_MX_ADDITIONAL_LABELS", ""),
    ("PILOT_SEND_UNHEALTHY_ENDPOINTS", "false"),
    ("PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE", "true"),
    ("PILOT_SIDECAR_USE_REMOTE_ADDRESS", "false"),
    ("PILOT_UNIFIED_SIDECAR_SCOPE", "true"),
    ("PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES", "true"),
];

const GROUPS: &[(&str, &[Variable])] = &[
    ("Mesh", MESH),
    ("Remote clusters", CLUSTERS),
    ("Gateways", GATEWAYS),
    ("Ambient mode", AMBIENT),
    ("Policies", POLICIES),
    ("Load", LOAD),
    ("Callers", CALLERS),
    ("Certificates", CERTIFICATES),
];

/// Variables that are read, and those of istiod that are checked for unsupported values.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let read = GROUPS.iter().flat_map(|(_, variables)| *variables).map(|(name, ..)| *name);
    read.chain(UNSUPPORTED_SWITCHES.iter().map(|(name, _)| *name))
}

/// The variables as `--help` shows them.
pub(crate) fn help() -> String {
    let mut text =
        "Environment, in addition to the variables of flags (a variable of istiod without an effect is warned of):\n"
            .to_owned();
    for (title, variables) in GROUPS {
        // Writing to a text does not fail.
        let _ = writeln!(text, "\n{title}:");
        for (name, default, says) in *variables {
            let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
            let _ = writeln!(text, "  {name}\n          {says}{default}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;
    use crate::{CommandLine, Config};

    #[test]
    fn help_lists_what_is_read() {
        let asked = RefCell::new(BTreeSet::new());
        for signer in [None, Some("ISTIOD_RA_KUBERNETES_API")] {
            let (line, unknown) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
            let read = Config::new(line.discovery, &unknown, |name| {
                asked.borrow_mut().insert(name.to_owned());
                match name {
                    "EXTERNAL_CA" => signer.map(str::to_owned),
                    "K8S_SIGNER" => Some("example.com/signer".to_owned()),
                    _ => None,
                }
            });
            read.expect("a configuration");
        }
        let mut asked = asked.into_inner();
        for (name, _) in UNSUPPORTED_SWITCHES {
            asked.remove(*name);
        }
        let listed: BTreeSet<String> =
            GROUPS.iter().flat_map(|(_, variables)| *variables).map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(listed, asked);
        let help = help();
        assert!(listed.iter().all(|name| help.contains(name.as_str())));
    }
}
