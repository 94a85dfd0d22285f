//! Output of the commands that ask a running control plane.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::Value;

use crate::connect::QueryError;

/// An output format.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum AnswerOutput {
    /// Lines and columns for people; `short`, as in istioctl, is the same.
    #[default]
    #[value(aliases = ["short", "text"])]
    Table,
    /// The answer of the server as JSON.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Prints an answer: with `table` in the first format.
pub(crate) fn print(
    output: AnswerOutput,
    answer: &Value,
    out: &mut dyn Write,
    table: impl FnOnce(&Value, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    match output {
        AnswerOutput::Table => table(answer, out),
        AnswerOutput::Json => {
            serde_json::to_writer_pretty(&mut *out, answer)?;
            writeln!(out)
        }
        AnswerOutput::Yaml => serde_yaml_ng::to_writer(out, answer).map_err(io::Error::other),
    }
}

/// Prints why a question is not answered, and returns the exit code.
pub(crate) fn fail(error: &QueryError, not_found: u8, errors: &mut dyn Write) -> io::Result<u8> {
    writeln!(errors, "sluicectl: {error}")?;
    Ok(error.exit_code(not_found))
}

/// The text of a field; empty if it is absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The elements of a list in a field; none if it is absent.
pub(crate) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    elements(&value[field])
}

/// The elements of a list; none of another value.
pub(crate) fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A list of texts, joined.
pub(crate) fn joined(value: &Value, field: &str, separator: &str) -> String {
    list(value, field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(separator)
}

/// An object with its source: `VirtualService/shop/cart (shop.yaml:7)`.
pub(crate) fn object(value: &Value) -> String {
    let deleted = if value["deleted"] == true { ", deleted" } else { "" };
    match text(value, "source") {
        "" if deleted.is_empty() => text(value, "object").to_owned(),
        "" => format!("{} (deleted)", text(value, "object")),
        source => format!("{} ({source}{deleted})", text(value, "object")),
    }
}

/// The proxies in an answer of `syncz`. A client that subscribes to nothing, such as `istioctl`, is none.
pub(crate) fn subscribers(answer: &Value) -> impl Iterator<Item = &Value> {
    elements(answer).iter().filter(|client| client["resources"].is_object())
}

/// `1 proxy`, `2 proxies`.
pub(crate) fn proxies(count: u64) -> String {
    if count == 1 { "1 proxy".to_owned() } else { format!("{count} proxies") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn formats_of_istioctl_are_accepted() {
        let formats = [("short", AnswerOutput::Table), ("json", AnswerOutput::Json), ("yaml", AnswerOutput::Yaml)];
        for (name, format) in formats {
            assert_eq!(AnswerOutput::from_str(name, false), Ok(format), "{name}");
        }
    }

    #[test]
    fn objects_have_their_source_and_deletion() {
        let of = |value| object(&value);
        assert_eq!(of(json!({"object": "a/b", "source": "7", "deleted": false})), "a/b (7)");
        assert_eq!(of(json!({"object": "a/b", "source": "7", "deleted": true})), "a/b (7, deleted)");
        assert_eq!(of(json!({"object": "a/b", "deleted": true})), "a/b (deleted)");
        assert_eq!(of(json!({"object": "a/b"})), "a/b");
    }
}
