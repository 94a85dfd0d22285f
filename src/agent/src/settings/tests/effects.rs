//! Each variable that is followed, and each flag of `proxy`, changes the settings or the node.

use std::collections::BTreeMap;

use clap::CommandFactory as _;
use sluice_variables::AGENT;

use super::settings;
use crate::args::CommandLine;
use crate::environment::environment;
use crate::node::EnvoyNode;

/// All that the agent does with an environment, as a text.
fn effect(arguments: &str, values: &BTreeMap<&str, &str>) -> Result<String, String> {
    let values: Vec<_> = values.iter().map(|(name, value)| (*name, *value)).collect();
    let environment = environment(&values);
    environment.not_followed().map_err(|error| error.to_string())?;
    let settings = settings(arguments, &values).map_err(|error| error.to_string())?;
    let node = EnvoyNode::new(&settings, &environment, &mut Vec::new());
    match environment.take_warnings().as_slice() {
        [] => Ok(format!("{settings:#?}\n{node:#?}")),
        warnings => Err(warnings.join("\n")),
    }
}

#[test]
fn every_followed_variable_changes_the_settings_or_the_node() {
    let read: Vec<_> = sluice_variables::all(AGENT).filter(|variable| variable.is_read()).collect();
    assert!(read.len() > 50, "{} variables", read.len());
    let mut findings = Vec::new();
    for variable in read {
        let value = variable.other_value().expect("a value");
        let mut values: BTreeMap<&str, &str> = variable.needs().iter().copied().collect();
        let before = effect("sidecar", &values);
        let name = variable.name.replace('*', "OTHER");
        values.insert(&name, &value);
        match effect("sidecar", &values) {
            Err(error) => findings.push(format!("{name}={value}: {error}")),
            after if after == before => findings.push(format!("{name}={value} changes nothing")),
            Ok(_) => {}
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_flag_of_proxy_changes_the_settings() {
    let command = CommandLine::command();
    let proxy = command.find_subcommand("proxy").expect("the subcommand");
    // The mesh config is a file: `pod_annotations_take_precedence` and the tests of the ProxyConfig have its layers.
    let flags: Vec<_> =
        proxy.get_arguments().filter_map(clap::Arg::get_long).filter(|flag| *flag != "meshConfig").collect();
    assert!(flags.len() > 5, "{flags:?}");
    // With another name in the ProxyConfig, --serviceCluster has no effect.
    let variables = BTreeMap::from([("PROXY_CONFIG", "serviceCluster: ''")]);
    let before = effect("sidecar", &variables);
    for flag in flags {
        let value = if flag == "concurrency" { "3" } else { "other" };
        let after = effect(&format!("sidecar --{flag}={value}"), &variables);
        assert!(after.is_ok() && after != before, "--{flag}={value}");
    }
    assert_ne!(effect("router", &variables), before);
}
