//! The memory that parsing takes is bounded by the size of its input.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

#[path = "allocation/growth.rs"]
mod growth;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use allocation_counter::{AllocationInfo, measure};
use growth::{FORMS, grow, length, places};
use serde_json::{Value, json};
use sluice_model::MeshConfig;
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_parse::{Findings, merge_mesh_config, parse_mesh_networks, parse_object, parse_proxy};
use sluice_proto::envoy::config::core::v3::Node;

/// Bytes of memory at a time, for each byte of JSON or YAML, that parsing may take, with the result and the findings.
const PEAK_PER_BYTE: u64 = 48;
/// All bytes that are allocated while parsing. What is copied again and again takes more.
const TOTAL_PER_BYTE: u64 = 200;
/// What the findings of a small object may take in addition.
const MOST_FOR_FINDINGS: u64 = 512 << 10;
/// Size of the grown objects. What grows with the square of the input exceeds the limits far below this size.
const GROWN_BYTES: usize = 24 << 10;

/// Collects the inputs that take too much memory.
#[derive(Default)]
struct Excesses {
    inputs: usize,
    found: Vec<String>,
}

impl Excesses {
    fn check(&mut self, what: &str, input_bytes: usize, run: impl FnOnce()) {
        let AllocationInfo { bytes_max, bytes_total, .. } = measure(run);
        let most = |for_each: u64| input_bytes as u64 * for_each + MOST_FOR_FINDINGS;
        self.inputs += 1;
        if bytes_max > most(PEAK_PER_BYTE) || bytes_total > most(TOTAL_PER_BYTE) {
            self.found.push(format!("{what}: {input_bytes} bytes take {bytes_max} at a time, {bytes_total} in all"));
        }
    }

    fn assert_none(self, least_inputs: usize) {
        assert!(self.inputs >= least_inputs, "{} inputs", self.inputs);
        let shown: Vec<&String> = self.found.iter().take(40).collect();
        assert!(self.found.is_empty(), "{} of {} inputs: {shown:#?}", self.found.len(), self.inputs);
    }
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a case").path()).collect();
    paths.sort();
    paths
}

/// Directories of the parity cases.
fn cases() -> Vec<PathBuf> {
    let families = list(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"));
    families.iter().flat_map(|family| list(family)).filter(|case| case.is_dir()).collect()
}

fn documents(text: &str) -> impl Iterator<Item = Value> {
    parse_documents(text, &Limits::default()).into_iter().filter_map(|document| Some(document.ok()?.value))
}

/// Every place of a value that is not in `known` yet, in every grown form. `of` names the type of the value.
fn grown<'v>(
    value: &'v Value,
    of: &str,
    known: &mut BTreeSet<String>,
) -> impl Iterator<Item = (String, Value)> + use<'v> {
    let places: Vec<String> = places(value).into_iter().filter(|place| known.insert(format!("{of} {place}"))).collect();
    let forms = move |place: String| (0..FORMS).filter_map(move |form| grow(value, &place, form, GROWN_BYTES));
    places.into_iter().flat_map(forms)
}

#[test]
fn mesh_config_and_networks_take_memory_in_proportion_to_their_size() {
    let mut values = Vec::new();
    for case in cases() {
        let Ok(text) = std::fs::read_to_string(case.join("input.yaml")) else { continue };
        for object in documents(&text) {
            for name in ["mesh", "meshNetworks"] {
                let text = object["data"][name].as_str().unwrap_or_default();
                values.extend(documents(text).map(|value| (name, value)));
            }
        }
    }
    let (mut excesses, mut grown_places) = (Excesses::default(), BTreeSet::new());
    for (name, value) in values {
        let read = |value: &Value| {
            let findings = Findings::default();
            match name {
                "mesh" => drop(merge_mesh_config(MeshConfig::default(), value, "data.mesh", &findings)),
                _ => drop(parse_mesh_networks(value, "data.meshNetworks", &findings)),
            }
            drop(findings.into_vec());
        };
        read(&value);
        for (what, value) in grown(&value, name, &mut grown_places) {
            excesses.check(&format!("{name}: {what}"), length(&value), || read(&value));
        }
    }
    excesses.assert_none(300);
}

/// A node whose metadata has a map key of 100 kB with 60,000 unknown fields below it.
#[test]
fn unknown_fields_below_a_long_key_of_node_metadata_take_no_memory_for_findings() {
    let unknown: serde_json::Map<String, Value> = (0..60_000).map(|n| (format!("unknownField{n}"), json!(1))).collect();
    let tags = json!({ "k".repeat(100_000): unknown });
    let node = json!({
        "id": "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local",
        "metadata": {"PROXY_CONFIG": {"tracing": {"customTags": tags}}},
    });
    let bytes = length(&node);
    let node = sluice_proto::json::decode::<Node>(&node).expect("a node").message;
    let peak = measure(|| assert!(parse_proxy(&node, &BTreeMap::new()).expect("a proxy").config.is_some())).bytes_max;
    assert!(peak < 30 * bytes as u64, "{bytes} bytes take {peak} bytes");
}

/// An EnvoyFilter whose value has a map key of 100 kB with 60,000 unknown fields below it.
#[test]
fn unknown_fields_below_a_long_key_of_an_envoy_filter_are_counted() {
    let unknown: serde_json::Map<String, Value> = (0..60_000).map(|n| (format!("unknownField{n}"), json!(1))).collect();
    let options = json!({ "k".repeat(100_000): unknown });
    let object = json!({
        "apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter",
        "metadata": {"name": "f", "namespace": "n"},
        "spec": {"configPatches": [{"applyTo": "CLUSTER", "patch": {
            "operation": "MERGE", "value": {"typed_extension_protocol_options": options},
        }}]},
    });
    let bytes = length(&object);
    let mut rejects = Vec::new();
    let parsed = measure(|| {
        rejects = parse_object(&"cluster".into(), "cluster.local", &object).expect("a known kind").rejects;
    });
    let peak = parsed.bytes_max;
    assert!(peak < 20 * bytes as u64, "{bytes} bytes take {peak} bytes");
    let kept: usize = rejects.iter().map(|reject| reject.field_path.len() + reject.reason.len()).sum();
    assert!(rejects.len() <= 101 && kept < 100_000, "{} findings of {kept} bytes", rejects.len());
}
