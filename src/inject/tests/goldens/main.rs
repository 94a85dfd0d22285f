//! The recorded cases in `tests/cases/inject/cases`: the pod that Istio's injector makes of a request.
//!
//! With the configuration of an Istio installation, all cases have to be equal. It is not part of this repository: the
//! variable `SLUICE_INJECT_REFERENCE` names a directory with `config.yaml`, `values.yaml` and `mesh.yaml`.

mod cases;
mod mutations;
mod workload_objects;

use cases::{Case, Reference, score};

/// Cases that differ from Istio, each with the reason.
const DIFFERENCES: [(&str, &str); 0] = [];
/// Cases in which the default templates differ from Istio's, each with the reason.
const OWN_DIFFERENCES: [(&str, &str); 8] = [
    ("config-meta-quote", "variables with quotes are accepted"),
    ("grpc-simple-template", NO_GRPC_SIMPLE),
    ("grpc-simple-two", NO_GRPC_SIMPLE),
    ("two-templates", NO_GRPC_SIMPLE),
    ("values-big", NO_DATADOG),
    ("values-big-native-false", NO_DATADOG),
    ("values-gke-certs", "certificates of GKE are not mounted"),
    ("values-mtls-certs", "certificates in /etc/certs are not mounted"),
];
const NO_GRPC_SIMPLE: &str = "there is no template grpc-simple, which needs a shell and a plaintext control plane";
const NO_DATADOG: &str = "the annotation with variables of a Datadog tracer is not read";

#[test]
fn pods_are_injected_as_istio_does_with_its_configuration() {
    let Some(reference) = Reference::find() else { return };
    let cases = Case::all();
    assert!(cases.len() >= 170, "{} cases", cases.len());
    let failures = score("the configuration of Istio", &cases, &reference);
    let expected: Vec<&str> = DIFFERENCES.iter().map(|(name, _)| *name).collect();
    let names: Vec<&str> = failures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, expected, "cases that differ");
}

#[test]
fn pods_are_injected_by_the_default_templates() {
    let failures = score("the default templates", &Case::all(), &Reference::own());
    let expected: Vec<&str> = OWN_DIFFERENCES.iter().map(|(name, _)| *name).collect();
    let names: Vec<&str> = failures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, expected, "cases that differ");
}

#[test]
fn webhooks_select_the_recorded_pods() {
    for case in Case::all() {
        let review = case.review();
        let labels = &review["request"]["object"]["metadata"]["labels"];
        let selected = sluice_inject::webhook_selects(case.revision(), &case.json["namespaceLabels"], labels);
        let called = case.json["golden"]["called"].as_bool().unwrap_or(true);
        assert_eq!(selected, called, "{}", case.name);
    }
}
