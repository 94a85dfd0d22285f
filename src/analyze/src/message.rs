//! Messages and their collection.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{MessageType, Resource};

/// Severity of a message.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// A hint.
    Info,
    /// Probably a mistake.
    Warning,
    /// A mistake.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info => "Info",
            Self::Warning => "Warning",
            Self::Error => "Error",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "info" => Ok(Self::Info),
            "warning" | "warn" => Ok(Self::Warning),
            "error" => Ok(Self::Error),
            _ => Err(format!("level {text:?} is unknown: Info, Warning or Error is expected")),
        }
    }
}

/// A message about an object.
#[derive(Clone, Debug)]
pub struct Message<'m> {
    /// Code, name and level.
    pub message_type: &'static MessageType,
    /// The object.
    pub resource: &'m Resource,
    /// Path of the field, such as `spec.http[0].route[0].destination.host`; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub text: String,
}

impl Message<'_> {
    /// Page of Istio's documentation about the code.
    #[must_use]
    pub fn documentation_url(&self) -> String {
        let code = self.message_type.code.to_ascii_lowercase();
        format!("https://istio.io/latest/docs/reference/config/analysis/{code}/")
    }
}

/// Collects messages.
#[derive(Debug, Default)]
pub struct Report<'m> {
    messages: Vec<Message<'m>>,
}

impl<'m> Report<'m> {
    pub(crate) fn add(
        &mut self,
        message_type: &'static MessageType,
        resource: &'m Resource,
        field: impl Into<String>,
        text: impl Into<String>,
    ) {
        self.messages.push(Message { message_type, resource, field: field.into(), text: text.into() });
    }

    pub(crate) fn into_messages(mut self) -> Vec<Message<'m>> {
        self.messages.sort_by_cached_key(|message| {
            let MessageType { level, code, .. } = message.message_type;
            (
                std::cmp::Reverse(*level),
                *code,
                message.resource.to_string(),
                message.field.clone(),
                message.text.clone(),
            )
        });
        let mut seen = BTreeSet::new();
        self.messages.retain(|message| {
            let resource = (message.resource.to_string(), message.field.clone(), message.text.clone());
            seen.insert((message.message_type.code, resource))
        });
        self.messages
    }
}
