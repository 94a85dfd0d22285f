//! Suppressions, and analysis of the demo and of all inputs of the parity cases.

use std::collections::BTreeSet;
use std::path::Path;

use sluice_analyze::{
    ANALYZERS, AnalyzedObject, MeshObjects, Origin, Settings, Suppression, analyze, default_resources,
};
use sluice_parse::yaml::{Limits, parse_documents};

fn resources(yaml: &str) -> Vec<AnalyzedObject> {
    let documents = parse_documents(yaml, &Limits::default()).into_iter().filter_map(Result::ok);
    documents
        .map(|document| {
            let origin = Origin::File { name: "test.yaml".to_owned(), line: document.line };
            AnalyzedObject::new(document.value, origin, "shop")
        })
        .collect()
}

#[test]
fn suppressions_leave_messages_out() {
    let resources = resources(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routes, annotations: {galley.istio.io/analyze-suppress: 'IST0132'}}
spec: {gateways: [other], hosts: [a.test]}
",
    );
    let mesh = MeshObjects::new(&resources, Settings::default());
    let gateways = ANALYZERS.iter().find(|known| known.name == "virtualservice.GatewayAnalyzer").expect("an analyzer");
    let found = analyze(&mesh, &[gateways]);
    let by_annotation: Vec<bool> = found.iter().map(|message| message.is_suppressed(&[])).collect();
    assert_eq!(by_annotation, [false, true]);
    let suppression: Suppression = "IST0101=VirtualService *.shop".parse().expect("valid");
    assert!(found.iter().all(|message| message.is_suppressed(std::slice::from_ref(&suppression))));
    assert!("IST0101".parse::<Suppression>().is_err());
}

#[test]
fn demo_has_no_errors() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/demo");
    let mut all = default_resources("istio-system");
    let mut files = Vec::new();
    yaml_files(&directory, &mut files);
    assert!(!files.is_empty());
    for file in files {
        all.extend(resources(&std::fs::read_to_string(file).expect("a file")));
    }
    let mesh = MeshObjects::new(&all, Settings::default());
    let found = analyze(&mesh, &ANALYZERS.iter().collect::<Vec<_>>());
    let errors = found.iter().filter(|message| message.message_type.level == sluice_analyze::Level::Error);
    let errors: BTreeSet<String> = errors.map(|message| format!("{}: {}", message.resource, message.text)).collect();
    assert_eq!(errors, BTreeSet::new());
}

/// No input makes an analyzer panic.
#[test]
fn inputs_of_all_cases_are_analyzed() {
    let mut files = Vec::new();
    yaml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"), &mut files);
    assert!(files.len() > 100);
    for file in files {
        let resources = resources(&std::fs::read_to_string(file).expect("a file"));
        let mesh = MeshObjects::new(&resources, Settings::default());
        let _ = analyze(&mesh, &ANALYZERS.iter().collect::<Vec<_>>());
    }
}

fn yaml_files(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            yaml_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}
