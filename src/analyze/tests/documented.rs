//! Compares the table of codes in `docs/analyze.md` with the code.

use std::collections::BTreeSet;

use sluice_analyze::{ANALYZERS, MESSAGE_TYPES, OPTIONAL_ANALYZERS, OTHER_CODES};

/// Number of the codes of istioctl.
const ALL_CODES: usize = 68;

#[test]
fn documented_codes_are_those_of_the_analyzers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/analyze.md");
    let document = std::fs::read_to_string(path).expect("docs/analyze.md");
    let documented: BTreeSet<&str> = document.lines().filter(|line| line.starts_with("| IST")).collect();
    let mut expected = BTreeSet::new();
    for known in MESSAGE_TYPES {
        expected.insert(format!("| {} | {} | {} | implemented |", known.code, known.name, known.level));
    }
    for known in OTHER_CODES {
        expected.insert(format!("| {} | {} |  | {} |", known.code, known.name, known.state));
    }
    assert_eq!(documented, expected.iter().map(String::as_str).collect());
}

#[test]
fn each_code_has_an_analyzer() {
    let of_analyzers: BTreeSet<&str> =
        ANALYZERS.iter().chain(OPTIONAL_ANALYZERS).flat_map(|analyzer| analyzer.codes).copied().collect();
    let all: BTreeSet<&str> = MESSAGE_TYPES.iter().map(|known| known.code).collect();
    assert_eq!(of_analyzers, all);
    assert_eq!(all.len() + OTHER_CODES.len(), ALL_CODES);
    assert!(ANALYZERS.is_sorted_by_key(|analyzer| analyzer.name));
}
