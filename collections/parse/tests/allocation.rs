//! The memory that parsing takes is bounded by the size of its input.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

#[path = "allocation/growth.rs"]
mod growth;
#[path = "allocation/texts.rs"]
mod texts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use allocation_counter::{AllocationInfo, measure};
use growth::{FORMS, SMALLEST_ELEMENTS, grow, length, places};
use serde_json::{Value, json};
use sluice_model::{MeshConfig, Severity};
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_parse::{Findings, KINDS, merge_mesh_config, parse_mesh_networks, parse_object, parse_proxy, validate_text};
use sluice_proto::envoy::config::core::v3::Node;

/// The memory that parsing may take, with the result and the findings.
#[derive(Clone, Copy)]
struct MemoryLimits {
    /// Bytes at a time for each byte of the input.
    peak_per_byte: u64,
    /// All bytes that are allocated, for each byte of the input. What is copied again and again takes more.
    total_per_byte: u64,
    /// What small inputs may take in addition.
    constant: u64,
}

/// Limits for the findings of small inputs.
const FINDINGS_BYTES: u64 = 512 << 10;
/// A list of empty objects takes most: a route of a VirtualService has 0.7 KB.
const OBJECT_LIMITS: MemoryLimits = MemoryLimits { peak_per_byte: 256, total_per_byte: 500, constant: FINDINGS_BYTES };
/// A compiled expression has at most 10 MiB, and takes up to 2.5 times as much while it is compiled.
const EXPRESSION_BYTES: u64 = 26 << 20;
const EXPRESSION_LIMITS: MemoryLimits = MemoryLimits { constant: EXPRESSION_BYTES, ..OBJECT_LIMITS };
/// Large expressions of an object that are compiled.
const MAX_COMPILED_PATTERNS: u64 = 16;
const MESH_LIMITS: MemoryLimits = MemoryLimits { peak_per_byte: 48, total_per_byte: 200, constant: FINDINGS_BYTES };
const NODE_LIMITS: MemoryLimits = MemoryLimits { peak_per_byte: 96, total_per_byte: 300, constant: FINDINGS_BYTES };
/// Each document of a text has a parser and its buffer. Aliases may copy 1 MiB.
const TEXT_LIMITS: MemoryLimits = MemoryLimits { peak_per_byte: 192, total_per_byte: 4000, constant: 3 << 20 };

/// Size of the grown objects. What grows with the square of the input exceeds the limits far below this size.
const GROWN_BYTES: usize = 24 << 10;
/// A place grows into every eighth form only, and elements of lists into empty ones, so that the test takes seconds;
/// `sluice-fuzz memory` tries all.
const FORM_STRIDE: usize = 8;

/// Collects the inputs that take too much memory.
#[derive(Default)]
struct Excesses {
    inputs: usize,
    found: Vec<String>,
}

impl Excesses {
    fn check(&mut self, what: &str, input_bytes: usize, limits: MemoryLimits, run: impl FnOnce()) {
        let AllocationInfo { bytes_max, bytes_total, .. } = measure(run);
        let most = |for_each: u64| input_bytes as u64 * for_each + limits.constant;
        self.inputs += 1;
        if bytes_max > most(limits.peak_per_byte) || bytes_total > most(limits.total_per_byte) {
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

/// Objects of each kind that together have all places that the cases have, with one value for each place.
fn objects() -> BTreeMap<String, Vec<Value>> {
    let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut texts: Vec<String> =
        cases().iter().filter_map(|case| std::fs::read_to_string(case.join("input.yaml")).ok()).collect();
    let validated = list(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/validation"));
    let validated = validated.iter().flat_map(|kind| list(kind));
    texts.extend(validated.filter_map(|case| std::fs::read_to_string(case).ok()));
    texts.push(texts::OTHER_OBJECTS.to_owned());
    for object in texts.iter().flat_map(|text| documents(text)) {
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let kind = format!("{} {}", text("apiVersion"), text("kind"));
        let new = places(&object).into_iter().filter(|place| known.insert(format!("{kind} {place}"))).count();
        if new > 0 {
            objects.entry(kind).or_default().push(object);
        }
    }
    objects
}

/// Every place of a value that is not in `known` yet, in every grown form. `of` names the type of the value.
fn grown<'v>(
    value: &'v Value,
    of: &str,
    known: &mut BTreeSet<String>,
) -> impl Iterator<Item = (String, Value)> + use<'v> {
    let places: Vec<String> = places(value).into_iter().filter(|place| known.insert(format!("{of} {place}"))).collect();
    let forms = move |(number, place): (usize, String)| {
        let forms = (number % FORM_STRIDE..FORMS).step_by(FORM_STRIDE);
        let forms = forms.chain(place.ends_with("/0").then_some(SMALLEST_ELEMENTS));
        forms.filter_map(move |form| grow(value, &place, form, GROWN_BYTES))
    };
    places.into_iter().enumerate().flat_map(forms)
}

fn parse(object: &Value) {
    drop(parse_object(&"cluster".into(), "cluster.local", object));
}

#[test]
fn objects_of_all_kinds_take_memory_in_proportion_to_their_size() {
    let objects = objects();
    for info in KINDS.iter().filter(|info| info.parse.is_some()) {
        let is_known = objects.keys().any(|kind| kind.ends_with(&format!(" {}", info.name)));
        assert!(is_known, "no object of kind {}", info.name);
    }
    let (mut excesses, mut grown_places) = (Excesses::default(), BTreeSet::new());
    for (kind, objects) in &objects {
        for object in objects {
            // Static tables are built before anything is measured.
            parse(object);
            for (what, object) in grown(object, kind, &mut grown_places) {
                let limits = if what.contains("regex") { EXPRESSION_LIMITS } else { OBJECT_LIMITS };
                excesses.check(&format!("{kind}: {what}"), length(&object), limits, || parse(&object));
            }
        }
    }
    excesses.assert_none(2000);
}

#[test]
fn lists_of_an_object_take_bounded_memory() {
    let cases = [
        ("networking.istio.io/v1", "DestinationRule", "subsets"),
        ("networking.istio.io/v1", "Gateway", "servers"),
        ("networking.istio.io/v1", "Sidecar", "ingress"),
        ("networking.istio.io/v1", "VirtualService", "http"),
        ("gateway.networking.k8s.io/v1", "HTTPRoute", "rules"),
        ("gateway.networking.k8s.io/v1", "GRPCRoute", "rules"),
    ];
    for (api_version, kind, list) in cases {
        let object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "namespace": "n"},
            "spec": {"host": "a", "hosts": ["a"], list: vec![json!({}); (8 << 20) / 3]},
        });
        let parsed = || parse_object(&"cluster".into(), "cluster.local", &object).expect("a known kind");
        let found = parsed();
        let path = format!("spec.{list}");
        let reject = found.rejects.iter().find(|reject| *reject.field_path == *path);
        assert!(reject.is_some_and(|reject| reject.severity == Severity::Error), "{kind}: {:?}", found.rejects);
        assert!(found.object.is_none(), "{kind}");
        let peak = measure(|| drop(parsed())).bytes_max;
        assert!(peak < 65 << 20, "{kind}: {peak} bytes");
    }
}

