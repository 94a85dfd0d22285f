//! Variables of load, callers, certificates and webhooks.

use crate::ValueKind::{Bool, Choice, Duration, Json, List, Number, Text};
use crate::{Variable, followed};

/// Load.
pub(super) const LOAD: &[Variable] = &[
    followed(
        "SLUICE_IGNORE_UNSUPPORTED_VARIABLES",
        Bool,
        "false",
        "Start although a variable has a value that is not supported: its default is used, and a warning is logged",
    ),
    followed(
        "PILOT_PUSH_THROTTLE",
        Number,
        "two for each CPU",
        "Number of streams that receive first responses or changes of many resources at a time; 0 is the default",
    ),
    followed(
        "ISTIO_GPRC_MAXRECVMSGSIZE",
        Number,
        "4194304",
        "Largest request in bytes; 0 is the default. A delta proxy that reconnects lists all resources it holds",
    ),
    followed(
        "ISTIO_GPRC_MAXSTREAMS",
        Number,
        "1000",
        "Maximum number of concurrent streams of a connection; 0 is the default",
    ),
    followed("PILOT_MAX_REQUESTS_PER_SECOND", Number, "by load", "New streams for each second; 0 is the default"),
    followed(
        "SLUICE_VHDS",
        Bool,
        "false",
        "Experimental: delta proxies with VHDS: \"true\" in their metadata receive virtual hosts as resources of their own",
    ),
    followed(
        "SLUICE_ON_DEMAND_CLUSTERS",
        Bool,
        "false",
        "Experimental: delta proxies with ON_DEMAND_CLUSTERS: \"true\" in their metadata receive the clusters of routes on demand",
    ),
    followed(
        "SLUICE_LEDS",
        Bool,
        "false",
        "Experimental: delta proxies with LEDS: \"true\" in their metadata receive the endpoints of each locality as resources of their own",
    ),
    followed(
        "SLUICE_HTTP2_FRAMES",
        Bool,
        "true",
        "Split large HTTP/2 data frames of clients, which saves 8 KiB of memory for each connection",
    ),
];

/// Authentication of callers.
pub(super) const CALLERS: &[Variable] = &[
    followed("XDS_AUTH", Bool, "true", "Authenticate callers of xDS"),
    followed("XDS_AUTH_PLAINTEXT", Bool, "false", "Require authentication on the plaintext port as well"),
    followed("PILOT_ENABLE_XDS_IDENTITY_CHECK", Bool, "true", "The identity of a caller must be that of its proxy"),
    followed(
        "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION",
        Bool,
        "true",
        "Create WorkloadEntries for connected proxies that name a WorkloadGroup",
    ),
    followed(
        "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS",
        Bool,
        "true",
        "Write the health that proxies report to WorkloadEntries",
    ),
    followed(
        "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
        Duration,
        "10s",
        "Time after which the WorkloadEntry of a disconnected proxy is removed",
    ),
    followed(
        "ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY",
        Bool,
        "true",
        "The identity of a proxy must have the namespace and the service account of its WorkloadEntry",
    ),
    followed(
        "TRUSTED_GATEWAY_CIDR",
        List,
        "",
        "CIDR blocks whose X-Forwarded-Client-Cert is trusted, comma separated; 127.0.0.0/8,::1/128 is the loopback. Their connections have no limits for each address",
    ),
    followed("TOKEN_AUDIENCES", List, "istio-ca", "Accepted audiences of tokens, comma separated"),
    followed("JWT_RULE", Json, "", "JSON with issuer, jwks_uri and audiences of accepted OIDC tokens"),
    followed("UNSAFE_ENABLE_ADMIN_ENDPOINTS", Bool, "false", "/debug/force_disconnect closes the stream of a proxy"),
    followed("ENABLE_DEBUG_ON_HTTP", Bool, "true", "Serve /debug on the HTTP and the monitoring port"),
    followed("ENABLE_DEBUG_ENDPOINT_AUTH", Bool, "true", "The identity of a caller decides which debug pages it sees"),
    followed(
        "ENABLE_XDS_API_GENERATOR_AUTH",
        Bool,
        "true",
        "Serve configuration to other control planes only if they are service accounts of the root namespace",
    ),
    followed(
        "DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES",
        List,
        "",
        "Namespaces, in addition to that of the control plane, whose service accounts see all debug pages, comma separated",
    ),
];

