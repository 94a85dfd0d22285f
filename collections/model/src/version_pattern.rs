//! Expressions for the versions of proxies, compiled when an object is read. Results are kept: a version is matched
//! with an expression once, before the dataflow thread asks for the result.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
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
/// Minimum number of versions whose results an expression keeps, once there are as many; the maximum is twice that.
const MIN_KEPT_VERSIONS: usize = 32;
/// Number of expressions from which on those that no object has any more are removed.
const MIN_PRUNED_PATTERNS: usize = 64;

/// A regular expression for the versions of proxies. Expressions with equal text are equal and share what is compiled,
/// and the results of matches.
#[derive(Clone)]
pub struct VersionPattern {
    text: Text,
    compiled: Arc<CompiledPattern>,
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

    /// Whether a version matches. The expression is evaluated only if the result is not kept.
    #[must_use]
    pub fn is_match(&self, version: &str) -> bool {
        version.len() <= MAX_VERSION_BYTES && self.compiled.is_match(version)
    }

    /// Matches the versions of the last proxies that connected, so that the dataflow thread finds the results. For
    /// objects that are about to be written to the dataflow.
    pub fn match_recent_versions(&self) {
        let versions = RECENT.lock().unwrap_or_else(PoisonError::into_inner).versions();
        for version in versions {
            self.compiled.is_match(&version);
        }
    }

    /// How often the expression was evaluated: once for each version, as long as the result is kept.
    #[must_use]
    pub fn evaluations(&self) -> u64 {
        self.compiled.evaluations.load(AtomicOrdering::Relaxed)
    }
}

/// Remembers the version of a proxy that connects, for [`VersionPattern::match_recent_versions`].
pub fn remember_version(version: &Text) {
    if version.is_empty() || version.len() > MAX_VERSION_BYTES {
        return;
    }
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    if recent.get(version).is_none() {
        recent.insert(version.clone(), ());
    }
}

/// The versions of the last proxies that connected.
static RECENT: Mutex<KeptVersions<()>> = Mutex::new(KeptVersions::new());

/// A compiled expression, with the results of its last matches.
struct CompiledPattern {
    regex: Regex,
    results: Mutex<KeptVersions<bool>>,
    evaluations: AtomicU64,
}

impl CompiledPattern {
    fn is_match(&self, version: &str) -> bool {
        let results = || self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let known = results().get(version);
        // Without the lock: an expression that is slow to match delays no thread that finds its result.
        known.unwrap_or_else(|| {
            self.evaluations.fetch_add(1, AtomicOrdering::Relaxed);
            let is_match = self.regex.is_match(version);
            results().insert(version.into(), is_match);
            is_match
        })
    }
}

/// Values of versions. Clients choose their versions, so the number is bounded: those that were used last stay, at
/// least [`MIN_KEPT_VERSIONS`].
struct KeptVersions<V> {
    /// Used since the others became `older`.
    newer: BTreeMap<Text, V>,
    /// Removed when `newer` is full, unless they are used before.
    older: BTreeMap<Text, V>,
}

impl<V: Copy> KeptVersions<V> {
    const fn new() -> Self {
        Self { newer: BTreeMap::new(), older: BTreeMap::new() }
    }

    fn get(&mut self, version: &str) -> Option<V> {
        if let Some(value) = self.newer.get(version) {
            return Some(*value);
        }
        let (version, value) = self.older.remove_entry(version)?;
        self.insert(version, value);
        Some(value)
    }

    fn insert(&mut self, version: Text, value: V) {
        if self.newer.len() >= MIN_KEPT_VERSIONS {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(version, value);
    }

    /// All versions, those of `newer` last.
    fn versions(&self) -> Vec<Text> {
        self.older.keys().chain(self.newer.keys()).cloned().collect()
    }
}

/// The compiled expressions that objects have.
struct Compiled {
    by_text: BTreeMap<Text, Weak<CompiledPattern>>,
    /// The number of expressions at which those without an object are removed.
    pruned_at: usize,
}

static COMPILED: Mutex<Compiled> = Mutex::new(Compiled::new());

impl Compiled {
    const fn new() -> Self {
        Self { by_text: BTreeMap::new(), pruned_at: MIN_PRUNED_PATTERNS }
    }

    fn get(&self, text: &Text) -> Option<Arc<CompiledPattern>> {
        self.by_text.get(text).and_then(Weak::upgrade)
    }

