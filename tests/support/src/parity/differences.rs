//! The known differences from the recorded resources: an exact list with reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::ads::{Kind, Protocol};

/// How a resource differs from the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceState {
    /// Its content differs.
    Differing,
    /// It is recorded but not served.
    Missing,
    /// It is served but not recorded.
    Extra,
    /// Only one of the two sides answers for the type.
    Unanswered,
}

impl DifferenceState {
    const ALL: [Self; 4] = [Self::Differing, Self::Missing, Self::Extra, Self::Unanswered];

    fn name(self) -> &'static str {
        match self {
            Self::Differing => "differing",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Unanswered => "unanswered",
        }
    }
}

/// A resource of one proxy that differs. As text: `PROXY TYPE STATE: NAME`, or `PROXY TYPE STATE over PROTOCOL: NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Name of the proxy in the case.
    pub proxy: String,
    /// Type of the resource.
    pub kind: Kind,
    /// How it differs.
    pub state: DifferenceState,
    /// Name of the resource; `*` for the type as a whole.
    pub name: String,
    /// The protocol over which it differs; both if none.
    pub protocol: Option<Protocol>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.proxy, self.kind.name(), self.state.name())?;
        if let Some(protocol) = self.protocol {
            write!(f, " over {}", protocol.name())?;
        }
        write!(f, ": {}", self.name)
    }
}

impl FromStr for Difference {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (head, name) = text.split_once(": ").with_context(|| format!("`{text}` has no `: NAME`"))?;
        let words: Vec<&str> = head.split(' ').collect();
        let (proxy, kind, state, protocol) = match words[..] {
            [proxy, kind, state] => (proxy, kind, state, None),
            [proxy, kind, state, "over", protocol] => (proxy, kind, state, Some(protocol)),
            _ => bail!("`{text}` is not `PROXY TYPE STATE: NAME` or `PROXY TYPE STATE over PROTOCOL: NAME`"),
        };
        let state = DifferenceState::ALL.into_iter().find(|candidate| candidate.name() == state);
        let protocol = match protocol {
            Some(word) => {
                let found = Protocol::ALL.into_iter().find(|candidate| candidate.name() == word);
                Some(found.with_context(|| format!("`{text}`: no protocol is called {word}"))?)
            }
            None => None,
        };
        Ok(Self {
            proxy: proxy.to_owned(),
            kind: Kind::named(kind).with_context(|| format!("`{text}`: no type is called {kind}"))?,
            state: state
                .with_context(|| format!("`{text}`: the state is not one of differing, missing, extra, unanswered"))?,
            name: name.to_owned(),
            protocol,
        })
    }
}

/// Differences of one case that have one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// `FAMILY/NN-SLUG`.
    case: String,
    /// Why they differ. `docs/features.md` defines the ids that it cites.
    reason: String,
    /// Each as the text of a [`Difference`].
    resources: Vec<String>,
}

/// The list in `tests/cases/differences.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownDifferences {
    entries: Vec<Entry>,
}

impl KnownDifferences {
    /// Reads the list.
    ///
    /// # Errors
    /// The file is invalid, a reason is empty, or a resource is listed twice.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let list = Self { entries: serde_json::from_str(text)? };
        let mut listed = BTreeSet::new();
        for entry in &list.entries {
            ensure!(!entry.reason.trim().is_empty(), "{}: a reason is empty", entry.case);
            for resource in &entry.resources {
                resource.parse::<Difference>().with_context(|| entry.case.clone())?;
                ensure!(listed.insert((&entry.case, resource)), "{}: {resource} is listed twice", entry.case);
            }
        }
        Ok(list)
    }

    /// A line for each resource that differs but is not listed, and for each that is listed but equal.
    pub fn violations(&self, report: &Report) -> Vec<String> {
        let found = differences(report);
        let listed = self.reasons();
        let mut out = Vec::new();
        for (case, resource) in &found {
            if !listed.contains_key(&(case.clone(), resource.clone())) {
                out.push(format!("{case}: {resource}: differs, and tests/cases/differences.json does not list it"));
            }
        }
        for (case, resource) in listed.keys() {
            if !found.contains(&(case.clone(), resource.clone())) {
                out.push(format!("{case}: {resource}: equal now; remove it from tests/cases/differences.json"));
            }
        }
        out
    }

    /// The content of the file after this run: reasons are kept, new differences have an empty reason.
    pub fn updated(&self, report: &Report) -> String {
        let reasons = self.reasons();
        let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for (case, resource) in differences(report) {
            let reason = reasons.get(&(case.clone(), resource.clone())).cloned().unwrap_or_default();
            groups.entry((case, reason)).or_default().push(resource);
        }
        let entries = groups.into_iter().map(|((case, reason), resources)| Entry { case, reason, resources });
        format!("{:#}\n", serde_json::json!(entries.collect::<Vec<_>>()))
    }

    fn reasons(&self) -> BTreeMap<(String, String), String> {
        let of = |entry: &Entry| {
            let (case, reason) = (entry.case.clone(), entry.reason.clone());
            entry.resources.clone().into_iter().map(move |resource| ((case.clone(), resource), reason.clone()))
        };
        self.entries.iter().flat_map(of).collect()
    }
}

