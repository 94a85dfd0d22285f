//! Small objects, one a rule: what is said of each, at which field, and how grave it is.

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

/// Says what is found in a text: `E` for what does not apply, `R` for what is only refused, `W` for advice.
fn found(text: &str) -> Vec<String> {
    let letter = |severity| match severity {
        Severity::Error => 'E',
        Severity::Refused => 'R',
        Severity::Warning => 'W',
    };
    validate_text(text).problems.iter().map(|p| format!("{} {}", letter(p.severity), p.field_path)).collect()
}

/// Checks specs of a kind, in YAML's flow style.
fn check(api_version: &str, kind: &str, table: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (spec, expected) in table {
        let text =
            format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x, namespace: shop}}\nspec: {spec}\n");
        let found = found(&text);
        if found != *expected {
            wrong.push(format!("{spec}\n    found    {found:?}\n    expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
