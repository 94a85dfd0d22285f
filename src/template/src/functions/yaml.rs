//! Writes YAML in block style, as the tools of Kubernetes do: with the order of keys, the quotes and the line breaks of the
//! library go-yaml v2, so that a text in a ConfigMap is the same whichever tool renders it.

mod scalar;

use std::cmp::Ordering;

use serde_json::Value as Json;

use scalar::{Context, write_scalar};

/// Maximum nesting of written values.
const MAX_DEPTH: usize = 100;
/// Number of spaces by which a level is indented.
const INDENT: usize = 2;

/// The YAML text of a value, with a line break at its end.
///
/// # Errors
/// The value has too many levels.
pub fn to_yaml(value: &Json) -> Result<String, String> {
    let mut out = String::new();
    if is_block(value) {
        block(&mut out, value, 0, false, 0)?;
    } else {
        leaf(&mut out, value, INDENT);
    }
    Ok(out)
}

/// Whether a value takes lines of its own.
fn is_block(value: &Json) -> bool {
    match value {
        Json::Object(fields) => !fields.is_empty(),
        Json::Array(items) => !items.is_empty(),
        _ => false,
    }
}

/// Writes a scalar or an empty collection, and a line break. Further lines of it have this indentation.
fn leaf(out: &mut String, value: &Json, indent: usize) {
    match value {
        Json::String(text) => write_scalar(out, text, Context::Value { indent }),
        other => out.push_str(&other.to_string()),
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

/// Writes a mapping or a sequence. `continues`: the first line has its indentation already.
fn block(out: &mut String, value: &Json, indent: usize, continues: bool, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("a value of more than {MAX_DEPTH} levels"));
    }
    let mut first = continues;
    let mut begin = |out: &mut String| {
        if !std::mem::take(&mut first) {
            out.push_str(&" ".repeat(indent));
        }
    };
    match value {
        Json::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|(left, _), (right, _)| key_order(left, right));
            for (key, value) in fields {
                begin(out);
                write_scalar(out, key, Context::Key);
                out.push(':');
                if is_block(value) {
                    out.push('\n');
                    // The items of a sequence are at the indentation of its key.
                    let inner = if value.is_array() { indent } else { indent + INDENT };
                    block(out, value, inner, false, depth + 1)?;
                } else {
                    out.push(' ');
                    leaf(out, value, indent + INDENT);
                }
            }
        }
        Json::Array(items) => {
            for item in items {
                begin(out);
                out.push_str("- ");
                if is_block(item) {
                    block(out, item, indent + INDENT, true, depth + 1)?;
                } else {
                    leaf(out, item, indent + INDENT);
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// The order of keys: letters after other characters, and digits by the number that they form.
fn key_order(left: &str, right: &str) -> Ordering {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let Some(at) = left.iter().zip(&right).position(|(left, right)| left != right) else {
        return left.len().cmp(&right.len());
    };
    let (l, r) = (left[at], right[at]);
    match (l.is_alphabetic(), r.is_alphabetic()) {
        (true, true) => return l.cmp(&r),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Zeros that follow another digit are a part of its number.
    let follows = (l == '0' || r == '0')
        && left[..at].iter().rev().take_while(|digit| digit.is_ascii_digit()).any(|digit| *digit != '0');
    let number = |characters: &[char]| {
        let digits = characters[at..].iter().map_while(|digit| digit.to_digit(10));
        digits.fold((u64::from(follows), 0), |(number, length), digit| {
            (number.saturating_mul(10).saturating_add(u64::from(digit)), length + 1)
        })
    };
    number(&left).cmp(&number(&right)).then(l.cmp(&r))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Json, expected: &str) {
        assert_eq!(to_yaml(value).as_deref(), Ok(expected));
    }

    #[test]
    fn collections_are_blocks_unless_they_are_empty() {
        check(
            &json!({"a": {"b": [1, {"c": null, "d": []}, [true, "x"]]}, "e": {}}),
            "a:\n  b:\n  - 1\n  - c: null\n    d: []\n  - - true\n    - x\ne: {}\n",
        );
        check(&json!([]), "[]\n");
        check(&json!("x"), "x\n");
    }

    #[test]
    fn texts_that_another_type_has_are_quoted() {
        let quoted =
            ["yes", "n", "null", "~", "", "1", "1.5", "0x1f", "1e+3", "2024-01-02", "10:30", "0755", ".5", "<<"];
        for text in quoted {
            check(&json!(text), &format!("{}\n", json!(text)));
        }
        for text in ["100m", "1e3", "a:b", "a#b", "1.2.3", "x y", "-a", "é"] {
            check(&json!(text), &format!("{text}\n"));
        }
    }

    #[test]
    fn texts_with_characters_of_the_syntax_have_single_quotes() {
        for text in ["a: b", "a #b", "# a", "- a", "{a}", "*", "[a", "a:", "%a", "@a", " a", "a ", "'a'"] {
            check(&json!(text), &format!("'{}'\n", text.replace('\'', "''")));
        }
        check(&json!("a\tb"), "\"a\\tb\"\n");
    }

    #[test]
    fn texts_of_several_lines_are_literal() {
        check(&json!({"k": "a\n  b\n"}), "k: |\n  a\n    b\n");
        check(&json!({"k": "a\n\nb"}), "k: |-\n  a\n\n  b\n");
        check(&json!({"k": "a\n\n", "l": 1}), "k: |+\n  a\n\nl: 1\n");
        check(&json!({"k": " a\nb"}), "k: |2-\n   a\n  b\n");
        check(&json!({"k": "a \nb"}), "k: \"a \\nb\"\n");
        check(&json!({"a\nb": 1}), "\"a\\nb\": 1\n");
    }

    #[test]
    fn long_texts_are_folded_behind_column_80() {
        let words = ["word"; 20].join(" ");
        let (first, second) = (["word"; 16].join(" "), ["word"; 4].join(" "));
        check(&json!({"k": words}), &format!("k: {first}\n  {second}\n"));
        check(&json!({"k": format!("{words}: x")}), &format!("k: '{first}\n  {second}: x'\n"));
    }

    #[test]
    fn keys_are_in_natural_order() {
        let keys = ["_a", "10", "9b", "a2", "a10", "a_b", "ab", "B"];
        let mut sorted = keys.to_vec();
        sorted.sort_by(|left, right| key_order(left, right));
        assert_eq!(sorted, ["_a", "9b", "10", "B", "a_b", "a2", "a10", "ab"]);
    }
}
