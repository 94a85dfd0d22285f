use std::collections::BTreeSet;

use super::*;

fn environment(values: &[(&str, &str)]) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn names_are_unique_and_entries_are_complete() {
    for groups in [CONTROL_PLANE, AGENT] {
        let mut names = BTreeSet::new();
        for variable in all(groups) {
            assert!(names.insert(variable.name), "{} is listed twice", variable.name);
            assert!(
                !variable.about.is_empty() && (!variable.about.ends_with('.') || variable.about.ends_with("..")),
                "{}",
                variable.name
            );
            if let (ValueKind::Choice(accepted), false) = (variable.kind, variable.default.is_empty()) {
                assert!(accepted.contains(&variable.default), "{}", variable.name);
            }
            let valid = match variable.kind {
                ValueKind::Bool => parse_bool(variable.default).is_some(),
                ValueKind::Duration => sluice_parse::parse_duration(variable.default).is_some(),
                _ => true,
            };
            assert!(valid, "the default of {}", variable.name);
        }
    }
}

#[test]
fn value_that_is_not_followed_causes_a_warning_with_the_reason() {
    let warned = |name: &str, value: &str| control_plane_warnings(&environment(&[(name, value)]));
    for (name, value, warning) in [
        (
            "ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS",
            "T",
            "variable ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS=\"T\" is not supported, \"false\" is used: clients could choose any host by SNI",
        ),
        (
            "PILOT_MX_ADDITIONAL_LABELS",
            "team",
            "variable PILOT_MX_ADDITIONAL_LABELS=\"team\" is not supported, it is ignored: the labels of the metadata \
             exchange are fixed",
        ),
        (
            "PILOT_XDS_CACHE_SIZE",
            "1",
            "variable PILOT_XDS_CACHE_SIZE=\"1\" has no effect: resources are stored once for all proxies that share them",
        ),
        ("SECRET_TTL", "1h", "variable SECRET_TTL has no effect: sluice-agent reads it, sluiced does not"),
        (
            "PILOT_ENABLE_AMBIANT",
            "true",
            "variable PILOT_ENABLE_AMBIANT is unknown and has no effect: did you mean PILOT_ENABLE_AMBIENT?",
        ),
    ] {
        assert_eq!(warned(name, value), [warning]);
    }
    for (name, value) in [
        ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "False"),
        ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", ""),
        ("PILOT_ANALYSIS_INTERVAL", "10000ms"),
        ("PILOT_XDS_CACHE_SIZE", "60000.0"),
        ("PILOT_HTTP10", "true"),
        ("POD_NAME", "a"),
        ("SERVICE_ACCOUNT", "istiod"),
        ("ISTIOD_SERVICE_PORT_HTTPS_DNS", "15012"),
        ("PATH", "/bin"),
    ] {
        assert_eq!(warned(name, value), [""; 0]);
    }
}

#[test]
fn value_that_would_change_the_configuration_prevents_the_start() {
    let refused = |values: &[(&str, &str)]| control_plane_refusal(&environment(values));
    let expected = "variable ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS=\"true\" is not supported, \"false\" is used: clients could choose any host by SNI; \
                    variable PILOT_MX_ADDITIONAL_LABELS=\"team\" is not supported, it is ignored: the labels of the metadata \
                    exchange are fixed. Unset them, or set SLUICE_IGNORE_UNSUPPORTED_VARIABLES=true to use what is supported";
    let both = [("PILOT_MX_ADDITIONAL_LABELS", "team"), ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "true")];
    assert_eq!(refused(&both).as_deref(), Some(expected));
    assert_eq!(control_plane_warnings(&environment(&both)).len(), 2);
    // Supported values, variables without a meaning here, and unknown names.
    let accepted = [
        ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "F"),
        ("PILOT_XDS_CACHE_SIZE", "1"),
        ("PILOT_ENABLE_AMBIANT", "true"),
        ("PATH", "/bin"),
    ];
    assert_eq!(refused(&accepted), None);
    assert_eq!(
        agent_refusal(&environment(&[
            ("CA_PROVIDER", "Citadel"),
            ("ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS", "true")
        ])),
        None
    );
    assert!(
        agent_refusal(&environment(&[("CA_PROVIDER", "other")])).is_some_and(|reason| reason.contains("CA_PROVIDER"))
    );
}

#[test]
fn value_without_an_effect_prevents_no_start() {
    let (layered, ambient) =
        (("ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES", "true"), ("PILOT_ENABLE_AMBIENT", "true"));
    assert_eq!(control_plane_refusal(&environment(&[layered])), None);
    assert_eq!(
        control_plane_warnings(&environment(&[layered])),
        [
            "variable ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES=\"true\" has no effect without PILOT_ENABLE_AMBIENT=true"
        ]
    );
    assert!(control_plane_refusal(&environment(&[layered, ambient])).is_some());
}

/// What Istio's charts set in their profiles and compatibility versions.
#[test]
fn environment_of_the_charts_of_istio_is_accepted() {
    let set = [
        ("ENABLE_NATIVE_SIDECARS", "false"),
        ("DISABLE_SHADOW_HOST_SUFFIX", "false"),
        ("PILOT_SPAWN_UPSTREAM_SPAN_FOR_GATEWAY", "false"),
        ("DISABLE_TRACK_REMAINING_CB_METRICS", "false"),
        ("PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE", "false"),
        ("PILOT_ENABLE_STRICT_GATEWAY_MERGING", "false"),
        ("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", "false"),
        ("PILOT_ENABLE_ANALYSIS", "false"),
        ("PILOT_ENABLE_AMBIENT", "true"),
        ("PILOT_CERT_PROVIDER", "istiod"),
        ("PILOT_TRACE_SAMPLING", "1"),
        ("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "true"),
        ("EXTERNAL_ISTIOD", "false"),
        ("CLUSTER_ID", "Kubernetes"),
        ("PLATFORM", ""),
    ];
    assert_eq!(control_plane_refusal(&environment(&set)), None);
}

#[test]
fn agent_warns_about_its_own_variables_and_those_of_the_control_plane() {
    let names = [
        ("PEER_METADATA_DISCOVERY", "true"),
        ("PILOT_ENABLE_CA_CLR", "true"),
        ("PILOT_TRACE_SAMPLING", "5"),
        ("REVISION", "a"),
        ("ISTIO_META_ANYTHING", "1"),
        ("XDS_HEADER_X", "1"),
        ("HOST_IPS", "1"),
    ];
    assert_eq!(
        agent_warnings(&environment(&names)),
        [
            "variable PEER_METADATA_DISCOVERY=\"true\" is not supported, \"false\" is used: peers are known by the metadata \
             exchange only",
            "variable PILOT_ENABLE_CA_CLR is unknown and has no effect: did you mean PILOT_ENABLE_CA_CRL?",
            "variable PILOT_TRACE_SAMPLING has no effect: sluiced reads it, sluice-agent does not",
        ]
    );
}

#[test]
fn lists_have_every_variable() {
    for groups in [CONTROL_PLANE, AGENT] {
        let (help, names, page) = (help(groups), names_and_states(groups), markdown(groups));
        for variable in all(groups) {
            let entry = format!("\n  {}\n", variable.name);
            assert_eq!(help.contains(&entry), variable.state == State::Followed, "{}", variable.name);
            assert!(names.contains(&format!("\n{}\t{}\t", variable.name, variable.state.name())), "{}", variable.name);
            assert!(page.contains(&format!("| `{}` |", variable.name)), "{}", variable.name);
        }
    }
}
