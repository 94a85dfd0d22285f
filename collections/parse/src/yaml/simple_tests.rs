//! What is read without a parser is read as the parser reads it.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::{Limits, parse_events, simple, split_documents};

/// Whether a chunk was read without a parser; if it was, the parser has to agree.
fn is_simple(chunk: &str) -> bool {
    let limits = Limits::default();
    let Some(document) = simple::parse(chunk, &limits) else { return false };
    assert_eq!(Ok(vec![document]), parse_events(chunk, &limits), "{chunk}");
    true
}

#[test]
fn what_tools_write_is_simple() {
    let text = "---\n# a comment\nkind: Service\nmetadata:\n  name: web\n  labels: {app: web, \
                kubernetes.io/name: \"8\"}\n\nspec:\n  ports:\n  - name: http\n    port: 80\n    # another\n    \
                targetPort: 0x50\n  - {name: tcp, port: 9000}\n  list:\n    - a: 'b c'\n      d:\n      - 1\n      - \
                image: nginx:1.2\n    - []\n    - {}\n  nothing:\nstatus: yes\n";
    let read = simple::parse(text, &Limits::default()).expect("it is simple");
    assert_eq!(read.line, 3);
    let expected = json!({
        "kind": "Service",
        "metadata": {"name": "web", "labels": {"app": "web", "kubernetes.io/name": "8"}},
        "spec": {
            "ports": [{"name": "http", "port": 80, "targetPort": 80}, {"name": "tcp", "port": 9000}],
            "list": [{"a": "b c", "d": [1, {"image": "nginx:1.2"}]}, [], {}],
            "nothing": null
        },
        "status": true
    });
    assert_eq!(read.value, expected);
    assert!(is_simple(text));
}

#[test]
fn all_else_is_for_the_parser() {
    let texts = [
        "a: b: c",
        "a: 1\na: 2",
        "a: b\n  c",
        "a: &x 1",
        "a: |\n  b",
        "a: \"\\n\"",
        "a: 'it''s'",
        "a: [b,]",
        "a: {b}",
        "a: b # c",
        "- a",
        "a: !!str 1",
        "a:\tb",
        "? a",
        "a: {b: [c}",
        "a: {b: c} d",
        "a: .inf",
        "null: a",
        "a:\n b: 1\n  c: 2",
        "a: ä",
        "{a: b}",
        " a: b",
        "a: b\n...\n",
        "a: *b",
        "a: - b",
        "<<: {a: b}",
        "a: ---",
        "",
    ];
    for text in texts {
        assert!(!is_simple(text), "{text}");
    }
    let limits = Limits { depth: 3, ..Limits::default() };
    assert!(simple::parse("a: {b: [c]}", &limits).is_some());
    assert!(simple::parse("a: {b: [[c]]}", &limits).is_none());
    assert!(simple::parse("a:\n  b:\n  - c: d", &limits).is_none());
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn most_of_what_is_written_by_hand_is_simple_too() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"), &mut found);
    let texts = found.iter().map(|path| fs::read_to_string(path).expect("a text"));
    let (mut all, mut taken) = (0, 0);
    for text in texts {
        for chunk in split_documents(&text) {
            all += 1;
            taken += usize::from(is_simple(chunk.text));
        }
    }
    assert!(taken * 3 > all * 2, "{taken} of {all}");
}

/// Lines of pieces that come near to what is simple.
fn texts() -> impl Strategy<Value = String> {
    let indent = prop::sample::select(vec!["", "", " ", "  ", "  ", "    "]);
    let dash = prop::sample::select(vec!["", "", "", "- ", "- ", "-   ", "-", "- - "]);
    let key = prop::sample::select(vec![
        "a: ",
        "b: ",
        "c:",
        "d/e.f-g: ",
        "8: ",
        "yes: ",
        "a : ",
        "a:: ",
        "\"q\": ",
        "",
        "",
        "...: ",
        "x:y: ",
        "null: ",
        "? ",
    ]);
    let value = prop::sample::select(vec![
        "",
        "",
        "1",
        "0x1f",
        "1.50",
        "1_0",
        "yes",
        "~",
        "text",
        "two words",
        "a:b",
        "it's",
        "\"q\"",
        "'q'",
        "'it''s'",
        "\"\\t\"",
        "[]",
        "{}",
        "[a, b]",
        "[a, [b, {c: d}]]",
        "{a: b, c: 'd'}",
        "{a: b,}",
        "{a:b}",
        "[a: b]",
        "{\"a\": b}",
        "{a: [}",
        "{a: b",
        "[a b , c ]",
        "{ a: b }",
        "[#a]",
        "[a #b]",
        "[a:]",
        "{a: :b}",
        "-",
        "-1",
        "- 1",
        "--",
        "---",
        "...",
        "#c",
        "a #c",
        "a#c",
        "&x y",
        "*x",
        "|",
        ">-",
        "!!str 1",
        "%a",
        "@a",
        "`a",
        "=",
        "<<",
        "+1",
        "$a",
        "(a)",
        "a: b",
        "a:",
        ".nan",
        "a, b",
        "a]",
        "2026-01-01T00:00:00Z",
        "10.0.0.1",
        "ä",
        "\t",
        ",",
        "?",
        "? a",
        ":",
        ":a",
    ]);
    let end =
        prop::sample::select(vec!["\n", "\n", "\n", "\n", " \n", "\n\n", "\n# c\n", "\n    # c\n", " # c\n", "\r\n"]);
    let line = (indent, dash, key, value, end)
        .prop_map(|(indent, dash, key, value, end)| [indent, dash, key, value, end].concat());
    (any::<bool>(), prop::collection::vec(line, 1..7))
        .prop_map(|(begins, lines)| format!("{}{}", if begins { "---\n" } else { "" }, lines.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_parser_agrees(text in texts()) {
        for chunk in split_documents(&text) {
            is_simple(chunk.text);
        }
    }
}
