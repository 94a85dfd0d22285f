//! The page about a report of the conformance tests.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_value};

const INTRODUCTION: &str = "\
# Conformance with the Gateway API

`make conformance` writes this page. It runs the conformance tests of the Gateway API (`sigs.k8s.io/gateway-api/conformance`) against
`sluiced` of the chart with a real Kubernetes API server. The proxies of the Gateways are those that `sluiced` deploys, with Envoy. In
the profiles of the mesh, `sluiced` injects sidecars, and the clients run inside the pods by `kubectl exec`. Core features are those of the
profile; extended features are optional. Tests of features that are not supported are skipped and not counted. Tests of the mesh that also
need a feature of routes, such as `HTTPRouteResponseHeaderModification`, run and have to pass; the profiles do not count them.
";

/// Writes the page about those of the reports that exist.
pub(super) fn write(reports: &[&Path], page: &Path) -> Result<()> {
    let mut parsed = Vec::new();
    for report in reports.iter().filter(|report| report.exists()) {
        let text = std::fs::read_to_string(report).with_context(|| format!("read {}", report.display()))?;
        parsed.push(parse_value(&text, &Limits::default()).with_context(|| format!("parse {}", report.display()))?);
    }
    std::fs::write(page, render(&parsed)).with_context(|| format!("write {}", page.display()))
}

fn render(reports: &[Value]) -> String {
    let mut page = INTRODUCTION.to_owned();
    if let Some(report) = reports.first() {
        let field = |name: &str| report[name].as_str().unwrap_or_default();
        let _ = writeln!(
            page,
            "\n| | |\n|---|---|\n| Gateway API | {} ({} channel) |\n| Sluice | {} |\n",
            field("gatewayAPIVersion"),
            field("gatewayAPIChannel"),
            report["implementation"]["version"].as_str().unwrap_or_default(),
        );
    }
    page.push_str("| profile | tests of | result | passed | failed | skipped |\n|---|---|---|---|---|---|\n");
    let mut details = String::new();
    for profile in reports.iter().filter_map(|report| report["profiles"].as_array()).flatten() {
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
fn page_has_the_counts_and_the_failed_tests_of_all_reports() {
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
    let mesh = serde_json::json!({"profiles": [{
        "name": "MESH-X", "core": {"result": "success", "statistics": {"Passed": 7, "Failed": 0, "Skipped": 0}},
    }]});
    let page = render(&[report, mesh]);
    for line in [
        "| Gateway API | v1.2.3 (experimental channel) |",
        "| GATEWAY-X | core features | failure | 4 | 1 | 0 |",
        "| GATEWAY-X | extended features | partial | 2 | 0 | 1 |",
        "| MESH-X | core features | success | 7 | 0 | 0 |",
        "- Failed tests: `A`",
        "- Skipped tests: `B`",
        "- Supported extended features: `F`, `G`",
        "- Other extended features: `H`",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}:\n{page}");
    }
}
