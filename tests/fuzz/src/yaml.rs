//! YAML texts at both readers: whenever the fast path reads a text, the complete parser must give the same documents.
//!
//! A text is a document of the cases or a sequence of random lines in the form of YAML. Most texts are mutated. A text
//! that the fast path does not read goes to the parser alone, which must not panic.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sluice_parse::yaml::{Limits, split_documents};

use crate::bytes::change_text;
use crate::memory_bound::within;
use crate::minimise::shrink;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::list;
use crate::turns;
use crate::violation::{Violation, violation};

/// Maximum number of changes of a text in one turn.
const MAX_CHANGES: usize = 4;
/// Maximum number of lines of a random text.
const MAX_LINES: usize = 12;

const DASHES: [&str; 10] = ["", "", "", "", "", "- ", "- ", "-   ", "- - ", "-"];
/// Keys that the fast path reads; two of them have the same text.
const KEYS: [&str; 16] = [
    "a: ", "b: ", "c: ", "d: ", "f-g: ", "h/i.j: ", "8: ", "yes: ", "1.0: ", "_: ", "k:  ", "l.m: ", "0x8: ", "2: ",
    "no: ", "N: ",
];
const ODD_KEYS: [&str; 14] =
    ["null: ", "~: ", ".inf: ", "<<: ", "k : ", "l:: ", "\"q\": ", "'q': ", "m:n: ", "? ", "a:", "...: ", "a", ": "];
/// Scalars that the fast path reads where they end the line.
const SCALARS: [&str; 46] = [
    "1",
    "0",
    "-1",
    "+1",
    "0x1f",
    "0o17",
    "017",
    "089",
    "0b11",
    "1_0",
    "1.50",
    "1e3",
    "-0.0",
    "1e400",
    ".5",
    "1.",
    "-.5",
    "18446744073709551616",
    "yes",
    "No",
    "on",
    "true",
    "~",
    "null",
    "Null",
    "text",
    "two words",
    "two  words",
    "a:b",
    "a#b",
    "it's",
    "'q'",
    "\"q\"",
    "\"\"",
    "''",
    "'a: b # c'",
    "=",
    "$a",
    "(a)",
    "/a/*",
    "^a$",
    "<a>",
    "2026-01-01T00:00:00Z",
    "10.0.0.1",
    "a|b>c",
    "a&b*c!",
];
/// Scalars that the fast path leaves to the parser, and texts that begin or end something else.
const ODD_SCALARS: [&str; 36] = [
    "", ".inf", "-.INF", ".nan", "a: b", "a:", ":a", "a #b", "#c", "'it''s'", "\"\\t\"", "'a' b", "\"a", "'", "- 1",
    "-", "--", "---", "...", "--- a", "%a", "@a", "`a", "&x y", "*x", "!!str 1", "!a", "|", ">-", "<<", "?", "? a",
    ",", "a, b", "a]", "[a",
];
/// Texts that stand in flow collections beside scalars.
const FLOW: [&str; 12] = [", ", ",", ": ", ":", " ", "", "[", "]", "{", "}", " #", "  "];
/// Ends of a line other than a line feed.
const ODD_ENDS: [&str; 6] = [" \n", "\n\n", "\n# c\n", "\n    # c\n", " # c\n", "\r\n"];
/// Characters that have a meaning in YAML, and some that the fast path leaves to the parser.
const CHARACTERS: [&str; 30] = [
    ":", "-", "#", ",", "[", "]", "{", "}", "'", "\"", "&", "*", "!", "|", ">", "%", "@", "`", "?", "~", " ", "  ",
    "\n", "\t", "\r", "\\", "\u{0}", "\u{85}", "\u{2028}", "\u{feff}",
];

/// Compares the readers until time is up. A turn is effective if the fast path reads a part of the text.
///
/// # Errors
/// The cases below `root` cannot be read.
pub fn run(run: &Run, root: &Path) -> Result<FuzzStatistics> {
    let documents = documents(root)?;
    let pieces: Vec<Vec<u8>> = documents.iter().map(|document| document.clone().into_bytes()).collect();
    let turn = |rng: &mut FuzzRng| {
        let text = text(&documents, &pieces, rng);
        let depth = if rng.once_in(4) { rng.below(8) } else { Limits::default().depth };
        compare(&text, &Limits { depth, ..Limits::default() })
    };
    Ok(turns::run(run, "YAML texts", turn))
}

