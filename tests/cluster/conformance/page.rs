//! The page about a report of the conformance tests.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_value};

const INTRODUCTION: &str = "\
# Conformance with the Gateway API

`make conformance` writes this page. It runs the conformance tests of the Gateway API (`sigs.k8s.io/gateway-api/conformance`) against
`sluiced` of the chart with a real Kubernetes API server. The proxies of the Gateways are those that `sluiced` deploys, with Envoy.
Core features are those of the profile; extended features are optional. Tests of features that are not supported are skipped and not
counted. The profile MESH-HTTP is not run: its clients run inside pods with a sidecar, by `kubectl exec`, which the cluster of the tests
does not support.
";

/// Writes the page about a report.
pub(super) fn write(report: &Path, page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
    let report = parse_value(&text, &Limits::default()).context("parse the report")?;
    std::fs::write(page, render(&report)).with_context(|| format!("write {}", page.display()))
}

fn render(report: &Value) -> String {
    let field = |name: &str| report[name].as_str().unwrap_or_default();
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(
        page,
        "\n| | |\n|---|---|\n| Gateway API | {} ({} channel) |\n| Sluice | {} |\n",
        field("gatewayAPIVersion"),
        field("gatewayAPIChannel"),
        report["implementation"]["version"].as_str().unwrap_or_default(),
    );
    page.push_str("| profile | tests of | result | passed | failed | skipped |\n|---|---|---|---|---|---|\n");
    let mut details = String::new();
    for profile in report["profiles"].as_array().into_iter().flatten() {
        let name = profile["name"].as_str().unwrap_or_default();
        for level in ["core", "extended"] {
            let part = &profile[level];
            if part.is_null() {
                continue;
            }
            let count = |name: &str| part["statistics"][name].as_u64().unwrap_or_default();
            let _ = writeln!(
                page,
                "| {name} | {level} features | {} | {} | {} | {} |",
                part["result"].as_str().unwrap_or_default(),
                count("Passed"),
                count("Failed"),
                count("Skipped"),
            );
        }
        let lists = [
            ("Failed tests", ["core", "extended"].map(|level| &profile[level]["failedTests"])),
            ("Skipped tests", ["core", "extended"].map(|level| &profile[level]["skippedTests"])),
            ("Supported extended features", [&profile["extended"]["supportedFeatures"], &Value::Null]),
            ("Other extended features", [&profile["extended"]["unsupportedFeatures"], &Value::Null]),
        ];
        let _ = writeln!(details, "\n## {name}\n");
        for (title, names) in lists {
            let names = names.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
            let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
            if !names.is_empty() {
                let _ = writeln!(details, "- {title}: {}", names.join(", "));
            }
        }
    }
    page + &details
}

#[test]
fn page_has_the_counts_and_the_failed_tests() {
    let report = serde_json::json!({
        "gatewayAPIVersion": "v1.2.3", "gatewayAPIChannel": "experimental", "implementation": {"version": "0.1"},
        "profiles": [{
            "name": "GATEWAY-X",
            "core": {"result": "failure", "statistics": {"Passed": 4, "Failed": 1, "Skipped": 0}, "failedTests": ["A"]},
            "extended": {
                "result": "partial", "statistics": {"Passed": 2, "Failed": 0, "Skipped": 1}, "skippedTests": ["B"],
                "supportedFeatures": ["F", "G"], "unsupportedFeatures": ["H"],
            },
        }],
    });
    let page = render(&report);
    for line in [
        "| Gateway API | v1.2.3 (experimental channel) |",
        "| GATEWAY-X | core features | failure | 4 | 1 | 0 |",
        "| GATEWAY-X | extended features | partial | 2 | 0 | 1 |",
        "- Failed tests: `A`",
        "- Skipped tests: `B`",
        "- Supported extended features: `F`, `G`",
        "- Other extended features: `H`",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}:\n{page}");
    }
}
