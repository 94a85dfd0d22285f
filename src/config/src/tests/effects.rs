//! Each variable that is followed, and each flag, changes the settings.

use std::collections::BTreeMap;

use sluice_variables::{CONTROL_PLANE, State, Variable};

use super::super::{CommandLine, Config};

type Values = BTreeMap<&'static str, String>;

/// Not in the settings: the Kubernetes client reads it.
const READ_ELSEWHERE: &[&str] = &["KUBERNETES_SERVICE_HOST"];

/// The settings with these variables. Variables of flags are passed as their flags, as clap does.
fn settings(values: &Values) -> Result<String, String> {
    let mut arguments = vec!["sluiced".to_owned()];
    for (name, value) in values {
        let flag = sluice_variables::find(CONTROL_PLANE, name).and_then(Variable::flag);
        arguments.extend(flag.map(|flag| flag_argument(flag, value)));
    }
    settings_text(&arguments, |name| values.get(name).cloned())
}

/// All settings as a text, without the warnings.
fn settings_text(arguments: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (line, unknown) = CommandLine::parse_lenient(arguments.iter().cloned()).map_err(|error| error.to_string())?;
    let mut config = Config::new(line.discovery, &unknown, variable).map_err(|error| error.to_string())?;
    config.warnings.clear();
    Ok(format!("{config:#?}"))
}

/// A flag without a value has the value `true`.
fn flag_argument(flag: &str, value: &str) -> String {
    if value == "true" { format!("--{flag}") } else { format!("--{flag}={value}") }
}

#[test]
fn every_followed_variable_changes_the_settings() {
    let read: Vec<_> = sluice_variables::all(CONTROL_PLANE).filter(|variable| variable.is_read()).collect();
    assert!(read.len() > 180, "{} variables", read.len());
    let flags = sluice_variables::all(CONTROL_PLANE).filter(|variable| variable.state == State::Flag);
    assert!(flags.map(Variable::flag).all(|flag| flag.is_some()), "each names its flag");
    let mut findings = Vec::new();
    for variable in read.iter().filter(|variable| !READ_ELSEWHERE.contains(&variable.name)) {
        let name = variable.name;
        let without: Values = variable.needs().iter().map(|(of, value)| (*of, (*value).to_owned())).collect();
        let before = settings(&without).unwrap_or_else(|error| panic!("what {name} needs: {error}"));
        let value = variable.other_value();
        let mut with = without.clone();
        // If only the default is supported, another value must not be ignored.
        with.insert(name, value.clone().unwrap_or_else(|| "other".to_owned()));
        match (settings(&with), value) {
            (Ok(after), Some(value)) if after == before => findings.push(format!("{name}={value} changes nothing")),
            (Ok(_), None) => findings.push(format!("{name}=other is ignored")),
            (Err(error), Some(value)) => findings.push(format!("{name}={value} is an error: {error}")),
            (Ok(_), Some(_)) | (Err(_), None) => {}
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Values of flags without a default that says their form.
const FLAG_VALUES: &[(&str, &str)] = &[
    ("clusterAliases", "a=b"),
    ("log_output_level", "default:debug"),
    ("log_stacktrace_level", "default:error"),
    ("log_target", "stderr"),
    ("profile", "false"),
    ("remoteConfigDir", "east=/objects"),
    ("tls-cipher-suites", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("tls-min-version", "VersionTLS13"),
];

/// Flags that have an effect only with others, and the others.
const FLAG_NEEDS: &[(&str, &[&str])] = &[
    ("caCertFile", &["--tlsCertFile=/cert", "--tlsKeyFile=/key"]),
    ("log_rotate_max_age", &["--log_rotate=/log"]),
    ("log_rotate_max_backups", &["--log_rotate=/log"]),
    ("log_rotate_max_size", &["--log_rotate=/log"]),
    ("tlsCertFile", &["--tlsKeyFile=/key", "--caCertFile=/roots"]),
    ("tlsKeyFile", &["--tlsCertFile=/cert", "--caCertFile=/roots"]),
];

#[test]
fn every_flag_changes_the_settings() {
    let command = <CommandLine as clap::CommandFactory>::command();
    let of_variables: Vec<_> = sluice_variables::all(CONTROL_PLANE).filter_map(Variable::flag).collect();
    let others = command.get_arguments().filter_map(clap::Arg::get_long);
    // The other test has the flags of variables.
    let others: Vec<_> = others.filter(|flag| !of_variables.contains(flag)).collect();
    assert!(others.len() > 20, "{others:?}");
    let mut findings = Vec::new();
    for flag in others {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag)).expect("the flag");
        let default = argument.get_default_values().first().and_then(|value| value.to_str()).unwrap_or_default();
        let listed = FLAG_VALUES.iter().find(|(of, _)| *of == flag).map(|(_, value)| (*value).to_owned());
        let value = listed.unwrap_or_else(|| value_unlike(default));
        let needs = FLAG_NEEDS.iter().filter(|(of, _)| *of == flag).flat_map(|(_, needs)| *needs);
        let mut arguments: Vec<_> = ["sluiced"].iter().chain(needs).map(|argument| (*argument).to_owned()).collect();
        let before = settings_text(&arguments, |_| None);
        arguments.push(flag_argument(flag, &value));
        match settings_text(&arguments, |_| None) {
            after @ Ok(_) if after == before => findings.push(format!("--{flag}={value} changes nothing")),
            Err(error) => findings.push(format!("--{flag}={value} is an error: {error}")),
            Ok(_) => {}
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// A value of the form of the default, and unlike it.
fn value_unlike(default: &str) -> String {
    match default {
        "false" => "true".to_owned(),
        _ if default.starts_with(':') => ":1".to_owned(),
        _ if default.parse::<u64>().is_ok() => "7".to_owned(),
        _ if sluice_parse::parse_duration(default).is_some() => "7s".to_owned(),
        _ => "other".to_owned(),
    }
}
