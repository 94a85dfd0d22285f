//! Shared immutable text.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A shared immutable string: names, namespaces, hosts, label values. Cloning increments a reference count. A text that
/// the same thread made recently is shared instead of allocated again.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(transparent)]
pub struct Text(Arc<str>);

/// Texts that a thread remembers: many objects have the same labels, many proxies the same profile.
const RECENT_TEXTS: usize = 1024;
/// Longest text that is remembered, in bytes.
const MAX_RECENT_BYTES: usize = 4096;

thread_local! {
    /// The last text with each hash, modulo [`RECENT_TEXTS`].
    static LAST: RefCell<Vec<Option<Arc<str>>>> = RefCell::new(vec![None; RECENT_TEXTS]);
}

/// The remembered text, or a new one.
fn shared(text: &str) -> Arc<str> {
    if text.len() > MAX_RECENT_BYTES {
        return Arc::from(text);
    }
    let at = rapidhash::v3::rapidhash_v3(text.as_bytes()) as usize % RECENT_TEXTS;
    let known = LAST.try_with(|last| match &mut last.borrow_mut()[at] {
        Some(known) if **known == *text => known.clone(),
        other => other.insert(Arc::from(text)).clone(),
    });
    // While the thread ends, the memory is not accessible.
    known.unwrap_or_else(|_| Arc::from(text))
}

impl Text {
    /// The text as a string slice.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the value of a label or annotation means true.
#[must_use]
pub fn is_true(word: &str) -> bool {
    matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

impl Default for Text {
    fn default() -> Self {
        Self(shared(""))
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(shared(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(shared(&text))
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Self(shared(text))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text::from(text))
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_of_a_thread_are_shared() {
        let first = Text::from("app");
        let second: Text = String::from("app").into();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        assert_eq!(Text::default(), Text::from(""));
    }

    #[test]
    fn long_texts_are_not_remembered() {
        let long = "x".repeat(MAX_RECENT_BYTES + 1);
        let (first, second) = (Text::from(&long), Text::from(&long));
        assert_eq!(first, second);
        assert!(!Arc::ptr_eq(&first.0, &second.0));
    }

    #[test]
    fn deserialized_texts_are_shared() {
        let deserializer = de::value::StrDeserializer::<de::value::Error>::new("app");
        let read = Text::deserialize(deserializer).expect("a string");
        assert!(Arc::ptr_eq(&read.0, &Text::from("app").0));
    }
}
