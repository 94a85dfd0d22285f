//! Targets that read bytes, for coverage-guided fuzzing: libFuzzer changes the bytes and keeps those that reach new code.
//!
//! The first byte selects how the others are read: as the input itself, or as the choices of the generator that the target
//! has without coverage. The checks are the same. `sluice-fuzz-coverage` runs these targets in libFuzzer.

mod authorities;
mod json;
mod objects;
mod requests;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use sluice_parse::yaml::Limits;

use crate::rng::FuzzRng;
use crate::seeds::Seeds;
use crate::violation::{Violation, violation};
use crate::yaml;

/// Names of the targets.
pub const NAMES: [&str; 7] = ["json", "yaml", "objects", "xds", "csr", "jwt", "xfcc"];

/// Number of inputs of each generator in a corpus.
const GENERATED_SEEDS: u64 = 200;
/// Length of the inputs of generators in a corpus.
const GENERATED_BYTES: usize = 256;
/// Longest seed. Longer documents are left out, because libFuzzer prefers short inputs.
const MAX_SEED_BYTES: usize = 16 << 10;

/// Checks an input. Returns whether it is valid, or the violated rule.
type Check = Box<dyn Fn(u8, &[u8]) -> Result<bool, Violation> + Send + Sync>;

/// A target of coverage-guided fuzzing.
pub struct CoverageTarget {
    check: Check,
    /// Inputs to begin with: the first byte, and the others.
    seeds: Vec<(u8, Vec<u8>)>,
    /// Words that inputs contain, such as names of fields.
    words: BTreeSet<String>,
}

impl CoverageTarget {
    /// The target of that name, with seeds from the cases below `root`.
    ///
    /// # Errors
    /// There is no such target, or the cases cannot be read.
    pub fn new(name: &str, root: &Path) -> Result<Self> {
        // Targets live as long as the process.
        let seeds: &'static Seeds = Box::leak(Box::new(Seeds::read(root)?));
        match name {
            "json" => json::target(seeds),
            "yaml" => yaml_target(root),
            "objects" => objects::target(seeds, root),
            "xds" => requests::target(seeds),
            "csr" => authorities::csr(),
            "jwt" => authorities::jwt(seeds),
            "xfcc" => authorities::xfcc(seeds),
            _ => anyhow::bail!("there is no target {name}; the targets are {}", NAMES.join(", ")),
        }
    }

    /// Checks an input. Returns whether it is valid.
    ///
    /// # Errors
    /// The violated rule.
    pub fn run(&self, input: &[u8]) -> Result<bool, Violation> {
        match input.split_first() {
            Some((first, rest)) => (self.check)(*first, rest),
            None => Ok(false),
        }
    }

    /// The inputs to begin with.
    pub fn seeds(&self) -> impl Iterator<Item = Vec<u8>> {
        self.seeds.iter().map(|(first, rest)| [&[*first], rest.as_slice()].concat())
    }

    /// Writes the seeds into `directory`, one file for each, and the words as a dictionary of libFuzzer into `dictionary`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_corpus(&self, directory: &Path, dictionary: &Path) -> Result<()> {
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        for (number, seed) in self.seeds().enumerate() {
            let path = directory.join(format!("seed-{number}"));
            std::fs::write(&path, seed).with_context(|| format!("write {}", path.display()))?;
        }
        let quoted = |word: &String| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        let words: String = self.words.iter().map(|word| format!("\"{}\"\n", quoted(word))).collect();
        std::fs::write(dictionary, words).with_context(|| format!("write {}", dictionary.display()))
    }

    fn with_seeds(mut self, first: u8, seeds: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let short = seeds.into_iter().filter(|seed| seed.len() <= MAX_SEED_BYTES);
        self.seeds.extend(short.map(|seed| (first, seed)));
        self
    }

    /// Adds choices of a generator.
    fn with_choices(self, first: u8) -> Self {
        let choices = |seed: u64| {
            let mut rng = FuzzRng::new(seed, 0);
            (0..GENERATED_BYTES).map(|_| crate::bytes::byte(&mut rng)).collect()
        };
        self.with_seeds(first, (0..GENERATED_SEEDS).map(choices))
    }

    fn with_words<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        // libFuzzer reads words of up to 64 bytes.
        self.words.extend(words.into_iter().map(Into::into).filter(|word| (2..=64).contains(&word.len())));
        self
    }
}

/// A target without seeds.
fn of(check: impl Fn(u8, &[u8]) -> Result<bool, Violation> + Send + Sync + 'static) -> CoverageTarget {
    CoverageTarget { check: Box::new(check), seeds: Vec::new(), words: BTreeSet::new() }
}

/// The number of lines as YAML counts them: a carriage return alone ends a line.
fn count_lines(text: &str) -> usize {
    text.replace("\r\n", "\n").split(['\n', '\r']).count()
}

/// Text of YAML, at both readers. The first byte is the maximum nesting; from 128 the others are choices.
fn yaml_target(root: &Path) -> Result<CoverageTarget> {
    let documents = yaml::documents(root)?;
    let pieces: Vec<Vec<u8>> = documents.iter().map(|document| document.clone().into_bytes()).collect();
    let mut seeds = pieces.clone();
    seeds.push(b"a:\r\r\r\r  b: 1\n  c)d: [\n".to_vec());
    let check = move |first: u8, rest: &[u8]| {
        let limits = Limits { depth: usize::from(first % 128), ..Limits::default() };
        if first >= 128 {
            return yaml::compare(&yaml::text(&documents, &pieces, &mut FuzzRng::of_bytes(rest)), &limits);
        }
        let text = String::from_utf8_lossy(rest);
        let lines = count_lines(&text);
        for document in sluice_parse::yaml::parse_documents(&text, &limits) {
            let line = document.as_ref().map_or_else(|error| error.line, |document| document.line);
            if line == 0 || line > lines || document.is_ok_and(|document| document.value.is_null()) {
                return violation("a document is null, or on a line that the text does not have", text);
            }
        }
        yaml::compare(&text, &limits)
    };
    let words =
        ["---\n", "\n- ", ": ", "? ", "<<: *", "&a ", "*a", "!!binary ", "|2-\n", ">+\n", "%YAML 1.1\n", "...\n"];
    Ok(of(check).with_seeds(100, seeds).with_choices(228).with_words(words))
}
