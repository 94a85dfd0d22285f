//! Checks words in names and texts (CONTRIBUTING.md): plain technical English, and the type names of the field.

use super::{files, root};

/// Words that name a machine or a caller as a person. They are compared without regard to case, and parts of
/// identifiers count as words.
const PERSONS: [&str; 9] = ["he", "him", "his", "himself", "whoever", "nobody", "somebody", "anybody", "everybody"];

/// Phrases for which the field has a term.
const PHRASES: [&str; 5] = ["in doubt", "turned away", "says who it is", "lies over", "gardener"];

/// Former names of types that are now named as in Envoy, Kubernetes and differential dataflow.
const TYPE_NAMES: [&str; 27] = [
    "Seat",
    "Sight",
    "Cut",
    "Rope",
    "Roster",
    "Stamp",
    "Engineer",
    "Feedstock",
    "Seen",
    "Found",
    "Wanted",
    "Asked",
    "Told",
    "Said",
    "Had",
    "Got",
    "Thing",
    "Place",
    "Manner",
    "Wish",
    "Wishes",
    "Siege",
    "Town",
    "Crew",
    "Crowd",
    "Dice",
    "Impostor",
];

#[test]
fn words_are_those_of_the_field() {
    let mut findings: Vec<String> = Vec::new();
    for file in files() {
        let name = file.display().to_string();
        let rust = name.ends_with(".rs");
        if !rust && !name.ends_with(".md") || name == "tests/tidy/vocabulary.rs" {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&file)).expect("read a source file");
        for (number, line) in text.lines().enumerate() {
            for word in banned(line, rust) {
                findings.push(format!("{name}:{}: {word}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

fn banned(line: &str, rust: bool) -> Vec<&'static str> {
    let mut out = Vec::new();
    for word in line.split(|c: char| !c.is_ascii_alphanumeric()) {
        out.extend(PERSONS.iter().filter(|person| word.eq_ignore_ascii_case(person)));
    }
    out.extend(PHRASES.iter().filter(|phrase| line.contains(**phrase)));
    if rust {
        let code = line.split("//").next().unwrap_or_default();
        let quoted = |index: usize| code[..index].matches('"').count() % 2 == 1;
        for (index, word) in words(code) {
            // Envoy's name of status 302.
            let envoys = code[..index].ends_with("RedirectResponseCode::");
            out.extend(TYPE_NAMES.iter().filter(|name| word == **name && !quoted(index) && !envoys));
        }
    }
    out
}

/// Identifiers with their positions.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let parts = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.map(move |part| (part.as_ptr() as usize - code.as_ptr() as usize, part))
}

#[test]
fn words_are_found_as_words() {
    assert_eq!(banned("/// What he holds, his own.", true), ["he", "his"]);
    assert_eq!(banned("fn nobody_is_served() {}", true), ["nobody"]);
    assert!(banned("the cache, this history, \"Seat\"", true).is_empty());
    assert_eq!(banned("let seat = Seat::default(); // Cut off", true), ["Seat"]);
}
