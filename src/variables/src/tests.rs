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
            "ENABLE_MCS_HOST",
            "T",
            "variable ENABLE_MCS_HOST=\"T\" is not supported, \"false\" is used: ServiceExports and ServiceImports are not read",
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
        ("ENABLE_MCS_HOST", "False"),
        ("ENABLE_MCS_HOST", ""),
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
