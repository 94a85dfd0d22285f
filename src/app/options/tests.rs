use std::collections::BTreeMap;

use sluice_config::CommandLine;
use sluice_variables::{CONTROL_PLANE, Variable};

use super::*;

/// Variables whose settings components take from the configuration itself, not from options of this file. A `*` at the end
/// stands for any suffix.
const TAKEN_FROM_CONFIG: &[&str] = &[
    // Sources and writers.
    "ENABLE_XDS_API_GENERATOR_AUTH",
    "EXTERNAL_ISTIOD",
    "ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY",
    "KUBERNETES_SERVICE_HOST",
    "LOCAL_CLUSTER_SECRET_WATCHER",
    "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION",
    "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS",
    "PILOT_MULTICLUSTER_KUBECONFIG_PATH",
    "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
    "RESOLVE_HOSTNAME_GATEWAYS",
    "SHARED_MESH_CONFIG",
    "SLUICE_REPLAY_SPEED",
    "SLUICE_STRICT_CONFIG",
    // Streams and connections.
    "ENABLE_LEADER_ELECTION",
    "PILOT_ENABLE_XDS_IDENTITY_CHECK",
    "PILOT_MAX_REQUESTS_PER_SECOND",
    "PILOT_PUSH_THROTTLE",
    "SLUICE_FIRST_REQUEST_TIMEOUT",
    "SLUICE_HANDSHAKE_TIMEOUT",
    "SLUICE_HISTORY_*",
    "SLUICE_IDLE_CONNECTION_TIMEOUT",
    "SLUICE_IGNORE_UNSUPPORTED_VARIABLES",
    "SLUICE_MAX_CONNECTIONS*",
    "SLUICE_MAX_HEADER_BYTES",
    "SLUICE_MAX_HTTP_CONNECTIONS*",
    "SLUICE_MAX_PENDING_CONNECTIONS*",
    "OTEL_*",
    "TRUSTED_GATEWAY_CIDR",
    // The authority, the secure port and authentication.
    "CA_TRUSTED_NODE_ACCOUNTS",
    "CERT_SIGNER_DOMAIN",
    "CITADEL_*",
    "DEFAULT_WORKLOAD_CERT_TTL",
    "ENABLE_CA_SERVER",
    "ENABLE_CLUSTER_TRUST_BUNDLE_API",
    "EXTERNAL_CA",
    "ISTIOD_CUSTOM_HOST",
    "ISTIO_MULTIROOT_MESH",
    "JWT_RULE",
    "K8S_SIGNER",
    "MAX_WORKLOAD_CERT_TTL",
    "PILOT_CA_CERT_CONFIGMAP",
    "PILOT_CERT_PROVIDER",
    "PILOT_CRL_CONFIGMAP",
    "PILOT_ENABLE_CA_CRL",
    "ROOT_CA_DIR",
    "SLUICE_CREATE_CA",
    "SLUICE_MAX_CERTIFICATE_REQUESTS",
    "SLUICE_MAX_TOKEN_REVIEWS",
    "SLUICE_SELF_SIGNED_CA_ECC_CURVE",
    "SLUICE_TOKEN_*",
    "TOKEN_AUDIENCES",
    "TOKEN_ISSUER",
    "USE_CACERTS_FOR_SELF_SIGNED_CA",
    "USE_REMOTE_CERTS",
    "XDS_AUTH*",
];

/// All options of components with these variables, as a text.
fn all_options(values: &BTreeMap<&str, String>) -> String {
    let flag = |(name, value): (&&str, &String)| {
        let flag = sluice_variables::find(CONTROL_PLANE, name).and_then(Variable::flag)?;
        Some(if value == "true" { format!("--{flag}") } else { format!("--{flag}={value}") })
    };
    let arguments = ["sluiced".to_owned()].into_iter().chain(values.iter().filter_map(flag));
    let (line, _) = CommandLine::parse_lenient(arguments).expect("flags");
    let config = &Config::new(line.discovery, &[], |name| values.get(name).cloned()).expect("a configuration");
    let written = [writes_pool_services(config), writes_gateway_api(config), deploys_gateways(config)];
    let identity = (injector_config_map(&config.identity), mesh_config_map(&config.identity));
    let deployer = deployer_settings(config, WatchStates::default());
    let served = (graph_options(config), server_options(config), proxy_limits(config), jwks_options(config));
    let injected = (injector_settings(config).openshift, native_sidecars(&config.features));
    let read = (cluster_sources(config), source_node(config), own_identity(config, "td"));
    format!(
        "{written:?} {identity:?} {} {} {served:#?} {injected:?} {read:?} {:?} {:?} {:?}",
        deployer.field_manager,
        deployer.native_sidecars,
        admin_options(config),
        patched_webhooks(&config.features),
        remote_options(config, WatchStates::default()),
    )
}

