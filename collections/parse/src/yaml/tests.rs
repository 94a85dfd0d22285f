use serde_json::{Value, json};

use super::{Limits, find_position, parse_documents, parse_value};

fn value(text: &str) -> Value {
    parse_value(text, &Limits::default()).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn error(text: &str) -> String {
    match parse_value(text, &Limits::default()) {
        Ok(value) => panic!("{text:?} parsed as {value}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn scalars_have_the_values_of_kubernetes_tools() {
    let check = |text: &str, expect: Value| assert_eq!(value(&format!("a: {text}"))["a"], expect, "{text}");
    check("", Value::Null);
    check("~", Value::Null);
    check("yes", json!(true));
    check("off", json!(false));
    check("'yes'", json!("yes"));
    check("no-way", json!("no-way"));
    check("12", json!(12));
    check("-7", json!(-7));
    check("0644", json!(420));
    check("0o644", json!(420));
    check("0x1F", json!(31));
    check("1_000", json!(1000));
    check("089", json!(89));
    check("1.5", json!(1.5));
    check("1e3", json!(1000));
    check("1.0", json!(1));
    check("1.2.3", json!("1.2.3"));
    check("10.0.0.1", json!("10.0.0.1"));
    check("1s", json!("1s"));
    check("2026-01-01", json!("2026-01-01"));
    check("2026-01-01T00:00:00Z", json!("2026-01-01T00:00:00Z"));
    check("1:30", json!("1:30"));
    check("!!str 12", json!("12"));
    check("!!int \"12\"", json!(12));
    check("18446744073709551615", json!(u64::MAX));
    check("=", json!("="));
    check("\"a\\tb\"", json!("a\tb"));
}

#[test]
fn keys_become_strings() {
    assert_eq!(value("{1: a, yes: b, 1.5: c, 'no': d}"), json!({"1": "a", "true": "b", "1.5": "c", "no": "d"}));
}

#[test]
fn duplicate_key_is_an_error() {
    let limits = Limits { allows_duplicate_keys: true, ..Limits::default() };
    assert_eq!(parse_value("a: 1\nb: 2\na: 3\n", &limits), Ok(json!({"a": 3, "b": 2})));
    assert_eq!(error("a: 1\nb: 2\na: 3\n"), "line 3, column 4: duplicate key \"a\"");
}

#[test]
fn merge_keys_do_not_replace_keys() {
    let text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\na: {<<: *b, y: 9}\nl: {<<: [*o, *b]}\n";
    assert_eq!(value(text)["a"], json!({"x": 1, "y": 9}));
    assert_eq!(value(text)["l"], json!({"x": 1, "y": 3, "z": 4}));
    assert!(error("a: {<<: 1}").contains("must be a mapping"));
}

#[test]
fn invalid_document_does_not_affect_its_neighbours() {
    let text = "# a comment\n---\na: 1\n---\n# nothing\n---\nb: [\n---\nc: 3\n...\n---\nd: |\n  x: ---\n  --- y\n";
    let documents = parse_documents(text, &Limits::default());
    let shown: Vec<_> = documents
        .iter()
        .map(|document| match document {
            Ok(document) => format!("{} {}", document.line, document.value),
            Err(error) => format!("{} error", error.line),
        })
        .collect();
    assert_eq!(shown, ["3 {\"a\":1}", "7 error", "9 {\"c\":3}", "12 {\"d\":\"x: ---\\n--- y\\n\"}"]);
}

#[test]
fn json_and_yaml_are_read() {
    let documents = parse_documents("\n{\"a\":\n 1}\n{\"b\": 2}", &Limits::default());
    let shown: Vec<_> = documents.into_iter().map(|document| document.map(|d| (d.line, d.value))).collect();
    assert_eq!(shown, [Ok((2, json!({"a": 1}))), Ok((4, json!({"b": 2})))]);
    assert_eq!(value("{a: 1, b: [x, y]}"), json!({"a": 1, "b": ["x", "y"]}));
    assert_eq!(value("\u{feff}a: 1"), json!({"a": 1}));
}

#[test]
fn alias_expansion_and_nesting_are_bounded() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    assert!(error(&text).contains("expand to more than"), "{}", error(&text));
    assert!(error("a: &a [*a]").contains("alias"), "{}", error("a: &a [*a]"));
    let deep = "[".repeat(5000);
    assert!(!error(&deep).is_empty());
    let deep = "- ".repeat(5000);
    assert!(!error(&deep).is_empty());
    let limits = Limits { document_bytes: 10, ..Limits::default() };
    let shown = format!("{:?}", parse_documents("a: 1\n---\nb: 0123456789\n", &limits));
    assert!(shown.contains("limit of 10 bytes") && shown.contains("Number(1)"), "{shown}");
}

#[test]
fn errors_name_line_and_column() {
    assert!(error("a: 1\nb: {c: 1\nd: 2\n").starts_with("line "), "{}", error("a: 1\nb: {c: 1\nd: 2\n"));
    assert!(error("a: 1\n---\nb: 1\n").starts_with("line 3: expected one document"));
    assert!(error("a: .inf").contains("cannot be represented in JSON"));
    assert!(error("a: !!binary aGk=").contains("not supported"));
    assert!(error("? [a]\n: 1\n").contains("cannot be a key"));
}

#[test]
fn positions_of_fields_are_found() {
    let text = "---\nkind: A\n---\n# c\nkind: B\nspec:\n  http:\n  - match:\n    - uri: {exact: /x}\n  - route:\n    - destination:\n        host: y\n";
    let check = |path: &str, line: usize| assert_eq!(find_position(text, 5, path).line, line, "{path}");
    check("", 5);
    check("spec", 6);
    check("spec.http[0].match[0].uri.exact", 9);
    check("spec.http[1].route[0].destination.host", 12);
    check("spec.http[1].route[0].weight", 11);
    check("nothing", 5);
}

#[test]
fn positions_are_found_in_block_scalars_that_begin_with_blank_lines() {
    for breaks in ["\n\n", "\r\n\r\n", "\r\r"] {
        let text = format!("data:\n  mesh: |\n{breaks}    trustDomain: b\n");
        assert_eq!(find_position(&text, 1, "data.mesh.trustDomain").line, 5, "{text:?}");
    }
}

#[test]
fn positions_are_found_in_block_scalars_and_maps() {
    let text = "kind: ConfigMap\ndata:\n  other: |\n    x: 1\n  mesh: |\n    # said first\n\n    defaultConfig:\n      \
                tracing: {sampling: a}\n    trustDomain: b\nmetadata:\n  labels: {app: x, a.b/c: y}\n";
    let check = |path: &str, line: usize, column: usize| {
        let at = find_position(text, 1, path);
        assert_eq!((at.line, at.column), (line, column), "{path}");
    };
    check("data.mesh", 5, 3);
    check("data.mesh.trustDomain", 10, 5);
    check("data.mesh.defaultConfig.tracing.sampling", 9, 17);
    check("data.mesh.missing", 8, 5);
    check("metadata.labels[app]", 12, 12);
    check("metadata.labels[a.b/c]", 12, 20);
    check("metadata.missing", 11, 1);
    check("nothing", 1, 1);
}
