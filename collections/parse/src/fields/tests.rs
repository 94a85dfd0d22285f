use serde_json::json;

use super::*;

#[test]
fn durations_are_parsed_in_go_syntax() {
    let check = |text: &str, expect: Option<Duration>| assert_eq!(parse_duration(text), expect, "{text}");
    check("10s", Some(Duration::from_secs(10)));
    check("1500ms", Some(Duration::from_millis(1500)));
    check("1.5s", Some(Duration::from_millis(1500)));
    check("36h", Some(Duration::from_secs(129_600)));
    check("1h30m", Some(Duration::from_secs(5400)));
    check("0", Some(Duration::ZERO));
    check("0.000001s", Some(Duration::from_micros(1)));
    for bad in ["", "5", "s", "-1s", "1d", "1.2.3s", "9999999999h", "1s5", ".s"] {
        check(bad, None);
    }
}

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
