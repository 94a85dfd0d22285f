//! Mutated YAML texts: the fast path of the reader and the complete parser must give equal documents.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sluice_parse::yaml::{Chunk, Limits, split_documents};

use crate::bytes::change_text;
use crate::dice::Dice;
use crate::mesh::Finding;
use crate::run::{Run, Tally};
use crate::turns::{self, wrong};

/// Maximum number of changes of a text in one turn.
const MAX_CHANGES: usize = 4;

/// Mutates the documents of the cases below `root` until time is up. A turn is effective if the complete parser accepts
/// the text.
///
/// # Errors
/// The cases cannot be read.
pub fn run(run: &Run, root: &Path) -> Result<Tally> {
    let chunks = chunks(root)?;
    let pieces: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.clone().into_bytes()).collect();
    let turn = |dice: &mut Dice| {
        let mut text = dice.pick(&chunks).cloned().unwrap_or_default();
        change_text(&mut text, &pieces, dice, MAX_CHANGES);
        let mut accepted = false;
        for chunk in split_documents(&text) {
            accepted |= compare(&chunk)?;
        }
        Ok(accepted)
    };
    Ok(turns::run(run, "texts", turn))
}

/// Compares both readers on a chunk; whether the parser accepts it.
fn compare(chunk: &Chunk<'_>) -> Result<bool, Finding> {
    let limits = Limits::default();
    // JSON has a reader of its own, which accepts more: it does not reject duplicate keys, for example.
    let is_json = chunk.text.trim_start().starts_with('{');
    let read = chunk.parse(&limits);
    let parsed = chunk.parse_without_fast_path(&limits);
    if !is_json && read != parsed {
        return wrong("fast path and parser differ", format!("{read:?}\n{parsed:?}\n{}", chunk.text));
    }
    Ok(parsed.is_ok())
}

/// The documents of `input.yaml` of all cases.
fn chunks(root: &Path) -> Result<Vec<String>> {
    let list = |dir: &Path| -> Result<Vec<_>> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut chunks = Vec::new();
    for family in list(root)?.iter().filter(|path| path.is_dir()) {
        for case in list(family)? {
            let Ok(text) = std::fs::read_to_string(case.join("input.yaml")) else { continue };
            chunks.extend(split_documents(&text).iter().map(|chunk| chunk.text.to_owned()));
        }
    }
    ensure!(!chunks.is_empty(), "no cases below {}", root.display());
    Ok(chunks)
}