#[test]
fn every_followed_variable_changes_the_options_of_a_component() {
    let mut findings = Vec::new();
    for variable in sluice_variables::all(CONTROL_PLANE).filter(|variable| variable.is_read()) {
        let is_taken = TAKEN_FROM_CONFIG
            .iter()
            .any(|of| of.strip_suffix('*').map_or(*of == variable.name, |prefix| variable.name.starts_with(prefix)));
        let mut values: BTreeMap<&str, String> =
            variable.needs().iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let before = all_options(&values);
        let Some(value) = variable.other_value() else { continue };
        values.insert(variable.name, value);
        let changes = all_options(&values) != before;
        if changes == is_taken {
            findings.push(format!(
                "{}: changes options: {changes}, taken from the configuration: {is_taken}",
                variable.name
            ));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn access_to_debug_pages_follows_the_environment() {
    let options = |name: &'static str, value: &'static str| {
        let arguments = ["sluiced", "--namespace=control", "--clusterID=east"].map(str::to_owned);
        let (line, _) = CommandLine::parse_lenient(arguments).expect("flags");
        let variable = |wanted: &str| (wanted == name).then(|| value.to_owned());
        admin_options(&Config::new(line.discovery, &[], variable).expect("a configuration"))
    };
    let default = options("", "");
    assert_eq!((default.cluster.as_str(), default.namespace.as_str()), ("east", "control"));
    assert!(default.debug_auth && default.debug_on_http && default.debug_namespaces.is_empty());
    assert!(!options("ENABLE_DEBUG_ENDPOINT_AUTH", "false").debug_auth);
    assert!(!options("ENABLE_DEBUG_ON_HTTP", "false").debug_on_http);
    let allowed = options("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES", "ops").debug_namespaces;
    assert_eq!(allowed, ["ops".into()].into());
}

fn features(name: &'static str, value: &'static str) -> Features {
    let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
    let variable = |wanted: &str| (wanted == name).then(|| value.to_owned());
    Config::new(line.discovery, &[], variable).expect("a configuration").features
}

#[test]
fn keys_of_callers_tokens_and_trust_bundles_are_fetched_over_verified_tls_only() {
    let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
    let variable = |wanted: &str| (wanted == "JWKS_RESOLVER_INSECURE_SKIP_VERIFY").then(|| "true".to_owned());
    let config = Config::new(line.discovery, &[], variable).expect("a configuration");
    assert!(jwks_options(&config).skip_verify, "keys that proxies use");
    let trusted = trusted_fetch_options(&config);
    assert!(trusted.https_only && !trusted.skip_verify);
}

#[test]
fn roots_are_written_into_webhook_configurations_as_the_variables_say() {
    use WebhookKind::{Mutating, Validating};
    let patched = |name, value| patched_webhooks(&features(name, value));
    assert_eq!(patched("", ""), [Mutating, Validating]);
    assert_eq!(patched("INJECTION_WEBHOOK_CONFIG_NAME", "other"), [Mutating, Validating]);
    assert_eq!(patched("INJECTION_WEBHOOK_CONFIG_NAME", ""), [Validating]);
    assert_eq!(patched("INJECT_ENABLED", "false"), [Validating]);
    assert_eq!(patched("VALIDATION_WEBHOOK_CONFIG_NAME", ""), [Mutating]);
}

#[test]
fn conditions_are_written_with_and_without_ambient_mode() {
    let writes = |name: &'static str, value: &'static str| {
        let (line, _) = CommandLine::parse_lenient(["sluiced".to_owned()]).expect("flags");
        let variable = |wanted: &str| (wanted == name).then(|| value.to_owned());
        graph_options(&Config::new(line.discovery, &[], variable).expect("a configuration")).writes_conditions
    };
    assert!(writes("PILOT_ENABLE_AMBIENT", "false") && writes("PILOT_ENABLE_AMBIENT", "true"));
    assert!(!writes("AMBIENT_ENABLE_STATUS", "false"));
}
