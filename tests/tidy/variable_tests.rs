//! `variable_tests.txt`: each variable that is followed has a test that shows what another value than the default changes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sluice_variables::{AGENT, CONTROL_PLANE, Group, Variable, all};

use super::features::{file_names, test_exists};
use super::root;

/// Tests that show for each variable that it is read, and not more.
const TESTS_OF_READING: [&str; 2] = [
    "src/config/src/tests/effects.rs::every_followed_variable_changes_the_settings",
    "src/agent/src/settings/tests/effects.rs::every_followed_variable_changes_the_settings_or_the_node",
];
/// Number of variables without another test.
const MAX_ONLY_READ: usize = 5;

struct Row {
    name: String,
    test: String,
    reason: String,
}

/// The rows by program.
fn rows() -> BTreeMap<String, Vec<Row>> {
    let text = std::fs::read_to_string(root().join("tests/tidy/variable_tests.txt")).expect("read the table");
    let (mut programs, mut program) = (BTreeMap::<String, Vec<Row>>::new(), String::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut program);
            continue;
        }
        let mut columns = line.splitn(3, ' ').map(str::to_owned);
        let mut column = || columns.next().unwrap_or_default();
        let row = Row { name: column(), test: column(), reason: column() };
        programs.entry(program.clone()).or_default().push(row);
    }
    programs
}

/// Whether the directory is a case whose environment has the variable.
fn case_sets(directory: &str, name: &str) -> bool {
    let text = std::fs::read_to_string(root().join(directory).join("env.json")).unwrap_or_default();
    serde_json::from_str::<Value>(&text).is_ok_and(|environment| environment.get(name).is_some())
}

fn check(program: &str, groups: &'static [Group], rows: &[Row]) -> Vec<String> {
    let files = file_names();
    let followed: BTreeSet<&str> = all(groups).filter(|it| it.is_read()).map(|it: &Variable| it.name).collect();
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    for Row { name, test, reason } in rows {
        let mut find = |problem: &str| findings.push(format!("{program}: {name}: {problem}"));
        if !named.insert(name.as_str()) {
            find("it has two lines");
        }
        if !followed.contains(name.as_str()) {
            find("src/variables lists no variable of this name that is followed");
        }
        let exists = match test.split_once("::") {
            Some((file, function)) => test_exists(&files, file, function),
            None => case_sets(test, name),
        };
        if !exists {
            find(&format!("there is no test {test}, or the case does not set the variable"));
        }
        if TESTS_OF_READING.contains(&test.as_str()) == reason.is_empty() {
            find("a reason is needed if, and only if, just reading is tested");
        }
    }
    findings.extend(followed.difference(&named).map(|name| format!("{program}: {name} has no line")));
    findings
}

#[test]
fn followed_variables_have_tests_of_what_they_change() {
    let rows = rows();
    let mut findings = Vec::new();
    for (program, groups) in [("sluiced", CONTROL_PLANE), ("sluice-agent", AGENT)] {
        findings.extend(check(program, groups, rows.get(program).expect("its rows")));
    }
    let read = rows.values().flatten().filter(|row| !row.reason.is_empty()).count();
    if read > MAX_ONLY_READ {
        findings.push(format!("{read} variables are only read, more than {MAX_ONLY_READ}"));
    }
    assert!(findings.is_empty(), "tests/tidy/variable_tests.txt:\n{}", findings.join("\n"));
}

#[test]
fn mistakes_in_the_table_are_found() {
    let row = |name: &str, test: &str, reason: &str| Row {
        name: name.to_owned(),
        test: test.to_owned(),
        reason: reason.to_owned(),
    };
    let rows = [
        row("PILOT_HTTP10", "tests/tidy.rs::no_such_test", ""),
        row("PILOT_HTTP11", "tests/tidy/variable_tests.rs::mistakes_in_the_table_are_found", ""),
        row("XDS_AUTH", "tests/cases/ambient/01-workloads-and-vips", ""),
        row("XDS_AUTH_PLAINTEXT", TESTS_OF_READING[0], ""),
    ];
    let findings = check("sluiced", CONTROL_PLANE, &rows);
    for part in [
        "PILOT_HTTP10: there is no test",
        "PILOT_HTTP11: src/variables lists no variable",
        "XDS_AUTH: there is no test",
        "XDS_AUTH_PLAINTEXT: a reason is needed",
        "ISTIO_DUAL_STACK has no line",
    ] {
        assert!(findings.iter().any(|finding| finding.contains(part)), "{part}: {findings:?}");
    }
}
