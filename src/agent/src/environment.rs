//! Environment variables, read once at start-up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use sluice_parse::parse_duration;

/// All variables that the agent reads, with meaning, unit and default. `proxy --help` prints them. A `*` stands for any suffix.
pub(crate) const VARIABLES: &[(&str, &str)] = &[
    ("POD_NAME", "name of the pod; part of the node id"),
    ("POD_NAMESPACE", "namespace of the pod"),
    ("INSTANCE_IP", "first IP address of the pod; the addresses of the network interfaces follow"),
    ("SERVICE_ACCOUNT", "service account of the pod; trust domain, namespace and service account form its identity"),
    ("ISTIO_META_*", "node metadata: the rest of the name is the key, the value is a string"),
    ("ISTIO_METAJSON_*", "node metadata: a JSON object whose fields are keys; ISTIO_METAJSON_LABELS are also labels"),
    (
        "PROXY_CONFIG",
        "ProxyConfig as YAML or JSON; it overrides --meshConfig, and the annotation proxy.istio.io/config overrides it",
    ),
    ("ISTIO_CPU_LIMIT", "number of Envoy's worker threads, unless the ProxyConfig has one [0: one for each CPU]"),
    ("CA_ADDR", "address of the certificate authority [the discovery address]"),
    ("CA_HEADER_*", "metadata of requests to the certificate authority: the rest of the name is the key"),
    (
        "CA_ROOT_CA",
        "file of roots that verify the certificate authority, or SYSTEM [./var/run/secrets/istio/root-cert.pem]",
    ),
    ("XDS_ROOT_CA", "file of roots that verify the control plane, or SYSTEM [./var/run/secrets/istio/root-cert.pem]"),
    ("XDS_HEADER_*", "metadata of streams to the control plane: the rest of the name is the key"),
    ("ISTIOD_SAN", "DNS name that the control plane's certificate must have [the host of its address]"),
    (
        "PROV_CERT",
        "directory with key.pem, cert-chain.pem and root-cert.pem, for authentication by certificate instead of a token [none]",
    ),
    ("TRUST_DOMAIN", "trust domain of the identity [cluster.local]"),
    ("SECRET_TTL", "requested lifetime of certificates [24h]"),
    ("SECRET_GRACE_PERIOD_RATIO", "fraction of a certificate's lifetime that is left when it is renewed, 0 to 1 [0.5]"),
    ("SECRET_GRACE_PERIOD_RATIO_JITTER", "random variation of that fraction, plus or minus [0.01]"),
    ("WORKLOAD_RSA_KEY_SIZE", "size of the workload's RSA key in bits: 2048, 3072 or 4096 [2048]"),
    ("ECC_SIGNATURE_ALGORITHM", "ECDSA for an EC key of the workload, which costs less CPU in handshakes [none: RSA]"),
    ("ECC_CURVE", "curve of the EC key: P256 or P384 [P256]"),
    (
        "COMPLIANCE_POLICY",
        "limits TLS to the control plane and the certificate authority, and TLS of Envoy's google_grpc clients: fips-140-2 (TLS 1.2, AES-GCM, \
         P-256), fips-140-3 (1.2 and 1.3, P-384 as well), pqc (1.3, X25519MLKEM768) [none]",
    ),
    ("FILE_MOUNTED_CERTS", "the certificate is read from files, not requested from the certificate authority [false]"),
    ("FILE_DEBOUNCE_DURATION", "time without a change before changed files are read [100ms]"),
    ("PILOT_ENABLE_CA_CRL", "reject certificates that ./var/run/secrets/istio/crl/ca-crl.pem revokes [false]"),
    ("OUTPUT_CERTS", "directory to which key.pem, cert-chain.pem and root-cert.pem are written as well [none]"),
    (
        "WORKLOAD_IDENTITY_SOCKET_FILE",
        "file name of the SDS socket; a name other than `socket` must be served by another SDS server [socket]",
    ),
    ("PROXY_CONFIG_XDS_AGENT", "trust the roots in the control plane's ProxyConfig too [false]"),
    (
        "DNS_PROXY_ADDR",
        "HOST:PORT of the DNS proxy, if ISTIO_META_DNS_CAPTURE or ISTIO_META_ENABLE_DNS_SERVER is true [localhost:15053]",
    ),
    ("DNS_FORWARD_PARALLEL", "forward DNS requests to all name servers at once [false]"),
    ("DNS_FORWARD_TIMEOUT", "time limit of a name server [5s]"),
    (
        "PROXY_XDS_DEBUG_VIA_AGENT",
        "serve debug pages of the control plane on the loopback, at http://localhost:15004/debug/.. [true]",
    ),
    ("PROXY_XDS_DEBUG_VIA_AGENT_PORT", "port of the debug pages [15004]"),
    (
        "WASM_INSECURE_REGISTRIES",
        "comma-separated hosts with ports: certificates of these module servers and registries are not verified, and registries may be \
         without TLS; * for all [none]",
    ),
    ("WASM_MODULE_EXPIRY", "time after which an unused Wasm module is removed [24h]"),
    ("WASM_PURGE_INTERVAL", "interval of checks for unused Wasm modules [1h]"),
    ("WASM_HTTP_REQUEST_TIMEOUT", "time limit of one request for a Wasm module [15s]"),
    ("WASM_HTTP_REQUEST_MAX_RETRIES", "number of attempts of such a request [5]"),
    ("ISTIO_WASM_MAX_BINARY_SIZE_BYTES", "size limit of a Wasm module, in bytes [268435456]"),
    (
        "BLOCKED_CIDRS_IN_WASM_FETCH",
        "comma-separated CIDR blocks from which no Wasm module is fetched, in addition to link-local addresses [none]",
    ),
    (
        "DOCKER_CONFIG",
        "directory with config.json: credentials for registries, for extensions without a pull secret [none]",
    ),
    ("ENVOY_STATUS_PORT", "port of Envoy's readiness listener [15021]"),
    ("ENVOY_PROMETHEUS_PORT", "port of Envoy's metrics listener [15090]"),
    (
        "TERMINATION_DRAIN_DURATION_SECONDS",
        "seconds to drain before Envoy is terminated; it overrides the ProxyConfig [5]",
    ),
    ("MINIMUM_DRAIN_DURATION", "minimum drain time with EXIT_ON_ZERO_ACTIVE_CONNECTIONS [5s]"),
    ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "drain until there are no active connections, without a time limit [false]"),
    ("ENVOY_SKIP_DEPRECATED_LOGS", "Envoy does not log uses of deprecated fields [true]"),
    ("ISTIO_ENVOY_ENABLE_CORE_DUMP", "Envoy may write core dumps [false]"),
    ("ISTIO_BOOTSTRAP_OVERRIDE", "file of YAML or JSON that Envoy merges into the bootstrap [none]"),
    ("HOST_IP", "replaces $(HOST_IP) in that file and in addresses of the ProxyConfig"),
    ("ISTIO_DELTA_XDS", "Envoy uses incremental xDS [true]"),
    ("ISTIO_DUAL_STACK", "listen on IPv4 and IPv6 [false]"),
    ("ISTIO_KUBE_APP_PROBERS", "probes of the application behind /app-health/.., as JSON; the injector sets it"),
    ("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "send probes to localhost, not to the pod's address [false]"),
    ("ISTIO_PROMETHEUS_ANNOTATIONS", "path and port of the application's metrics, as JSON; the injector sets it"),
    ("METRICS_LOCALHOST_ACCESS_ONLY", "allow /stats/prometheus for clients on the loopback only [false]"),
];

