use serde_json::Value;
use sluice_model::{RejectCause, Severity};
use sluice_parse::Finding;

use super::found;

fn object(rest: &str) -> String {
    format!("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n{rest}\n")
}

#[test]
fn names_annotations_and_top_level_fields_are_checked() {
    let check = |rest: &str, expected: &[&str]| assert_eq!(found(&object(rest)), expected, "{rest}");
    check("metadata: {name: a.b-c}", &[]);
    check("metadata: {generateName: a-}", &[]);
    check("metadata: {name: A_b}", &["R metadata.name"]);
    check("metadata: {namespace: a}", &["E metadata.name"]);
    check("metadata: {name: a}\nsped: {}", &["R sped"]);
    check("metadata: {name: a}\nspec: {mtsl: {}}", &["W spec.mtsl"]);
    check(
        "metadata: {name: a, annotations: {istio.io/dry-run: \"true\"}}",
        &["R metadata.annotations[istio.io/dry-run]"],
    );
    check(
        "metadata: {name: a, annotations: {internal.istio.io/webhook-always-reject: \"true\"}}",
        &["R metadata.annotations[internal.istio.io/webhook-always-reject]"],
    );
}

#[test]
fn lists_are_checked_and_other_kinds_are_skipped() {
    let list = "kind: List\napiVersion: v1\nitems:\n- {apiVersion: apps/v1, kind: Deployment}\n- apiVersion: \
                security.istio.io/v1\n  kind: PeerAuthentication\n  metadata: {name: a}\n  spec:\n    mtls: {mode: MAYBE}\n";
    let validation = sluice_parse::validate_text(list);
    assert_eq!((validation.objects, validation.skipped), (1, 1));
    assert_eq!(found(list), ["W items[1].spec.mtls", "E items[1].spec.mtls.mode"]);
    assert_eq!(validation.problems[1].position, sluice_parse::yaml::Position { line: 9, column: 12 });
    assert_eq!(found("apiVersion: networking.istio.io/v9\nkind: Gateway\nmetadata: {name: a}"), ["E kind"]);
    let operator = "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator";
    assert_eq!(sluice_parse::validate_text(operator).skipped, 1);
    let rule = |object: &Value| {
        let field_path = object["kind"].as_str()?.into();
        let (reason, severity, cause) = ("a reason".into(), Severity::Warning, RejectCause::Other);
        Some(vec![Finding { field_path, reason, severity, cause }])
    };
    let further = sluice_parse::validate_text_with(operator, &rule);
    assert_eq!((further.objects, further.skipped), (1, 0));
    assert_eq!(further.problems[0].field_path.as_str(), "IstioOperator");
    assert_eq!(found("replicas: 3\n"), ["E "]);
    assert_eq!(found("a: [\n"), ["E "]);
}
