//! Expressions for the versions of proxies, compiled when an object is read.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use regex::{Regex, RegexBuilder};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Text;

/// Maximum size of a compiled expression, which stays in memory with its object.
pub const MAX_VERSION_PROGRAM_BYTES: usize = 64 << 10;
/// Maximum size of what matching an expression keeps in memory.
const MAX_DFA_BYTES: usize = 128 << 10;
/// Longer versions match no expression: a client chooses its version.
const MAX_VERSION_BYTES: usize = 256;
/// Number of expressions from which on those that no object has any more are removed.
const MIN_PRUNED_PATTERNS: usize = 64;

/// A regular expression for the versions of proxies. Expressions with equal text are equal and share what is compiled.
#[derive(Clone)]
pub struct VersionPattern {
    text: Text,
    compiled: Arc<Regex>,
}

impl VersionPattern {
    /// Compiles an expression, unless an object already has it; `None` if it is invalid or too large.
    #[must_use]
    pub fn new(text: Text) -> Option<Self> {
        let known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner).get(&text);
        let compiled = match known {
            Some(compiled) => compiled,
            None => {
                let mut builder = RegexBuilder::new(&text);
                let built = builder.size_limit(MAX_VERSION_PROGRAM_BYTES).dfa_size_limit(MAX_DFA_BYTES).build().ok()?;
                COMPILED.lock().unwrap_or_else(PoisonError::into_inner).add(&text, built)
            }
        };
        Some(Self { text, compiled })
    }

    /// Whether a version matches.
    #[must_use]
    pub fn is_match(&self, version: &str) -> bool {
        version.len() <= MAX_VERSION_BYTES && self.compiled.is_match(version)
    }
}

/// The compiled expressions that objects have.
struct Compiled {
    by_text: BTreeMap<Text, Weak<Regex>>,
    /// The number of expressions at which those without an object are removed.
    pruned_at: usize,
}

static COMPILED: Mutex<Compiled> = Mutex::new(Compiled::new());

impl Compiled {
    const fn new() -> Self {
        Self { by_text: BTreeMap::new(), pruned_at: MIN_PRUNED_PATTERNS }
    }

    fn get(&self, text: &Text) -> Option<Arc<Regex>> {
        self.by_text.get(text).and_then(Weak::upgrade)
    }

    /// Adds an expression. If another thread compiled it meanwhile, returns that one.
    fn add(&mut self, text: &Text, built: Regex) -> Arc<Regex> {
        if let Some(known) = self.get(text) {
            return known;
        }
        if self.by_text.len() >= self.pruned_at {
            self.by_text.retain(|_, compiled| compiled.strong_count() > 0);
            self.pruned_at = MIN_PRUNED_PATTERNS.max(2 * self.by_text.len());
        }
        let built = Arc::new(built);
        self.by_text.insert(text.clone(), Arc::downgrade(&built));
        built
    }
}

impl fmt::Debug for VersionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl PartialEq for VersionPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for VersionPattern {}

impl Ord for VersionPattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for VersionPattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for VersionPattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Serialize for VersionPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for VersionPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        Self::new(text).ok_or_else(|| D::Error::custom("the expression for versions is invalid or too large"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Option<VersionPattern> {
        VersionPattern::new(text.into())
    }

    #[test]
    fn expression_is_compiled_once_and_bounded_in_size() {
        let (Some(first), Some(second)) = (pattern("^1\\.2.*"), pattern("^1\\.2.*")) else { panic!("valid") };
        assert!(Arc::ptr_eq(&first.compiled, &second.compiled));
        assert!(first.is_match("1.25.0") && !first.is_match("1.3"));
        assert!(!first.is_match(&format!("1.2{}", "0".repeat(MAX_VERSION_BYTES))));
        assert!(pattern("(").is_none() && pattern("(\\w{50}){50}").is_none());
        for usual in ["^1\\.(2[0-9]|30)\\..*", "1\\.\\d+\\.\\d+(-\\w+)?", "^(?i)1\\.9[a-z.-]*$"] {
            assert!(pattern(usual).is_some(), "{usual}");
        }
    }

    #[test]
    fn thousands_of_expressions_stay_compiled_while_objects_have_them() {
        let mut compiled = Compiled::new();
        let texts: Vec<Text> = (0..3000).map(|n| Text::from(format!("^{n}$"))).collect();
        let build = |text: &Text| Regex::new(text).expect("valid");
        let kept: Vec<Arc<Regex>> = texts.iter().map(|text| compiled.add(text, build(text))).collect();
        let known = |compiled: &Compiled| texts.iter().filter(|text| compiled.get(text).is_some()).count();
        assert_eq!(known(&compiled), 3000);
        drop(kept);
        assert_eq!(known(&compiled), 0);
        let other = Regex::new("other").expect("valid");
        for n in 0..5000 {
            compiled.add(&format!("other{n}").into(), other.clone());
        }
        assert!(compiled.by_text.len() <= MIN_PRUNED_PATTERNS, "{}", compiled.by_text.len());
    }
}
