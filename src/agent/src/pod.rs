//! Labels and annotations of the pod, in files of the downward API.

use std::collections::BTreeMap;
use std::path::Path;

/// File of the labels.
const LABELS: &str = "./etc/istio/pod/labels";
/// File of the annotations.
const ANNOTATIONS: &str = "./etc/istio/pod/annotations";

/// Labels and annotations of the pod; empty if the files are not mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodMetadata {
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl PodMetadata {
    /// Reads both files below `root`.
    pub(crate) fn read(root: &Path, warnings: &mut Vec<String>) -> Self {
        let mut read = |path: &str| match std::fs::read_to_string(root.join(path)) {
            Ok(text) => Some(parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                warnings.push(format!("{path} cannot be read and is ignored: {error}"));
                None
            }
        };
        Self { labels: read(LABELS), annotations: read(ANNOTATIONS).unwrap_or_default() }
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }
}

/// Lines `key="quoted value"`.
fn parse(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines.map(|(key, value)| (key.to_owned(), unquote(value))).collect()
}

/// The value of a quoted Go string.
fn unquote(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return text.to_owned() };
    let mut unquoted = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        let c = match (c, if c == '\\' { rest.next() } else { None }) {
            (_, Some('n')) => '\n',
            (_, Some('t')) => '\t',
            (_, Some('r')) => '\r',
            (_, Some(kind @ ('x' | 'u' | 'U'))) => {
                let digits = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code: String = rest.by_ref().take(digits).collect();
                u32::from_str_radix(&code, 16).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            (_, Some(other)) => other,
            (plain, None) => plain,
        };
        unquoted.push(c);
    }
    unquoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_unquoted() {
        let parsed = parse("app=\"tea\"\nnote=\"a \\\"b\\\"\\n\\u00e9=1\"\nno pair\n");
        let expected = [("app", "tea"), ("note", "a \"b\"\n\u{e9}=1")];
        assert_eq!(parsed, expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    }

    #[test]
    fn missing_files_give_no_labels() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut warnings = Vec::new();
        assert!(PodMetadata::read(directory.path(), &mut warnings).labels.is_none());
        std::fs::create_dir_all(directory.path().join("etc/istio/pod")).expect("make the directory");
        std::fs::write(directory.path().join(LABELS), "a=\"b\"").expect("write labels");
        let pod = PodMetadata::read(directory.path(), &mut warnings);
        assert_eq!(pod.labels, Some(BTreeMap::from([("a".to_owned(), "b".to_owned())])));
        assert!(warnings.is_empty());
    }
}
