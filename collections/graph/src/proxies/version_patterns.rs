//! Expressions for the versions of proxies, compiled once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};
use sluice_model::Text;

/// Maximum number of compiled expressions that are kept.
const MAX_COMPILED_PATTERNS: usize = 64;
/// Maximum size of a compiled expression. Parsing rejects expressions above a quarter of it.
const MAX_PROGRAM_BYTES: usize = 4 << 20;
/// Maximum size of what matching an expression keeps in memory.
const MAX_DFA_BYTES: usize = 512 << 10;
/// Longer versions match no expression: a client chooses its version.
const MAX_VERSION_BYTES: usize = 256;

/// Compiled expressions. A proxy with a new version is matched with every expression, which is compiled only the first time.
#[derive(Default)]
pub(super) struct VersionPatterns(Mutex<BTreeMap<Text, Option<Arc<Regex>>>>);

impl VersionPatterns {
    /// The compiled expression; `None` if it is invalid or too large.
    pub(super) fn compiled(&self, pattern: &Text) -> Option<Arc<Regex>> {
        let mut compiled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compiled.get(pattern) {
            return known.clone();
        }
        if compiled.len() >= MAX_COMPILED_PATTERNS {
            compiled.clear();
        }
        let built = RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).dfa_size_limit(MAX_DFA_BYTES).build();
        compiled.entry(pattern.clone()).or_insert(built.ok().map(Arc::new)).clone()
    }
}

/// Whether an expression matches a version.
pub(super) fn matches_version(pattern: &Regex, version: &str) -> bool {
    version.len() <= MAX_VERSION_BYTES && pattern.is_match(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_compiled_once_and_bounded_in_size() {
        let patterns = VersionPatterns::default();
        let (first, second) = (patterns.compiled(&"^1\\.2.*".into()), patterns.compiled(&"^1\\.2.*".into()));
        let (Some(first), Some(second)) = (first, second) else { panic!("a valid expression") };
        assert!(Arc::ptr_eq(&first, &second));
        assert!(matches_version(&first, "1.25.0") && !matches_version(&first, "1.3"));
        assert!(!matches_version(&first, &format!("1.2{}", "0".repeat(MAX_VERSION_BYTES))));
        assert!(patterns.compiled(&"(".into()).is_none() && patterns.compiled(&"(\\w{50}){50}".into()).is_none());
    }

    #[test]
    fn number_of_compiled_expressions_is_bounded() {
        let patterns = VersionPatterns::default();
        for n in 0..3 * MAX_COMPILED_PATTERNS {
            assert!(patterns.compiled(&format!("^{n}$").into()).is_some());
        }
        assert!(patterns.0.lock().expect("not poisoned").len() <= MAX_COMPILED_PATTERNS);
    }
}
