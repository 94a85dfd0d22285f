//! Output of messages, in the forms of `istioctl`.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use sluice_analyze::{ANALYZERS, Level, Message, Origin};
use sluice_parse::yaml::find_position;

type Texts = HashMap<String, String>;

/// The analyzers with their codes.
pub(super) fn analyzers(out: &mut dyn Write) -> io::Result<()> {
    for analyzer in ANALYZERS {
        writeln!(out, "* {}:", analyzer.name)?;
        writeln!(out, "    {} ({})", analyzer.description, analyzer.codes.join(", "))?;
    }
    Ok(())
}

/// A line for each message.
pub(super) fn log(messages: &[Message<'_>], texts: &Texts, colours: bool, out: &mut dyn Write) -> io::Result<()> {
    for message in messages {
        let level = message.message_type.level;
        let (begin, end) = match level {
            Level::Error if colours => ("\x1b[1;31m", "\x1b[0m"),
            Level::Warning if colours => ("\x1b[33m", "\x1b[0m"),
            _ => ("", ""),
        };
        let reference = reference(message, texts).map(|reference| format!(" {reference}")).unwrap_or_default();
        let (code, resource) = (message.message_type.code, message.resource);
        writeln!(out, "{begin}{level}{end} [{code}] ({resource}{reference}) {}", message.text)?;
    }
    Ok(())
}

/// A JSON list.
pub(super) fn json(messages: &[Message<'_>], texts: &Texts, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(&values(messages, texts))?)
}

/// A YAML list.
pub(super) fn yaml(messages: &[Message<'_>], texts: &Texts, out: &mut dyn Write) -> io::Result<()> {
    let text = serde_yaml_ng::to_string(&values(messages, texts)).map_err(io::Error::other)?;
    write!(out, "{text}")
}

fn values(messages: &[Message<'_>], texts: &Texts) -> Vec<Value> {
    let value = |message: &Message<'_>| {
        let mut value = json!({
            "code": message.message_type.code,
            "documentationUrl": message.documentation_url(),
            "level": message.message_type.level.to_string(),
            "message": message.text,
            "origin": message.resource.to_string(),
        });
        if let Some(reference) = reference(message, texts) {
            value["reference"] = Value::String(reference);
        }
        value
    };
    messages.iter().map(value).collect()
}

/// File and line of the field.
fn reference(message: &Message<'_>, texts: &Texts) -> Option<String> {
    let Origin::File { name, line } = &message.resource.origin else { return None };
    let line = match texts.get(name) {
        Some(text) if !message.field.is_empty() => find_position(text, *line, &message.field).line,
        _ => *line,
    };
    Some(format!("{name}:{line}"))
}
