//! The tables of variables and flags: they have every name of Istio, and `docs/variables.md` is their text.

use std::process::Command;

use sluice_parse::yaml::{Limits, parse_value};
use sluice_variables::{AGENT, CONTROL_PLANE, FLAGS_WITHOUT_EFFECT, Group, find, markdown};

use super::root;

/// Rewrites `docs/variables.md`.
const UPDATE: &str = "SLUICE_UPDATE_DOCS";

const FLAGS: &[Group] = &[Group { title: "Flags of Istio without an effect", variables: FLAGS_WITHOUT_EFFECT }];

fn names(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("tests/tidy").join(file)).expect("read the names");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn every_variable_of_istio_is_listed() {
    let names = names("istio_variables.txt");
    assert!(names.len() > 230, "{} names", names.len());
    let missing: Vec<_> =
        names.iter().filter(|name| find(CONTROL_PLANE, name).or_else(|| find(AGENT, name)).is_none()).collect();
    assert!(missing.is_empty(), "src/variables does not list {missing:?}");
}

#[test]
fn every_flag_of_istio_is_listed() {
    let help = Command::new(env!("CARGO_BIN_EXE_sluiced")).arg("--help").output().expect("run sluiced");
    let help = String::from_utf8(help.stdout).expect("a text");
    let words: Vec<&str> = help.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c))).collect();
    let names = names("istio_flags.txt");
    assert!(names.len() > 30, "{} names", names.len());
    for name in names {
        let followed = words.contains(&format!("--{name}").as_str());
        let listed = FLAGS_WITHOUT_EFFECT.iter().any(|flag| flag.name == name);
        assert!(followed != listed, "--{name}: followed: {followed}, listed as without an effect: {listed}");
    }
}

/// The releases of a text such as `1.25 to 1.27, 1.30`.
fn releases(text: &str) -> Vec<String> {
    let minor = |release: &str| release.trim().strip_prefix("1.").and_then(|it| it.parse::<u32>().ok());
    let range = |part: &str| {
        let (first, last) = part.split_once(" to ").unwrap_or((part, part));
        let (first, last) = minor(first).zip(minor(last)).unwrap_or_else(|| panic!("{part} is a range of releases"));
        (first..=last).map(|minor| format!("1.{minor}"))
    };
    text.split(", ").flat_map(range).collect()
}

#[test]
fn compatibility_versions_of_the_chart_are_those_of_the_page() {
    let chart = std::fs::read_to_string(root().join("manifests/charts/sluice/files/compatibility.yaml"));
    let chart = parse_value(&chart.expect("read the file"), &Limits::default()).expect("it parses");
    let page = std::fs::read_to_string(root().join("docs/variables.md")).expect("read the page");
    let (_, section) = page.split_once("\n## Compatibility versions\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("the next section");
    let mut rows = 0;
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let [name, set_by, state] = row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("a row has three columns: {row}")
        };
        let name = name.trim_matches('`');
        assert_eq!(chart[name], serde_json::json!(releases(set_by)), "{name}");
        let variable = find(CONTROL_PLANE, name).unwrap_or_else(|| panic!("src/variables does not list {name}"));
        assert_eq!(variable.state.name(), state, "{name}");
        rows += 1;
    }
    assert_eq!(chart.as_object().map(serde_json::Map::len), Some(rows));
}

#[test]
fn environment_is_listed_with_states() {
    let output = Command::new(env!("CARGO_BIN_EXE_sluiced")).arg("env").output().expect("run sluiced");
    let text = String::from_utf8(output.stdout).expect("a text");
    assert!(output.status.success() && text.contains("\nPILOT_HTTP10\tfollowed\ttrue or false\tfalse\t"), "{text}");
    assert!(text.contains("\nENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS\tonly the default is supported\t"), "{text}");
}

#[test]
fn page_of_variables_is_that_of_the_tables() {
    let page = root().join("docs/variables.md");
    let text = std::fs::read_to_string(&page).expect("read the page");
    let (introduction, _) = text.split_once("## Variables of sluiced\n").expect("the section of sluiced");
    let expected = format!(
        "{introduction}## Variables of sluiced\n\n{}## Variables of sluice-agent\n\n{}## Flags\n\n{}",
        markdown(CONTROL_PLANE),
        markdown(AGENT),
        markdown(FLAGS).trim_end(),
    ) + "\n";
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&page, &expected).expect("write the page");
    } else {
        assert!(text == expected, "docs/variables.md differs from the tables: run this test with {UPDATE}=1");
    }
}
