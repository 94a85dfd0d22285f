//! The variables of the environment that `sluiced` reads beside those of flags, as `--help` lists them.

use std::fmt::Write as _;

/// A variable: its name, what it is if it is not set, and what it says.
type Variable = (&'static str, &'static str, &'static str);

/// What of a mesh is read, and how it is served.
const MESH: &[Variable] = &[
    ("SHARED_MESH_CONFIG", "", "ConfigMap of the control plane's namespace beneath the mesh config"),
    ("ISTIO_DUAL_STACK", "false", "Both address families are used where both are there"),
    ("K8S_INGRESS_NS", "istio-system", "Namespace of the router that Ingresses are for"),
    ("ENABLE_LEADER_ELECTION", "true", "Of several replicas, one writes into the cluster"),
    (
        "PILOT_ENABLE_IP_AUTOALLOCATE",
        "true",
        "Hosts of ServiceEntries without addresses get some, written to their status",
    ),
    ("PILOT_IP_AUTOALLOCATE_IPV4_PREFIX", "240.240.0.0/16", "Where those come from"),
    ("PILOT_IP_AUTOALLOCATE_IPV6_PREFIX", "2001:2::/48", "Where those come from"),
    ("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", "true", "A ServiceEntry's selector selects pods too"),
    ("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", "true", "A Service's selector selects WorkloadEntries too"),
    ("RESOLVE_HOSTNAME_GATEWAYS", "true", "Gateways between networks may have a host name, resolved every 30 seconds"),
    ("PILOT_TRACE_SAMPLING", "1", "Percentage of requests that are traced unless configured otherwise"),
    ("PILOT_HTTP10", "false", "Every proxy accepts HTTP/1.0"),
    ("PILOT_ENABLE_MONGO_FILTER", "true", "Proxies understand MongoDB"),
    ("PILOT_ENABLE_REDIS_FILTER", "false", "Proxies understand Redis"),
    ("PILOT_ENABLE_MYSQL_FILTER", "false", "Proxies understand MySQL"),
    ("ENABLE_TLS_ON_SIDECAR_INGRESS", "false", "Listeners of Sidecars end the TLS they declare"),
    ("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", "false", "Proxies keep sessions with services that ask for it by label"),
    ("PILOT_PERSISTENT_SESSION_LABEL", "istio.io/persistent-session", "That label, for a cookie"),
    ("PILOT_PERSISTENT_SESSION_HEADER_LABEL", "istio.io/persistent-session-header", "That label, for a header"),
];

/// Remote clusters.
const CLUSTERS: &[Variable] = &[
    (
        "PILOT_REMOTE_CLUSTER_TIMEOUT",
        "30s",
        "Longest wait, before proxies are served, for a cluster that a Secret with the label istio/multiCluster names; 0 is \
         unlimited",
    ),
    (
        "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS",
        "",
        "What kubeconfigs of such Secrets may do although it runs programs or reads files, comma separated: `exec`, \
         `tokenFile`, `clientCertificate`, `clientKey`, or the name of an auth provider",
    ),
    (
        "LOCAL_CLUSTER_SECRET_WATCHER",
        "false",
        "With EXTERNAL_ISTIOD, those Secrets are read in the cluster this runs in",
    ),
    (
        "EXTERNAL_ISTIOD",
        "false",
        "Clusters without a control plane of their own are served: roots are written into their namespaces if annotation \
         topology.istio.io/controlPlaneClusters of their system namespace names this cluster, or *",
    ),
];

/// Gateways.
const GATEWAYS: &[Variable] = &[
    ("PILOT_ENABLE_QUIC_LISTENERS", "false", "HTTPS of routers is served over HTTP/3 too"),
    ("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", "false", "A Gateway is for routers of its own namespace only"),
    ("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", "false", "Routers get the clusters of what they send to only"),
    ("PILOT_ENABLE_GATEWAY_API", "true", "Kinds of the Gateway API are read"),
    ("PILOT_ENABLE_ALPHA_GATEWAY_API", "false", "Its experimental kinds too"),
    ("PILOT_GATEWAY_API_CONTROLLER_NAME", "istio.io/gateway-controller", "Controller of the Gateways that are served"),
    ("PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME", "istio", "Their class, which need not be there"),
    (
        "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT",
        "true",
        "A Gateway may name the Service of a gateway that is deployed otherwise",
    ),
    ("PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API", "true", "Gateways of other networks are known"),
];

/// Ambient mode.
const AMBIENT: &[Variable] = &[
    ("PILOT_ENABLE_AMBIENT", "false", "ztunnel is served"),
    ("PILOT_ENABLE_SENDING_HBONE", "true", "With it, sidecars and gateways send HBONE to where it is taken"),
    ("PILOT_PREFER_SENDING_HBONE", "false", "Even where mutual TLS is taken as well"),
    ("PILOT_AUTO_ALLOW_WAYPOINT_POLICY", "false", "Workloads behind a waypoint let only its instances pass"),
    ("AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY", "false", "ztunnel is sent policies that are only evaluated"),
    ("AMBIENT_ENABLE_MULTI_NETWORK", "false", "Gateways between networks of ambient meshes are served"),
];

/// Policies.
const POLICIES: &[Variable] = &[
    (
        "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS",
        "false",
        "A workload may have CUSTOM policies of several providers",
    ),
    ("ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY", "true", "Policies select gateways of the Gateway API by label"),
    ("PILOT_SKIP_VALIDATE_TRUST_DOMAIN", "false", "Clients may be of any trust domain"),
    ("PILOT_JWT_ENABLE_REMOTE_JWKS", "false", "Who fetches keys of issuers: `false`, `hybrid` (or `true`), `envoy`"),
    ("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "20m", "Time after which they are fetched again"),
    ("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", "false", "Servers of keys are not verified"),
    ("BLOCKED_CIDRS_IN_JWKS_URIS", "", "Blocks of addresses that keys are never fetched from, comma separated"),
];

/// Load.
const LOAD: &[Variable] = &[
    (
        "PILOT_PUSH_THROTTLE",
        "two for each CPU",
        "Streams whose answers are made at a time: first ones, and changes of many resources",
    ),
    (
        "ISTIO_GPRC_MAXRECVMSGSIZE",
        "4194304",
        "Bytes a request may have: a delta proxy that comes back names all it holds",
    ),
    ("PILOT_MAX_REQUESTS_PER_SECOND", "what the load lets in", "Streams that may begin a second"),
    (
        "SLUICE_VHDS",
        "false",
        "Experimental: delta proxies with VHDS: \"true\" in their metadata get virtual hosts one by one",
    ),
    (
        "SLUICE_HTTP2_FRAMES",
        "true",
        "Split large HTTP/2 data frames of clients, which saves 8 KiB of memory for each connection",
    ),
];

/// Who may call.
const CALLERS: &[Variable] = &[
    ("XDS_AUTH", "true", "Callers of xDS are authenticated"),
    ("XDS_AUTH_PLAINTEXT", "false", "On the plaintext port too"),
    ("PILOT_ENABLE_XDS_IDENTITY_CHECK", "true", "A proxy has to be who its caller is"),
    ("TRUSTED_GATEWAY_CIDR", "", "Blocks, beside the loopback, whose X-Forwarded-Client-Cert is believed"),
    ("TOKEN_AUDIENCES", "istio-ca", "Audiences of tokens, comma separated"),
    ("JWT_RULE", "", "JSON with issuer, jwks_uri and audiences of OIDC tokens that are taken"),
    ("ENABLE_DEBUG_ON_HTTP", "true", "/debug is served on the HTTP and the monitoring port"),
    ("ENABLE_DEBUG_ENDPOINT_AUTH", "true", "What one sees of it depends on who one is"),
    ("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES", "", "Namespaces, beside the system's, that see all of it"),
];

/// Certificates.
const CERTIFICATES: &[Variable] = &[
    ("ENABLE_CA_SERVER", "true", "Workloads get certificates here"),
    (
        "COMPLIANCE_POLICY",
        "",
        "Limits all TLS, of proxies and of the secure port, whatever else is configured: `fips-140-2` (TLS 1.2, AES-GCM, \
         P-256), `fips-140-3` (1.2 and 1.3, P-384 as well), `pqc` (1.3, X25519MLKEM768)",
    ),
    ("ROOT_CA_DIR", "./etc/cacerts", "Directory of a plugged-in authority"),
    ("CITADEL_SELF_SIGNED_CA_CERT_TTL", "87600h", "Lifetime of a root of our own"),
    ("CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL", "1h", "How often it is looked whether it has to be renewed"),
    (
        "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE",
        "20",
        "Share of its life, in percent, before whose end it is",
    ),
    ("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", "true", "Replicas look at different times"),
    (
        "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE",
        "",
        "Bits of the RSA key of a root of our own: 2048 (the default in a cluster), 3072, 4096 or 8192",
    ),
    (
        "SLUICE_SELF_SIGNED_CA_ECC_CURVE",
        "",
        "P256 (the default without a cluster) or P384: its key is EC instead, which signs many times as fast",
    ),
    ("USE_CACERTS_FOR_SELF_SIGNED_CA", "false", "A root of our own is kept in Secret `cacerts`"),
    ("USE_REMOTE_CERTS", "false", "Secret `cacerts` is read"),
    ("DEFAULT_WORKLOAD_CERT_TTL", "24h", "Lifetime of a certificate whose request names none"),
    ("MAX_WORKLOAD_CERT_TTL", "2160h", "Longest lifetime a request may name"),
    ("CA_TRUSTED_NODE_ACCOUNTS", "", "NAMESPACE/NAME of accounts that may ask for the pods of their node"),
    (
        "PILOT_CERT_PROVIDER",
        "istiod",
        "Who certifies the server itself: `istiod`, `k8s.io/DOMAIN/NAME` (a signer of the Kubernetes API, whose roots are in \
         mesh config), `custom` or `none`",
    ),
    ("ISTIOD_CUSTOM_HOST", "", "Further names of the server, comma separated"),
    ("PILOT_ENABLE_CA_CRL", "true", "Revocation lists of the authority go to every namespace"),
    ("PILOT_CA_CERT_CONFIGMAP", "istio-ca-root-cert", "ConfigMap of the roots in every namespace"),
    ("PILOT_CRL_CONFIGMAP", "istio-ca-crl", "ConfigMap of the revocation lists"),
    ("ENABLE_CLUSTER_TRUST_BUNDLE_API", "false", "The roots go into a ClusterTrustBundle"),
    ("ISTIO_MULTIROOT_MESH", "false", "Proxies are told of the roots of every source"),
    ("EXTERNAL_CA", "", "`ISTIOD_RA_KUBERNETES_API`: a signer behind the Kubernetes API certifies workloads"),
    ("K8S_SIGNER", "", "That signer"),
    ("CERT_SIGNER_DOMAIN", "", "Domain of signers that workloads may name"),
];

/// Switches of istiod that change its output and are not supported, with the only value that is followed.
pub(crate) const NOT_FOLLOWED: &[(&str, &str)] = &[
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

/// Variables that are read, and those of istiod that are checked for values that are not followed.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let read = GROUPS.iter().flat_map(|(_, variables)| *variables).map(|(name, ..)| *name);
    read.chain(NOT_FOLLOWED.iter().map(|(name, _)| *name))
}

/// The variables as `--help` shows them.
pub(crate) fn help() -> String {
    let mut text =
        "Environment (beside the variables of flags; those of istiod's that have no effect are warned of):\n"
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
        for (name, _) in NOT_FOLLOWED {
            asked.remove(*name);
        }
        let listed: BTreeSet<String> =
            GROUPS.iter().flat_map(|(_, variables)| *variables).map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(listed, asked);
        let help = help();
        assert!(listed.iter().all(|name| help.contains(name.as_str())));
    }
}
