//! Writes YAML in block style, in the form that Kubernetes tools write.

use serde_json::Value as Json;

/// Maximum nesting of written values.
const MAX_DEPTH: usize = 100;

/// The YAML text of a value, with a line break at its end.
pub(super) fn to_yaml(value: &Json) -> Result<String, String> {
    let mut out = String::new();
    match value {
        Json::Object(fields) if !fields.is_empty() => block(&mut out, value, 0, false, 0)?,
        Json::Array(items) if !items.is_empty() => block(&mut out, value, 0, false, 0)?,
        other => {
            out.push_str(&scalar(other));
            out.push('\n');
        }
    }
    Ok(out)
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
            for (key, value) in fields {
                begin(out);
                out.push_str(&text(key));
                out.push(':');
                match value {
                    Json::Object(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(out, value, indent + 2, false, depth + 1)?;
                    }
                    // The items of a sequence are at the indentation of its key.
                    Json::Array(items) if !items.is_empty() => {
                        out.push('\n');
                        block(out, value, indent, false, depth + 1)?;
                    }
                    other => {
                        out.push(' ');
                        out.push_str(&scalar(other));
                        out.push('\n');
                    }
                }
            }
        }
        Json::Array(items) => {
            for item in items {
                begin(out);
                out.push_str("- ");
                let is_block = item.as_object().is_some_and(|fields| !fields.is_empty())
                    || item.as_array().is_some_and(|items| !items.is_empty());
                if is_block {
                    block(out, item, indent + 2, true, depth + 1)?;
                } else {
                    out.push_str(&scalar(item));
                    out.push('\n');
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn scalar(value: &Json) -> String {
    match value {
        Json::String(string) => text(string),
        other => other.to_string(),
    }
}

/// A text without quotes if no reader takes it for another value.
fn text(text: &str) -> String {
    let is_word = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || "/_".contains(c))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
    let lower = text.to_ascii_lowercase();
    let is_reserved =
        ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"].contains(&lower.as_str());
    if is_word && !is_reserved { text.to_owned() } else { Json::String(text.to_owned()).to_string() }
}