#[test]
fn large_expressions_are_compiled_one_after_the_other() {
    let route = json!({"match": [{"uri": {"regex": "a{1000}{1000}"}}], "route": [{"destination": {"host": "a"}}]});
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"hosts": ["a"], "http": vec![route; 40]},
    });
    parse(&object);
    let AllocationInfo { bytes_max, bytes_total, .. } = measure(|| parse(&object));
    assert!(bytes_max > 10 << 20, "{bytes_max}: the expression is compiled");
    assert!(bytes_max < EXPRESSION_BYTES, "{bytes_max}");
    assert!(bytes_total < MAX_COMPILED_PATTERNS * 2 * EXPRESSION_BYTES, "{bytes_total}");
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
            excesses.check(&format!("{name}: {what}"), length(&value), MESH_LIMITS, || read(&value));
        }
    }
    excesses.assert_none(100);
}

#[test]
fn nodes_take_memory_in_proportion_to_their_size() {
    let (mut excesses, mut grown_places) = (Excesses::default(), BTreeSet::new());
    let aliases = BTreeMap::new();
    for case in cases() {
        let Ok(text) = std::fs::read_to_string(case.join("proxies.json")) else { continue };
        let proxies: Value = serde_json::from_str(&text).expect("proxies");
        for proxy in proxies.as_array().into_iter().flatten() {
            let node = |node: &Value| sluice_proto::json::decode::<Node>(node).map(|decoded| decoded.message);
            drop(node(&proxy["node"]).map(|node| parse_proxy(&node, &aliases)));
            for (what, grown) in grown(&proxy["node"], "node", &mut grown_places) {
                let bytes = length(&grown);
                excesses.check(&format!("JSON of a node: {what}"), bytes, NODE_LIMITS, || drop(node(&grown)));
                if let Ok(node) = node(&grown) {
                    let parse = || drop(parse_proxy(&node, &aliases));
                    excesses.check(&format!("node: {what}"), bytes, NODE_LIMITS, parse);
                }
            }
        }
    }
    excesses.assert_none(100);
}

/// A node whose metadata has a map key of 100 kB with 8,000 unknown fields below it.
#[test]
fn unknown_fields_below_a_long_key_of_node_metadata_take_no_memory_for_findings() {
    let unknown: serde_json::Map<String, Value> = (0..8_000).map(|n| (format!("unknownField{n}"), json!(1))).collect();
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

#[test]
fn texts_take_memory_in_proportion_to_their_size() {
    let mut excesses = Excesses::default();
    for (what, text) in texts::all() {
        let documents = || drop(parse_documents(&text, &Limits::default()));
        excesses.check(&format!("YAML: {what}"), text.len(), TEXT_LIMITS, documents);
        let kubeconfig = || drop(sluice_parse::parse_kubeconfig(text.as_bytes(), &BTreeSet::new()));
        excesses.check(&format!("kubeconfig: {what}"), text.len(), TEXT_LIMITS, kubeconfig);
        // One document at a time, with the positions of its findings.
        excesses.check(&format!("validation: {what}"), text.len(), TEXT_LIMITS, || drop(validate_text(&text)));
    }
    excesses.assert_none(60);
}
