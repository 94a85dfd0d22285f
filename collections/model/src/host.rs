//! Host names with wildcards, and label selection.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Labels, Text};

/// A fully qualified, lower-case host name, or a wildcard: `*` or `*.suffix`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Host(pub Text);

impl Host {
    /// A host from the text in an object. Hosts are case-insensitive, so the text is converted to lower case.
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            Self(text.to_ascii_lowercase().into())
        } else {
            Self(text.into())
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether this is `*` or `*.suffix`.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }

    /// Whether every name that `other` matches is also matched by `self`.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        match self.0.strip_prefix('*') {
            Some(suffix) => other.0.strip_prefix('*').unwrap_or(other.as_str()).ends_with(suffix),
            None => self == other,
        }
    }

    /// Whether a name exists that both match.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }
}

impl From<&str> for Host {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether `labels` contains every pair of `selector`; an empty selector matches everything.
#[must_use]
pub fn match_labels(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::Host;

    #[test]
    fn wildcards_contain_and_overlap() {
        let check = |a: &str, b: &str, contains: bool, overlaps: bool| {
            let (a, b) = (Host::from(a), Host::from(b));
            assert_eq!(a.contains(&b), contains, "{a} contains {b}");
            assert_eq!(a.overlaps(&b), overlaps, "{a} overlaps {b}");
        };
        check("*", "a.b", true, true);
        check("*.b", "a.b", true, true);
        check("*.b", "*.a.b", true, true);
        check("*.a.b", "*.b", false, true);
        check("a.b", "a.b", true, true);
        check("a.b", "c.b", false, false);
        check("*.b", "b", false, false);
    }
}
