//! The table of limits names flags and variables that exist.

use std::process::Command;

use super::root;

/// The rows of a table in a section, as cells without the heading.
fn rows(page: &str, section: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join(page)).expect("read the page");
    let (_, section) = text.split_once(&format!("## {section}\n")).expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The parts of a cell that are marked as code.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn limits_name_flags_variables_and_metrics_that_exist() {
    let help = Command::new(env!("CARGO_BIN_EXE_sluiced")).arg("--help").output().expect("run sluiced");
    let help = String::from_utf8(help.stdout).expect("a text");
    let named = |name: &str| help.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c))).any(|word| word == name);
    let sources: Vec<String> = super::files()
        .into_iter()
        .filter(|file| {
            (file.starts_with("src") || file.starts_with("collections"))
                && file.extension().is_some_and(|extension| extension == "rs")
        })
        .map(|file| std::fs::read_to_string(root().join(file)).expect("read a source file"))
        .collect();
    let in_sources = |name: &str| sources.iter().any(|text| text.contains(&format!("\"{name}\"")));
    let rows = rows("docs/limits.md", "Load and size");
    assert!(rows.len() > 30, "the table has {} rows", rows.len());
    let mut findings = Vec::new();
    for row in &rows {
        let [limit, default, settings, metrics, beyond] = row.as_slice() else {
            findings.push(format!("{row:?} does not have five cells"));
            continue;
        };
        if [limit, default, beyond].iter().any(|cell| cell.is_empty()) {
            findings.push(format!("{limit:?} has an empty cell"));
        }
        if settings != "fixed" && !settings.starts_with("fixed") && code(settings).next().is_none() {
            findings.push(format!("{limit:?} names neither a flag nor a variable, and is not fixed"));
        }
        for name in code(settings) {
            let exists = if settings.contains("of the agent") { in_sources(name) } else { named(name) };
            if !exists {
                findings.push(format!("{limit:?}: there is no {name}"));
            }
        }
        // A metric of the agent has the prefix of its registry.
        for name in code(metrics).filter(|name| name.len() > "first_request".len()) {
            let name = name.split('{').next().unwrap_or(name);
            let name = name.strip_prefix("istio_agent_").unwrap_or(name);
            // The encoder appends the suffix of counters.
            if !in_sources(name) && !name.strip_suffix("_total").is_some_and(in_sources) {
                findings.push(format!("{limit:?}: there is no metric {name}"));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
