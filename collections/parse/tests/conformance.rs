//! The cases of `tests/cases/validation`: invalid objects are refused at a field, valid ones are admitted.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sluice_model::Severity;
use sluice_parse::{validate_text, validated_kinds};

fn list(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).expect("the cases").map(|entry| entry.expect("a case").path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[test]
fn invalid_objects_are_refused_and_valid_ones_admitted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/validation");
    let known: BTreeSet<String> = validated_kinds().iter().map(|kind| kind.name().to_lowercase()).collect();
    let (mut failures, mut cases) = (Vec::new(), 0);
    for kind in list(&root) {
        assert!(known.contains(name(&kind)), "{} has no parser", name(&kind));
        for case in list(&kind) {
            let validation = validate_text(&std::fs::read_to_string(&case).expect("a case"));
            assert_eq!(validation.objects, 1, "{}", case.display());
            let refusals: Vec<_> = validation.problems.iter().filter(|p| p.severity.is_refusal()).collect();
            let elsewhere = refusals.iter().any(|p| p.field_path.is_empty() || p.position.line < 2);
            if name(&case).starts_with("invalid-") == refusals.is_empty() || elsewhere {
                failures.push(format!("{}/{}: {:?}", name(&kind), name(&case), validation.problems));
            }
            cases += 1;
        }
    }
    assert!(cases > 50, "{cases} cases");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn objects_of_the_parity_cases_are_admitted() {
    // Istio admits these objects, so a rule that refuses one of them is wrong.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut failures = BTreeSet::new();
    for case in
        list(&root).iter().filter(|family| family.is_dir() && name(family) != "validation").flat_map(|f| list(f))
    {
        let Ok(text) = std::fs::read_to_string(case.join("input.yaml")) else { continue };
        for problem in validate_text(&text).problems.iter().filter(|p| p.severity == Severity::Refused) {
            failures.insert(format!(
                "{}:{}: {} {}: {}",
                case.display(),
                problem.position.line,
                problem.kind,
                problem.field_path,
                problem.reason
            ));
        }
    }
    let failures: Vec<String> = failures.into_iter().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
