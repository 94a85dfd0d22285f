//! Allowed findings: a count for each key in a file of `tests/tidy/`. A count may only shrink.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::root;

/// Compares the findings of a check with the allowed counts in `tests/tidy/NAME`, a file of lines `KEY COUNT`.
///
/// A key with more findings than allowed fails the test, and so does a count that can be lowered when `TIDY_EXACT` is
/// set. `TIDY_UPDATE` writes the file anew. Without the file nothing is allowed; an empty list removes it.
pub(crate) fn check(name: &str, findings: &BTreeMap<String, Vec<String>>) {
    let path = root().join("tests/tidy").join(name);
    if std::env::var_os("TIDY_UPDATE").is_some() {
        let mut text = String::new();
        for (key, lines) in findings {
            let _ = writeln!(text, "{key} {}", lines.len());
        }
        if text.is_empty() {
            let _ = std::fs::remove_file(&path);
        } else {
            std::fs::write(&path, text).expect("write the allowed counts");
        }
        return;
    }
    let allowed = read(&std::fs::read_to_string(&path).unwrap_or_default());
    let mut failures = Vec::new();
    for (key, lines) in findings {
        let limit = allowed.get(key).copied().unwrap_or_default();
        if lines.len() > limit {
            failures.push(format!("{key}: {} findings, {limit} allowed\n  {}", lines.len(), lines.join("\n  ")));
        }
    }
    if std::env::var_os("TIDY_EXACT").is_some() {
        for (key, limit) in &allowed {
            let lines = findings.get(key).map_or(0, Vec::len);
            if lines < *limit {
                failures.push(format!("{key}: {limit} findings are allowed and {lines} are left: lower the count"));
            }
        }
    }
    assert!(failures.is_empty(), "{}\n(allowed counts: {})", failures.join("\n"), path.display());
}

fn read(text: &str) -> BTreeMap<String, usize> {
    let entries = text.lines().map(|line| {
        let (key, count) = line.rsplit_once(' ').expect("a line is KEY COUNT");
        (key.to_owned(), count.parse().expect("a count is a number"))
    });
    entries.collect()
}
