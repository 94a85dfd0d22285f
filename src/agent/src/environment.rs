//! The environment, read once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use sluice_parse::parse_duration;

/// Every variable that is read, with its meaning, unit and default; `--help` prints it.
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    ("POD_NAME", "name of the pod, the first part of the node id"),
    ("POD_NAMESPACE", "its namespace"),
    ("INSTANCE_IP", "its address; those of the network interfaces follow it"),
    ("SERVICE_ACCOUNT", "its service account; with namespace and trust domain the identity asked for"),
    ("ISTIO_META_*", "node metadata: the rest of the name is the key, the value a text"),
    (
        "ISTIO_METAJSON_*",
        "node metadata: a JSON object whose fields are keys; ISTIO_METAJSON_LABELS are labels as well",
    ),
    (
        "PROXY_CONFIG",
        "ProxyConfig as YAML or JSON; counts above --meshConfig, below the annotation proxy.istio.io/config",
    ),
    ("ISTIO_CPU_LIMIT", "worker threads of Envoy if the ProxyConfig does not say [0: one a CPU]"),
    ("CA_ADDR", "address of the certificate authority [the discovery address]"),
    ("CA_HEADER_*", "metadata that is added to requests to it"),
    ("CA_ROOT_CA", "file of roots it is verified with, or SYSTEM [./var/run/secrets/istio/root-cert.pem]"),
    (
        "XDS_ROOT_CA",
        "file of roots the control plane is verified with, or SYSTEM [./var/run/secrets/istio/root-cert.pem]",
    ),
    ("XDS_HEADER_*", "metadata that is added to streams to the control plane"),
    ("ISTIOD_SAN", "name the control plane's certificate must have [the host of its address]"),
    ("PROV_CERT", "directory with key.pem, cert-chain.pem and root-cert.pem to authenticate with instead of a token"),
    ("TRUST_DOMAIN", "trust domain of the identity [cluster.local]"),
    ("SECRET_TTL", "lifetime of certificates that is asked for [24h]"),
    ("SECRET_GRACE_PERIOD_RATIO", "share of a certificate's lifetime that is left when it is renewed [0.5]"),
    ("SECRET_GRACE_PERIOD_RATIO_JITTER", "how much that varies, so that renewals spread [0.01]"),
    ("WORKLOAD_RSA_KEY_SIZE", "bits of the workload's RSA key: 2048, 3072 or 4096 [2048]"),
    (
        "ECC_SIGNATURE_ALGORITHM",
        "ECDSA: the workload's key is EC, not RSA: cheaper to make, and in every handshake [none: RSA]",
    ),
    ("ECC_CURVE", "P256 or P384, with ECC_SIGNATURE_ALGORITHM [P256]"),
    (
        "COMPLIANCE_POLICY",
        "limits TLS towards control plane and authority, and that of Envoy's google_grpc clients: fips-140-2 (TLS 1.2, AES-GCM, \
         P-256), fips-140-3 (1.2 and 1.3, P-384 as well), pqc (1.3, X25519MLKEM768) [none]",
    ),
    ("FILE_MOUNTED_CERTS", "the certificate comes from files, no authority is asked [false]"),
    ("FILE_DEBOUNCE_DURATION", "time files must rest before they are read again [100ms]"),
    (
        "PILOT_ENABLE_CA_CRL",
        "certificates of the mesh that ./var/run/secrets/istio/crl/ca-crl.pem revokes are refused, while it is there [false]",
    ),
    ("OUTPUT_CERTS", "directory to write key.pem, cert-chain.pem and root-cert.pem to as well [none]"),
    (
        "WORKLOAD_IDENTITY_SOCKET_FILE",
        "name of the SDS socket; another than `socket` must be served by somebody else [socket]",
    ),
    ("PROXY_CONFIG_XDS_AGENT", "roots of the mesh are also taken from the control plane [false]"),
    (
        "DNS_PROXY_ADDR",
        "where DNS is answered, if ISTIO_META_DNS_CAPTURE or ISTIO_META_ENABLE_DNS_SERVER says so [localhost:15053]",
    ),
    ("DNS_FORWARD_PARALLEL", "ask all name servers at once [false]"),
    ("DNS_FORWARD_TIMEOUT", "time for a name server to answer [5s]"),
    (
        "PROXY_XDS_DEBUG_VIA_AGENT",
        "debug pages of the control plane are offered on the loopback: http://localhost:15004/debug/.. [true]",
    ),
    ("PROXY_XDS_DEBUG_VIA_AGENT_PORT", "port for them [15004]"),
    (
        "WASM_INSECURE_REGISTRIES",
        "hosts, with ports, of Wasm modules whose certificates are not verified, registries among them also without TLS; * for all [none]",
    ),
    ("WASM_MODULE_EXPIRY", "time a Wasm module is kept that no extension asks for [24h]"),
    ("WASM_PURGE_INTERVAL", "how often that is looked at [1h]"),
    ("WASM_HTTP_REQUEST_TIMEOUT", "time for one request for a Wasm module [15s]"),
    ("WASM_HTTP_REQUEST_MAX_RETRIES", "how often such a request is made if it fails [5]"),
    ("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", "biggest Wasm module, in bytes [268435456]"),
    (
        "BLOCKED_CIDRS_IN_WASM_FETCH",
        "addresses that Wasm modules are never fetched from, beside link-local ones [none]",
    ),
    (
        "DOCKER_CONFIG",
        "directory with config.json: credentials for registries of Wasm modules whose extension has none [none]",
    ),
    ("ENVOY_STATUS_PORT", "port of Envoy's listener for readiness [15021]"),
    ("ENVOY_PROMETHEUS_PORT", "port of Envoy's listener for its metrics [15090]"),
    ("TERMINATION_DRAIN_DURATION_SECONDS", "seconds to drain before Envoy is ended; counts above the ProxyConfig [5]"),
    ("MINIMUM_DRAIN_DURATION", "least time to drain with EXIT_ON_ZERO_ACTIVE_CONNECTIONS [5s]"),
    ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "drain until no connection is left, however long [false]"),
    ("ENVOY_SKIP_DEPRECATED_LOGS", "Envoy does not log deprecated fields [true]"),
    ("ISTIO_ENVOY_ENABLE_CORE_DUMP", "Envoy may dump core [false]"),
    ("ISTIO_BOOTSTRAP_OVERRIDE", "file of YAML or JSON that Envoy lays over the bootstrap"),
    ("HOST_IP", "stands for $(HOST_IP) in that file and in addresses of the ProxyConfig"),
    ("ISTIO_DELTA_XDS", "Envoy speaks incremental xDS [true]"),
    ("ISTIO_DUAL_STACK", "both address families are listened on [false]"),
    ("ISTIO_KUBE_APP_PROBERS", "probes of the application that /app-health/.. forwards, as JSON; the injector sets it"),
    ("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "probes go to localhost, not to the pod's address [false]"),
    ("ISTIO_PROMETHEUS_ANNOTATIONS", "where the application's metrics are, as JSON; the injector sets it"),
    ("METRICS_LOCALHOST_ACCESS_ONLY", "/stats/prometheus only for the loopback [false]"),
];

