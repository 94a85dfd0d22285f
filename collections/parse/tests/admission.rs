//! Admission rules: one small object per rule, with the expected severity and field path of its findings.

#[path = "admission/destination_rule.rs"]
mod destination_rule;
#[path = "admission/gateway.rs"]
mod gateway;
#[path = "admission/mesh.rs"]
mod mesh;
#[path = "admission/metadata.rs"]
mod metadata;
#[path = "admission/registry.rs"]
mod registry;
#[path = "admission/virtual_service.rs"]
mod virtual_service;

use sluice_model::Severity;
use sluice_parse::validate_text;

/// Findings of a text as `SEVERITY path`: `E` does not apply, `R` is refused by admission, `W` is a warning.
fn found(text: &str) -> Vec<String> {
    let letter = |severity| match severity {
        Severity::Error => 'E',
        Severity::Refused => 'R',
        Severity::Warning => 'W',
    };
    validate_text(text).problems.iter().map(|p| format!("{} {}", letter(p.severity), p.field_path)).collect()
}

/// Checks the findings of specs, which are in YAML flow style.
fn check(api_version: &str, kind: &str, table: &[(&str, &[&str])]) {
    let mut failures = Vec::new();
    for (spec, expected) in table {
        let text =
            format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x, namespace: shop}}\nspec: {spec}\n");
        let found = found(&text);
        if found != *expected {
            failures.push(format!("{spec}\n    found    {found:?}\n    expected {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
