//! Suppression of messages by code and object.

use std::str::FromStr;

use crate::{MESSAGE_TYPES, Message, OTHER_CODES};

/// The annotation that lists codes of messages to leave out for its object; `*` stands for all.
const ANNOTATION: &str = "galley.istio.io/analyze-suppress";

/// Leaves out the messages with a code for the objects that a pattern matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Suppression {
    /// Code, such as `IST0102`.
    pub code: String,
    /// `GroupKind name.namespace`; `*` matches any text.
    pub resource: String,
}

impl FromStr for Suppression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((code, resource)) if !code.is_empty() && !resource.is_empty() && !resource.contains('=') => {
                Ok(Self { code: code.to_owned(), resource: resource.to_owned() })
            }
            _ => Err(format!("{text:?} is not of the form CODE=KIND NAME.NAMESPACE, as in IST0103=Pod *.testing")),
        }
    }
}

impl Suppression {
    /// Whether the code exists.
    #[must_use]
    pub fn has_known_code(&self) -> bool {
        MESSAGE_TYPES.iter().any(|known| known.code == self.code)
            || OTHER_CODES.iter().any(|known| known.code == self.code)
    }

    fn matches(&self, message: &Message<'_>) -> bool {
        self.code == message.message_type.code && matches_pattern(&self.resource, &message.resource.to_string())
    }
}

impl Message<'_> {
    /// Whether the message is left out, by a suppression or by the annotation of its object.
    #[must_use]
    pub fn is_suppressed(&self, suppressions: &[Suppression]) -> bool {
        let codes = self.resource.annotation(ANNOTATION).unwrap_or_default();
        codes.split(',').map(str::trim).any(|code| code == "*" || code == self.message_type.code)
            || suppressions.iter().any(|suppression| suppression.matches(self))
    }

    /// Whether the message is about an object of a namespace or of the whole cluster.
    #[must_use]
    pub fn concerns_namespace(&self, namespace: &str) -> bool {
        matches!(self.resource.analyzed_namespace(), own if own.is_empty() || own == namespace)
    }
}

/// Whether a text matches a pattern in which `*` stands for any text.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((prefix, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(prefix) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let suffix = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(suffix)
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn star_matches_any_text() {
        assert!(matches_pattern("Pod *.testing", "Pod a.testing"));
        assert!(matches_pattern("*", "Namespace a"));
        assert!(matches_pattern("Pod a*b*c", "Pod a1b2bc"));
        assert!(!matches_pattern("Pod *.testing", "Pod a.other"));
        assert!(!matches_pattern("Pod a", "Pod ab"));
        assert!(!matches_pattern("ab*b", "ab"));
    }
}
