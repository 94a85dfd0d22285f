//! Flags and variables without an effect: misspelt ones, and some of istiod.

use std::collections::BTreeSet;

/// Flags of `pilot-discovery discovery` that have no effect here.
const ISTIOD_FLAGS: &[&str] = &[
    "clusterRegistriesNamespace",
    "ctrlz_address",
    "ctrlz_port",
    "kubernetesApiBurst",
    "kubernetesApiQPS",
    "log_caller",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "profile",
    "registries",
    "resync",
    "vklog",
];

/// Variables of istiod that have no effect here and do not change its xDS output: caches, delays, webhooks, controllers that
/// Sluice does not have.
const ISTIOD_VARIABLES: &[&str] = &[
    "AMBIENT_SCOPED_ADDRESS_PUSHES",
    "ENABLE_LAZY_SIDECAR_EVALUATION",
    "ENABLE_NATIVE_SIDECARS",
    "ENABLE_VTPROTOBUF",
    "ENABLE_XDS_API_GENERATOR_AUTH",
    "INJECTION_WEBHOOK_CONFIG_NAME",
    "INJECT_ENABLED",
    "ISTIO_ENABLE_CONTROLLER_QUEUE_METRICS",
    "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS",
    "ISTIO_GPRC_MAXSTREAMS",
    "ISTIO_KUBE_CLIENT_CONTENT_TYPE",
    "ISTIO_PROMETHEUS_ANNOTATIONS",
    "ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY",
    "MCS_API_GROUP",
    "MCS_API_VERSION",
    "MUTEX_PROFILE_FRACTION",
    "PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS",
    "PILOT_ANALYSIS_INTERVAL",
    "PILOT_CONVERT_SIDECAR_SCOPE_CONCURRENCY",
    "PILOT_DEBOUNCE_AFTER",
    "PILOT_DEBOUNCE_MAX",
    "PILOT_ENABLE_AGENTGATEWAY",
    "PILOT_ENABLE_ANALYSIS",
    "PILOT_ENABLE_CDS_CACHE",
    "PILOT_ENABLE_EDS_DEBOUNCE",
    "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS",
    "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER",
    "PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER",
    "PILOT_ENABLE_GATEWAY_API_STATUS",
    "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS",
    "PILOT_ENABLE_RDS_CACHE",
    "PILOT_ENABLE_REMOTE_CREDENTIALS_CONTROLLER",
    "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION",
    "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS",
    "PILOT_ENABLE_XDS_CACHE",
    "PILOT_ENVOY_FILTER_STATS",
    "PILOT_INCLUDE_RESOURCES",
    "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME",
    "PILOT_STATUS_MAX_WORKERS",
    "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
    "PILOT_XDS_CACHE_INDEX_CLEAR_INTERVAL",
    "PILOT_XDS_CACHE_SIZE",
    "PILOT_XDS_CACHE_STATS",
    "UNSAFE_ENABLE_ADMIN_ENDPOINTS",
    "UNSAFE_PILOT_ENABLE_RUNTIME_ASSERTIONS",
    "VALIDATION_WEBHOOK_CONFIG_NAME",
];

/// Prefixes of variables of istiod and Sluice. Only variables with these prefixes cause a suggestion.
const PREFIXES: &[&str] = &["AMBIENT_", "CITADEL_", "ENABLE_", "ISTIO", "PILOT_", "SLUICE_", "XDS_"];
/// Prefixes of variables that the agent and the injector read, or that Kubernetes sets for Services.
const FOREIGN_PREFIXES: &[&str] = &["ISTIOD_PORT", "ISTIOD_SERVICE_", "ISTIO_AGENT_", "ISTIO_META_", "ISTIO_METAJSON_"];

/// The flag that is similar to a misspelt one, without dashes. `None` for a flag of istiod.
pub(crate) fn similar_flag<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if ISTIOD_FLAGS.contains(&name) { None } else { nearest(name, known) }
}

/// Warnings for variables that are set and not read. `known` are the variables that other code reads or warns about.
pub(crate) fn variable_warnings(set: impl IntoIterator<Item = String>, known: &BTreeSet<String>) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in set {
        let has_prefix = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if known.contains(&name) || has_prefix(FOREIGN_PREFIXES) {
            continue;
        }
        if ISTIOD_VARIABLES.contains(&name.as_str()) {
            warnings.push(format!("variable {name} of istiod has no effect here"));
        } else if has_prefix(PREFIXES)
            && let Some(similar) = nearest(&name, known.iter().map(String::as_str))
        {
            warnings.push(format!("variable {name} is unknown and has no effect: did you mean {similar}?"));
        }
    }
    warnings.sort();
    warnings
}

/// The closest known name, if at most a quarter of its characters differ, and at most three.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase();
    let distances =
        known.into_iter().map(|known| (strsim::damerau_levenshtein(&lower, &known.to_ascii_lowercase()), known));
    let (distance, known) = distances.min()?;
    (distance <= (known.len() / 4).min(3)).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_cause_a_suggestion() {
        let known = ["configDir", "config-dir", "grpcAddr"];
        assert_eq!(similar_flag("configDri", known), Some("configDir"));
        assert_eq!(similar_flag("configdir", known), Some("configDir"));
        assert_eq!(similar_flag("ctrlz_port", known), None);
        assert_eq!(similar_flag("someOtherFlag", known), None);
    }

    #[test]
    fn variables_that_are_not_read_cause_a_warning() {
        let known = BTreeSet::from(["PILOT_ENABLE_AMBIENT", "POD_NAME"].map(str::to_owned));
        let set =
            ["PILOT_ENABLE_AMBIANT", "PILOT_DEBOUNCE_MAX", "PILOT_ENABLE_AMBIENT", "PATH", "ISTIOD_PORT", "POD_NAM"];
        let warnings = variable_warnings(set.map(str::to_owned), &known);
        assert_eq!(
            warnings,
            [
                "variable PILOT_DEBOUNCE_MAX of istiod has no effect here",
                "variable PILOT_ENABLE_AMBIANT is unknown and has no effect: did you mean PILOT_ENABLE_AMBIENT?",
            ]
        );
    }
}