/// Minimum length of a name for a suggestion: shorter names differ too little from each other.
const MIN_SUGGESTION_LENGTH: usize = 10;
/// Maximum number of letters in which a mistyped name differs from the known one.
const MAX_SUGGESTION_DISTANCE: usize = 2;

/// Environment variables with typed reads. An invalid value gives a warning, and the default is used.
pub(crate) struct Environment {
    values: BTreeMap<String, String>,
    warnings: RefCell<Vec<String>>,
}

impl Environment {
    pub(crate) fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { values: values.into_iter().collect(), warnings: RefCell::default() }
    }

    /// The variables of this process.
    pub(crate) fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.into_string().ok();
        Self::new(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
    }

    /// Variables with a prefix: the rest of the name, and the value.
    pub(crate) fn with_prefix<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = (&'e str, &'e str)> {
        self.values.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    /// A string; `None` if it is empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        debug_assert!(
            VARIABLES.iter().any(|(known, _)| known.strip_suffix('*').map_or(*known == name, |p| name.starts_with(p))),
            "{name} is missing in VARIABLES"
        );
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// What Go's ParseBool accepts.
    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.read(name, default, "not a boolean (accepted: 1, t, true, 0, f, false)", parse_flag)
    }

    pub(crate) fn duration(&self, name: &str, default: Duration) -> Duration {
        self.read(name, default, "not a duration (such as 10s or 1h30m)", parse_duration)
    }

    pub(crate) fn number<N: std::str::FromStr + Copy>(&self, name: &str, default: N) -> N {
        self.read(name, default, "not a number in the accepted range", |text| text.parse().ok())
    }

    fn read<T>(&self, name: &str, default: T, problem: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(text) = self.text(name) else { return default };
        parse(text).unwrap_or_else(|| {
            self.warnings.borrow_mut().push(format!("variable {name}: {text:?} is {problem}, the default is used"));
            default
        })
    }

    /// Warnings for names that are probably mistyped: unknown ones that differ in one or two letters from a known one.
    pub(crate) fn mistyped_names(&self) -> Vec<String> {
        let is_known = |name: &str| {
            VARIABLES.iter().any(|(known, _)| match known.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *known,
            })
        };
        let unknown = self.values.keys().filter(|name| name.len() >= MIN_SUGGESTION_LENGTH && !is_known(name));
        let warning = |name: &String| {
            let names = VARIABLES.iter().map(|(known, _)| *known).filter(|known| known.len() >= MIN_SUGGESTION_LENGTH);
            let near = names.map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
            let (_, known) = near.filter(|(distance, _)| *distance <= MAX_SUGGESTION_DISTANCE)?;
            Some(format!("variable {name} is unknown and has no effect; did you mean {known}?"))
        };
        unknown.filter_map(warning).collect()
    }

    /// The warnings so far.
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
    fn invalid_value_gives_a_warning_and_the_default_is_used() {
        let environment = environment(&[("SECRET_TTL", "soon"), ("FILE_MOUNTED_CERTS", "T"), ("ISTIO_CPU_LIMIT", "2")]);
        assert_eq!(environment.duration("SECRET_TTL", Duration::from_secs(5)), Duration::from_secs(5));
        assert!(environment.flag("FILE_MOUNTED_CERTS", false));
        assert_eq!(environment.number("ISTIO_CPU_LIMIT", 0_u32), 2);
        assert_eq!(
            environment.take_warnings(),
            ["variable SECRET_TTL: \"soon\" is not a duration (such as 10s or 1h30m), the default is used"]
        );
    }

    #[test]
    fn mistyped_name_gives_a_warning_with_a_suggestion() {
        let names = ["PILOT_ENABLE_CA_CLR", "ISTIO_META_ANYTHING", "XDS_HEADER_X", "TRUST_DOMAIN", "HOST_IPS", "PATH"];
        let environment = environment(&names.map(|name| (name, "1")));
        let expected = "variable PILOT_ENABLE_CA_CLR is unknown and has no effect; did you mean PILOT_ENABLE_CA_CRL?";
        assert_eq!(environment.mistyped_names(), [expected]);
    }

    #[test]
    fn variables_with_prefix_have_the_rest_of_the_name() {
        let environment = environment(&[("XDS_HEADER_A", "1"), ("XDS_HEADER_B", "2"), ("CA_HEADER_C", "3")]);
        assert_eq!(environment.with_prefix("XDS_HEADER_").collect::<Vec<_>>(), [("A", "1"), ("B", "2")]);
    }
}
