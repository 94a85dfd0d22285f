//! Output of messages, in the forms of `istioctl`.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use sluice_analyze::{ANALYZERS, Level, Message, Origin};
use sluice_parse::yaml::find_position;

use crate::terminal::{Colour, paint};

/// What the output of a message depends on besides the message.
#[derive(Clone, Copy)]
pub(super) struct OutputContext<'c> {
    /// Texts of the files.
    pub(super) texts: &'c HashMap<String, String>,
    /// Whether messages name the cluster of their object.
    pub(super) names_clusters: bool,
}

/// The analyzers with their codes.
pub(super) fn analyzers(out: &mut dyn Write) -> io::Result<()> {
    for analyzer in ANALYZERS {
        writeln!(out, "* {}:", analyzer.name)?;
        writeln!(out, "    {} ({})", analyzer.description, analyzer.codes.join(", "))?;
    }
    Ok(())
}

/// A line for each message.
pub(super) fn log(
    messages: &[Message<'_>],
    context: OutputContext<'_>,
    colours: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    for message in messages {
        let level = message.message_type.level;
        let name = match level {
            Level::Error if colours => paint(Colour::Bad, &level.to_string()),
            Level::Warning if colours => paint(Colour::Warning, &level.to_string()),
            _ => level.to_string(),
        };
        let reference = reference(message, context).map(|reference| format!(" {reference}")).unwrap_or_default();
        let (code, resource) = (message.message_type.code, message.resource);
        let cluster = match context.names_clusters {
            true => format!("[cluster-{}] ", resource.origin.cluster()),
            false => String::new(),
        };
        writeln!(out, "{name} [{code}] {cluster}({resource}{reference}) {}", message.text)?;
    }
    Ok(())
}

/// A JSON list.
pub(super) fn json(messages: &[Message<'_>], context: OutputContext<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(&values(messages, context))?)
}

/// A YAML list.
pub(super) fn yaml(messages: &[Message<'_>], context: OutputContext<'_>, out: &mut dyn Write) -> io::Result<()> {
    let text = serde_yaml_ng::to_string(&values(messages, context)).map_err(io::Error::other)?;
    write!(out, "{text}")
}

fn values(messages: &[Message<'_>], context: OutputContext<'_>) -> Vec<Value> {
    let value = |message: &Message<'_>| {
        let mut value = json!({
            "code": message.message_type.code,
            "documentationUrl": message.documentation_url(),
            "level": message.message_type.level.to_string(),
            "message": message.text,
            "origin": message.resource.to_string(),
        });
        if context.names_clusters {
            value["cluster"] = Value::String(message.resource.origin.cluster().to_owned());
        }
        if let Some(reference) = reference(message, context) {
            value["reference"] = Value::String(reference);
        }
        value
    };
    messages.iter().map(value).collect()
}

/// File and line of the field.
fn reference(message: &Message<'_>, context: OutputContext<'_>) -> Option<String> {
    let Origin::File { name, line } = &message.resource.origin else { return None };
    let line = match context.texts.get(name) {
        Some(text) if !message.field.is_empty() => find_position(text, *line, &message.field).line,
        _ => *line,
    };
    Some(format!("{name}:{line}"))
}