/// Certificates.
pub(super) const CERTIFICATES: &[Variable] = &[
    followed("ENABLE_CA_SERVER", Bool, "true", "Issue certificates to workloads"),
    followed(
        "COMPLIANCE_POLICY",
        Choice(&["fips-140-2", "fips-140-3", "pqc"]),
        "",
        "Limits all TLS, of proxies and of the secure port, whatever else is configured: `fips-140-2` (TLS 1.2, AES-GCM, P-256), `fips-140-3` (1.2 and 1.3, P-384 as well), `pqc` (1.3, X25519MLKEM768)",
    ),
    followed("ROOT_CA_DIR", Text, "./etc/cacerts", "Directory of a plugged-in certificate authority"),
    followed("CITADEL_SELF_SIGNED_CA_CERT_TTL", Duration, "87600h", "Lifetime of a self-signed root"),
    followed(
        "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL",
        Duration,
        "1h",
        "Interval at which the self-signed root is checked for renewal; 0 disables the checks",
    ),
    followed(
        "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE",
        Number,
        "20",
        "Percentage of the lifetime that is left when the self-signed root is renewed",
    ),
    followed("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", Bool, "true", "Replicas check the root at different times"),
    followed(
        "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE",
        Choice(&["2048", "3072", "4096", "8192"]),
        "",
        "Bits of the RSA key of a self-signed root: 2048 (the default in a cluster), 3072, 4096 or 8192",
    ),
    followed(
        "SLUICE_SELF_SIGNED_CA_ECC_CURVE",
        Choice(&["P256", "P384"]),
        "",
        "P256 (the default without a cluster) or P384: the self-signed root has an EC key, which signs many times as fast as an RSA key",
    ),
    followed("USE_CACERTS_FOR_SELF_SIGNED_CA", Bool, "false", "Keep the self-signed root in Secret `cacerts`"),
    followed("USE_REMOTE_CERTS", Bool, "false", "Read the authority from Secret `cacerts`"),
    followed("DEFAULT_WORKLOAD_CERT_TTL", Duration, "24h", "Lifetime of a certificate whose request states none"),
    followed("MAX_WORKLOAD_CERT_TTL", Duration, "2160h", "Longest lifetime that a request may state"),
    followed(
        "CA_TRUSTED_NODE_ACCOUNTS",
        List,
        "",
        "NAMESPACE/NAME of service accounts of node proxies, comma separated. They may request certificates for the pods of their node",
    ),
    followed(
        "PILOT_CERT_PROVIDER",
        Text,
        "istiod",
        "Issuer of the server certificate: `istiod`, `k8s.io/DOMAIN/NAME` (a signer of the Kubernetes API, whose roots are in mesh config), `custom` or `none`",
    ),
    followed("ISTIOD_CUSTOM_HOST", List, "", "Further DNS names of the server certificate, comma separated"),
    followed("PILOT_ENABLE_CA_CRL", Bool, "true", "Write revocation lists of the authority into every namespace"),
    followed(
        "PILOT_CA_CERT_CONFIGMAP",
        Text,
        "istio-ca-root-cert",
        "ConfigMap with the root certificates in every namespace",
    ),
    followed("PILOT_CRL_CONFIGMAP", Text, "istio-ca-crl", "ConfigMap with the revocation lists in every namespace"),
    followed(
        "ENABLE_CLUSTER_TRUST_BUNDLE_API",
        Bool,
        "false",
        "Write the root certificates into a ClusterTrustBundle instead of ConfigMaps",
    ),
    followed("ISTIO_MULTIROOT_MESH", Bool, "false", "Proxies receive the root certificates of all sources"),
    followed(
        "EXTERNAL_CA",
        Choice(&["ISTIOD_RA_KUBERNETES_API"]),
        "",
        "`ISTIOD_RA_KUBERNETES_API`: a signer of the Kubernetes API issues workload certificates",
    ),
    followed("K8S_SIGNER", Text, "", "Name of that signer"),
    followed("CERT_SIGNER_DOMAIN", Text, "", "Domain of the signers that workloads may request"),
];

/// Webhooks.
pub(super) const WEBHOOKS: &[Variable] = &[
    followed(
        "INJECT_ENABLED",
        Bool,
        "true",
        "Inject pods by the configuration in ./var/lib/istio/inject, or in ConfigMap istio-sidecar-injector (istio-sidecar-injector-REVISION)",
    ),
    followed(
        "ENABLE_NATIVE_SIDECARS",
        Choice(&["true", "false", "auto"]),
        "auto",
        "Whether injected proxies are native sidecars; `auto` if all nodes, or the node of the pod, have Kubernetes 1.33 or later",
    ),
    followed(
        "INJECTION_WEBHOOK_CONFIG_NAME",
        Text,
        "istio-sidecar-injector",
        "If it is not empty, root certificates are written into the MutatingWebhookConfigurations of the revision",
    ),
    followed(
        "VALIDATION_WEBHOOK_CONFIG_NAME",
        Text,
        "istio-istio-system",
        "If it is not empty, root certificates are written into the ValidatingWebhookConfigurations of the revision",
    ),
    followed("PLATFORM", Text, "", "With `openshift`, injected proxies have users and groups that OpenShift allocates"),
];