/// Every difference of a run, with its case. A resource that differs over all protocols is one difference.
fn differences(report: &Report) -> BTreeSet<(String, String)> {
    let mut protocols: BTreeMap<(String, Difference), BTreeSet<Protocol>> = BTreeMap::new();
    for row in &report.rows {
        let result = &row.result;
        let mut add = |state: DifferenceState, name: &str| {
            let difference =
                Difference { proxy: row.proxy.clone(), kind: row.kind, state, name: name.to_owned(), protocol: None };
            let case = format!("{}/{}", row.family, row.case);
            protocols.entry((case, difference)).or_default().insert(row.protocol);
        };
        result.differing.keys().for_each(|name| add(DifferenceState::Differing, name));
        result.missing.iter().for_each(|name| add(DifferenceState::Missing, name));
        result.extra.iter().for_each(|name| add(DifferenceState::Extra, name));
        if result.note.is_some() {
            add(DifferenceState::Unanswered, "*");
        }
    }
    let mut out = BTreeSet::new();
    for ((case, difference), over) in protocols {
        if over.len() == Protocol::ALL.len() {
            out.insert((case, difference.to_string()));
        } else {
            let each = over.into_iter().map(|protocol| Difference { protocol: Some(protocol), ..difference.clone() });
            out.extend(each.map(|difference| (case.clone(), difference.to_string())));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::compare::Comparison;
    use super::super::report::Row;
    use super::*;

    const LIST: &str = r#"[
        {"case": "dns/01-a", "reason": "not served yet", "resources": ["web CDS missing: x|80", "web LDS extra over delta: l"]}
    ]"#;

    fn report(rows: &[(Protocol, Kind, &[&str], &[&str])]) -> Report {
        let row = |(protocol, kind, missing, extra): &(Protocol, Kind, &[&str], &[&str])| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let result = Comparison { missing: names(missing), extra: names(extra), ..Comparison::default() };
            let (family, case, proxy) = ("dns".to_owned(), "01-a".to_owned(), "web".to_owned());
            Row { family, case, proxy, protocol: *protocol, kind: *kind, result }
        };
        Report { rows: rows.iter().map(row).collect(), ..Report::default() }
    }

    #[test]
    fn list_is_exact() {
        let list = KnownDifferences::parse(LIST).expect("valid");
        let missing = |protocol| (protocol, Kind::Cds, &["x|80"][..], &[][..]);
        let extra = (Protocol::Delta, Kind::Lds, &[][..], &["l"][..]);
        let as_listed = [missing(Protocol::Sotw), missing(Protocol::Delta), extra];
        assert_eq!(list.violations(&report(&as_listed)), Vec::<String>::new());
        let one_more = [&as_listed[..], &[(Protocol::Sotw, Kind::Eds, &[][..], &["new"][..])]].concat();
        let violations = list.violations(&report(&one_more));
        assert!(violations.len() == 1 && violations[0].starts_with("dns/01-a: web EDS extra over sotw: new: differs"));
        let violations = list.violations(&report(&as_listed[..2]));
        assert!(violations.len() == 1 && violations[0].starts_with("dns/01-a: web LDS extra over delta: l: equal now"));
    }

    #[test]
    fn updated_list_keeps_reasons() {
        let list = KnownDifferences::parse(LIST).expect("valid");
        let missing = |protocol| (protocol, Kind::Cds, &["x|80", "y|80"][..], &[][..]);
        let updated = list.updated(&report(&[missing(Protocol::Sotw), missing(Protocol::Delta)]));
        let entries: Vec<Entry> = serde_json::from_str(&updated).expect("valid");
        let entries: Vec<_> = entries.iter().map(|entry| (entry.reason.as_str(), entry.resources.concat())).collect();
        assert_eq!(
            entries,
            [("", "web CDS missing: y|80".to_owned()), ("not served yet", "web CDS missing: x|80".into())]
        );
    }

    #[test]
    fn invalid_lists_are_errors() {
        let with = |reason: &str, resource: &str| {
            let entry = serde_json::json!([{"case": "a/b", "reason": reason, "resources": [resource]}]);
            KnownDifferences::parse(&entry.to_string())
        };
        assert!(with("why", "web CDS missing: x").is_ok());
        assert!(with(" ", "web CDS missing: x").is_err());
        assert!(with("why", "web CDS absent: x").is_err());
        assert!(with("why", "web CDS missing").is_err());
        assert!(with("why", "web XDS missing: x").is_err());
        assert!(with("why", "web CDS missing over udp: x").is_err());
    }
}