    /// Adds an expression. If another thread compiled it meanwhile, returns that one.
    fn add(&mut self, text: &Text, regex: Regex) -> Arc<CompiledPattern> {
        if let Some(known) = self.get(text) {
            return known;
        }
        if self.by_text.len() >= self.pruned_at {
            self.by_text.retain(|_, compiled| compiled.strong_count() > 0);
            self.pruned_at = MIN_PRUNED_PATTERNS.max(2 * self.by_text.len());
        }
        let results = Mutex::new(KeptVersions::new());
        let built = Arc::new(CompiledPattern { regex, results, evaluations: AtomicU64::new(0) });
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
    fn version_is_matched_once_with_equal_expressions() {
        let [first, second] = ["^9\\.1", "^9\\.1"].map(|text| pattern(text).expect("valid"));
        for version in ["9.1.0", "9.2.0", "9.1.0", "9.2.0"] {
            assert_eq!((first.is_match(version), second.is_match(version)), (version == "9.1.0", version == "9.1.0"));
        }
        assert!(!first.is_match(&"9.1".repeat(MAX_VERSION_BYTES)), "too long, whatever it begins with");
        assert_eq!([first.evaluations(), second.evaluations()], [2, 2]);
    }

    #[test]
    fn number_of_kept_results_is_bounded_and_a_version_in_use_stays() {
        let pattern = pattern("^9\\.3\\.").expect("valid");
        for n in 0..1000 {
            assert!(!pattern.is_match(&format!("made-up-{n}")));
            assert!(pattern.is_match("9.3.1"));
            let kept = pattern.compiled.results.lock().expect("no panic").versions();
            assert!(kept.len() <= 2 * MIN_KEPT_VERSIONS, "{}", kept.len());
        }
        assert_eq!(pattern.evaluations(), 1001);
        for n in 1000 - (MIN_KEPT_VERSIONS - 1)..1000 {
            assert!(!pattern.is_match(&format!("made-up-{n}")));
        }
        assert_eq!(pattern.evaluations(), 1001, "the last versions stay");
        assert!(!pattern.is_match("made-up-0"));
        assert_eq!(pattern.evaluations(), 1002, "the first versions are removed");
    }

    #[test]
    fn new_expression_is_matched_with_the_versions_of_recent_proxies() {
        for n in 0..1000 {
            remember_version(&format!("8.0.{n}").into());
        }
        for version in ["8.1.1", "8.1.1", "", &"8".repeat(MAX_VERSION_BYTES + 1)] {
            remember_version(&version.into());
        }
        let pattern = pattern("^8\\.1\\.").expect("valid");
        pattern.match_recent_versions();
        let evaluations = pattern.evaluations();
        assert!((1..=2 * MIN_KEPT_VERSIONS as u64).contains(&evaluations), "{evaluations}");
        assert!(pattern.is_match("8.1.1") && !pattern.is_match("8.0.999"));
        assert_eq!(pattern.evaluations(), evaluations);
    }

    #[test]
    fn thousands_of_expressions_stay_compiled_while_objects_have_them() {
        let mut compiled = Compiled::new();
        let texts: Vec<Text> = (0..3000).map(|n| Text::from(format!("^{n}$"))).collect();
        let build = |text: &Text| Regex::new(text).expect("valid");
        let kept: Vec<Arc<CompiledPattern>> = texts.iter().map(|text| compiled.add(text, build(text))).collect();
        let known = |compiled: &Compiled| texts.iter().filter(|text| compiled.get(text).is_some()).count();
        assert_eq!(known(&compiled), 3000);
        // The results stay with them.
        for _ in 0..3 {
            let matching = texts.iter().filter_map(|text| compiled.get(text)).filter(|of| of.is_match("1234")).count();
            assert_eq!(matching, 1);
        }
        let evaluations = |of: &Arc<CompiledPattern>| of.evaluations.load(AtomicOrdering::Relaxed);
        assert_eq!(kept.iter().map(evaluations).sum::<u64>(), 3000);
        drop(kept);
        assert_eq!(known(&compiled), 0);
        let other = Regex::new("other").expect("valid");
        for n in 0..5000 {
            compiled.add(&format!("other{n}").into(), other.clone());
        }
        assert!(compiled.by_text.len() <= MIN_PRUNED_PATTERNS, "{}", compiled.by_text.len());
    }
}
