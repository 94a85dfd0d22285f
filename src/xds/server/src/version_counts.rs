//! `pilot_xds`: the connected proxies by version. Clients choose the version, so labels are limited in form and number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Maximum length of a version in a label, in bytes.
const MAX_VERSION_BYTES: usize = 64;
/// Maximum number of versions in labels. Proxies of further ones are counted under `other`.
const MAX_VERSIONS: usize = 64;
/// The label of proxies without a version, or with a text that is not one.
const UNKNOWN: &str = "unknown";
const OTHER: &str = "other";

/// Label `version` of `pilot_xds`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub(crate) struct VersionLabel {
    version: String,
}

/// The connected proxies by version. A version without proxies has no row.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionCounts {
    clients: Family<VersionLabel, Gauge>,
    counts: Arc<Mutex<BTreeMap<String, i64>>>,
}

/// A stream that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedStream {
    of: VersionCounts,
    label: String,
}

impl VersionCounts {
    /// The metric.
    pub(crate) fn family(&self) -> Family<VersionLabel, Gauge> {
        self.clients.clone()
    }

    /// Counts a stream of a proxy with this version.
    pub(crate) fn count(&self, version: &str) -> CountedStream {
        let label = if is_version(version) { version } else { UNKNOWN };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_named = label == UNKNOWN || counts.contains_key(label) || counts.len() < MAX_VERSIONS;
        let label = if is_named { label } else { OTHER }.to_owned();
        let count = counts.entry(label.clone()).or_default();
        *count += 1;
        self.set(&label, *count);
        CountedStream { of: self.clone(), label }
    }

    /// Sets a row, or removes it. The counts are locked meanwhile.
    fn set(&self, label: &str, count: i64) {
        let label = VersionLabel { version: label.to_owned() };
        if count > 0 {
            self.clients.get_or_create(&label).set(count);
        } else {
            self.clients.remove(&label);
        }
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counts.get_mut(&self.label) else { return };
        *count -= 1;
        self.of.set(&self.label, *count);
        if *count <= 0 {
            counts.remove(&self.label);
        }
    }
}

/// Whether the text has the form `N.N`, with more parts if need be: `1.30.1`, `1.31-dev`.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.split(['.', '-']);
    let is_part_of_version = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'_');
    text.len() <= MAX_VERSION_BYTES
        && parts.next().is_some_and(is_number)
        && parts.next().is_some_and(is_number)
        && text.bytes().all(is_part_of_version)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn rows(counts: &VersionCounts) -> Vec<String> {
        let mut registry = Registry::default();
        registry.register("pilot_xds", "help", counts.clients.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string");
        let mut rows: Vec<String> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        rows.sort();
        rows
    }

    #[test]
    fn rows_have_the_form_of_a_version_and_disappear_with_the_last_stream() {
        let counts = VersionCounts::default();
        let texts =
            ["1.30.1", "1.30.1", "1.31-alpha.0123", "", "master", "1.2\n", "1.", &format!("1.2.{}", "3".repeat(99))];
        let streams: Vec<CountedStream> = texts.iter().map(|text| counts.count(text)).collect();
        let row = |version, count| format!("pilot_xds{{version=\"{version}\"}} {count}");
        assert_eq!(rows(&counts), [row("1.30.1", 2), row("1.31-alpha.0123", 1), row(UNKNOWN, 5)]);
        drop(streams);
        assert_eq!(rows(&counts), [""; 0]);
    }

    #[test]
    fn the_number_of_versions_is_limited() {
        let counts = VersionCounts::default();
        let streams: Vec<CountedStream> =
            (0..MAX_VERSIONS + 10).map(|number| counts.count(&format!("1.{number}"))).collect();
        assert_eq!(rows(&counts).len(), MAX_VERSIONS + 1);
        assert!(rows(&counts).contains(&"pilot_xds{version=\"other\"} 10".to_owned()));
        drop(streams);
        assert_eq!(rows(&counts), [""; 0]);
    }
}
