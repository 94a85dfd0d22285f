//! Pods with values of other types in single places.

use serde_json::{Value, json};
use sluice_inject::Admission;

use crate::cases::{Case, Reference};

/// Every how many places of a pod is changed.
const STEP: usize = 7;
/// Cases whose pods use most of what injection reads.
const CASES: [&str; 6] =
    ["everything-else", "override-rich", "reinject-native", "probes-lifecycle", "prometheus-merge", "user-volumes"];

/// Paths of all values below `value`.
fn paths(value: &Value, path: &str, out: &mut Vec<String>) {
    out.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                paths(value, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                paths(item, &format!("{path}/{index}"), out);
            }
        }
        _ => {}
    }
}

#[test]
fn mutated_pods_are_answered() {
    let others = [json!(null), json!(7), json!("\u{0}{{"), json!([]), json!({}), json!([{"name": "istio-proxy"}])];
    let reference = Reference::own();
    let mut patched = 0;
    for case in Case::all().iter().filter(|case| CASES.contains(&case.name.as_str())) {
        let injector = case.injector(&reference);
        let object = &case.review()["request"]["object"];
        let mut places = Vec::new();
        paths(object, "", &mut places);
        for (place, other) in
            places.iter().step_by(STEP).flat_map(|place| others.iter().map(move |other| (place, other)))
        {
            let mut review = case.review().clone();
            let target = review["request"]["object"].pointer_mut(place).expect("a place of the pod");
            *target = other.clone();
            let mut pod = review["request"]["object"].clone();
            if let Admission::Patched(patch) = case.answer(&injector, review) {
                json_patch::patch(&mut pod, &patch).unwrap_or_else(|error| panic!("{place} {other}: {error}"));
                patched += 1;
            }
        }
    }
    assert!(patched > 100, "{patched} mutated pods are injected");
}
