//! The table of limits names flags, variables and metrics that exist, with their defaults.

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

/// The help of `sluiced`.
fn help() -> String {
    let help = Command::new(env!("CARGO_BIN_EXE_sluiced")).arg("--help").output().expect("run sluiced");
    String::from_utf8(help.stdout).expect("a text")
}

/// The default of a flag or variable in the help. Descriptions are indented more than names.
fn default_of(help: &str, name: &str) -> Option<String> {
    const DESCRIPTION: &str = "          ";
    let is_entry = |line: &&str| !line.starts_with(DESCRIPTION) && line.split_whitespace().next() == Some(name);
    let mut lines = help.lines().skip_while(|line| !is_entry(line));
    lines.next()?;
    let description = lines.take_while(|line| line.starts_with(DESCRIPTION) || line.trim().is_empty());
    let description = description.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let (_, default) = description.split_once("[default: ")?;
    default.split_once(']').map(|(default, _)| default.to_owned())
}

/// The numbers in a text: those with a unit in bytes or seconds.
fn quantities(text: &str) -> Vec<u64> {
    let mut quantities = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = &rest[begin..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(rest.len());
        let number: u64 = rest[..end].replace(',', "").parse().expect("a number");
        rest = &rest[end..];
        let unit = rest.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let factor = match unit {
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "m" | "min" => 60,
            "h" => 3600,
            "days" => 86400,
            _ => 1,
        };
        quantities.push(number * factor);
    }
    quantities
}

#[test]
fn numbers_are_compared_with_their_units() {
    assert_eq!(quantities("50,000, at most 3/8 of the files"), [50_000, 3, 8]);
    assert_eq!(quantities("10 s, after 5 min"), [10, 300]);
    assert_eq!((quantities("90 days"), quantities("4 MiB; 1 KiB")), (quantities("2160h"), vec![4 << 20, 1024]));
    let help = [
        "Limits:",
        "      --most <NUMBER>",
        "          A limit, not that of",
        "          --other",
        "          ",
        "          [default:",
        "          7]",
        "",
        "      --other <NUMBER>",
        "          Without a default",
        "",
        "Load:",
        "  MOST",
        "          The same [default: 8]",
    ]
    .join("\n");
    assert_eq!(
        ["--most", "--other", "MOST"].map(|name| default_of(&help, name)),
        [Some("7".into()), None, Some("8".into())]
    );
}

#[test]
fn limits_have_the_defaults_of_their_flags_and_variables() {
    let help = help();
    let (mut findings, mut compared) = (Vec::new(), 0);
    for row in rows("docs/limits.md", "Load and size") {
        let [limit, default, settings, ..] = row.as_slice() else { continue };
        if settings.starts_with("fixed") || settings.contains("of the agent") {
            continue;
        }
        // A variable beside a flag is that of the flag.
        let flags: Vec<&str> = code(settings).filter(|name| name.starts_with("--")).collect();
        let names = if flags.is_empty() { code(settings).collect() } else { flags };
        let stated = quantities(default);
        for (index, name) in names.into_iter().enumerate() {
            let Some(of_help) = default_of(&help, name) else {
                findings.push(format!("{limit:?}: the help has no default of {name}"));
                continue;
            };
            let is_equal = match quantities(&of_help).first() {
                Some(number) => stated.get(index) == Some(number),
                None => *default == of_help,
            };
            compared += 1;
            if !is_equal {
                findings.push(format!("{limit:?} is {default:?}, and the default of {name} is {of_help:?}"));
            }
        }
    }
    assert!(compared > 20, "{compared} defaults are compared");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_limit_names_a_metric() {
    /// Limits without one.
    const WITHOUT_METRIC: [&str; 0] = [];
    let rows = rows("docs/limits.md", "Load and size");
    let empty = rows.iter().filter(|row| row.get(3).is_none_or(String::is_empty)).map(|row| row[0].as_str());
    let empty: Vec<&str> = empty.filter(|limit| !WITHOUT_METRIC.contains(limit)).collect();
    assert!(empty.is_empty(), "limits without a metric:\n{}", empty.join("\n"));
}

#[test]
fn limits_name_flags_variables_and_metrics_that_exist() {
    let help = help();
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
