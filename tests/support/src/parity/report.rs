//! Counts by family and type, and the report as text and JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::compare::Comparison;
use crate::ads::{Kind, Protocol};

/// The comparison of one proxy and type.
#[derive(Clone, Debug)]
pub struct Row {
    /// Family of the case.
    pub family: String,
    /// `NN-slug` of the case.
    pub case: String,
    /// Name of the proxy.
    pub proxy: String,
    /// Protocol of the dump.
    pub protocol: Protocol,
    /// Type of the resources.
    pub kind: Kind,
    /// Result of the comparison.
    pub result: Comparison,
}

/// Sums over rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    proxies: BTreeSet<String>,
    /// Resources equal.
    pub equal: usize,
    /// Resources that differ.
    pub differing: usize,
    /// Resources missing.
    pub missing: usize,
    /// Unexpected resources.
    pub extra: usize,
}

impl Sums {
    fn add(&mut self, row: &Row) {
        self.proxies.insert(format!("{}/{}", row.case, row.proxy));
        self.equal += row.result.equal;
        self.differing += row.result.differing.len();
        self.missing += row.result.missing.len();
        self.extra += row.result.extra.len();
    }

    /// The number of expected and of unexpected resources.
    pub fn total(&self) -> usize {
        self.equal + self.differing + self.missing + self.extra
    }

    /// Percentage of equal resources; 100 if there are none.
    pub fn percent(&self) -> f64 {
        match self.total() {
            0 => 100.0,
            total => 100.0 * self.equal as f64 / total as f64,
        }
    }
}

/// All rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In order of cases.
    pub rows: Vec<Row>,
    /// Cases that could not be run, with the reason.
    pub failed: BTreeMap<String, String>,
}

impl Report {
    /// Sums by family and protocol.
    pub fn families(&self) -> BTreeMap<(String, Protocol), Sums> {
        self.sums(|row| (row.family.clone(), row.protocol))
    }

    fn sums<K: Ord>(&self, key: impl Fn(&Row) -> K) -> BTreeMap<K, Sums> {
        let mut out: BTreeMap<K, Sums> = BTreeMap::new();
        for row in &self.rows {
            out.entry(key(row)).or_default().add(row);
        }
        out
    }

    /// A table with a line for each family and protocol, then for each type.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<18}{:<8}{:>8}{:>8}{:>10}{:>9}{:>7}{:>9}\n",
            "family", "protocol", "proxies", "equal", "differing", "missing", "extra", "percent"
        );
        let mut line = |name: &str, protocol: &str, sums: &Sums| {
            let _ = writeln!(
                out,
                "{name:<18}{protocol:<8}{:>8}{:>8}{:>10}{:>9}{:>7}{:>9.2}",
                sums.proxies.len(),
                sums.equal,
                sums.differing,
                sums.missing,
                sums.extra,
                sums.percent()
            );
        };
        for ((family, protocol), sums) in self.families() {
            line(&family, protocol.name(), &sums);
        }
        for ((kind, protocol), sums) in self.sums(|row| (row.kind, row.protocol)) {
            line(kind.name(), protocol.name(), &sums);
        }
        for (protocol, sums) in self.sums(|row| row.protocol) {
            line("all", protocol.name(), &sums);
        }
        out
    }

    /// A line for each row that is not equal, with up to `resources` names and their differing paths.
    pub fn differences(&self, resources: usize) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let result = &row.result;
            if result.equal == result.total() && result.note.is_none() {
                continue;
            }
            let _ = write!(
                out,
                "{}/{} {} {} {}: golden {}, equal {}, differing {}, missing {}, extra {}",
                row.family,
                row.case,
                row.proxy,
                row.protocol,
                row.kind.name(),
                result.golden,
                result.equal,
                result.differing.len(),
                result.missing.len(),
                result.extra.len()
            );
            let _ = match &result.note {
                Some(note) => writeln!(out, " ({note})"),
                None => writeln!(out),
            };
            for (name, paths) in result.differing.iter().take(resources) {
                let _ = writeln!(out, "  ~ {name}");
                for path in paths {
                    let _ = writeln!(out, "      {path}");
                }
            }
            for (mark, names) in [('-', &result.missing), ('+', &result.extra)] {
                if !names.is_empty() {
                    let more = if names.len() > resources { " …" } else { "" };
                    let shown = names.iter().take(resources).cloned().collect::<Vec<_>>().join(", ");
                    let _ = writeln!(out, "  {mark} {shown}{more}");
                }
            }
        }
        for (case, reason) in &self.failed {
            let _ = writeln!(out, "{case}: FAILED: {reason}");
        }
        out
    }

    /// The differing paths of all resources without list labels and long values, the most frequent first: it shows
    /// systematic differences.
    pub fn systematic(&self) -> Vec<(usize, Kind, String)> {
        let mut counts: BTreeMap<(Kind, String), usize> = BTreeMap::new();
        for row in &self.rows {
            for path in row.result.differing.values().flatten() {
                *counts.entry((row.kind, generalize(path))).or_default() += 1;
            }
        }
        let mut out: Vec<_> = counts.into_iter().map(|((kind, path), count)| (count, kind, path)).collect();
        out.sort_by(|a, b| b.cmp(a));
        out
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "family": row.family, "case": row.case, "proxy": row.proxy, "protocol": row.protocol.name(),
                "type": row.kind.name(), "golden": row.result.golden, "equal": row.result.equal,
                "differing": row.result.differing, "missing": row.result.missing, "extra": row.result.extra,
                "note": row.result.note,
            })
        });
        json!({"rows": rows.collect::<Vec<_>>(), "failed": self.failed})
    }
}

/// Removes the labels of list elements from a path, and shortens the value.
fn generalize(path: &str) -> String {
    let mut out = String::new();
    let mut depth = 0;
    for c in path.chars().take(300) {
        match c {
            '[' => {
                if depth == 0 {
                    out.push_str("[]");
                }
                depth += 1;
            }
            ']' => depth -= 1,
            c if depth <= 0 => out.push(c),
            _ => {}
        }
    }
    match out.char_indices().nth(140) {
        Some((at, _)) => out[..at].to_owned(),
        None => out,
    }
}
