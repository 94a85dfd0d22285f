use serde_json::json;

use super::*;

#[test]
fn invalid_fields_are_recorded_with_their_path() {
    let value = json!({"list": [{"n": 1}, 2, {"n": "x", "m": 1}], "flag": "yes", "left_over": null, "outOfRange": -1});
    let findings = Findings::default();
    {
        let fields = Fields::new(&value, "spec", &findings).unwrap();
        assert_eq!(fields.list("list", |element| element.integer::<u32>("n")), [1, 0]);
        assert!(!fields.bool("flag"));
        assert_eq!(fields.text("leftOver").as_str(), "");
        assert_eq!(fields.integer::<u32>("outOfRange"), 0);
    }
    assert!(findings.has_errors());
    let found: Vec<_> = findings.into_vec().iter().map(|f| (f.field_path.to_string(), f.severity)).collect();
    let expect = [
        ("spec.flag", Severity::Error),
        ("spec.list[1]", Severity::Error),
        ("spec.list[2].m", Severity::Warning),
        ("spec.list[2].n", Severity::Error),
        ("spec.outOfRange", Severity::Error),
    ];
    assert_eq!(found, expect.map(|(path, severity)| (path.to_owned(), severity)));
}

#[test]
fn lists_that_take_too_much_memory_together_are_errors() {
    const KIB: usize = 1 << 10;
    let value = json!({"a": vec![json!({}); 40 * KIB], "b": vec![json!({}); 40 * KIB], "c": [{}]});
    let findings = Findings::default();
    let fields = Fields::new(&value, "spec", &findings).unwrap();
    let read = |name| fields.list(name, |_| [0u8; KIB]).len();
    assert_eq!([read("a"), read("b"), read("c")], [40 * KIB, 0, 1]);
    drop(fields);
    let found = findings.into_vec();
    let [finding] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((finding.field_path.as_str(), finding.severity), ("spec.b", Severity::Error));
    assert_eq!(*finding.reason, *"the list has 40960 elements; the lists of an object take at most 64 MiB of memory");
}
