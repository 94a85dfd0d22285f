//! Kinds of values.

use std::fmt;

use sluice_parse::parse_duration;

/// The accepted values of a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueKind {
    /// As Go's `strconv.ParseBool` reads it.
    Bool,
    /// A duration in the form of Go.
    Duration,
    /// A number.
    Number,
    /// A CIDR block.
    Block,
    /// Parts that commas separate.
    List,
    /// One of these values.
    Choice(&'static [&'static str]),
    /// A JSON value.
    Json,
    /// Any text.
    Text,
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Duration => f.write_str("duration"),
            Self::Number => f.write_str("number"),
            Self::Block => f.write_str("CIDR block"),
            Self::List => f.write_str("list, comma separated"),
            Self::Choice(values) => f.write_str(&values.join(", ")),
            Self::Json => f.write_str("JSON"),
            Self::Text => f.write_str("text"),
        }
    }
}

impl ValueKind {
    /// Whether two values mean the same, such as `1` and `true`.
    #[must_use]
    pub fn is_same(self, one: &str, other: &str) -> bool {
        let same = match self {
            Self::Bool => parse_bool(one).is_some_and(|value| parse_bool(other) == Some(value)),
            Self::Duration => parse_duration(one).is_some_and(|value| parse_duration(other) == Some(value)),
            Self::Number => one.parse::<f64>().is_ok_and(|value| other.parse() == Ok(value)),
            _ => false,
        };
        same || one == other
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