/// Texts of the environment by name, with typed reads. A value that cannot be read is noted and the default taken.
pub(crate) struct Environment {
    values: BTreeMap<String, String>,
    warnings: RefCell<Vec<String>>,
}

impl Environment {
    pub(crate) fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { values: values.into_iter().collect(), warnings: RefCell::default() }
    }

    /// The process's own.
    pub(crate) fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.into_string().ok();
        Self::new(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
    }

    /// Variables that begin with a prefix: the rest of the name and the value.
    pub(crate) fn with_prefix<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = (&'e str, &'e str)> {
        self.values.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    /// A text; an empty one is none.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        debug_assert!(
            VARIABLES.iter().any(|(known, _)| known.strip_suffix('*').map_or(*known == name, |p| name.starts_with(p))),
            "{name} is not in the list"
        );
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// What Go's ParseBool accepts.
    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.read(name, default, "neither true nor false", parse_flag)
    }

    pub(crate) fn duration(&self, name: &str, default: Duration) -> Duration {
        self.read(name, default, "no duration", parse_duration)
    }

    pub(crate) fn number<N: std::str::FromStr + Copy>(&self, name: &str, default: N) -> N {
        self.read(name, default, "no such number", |text| text.parse().ok())
    }

    fn read<T>(&self, name: &str, default: T, wrong: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(text) = self.text(name) else { return default };
        parse(text).unwrap_or_else(|| {
            self.warnings.borrow_mut().push(format!("variable {name}: {text:?} is {wrong}, the default is used"));
            default
        })
    }

    /// What was wrong so far.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }
}

/// What Go's ParseBool accepts.
pub(crate) fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) fn environment(values: &[(&str, &str)]) -> Environment {
    Environment::new(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_noted_and_the_default_counts() {
        let environment = environment(&[("SECRET_TTL", "soon"), ("FILE_MOUNTED_CERTS", "T"), ("ISTIO_CPU_LIMIT", "2")]);
        assert_eq!(environment.duration("SECRET_TTL", Duration::from_secs(5)), Duration::from_secs(5));
        assert!(environment.flag("FILE_MOUNTED_CERTS", false));
        assert_eq!(environment.number("ISTIO_CPU_LIMIT", 0_u32), 2);
        assert_eq!(environment.take_warnings(), ["variable SECRET_TTL: \"soon\" is no duration, the default is used"]);
    }

    #[test]
    fn prefixes_give_the_rest_of_the_name() {
        let environment = environment(&[("XDS_HEADER_A", "1"), ("XDS_HEADER_B", "2"), ("CA_HEADER_C", "3")]);
        assert_eq!(environment.with_prefix("XDS_HEADER_").collect::<Vec<_>>(), [("A", "1"), ("B", "2")]);
    }
}
