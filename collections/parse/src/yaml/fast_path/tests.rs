//! Equivalence of the fast path and the parser.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use crate::yaml::{Chunk, Limits, fast_path, split_documents};

/// Whether the fast path reads a chunk. If it does, the parser must give the same document.
fn takes_fast_path(text: &str) -> bool {
    let Some([fast, complete]) = (Chunk { line: 1, text }).parse_with_both_readers(&Limits::default()) else {
        return false;
    };
    assert_eq!(fast, complete, "{text}");
    true
}

#[test]
fn common_forms_take_the_fast_path() {
    let text = "---\n# a comment\nkind: Service\nmetadata:\n  name: web\n  labels: {app: web, \
                kubernetes.io/name: \"8\"}\n\nspec:\n  ports:\n  - name: http\n    port: 80\n    # another\n    \
                targetPort: 0x50\n  - {name: tcp, port: 9000}\n  list:\n    - a: 'b c'\n      d:\n      - 1\n      - \
                image: nginx:1.2\n    - []\n    - {}\n  nothing:\nstatus: yes\n";
    let read = fast_path::parse(text, &Limits::default()).expect("a document");
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
    assert!(takes_fast_path(text));
}

#[test]
fn other_forms_are_left_to_the_parser() {
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
        assert!(!takes_fast_path(text), "{text}");
    }
    let limits = Limits { depth: 3, ..Limits::default() };
    assert!(fast_path::parse("a: {b: [c]}", &limits).is_some());
    assert!(fast_path::parse("a: {b: [[c]]}", &limits).is_none());
    assert!(fast_path::parse("a:\n  b:\n  - c: d", &limits).is_none());
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
fn most_documents_of_the_cases_take_the_fast_path() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"), &mut found);
    let texts = found.iter().map(|path| fs::read_to_string(path).expect("a text"));
    let (mut all, mut taken) = (0, 0);
    for text in texts {
        for chunk in split_documents(&text) {
            all += 1;
            taken += usize::from(takes_fast_path(chunk.text));
        }
    }
    assert!(taken * 3 > all * 2, "{taken} of {all}");
}

/// Random texts whose lines resemble the forms of the fast path.
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
    fn fast_path_and_parser_agree(text in texts()) {
        for chunk in split_documents(&text) {
            takes_fast_path(chunk.text);
        }
    }
}