/// A random text or one of the cases, with changes; `pieces` are inserted.
pub(crate) fn text(documents: &[String], pieces: &[Vec<u8>], rng: &mut FuzzRng) -> String {
    let mut text = if rng.once_in(2) { random_text(rng) } else { case_text(documents, rng) };
    if rng.once_in(4) {
        change_text(&mut text, pieces, rng, 1);
    } else {
        change_lines(&mut text, rng);
    }
    text
}

/// Whether the fast path reads a part of the text, or what the readers differ in.
pub(crate) fn compare(text: &str, limits: &Limits) -> Result<bool, Violation> {
    let mut is_read = false;
    for chunk in split_documents(text) {
        let both = within("YAML", chunk.text.len(), || chunk.parse_with_both_readers(limits))?;
        let Some([fast, complete]) = both else {
            within("YAML", chunk.text.len(), || drop(chunk.parse(limits)))?;
            continue;
        };
        is_read = true;
        if fast != complete {
            let mut lines: Vec<&str> = chunk.text.split_inclusive('\n').collect();
            shrink(&mut lines, |lines| differs(&lines.concat(), limits));
            let shown = format!("depth {}\n{fast:?}\n{complete:?}\n{}", limits.depth, lines.concat());
            return violation("the YAML readers give different documents", shown);
        }
    }
    Ok(is_read)
}

fn differs(text: &str, limits: &Limits) -> bool {
    let compared = split_documents(text).into_iter().filter_map(|chunk| chunk.parse_with_both_readers(limits));
    compared.into_iter().any(|[fast, complete]| fast != complete)
}

