//! A value other than the default for each variable that is read, for tests that show its effect.

use crate::{ValueKind, Variable};

/// Values of variables whose kind does not say which texts are valid, or whose first other value means the default.
const VALUES: &[(&str, &str)] = &[
    ("BLOCKED_CIDRS_IN_JWKS_URIS", "10.0.0.0/8"),
    ("BLOCKED_CIDRS_IN_WASM_FETCH", "10.0.0.0/8"),
    ("CA_ADDR", "ca:15012"),
    ("CA_TRUSTED_NODE_ACCOUNTS", "istio-system/ztunnel"),
    ("COMPLIANCE_POLICY", "pqc"),
    ("DNS_PROXY_ADDR", "localhost:15054"),
    ("ECC_CURVE", "P384"),
    ("ECC_SIGNATURE_ALGORITHM", "ECDSA"),
    // Any name means that webhooks are patched.
    ("INJECTION_WEBHOOK_CONFIG_NAME", ""),
    ("INSTANCE_IP", "10.0.0.7"),
    ("ISTIO_METAJSON_*", r#"{"a": 1}"#),
    ("JWT_RULE", r#"{"issuer": "i"}"#),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "tenant=a"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/otlp"),
    ("OTEL_RESOURCE_ATTRIBUTES", "cluster=east"),
    ("OTEL_TRACES_SAMPLER", "always_off"),
    ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
    ("PILOT_CERT_PROVIDER", "none"),
    ("PILOT_IGNORE_RESOURCES", "*.istio.io"),
    ("PILOT_INCLUDE_RESOURCES", "*.istio.io"),
    ("PLATFORM", "openshift"),
    ("PROXY_CONFIG", "concurrency: 3"),
    ("SECRET_GRACE_PERIOD_RATIO", "0.25"),
    ("SECRET_GRACE_PERIOD_RATIO_JITTER", "0.25"),
    ("SLUICE_REPLAY_SPEED", "10x"),
    ("TRUSTED_GATEWAY_CIDR", "10.0.0.0/8"),
    ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
    ("WORKLOAD_RSA_KEY_SIZE", "4096"),
];

const AMBIENT: (&str, &str) = ("PILOT_ENABLE_AMBIENT", "true");
const IMPORTS: (&str, &str) = ("ENABLE_MCS_SERVICE_DISCOVERY", "true");
const SIGNER: (&str, &str) = ("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API");
const TRACES: (&str, &str) = ("OTEL_TRACES_EXPORTER", "otlp");
const DNS: (&str, &str) = ("ISTIO_META_DNS_CAPTURE", "true");

/// Variables that have an effect only with others, and the others. A `*` at the end stands for any suffix.
const NEEDS: &[(&str, &[(&str, &str)])] = &[
    ("AMBIENT_*", &[AMBIENT]),
    ("CERT_SIGNER_DOMAIN", &[SIGNER, ("K8S_SIGNER", "a/b")]),
    ("DNS_*", &[DNS]),
    ("ECC_CURVE", &[("ECC_SIGNATURE_ALGORITHM", "ECDSA")]),
    ("ENABLE_INGRESS_WAYPOINT_ROUTING", &[AMBIENT]),
    ("ENABLE_MCS_CLUSTER_LOCAL", &[IMPORTS, ("ENABLE_MCS_HOST", "true")]),
    ("ENABLE_MCS_HOST", &[IMPORTS]),
    ("EXTERNAL_CA", &[("K8S_SIGNER", "a/b")]),
    ("K8S_SIGNER", &[SIGNER, ("CERT_SIGNER_DOMAIN", "a")]),
    ("KUBERNETES_SERVICE_HOST", &[("OUTPUT_CERTS", "/certs")]),
    ("LOCAL_CLUSTER_SECRET_WATCHER", &[("EXTERNAL_ISTIOD", "true")]),
    ("OTEL_TRACES_SAMPLER_ARG", &[TRACES, ("OTEL_TRACES_SAMPLER", "traceidratio")]),
    ("OTEL_TRACES_EXPORTER", &[]),
    ("OTEL_*", &[TRACES]),
    ("PILOT_AUTO_ALLOW_WAYPOINT_POLICY", &[AMBIENT]),
    ("PILOT_ENABLE_SENDING_HBONE", &[AMBIENT]),
    ("PILOT_ENABLE_SIDECAR_LISTENING_HBONE", &[AMBIENT]),
    ("PILOT_INCLUDE_RESOURCES", &[("PILOT_IGNORE_RESOURCES", "*.istio.io")]),
    ("PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME", &[("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "true")]),
    // The agent does not start with another provider.
    ("SLUICE_IGNORE_UNSUPPORTED_VARIABLES", &[("CA_PROVIDER", "other")]),
    ("SLUICE_REPLAY_SPEED", &[("SLUICE_REPLAY_FILE", "/recording")]),
];

impl Variable {
    /// A valid value with another meaning than the default. `None` if the default is the only value that is supported.
    #[must_use]
    pub fn other_value(&self) -> Option<String> {
        if let Some((_, value)) = VALUES.iter().find(|(name, _)| *name == self.name) {
            return Some((*value).to_owned());
        }
        let candidates: Vec<String> = match self.kind {
            ValueKind::Bool => vec!["true".to_owned(), "false".to_owned()],
            ValueKind::Duration => vec!["7s".to_owned(), "8s".to_owned()],
            ValueKind::Number => vec![self.default.parse().map_or(7, |number: u64| number + 1).to_string()],
            ValueKind::Block if self.default.contains(':') => vec!["fd00:1::/48".to_owned()],
            ValueKind::Block => vec!["10.9.0.0/16".to_owned()],
            ValueKind::Choice(values) => values.iter().rev().map(|value| (*value).to_owned()).collect(),
            ValueKind::List | ValueKind::Text => vec!["other".to_owned()],
            ValueKind::Json => vec!["{}".to_owned()],
        };
        candidates.into_iter().find(|value| !self.kind.is_same(value, self.default))
    }

    /// Values of other variables without which this one has no effect.
    #[must_use]
    pub fn needs(&self) -> &'static [(&'static str, &'static str)] {
        let is_of = |of: &str| of.strip_suffix('*').map_or(of == self.name, |prefix| self.name.starts_with(prefix));
        NEEDS.iter().find(|(of, _)| is_of(of)).map_or(&[], |(_, needs)| needs)
    }
}

#[cfg(test)]
mod tests {
    use crate::{AGENT, CONTROL_PLANE, Variable, all, find};

    #[test]
    fn tables_name_variables_that_are_read() {
        let is_read = |name: &str| {
            [CONTROL_PLANE, AGENT].iter().any(|groups| all(groups).any(|it| it.name == name && it.is_read()))
        };
        for (name, _) in super::VALUES {
            assert!(is_read(name), "{name}");
        }
        for (of, needs) in super::NEEDS {
            let any = |groups| {
                all(groups).any(|it: &Variable| {
                    it.is_read()
                        && (it.name == *of || of.ends_with('*') && it.name.starts_with(of.trim_end_matches('*')))
                })
            };
            assert!(any(CONTROL_PLANE) || any(AGENT), "{of}");
            for (name, _) in *needs {
                assert!(find(CONTROL_PLANE, name).or_else(|| find(AGENT, name)).is_some(), "{of} needs {name}");
            }
        }
    }

    #[test]
    fn other_value_has_another_meaning_than_the_default() {
        for variable in all(CONTROL_PLANE).chain(all(AGENT)) {
            if let Some(value) = variable.other_value() {
                assert!(!variable.kind.is_same(&value, variable.default), "{}={value}", variable.name);
            }
        }
    }
}
