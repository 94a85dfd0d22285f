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