fn pick(of: &[&'static str], rng: &mut FuzzRng) -> &'static str {
    rng.choose(of).copied().unwrap_or_default()
}

/// One document of the cases, or several.
fn case_text(documents: &[String], rng: &mut FuzzRng) -> String {
    let count = if rng.once_in(8) { 1 + rng.below(3) } else { 1 };
    (0..count).filter_map(|_| rng.choose(documents)).map(String::as_str).collect()
}

/// Block mappings, or lines whose indents continue those of the lines before.
fn random_text(rng: &mut FuzzRng) -> String {
    let mut text = if rng.once_in(3) { "---\n".to_owned() } else { String::new() };
    if !rng.once_in(4) {
        block(&mut text, rng, 0, 4);
        return text;
    }
    let mut indent = 0_usize;
    for _ in 0..=rng.below(MAX_LINES) {
        indent = match rng.below(8) {
            0 => 0,
            1 => indent + 1,
            2 | 3 => indent + 2,
            4 => indent.saturating_sub(2),
            _ => indent,
        };
        text.push_str(&" ".repeat(indent));
        line(&mut text, rng);
    }
    text
}

/// Appends a mapping whose keys have the indent `indent`.
fn block(text: &mut String, rng: &mut FuzzRng, indent: usize, depth: usize) {
    for n in 0..=rng.below(3) {
        text.push_str(&" ".repeat(indent));
        entry(text, rng, n, indent, depth);
    }
}

/// Appends the `n`-th key of a mapping with its value.
fn entry(text: &mut String, rng: &mut FuzzRng, n: usize, indent: usize, depth: usize) {
    let key = KEYS.get((n * 5 + rng.below(5)) % KEYS.len()).copied().unwrap_or_default();
    match rng.below(4) {
        0 if depth > 0 => {
            text.push_str(key.trim_end());
            text.push_str(end(rng));
            let deeper = indent + 1 + rng.below(3);
            block(text, rng, deeper, depth - 1);
        }
        1 if depth > 0 => {
            text.push_str(key.trim_end());
            text.push_str(end(rng));
            let deeper = indent + rng.below(4);
            sequence(text, rng, deeper, depth - 1);
        }
        _ => {
            text.push_str(key);
            value(text, rng);
        }
    }
}

/// Appends a sequence of values and mappings.
fn sequence(text: &mut String, rng: &mut FuzzRng, indent: usize, depth: usize) {
    for _ in 0..=rng.below(3) {
        let dash = pick(&["- ", "- ", "-   "], rng);
        text.push_str(&" ".repeat(indent));
        text.push_str(dash);
        if rng.once_in(2) {
            value(text, rng);
            continue;
        }
        entry(text, rng, 0, indent + dash.len(), depth);
        for n in 1..=rng.below(3) {
            text.push_str(&" ".repeat(indent + dash.len()));
            entry(text, rng, n, indent + dash.len(), depth);
        }
    }
}

/// The end of a line.
fn end(rng: &mut FuzzRng) -> &'static str {
    if rng.once_in(8) { pick(&ODD_ENDS, rng) } else { "\n" }
}

/// Appends a value and the end of its line.
fn value(text: &mut String, rng: &mut FuzzRng) {
    match rng.below(16) {
        0..4 => flow(text, rng, 3),
        4 => text.push_str(pick(&ODD_SCALARS, rng)),
        _ => text.push_str(pick(&SCALARS, rng)),
    }
    text.push_str(end(rng));
}

/// Appends a line without its indent, in any form.
fn line(text: &mut String, rng: &mut FuzzRng) {
    text.push_str(pick(&DASHES, rng));
    text.push_str(pick(if rng.once_in(4) { &ODD_KEYS[..] } else { &KEYS[..] }, rng));
    if rng.once_in(6) {
        random_flow(text, rng);
        text.push_str(end(rng));
    } else {
        value(text, rng);
    }
}

/// Appends a flow collection.
fn flow(text: &mut String, rng: &mut FuzzRng, depth: usize) {
    let is_mapping = rng.once_in(2);
    text.push_str(if is_mapping { "{" } else { "[" });
    for n in 0..rng.below(4) {
        if n > 0 {
            text.push_str(if rng.once_in(6) { " ,  " } else { ", " });
        }
        if is_mapping {
            let odd = rng.once_in(16);
            text.push_str(if odd { pick(&ODD_KEYS, rng) } else { KEYS.get(n * 5).copied().unwrap_or_default() });
        }
        match rng.below(16) {
            0..4 if depth > 0 => flow(text, rng, depth - 1),
            4 => text.push_str(pick(&ODD_SCALARS, rng)),
            _ => text.push_str(pick(&SCALARS, rng)),
        }
    }
    text.push_str(if is_mapping { "}" } else { "]" });
}

/// Appends brackets, separators and scalars in any order.
fn random_flow(text: &mut String, rng: &mut FuzzRng) {
    text.push_str(pick(&["[", "{", "'", "\""], rng));
    for _ in 0..rng.below(8) {
        text.push_str(pick(if rng.once_in(2) { &FLOW[..] } else { &SCALARS[..] }, rng));
    }
    text.push_str(pick(&["]", "}", "'", "\"", ""], rng));
}

/// Changes lines in up to [`MAX_CHANGES`] places: removed, repeated, moved, indented, replaced, cut, or with inserted texts.
fn change_lines(text: &mut String, rng: &mut FuzzRng) {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    for _ in 0..rng.below(MAX_CHANGES + 1) {
        let (at, other) = (rng.below(lines.len()), rng.below(lines.len()));
        let Some(changed) = lines.get_mut(at) else { break };
        match rng.below(9) {
            0 => drop(lines.remove(at)),
            1 => {
                let repeated = changed.clone();
                lines.insert(other, repeated);
            }
            2 => lines.swap(at, other),
            3 => changed.insert_str(0, pick(&[" ", "  ", "    ", "- "], rng)),
            4 => {
                let indent = changed.len() - changed.trim_start_matches(' ').len();
                changed.drain(..indent.min(2));
            }
            5 => {
                changed.clear();
                changed.push_str(&" ".repeat(rng.below(8)));
                line(changed, rng);
            }
            6 => {
                let end = changed.find(": ").map_or(0, |colon| colon + 2);
                changed.truncate(end);
                value(changed, rng);
            }
            7 => insert(changed, pick(&CHARACTERS, rng), rng),
            _ => insert(changed, pick(if rng.once_in(2) { &ODD_SCALARS[..] } else { &SCALARS[..] }, rng), rng),
        }
    }
    *text = lines.concat();
}

/// Inserts `piece` before any character of a line.
fn insert(line: &mut String, piece: &str, rng: &mut FuzzRng) {
    let at = rng.below(line.chars().count());
    let at = line.char_indices().nth(at).map_or(0, |(index, _)| index);
    line.insert_str(at, piece);
}

/// The documents of all YAML files of the cases.
pub(crate) fn documents(root: &Path) -> Result<Vec<String>> {
    let mut documents = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in list(&directory)? {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
                documents.extend(split_documents(&text).iter().map(|chunk| chunk.text.to_owned()));
            }
        }
    }
    ensure!(!documents.is_empty(), "there are no YAML files in {}", root.display());
    Ok(documents)
}
