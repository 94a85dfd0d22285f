//! Reads YAML and JSON text as JSON values, by the rules of Kubernetes tools.
//!
//! A text is split at `---` lines first, so that an invalid document does not affect its neighbours. Plain scalars follow
//! YAML 1.1 where Kubernetes does (`yes`, `0644`), whole numbers become integers, and mapping keys become strings. The
//! expansion of aliases is bounded.

mod build;
mod fast_path;
mod position;
mod scalar;

use std::fmt;
use std::panic::catch_unwind;

use granit_parser::{Event, Options, Parser};
use serde_json::Value;
use sluice_proto::json::{MAX_REASON_BYTES, Shortened};

use build::{BuildError, Builder};
use position::Positions;

pub use position::Position;

/// Limits for one document.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of the text.
    pub document_bytes: usize,
    /// Maximum number of bytes that anchors and aliases copy.
    pub alias_bytes: usize,
    /// Maximum nesting.
    pub depth: usize,
    /// Whether the last one of equal keys applies, as in Istio's templates. Otherwise, equal keys are an error.
    pub allows_duplicate_keys: bool,
}

impl Default for Limits {
    /// 64 MiB of text, because a list of many objects is one document; 1 MiB of aliases; 100 levels.
    fn default() -> Self {
        Self { document_bytes: 64 << 20, alias_bytes: 1 << 20, depth: 100, allows_duplicate_keys: false }
    }
}

/// One document of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Line where the content begins, counted from 1.
    pub line: usize,
    /// The content. It is never `null`: empty documents are left out.
    pub value: Value,
}

/// A syntax error, or a limit that is exceeded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SyntaxError {
    /// Line in the text, counted from 1.
    pub line: usize,
    /// Column in the line, counted from 1; 0 if unknown.
    pub column: usize,
    /// What is wrong, a lower-case fragment.
    pub reason: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if self.column > 0 {
            write!(f, ", column {}", self.column)?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for SyntaxError {}

/// The text between two `---` lines: usually one document. Lines with `...` or the braces of JSON texts separate several.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chunk<'t> {
    /// Line of the whole text where the chunk begins, counted from 1.
    pub line: usize,
    /// The text, with its `---` line.
    pub text: &'t str,
}

impl Chunk<'_> {
    /// Parses the documents of the chunk.
    ///
    /// # Errors
    /// The text does not parse or exceeds a limit. The line is that of the whole text.
    pub fn parse(&self, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
        let length = self.text.len();
        if length > limits.document_bytes {
            let reason = format!("a document of {length} bytes exceeds the limit of {} bytes", limits.document_bytes);
            return Err(SyntaxError { line: self.line, column: 0, reason });
        }
        // A text that makes a parser panic, which is a bug, must not affect others.
        catch_unwind(|| self.parse_text(limits)).unwrap_or_else(|_| {
            let reason = "the parser panicked, which is a bug: please report it".to_owned();
            Err(SyntaxError { line: self.line, column: 0, reason })
        })
    }

    fn parse_text(&self, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
        let json = if self.text.trim_start().starts_with('{') { parse_json(self.text) } else { None };
        let fast = || fast_path::parse(self.text, limits).map(|document| vec![document]);
        let mut documents = match json.or_else(fast) {
            Some(documents) => documents,
            None => return self.parse_without_fast_path(limits),
        };
        documents.iter_mut().for_each(|document| document.line += self.line - 1);
        Ok(documents)
    }

    /// The results of the fast path and of the complete YAML parser; `None` if the fast path does not read the chunk.
    /// Tests and the fuzz target `yaml` check that both are equal.
    #[must_use]
    pub fn parse_with_both_readers(&self, limits: &Limits) -> Option<[Result<Vec<Document>, SyntaxError>; 2]> {
        let mut document = fast_path::parse(self.text, limits)?;
        document.line += self.line - 1;
        Some([Ok(vec![document]), self.parse_without_fast_path(limits)])
    }

    fn parse_without_fast_path(&self, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
        let mut documents = parse_events(self.text, limits).map_err(|error| self.within_text(error))?;
        documents.iter_mut().for_each(|document| document.line += self.line - 1);
        Ok(documents)
    }

    /// The error with the line of the whole text.
    fn within_text(&self, error: SyntaxError) -> SyntaxError {
        SyntaxError { line: error.line + self.line - 1, ..error }
    }
}

/// The documents of a YAML or JSON text in order, each one a value or an error.
#[must_use]
pub fn parse_documents(text: &str, limits: &Limits) -> Vec<Result<Document, SyntaxError>> {
    let mut documents = Vec::new();
    for chunk in split_documents(text) {
        match chunk.parse(limits) {
            Ok(parsed) => documents.extend(parsed.into_iter().map(Ok)),
            Err(error) => documents.push(Err(error)),
        }
    }
    documents
}

/// The value of a text with a single document; `null` if the text is empty.
///
/// # Errors
/// The text does not parse or contains more than one document.
pub fn parse_value(text: &str, limits: &Limits) -> Result<Value, SyntaxError> {
    let mut documents = parse_documents(text, limits).into_iter();
    let Some(first) = documents.next() else { return Ok(Value::Null) };
    let first = first?;
    match documents.next() {
        None => Ok(first.value),
        Some(Err(error)) => Err(error),
        Some(Ok(second)) => {
            let reason = "expected one document, found a second one".to_owned();
            Err(SyntaxError { line: second.line, column: 0, reason })
        }
    }
}

/// The position of a field of the document that begins on line `document`, or of its nearest enclosing field.
///
/// `path` is a field path such as `spec.http[0].route`. It may continue into a document in a block scalar, such as the
/// `MeshConfig` in a ConfigMap. The function parses the text again, so call it only for reported fields.
#[must_use]
pub fn find_position(text: &str, document: usize, path: &str) -> Position {
    let begin = Position { line: document, column: 1 };
    find_positions(text, document, &[path]).pop().unwrap_or(begin)
}

/// The positions of several fields of one document, as by [`find_position`]. The text is parsed once.
#[must_use]
pub fn find_positions(text: &str, document: usize, paths: &[&str]) -> Vec<Position> {
    let begin = Position { line: document, column: 1 };
    let chunk = split_documents(text).into_iter().rfind(|chunk| chunk.line <= document);
    let Some(positions) = chunk.and_then(|chunk| read_positions(chunk, document, paths)) else {
        return vec![begin; paths.len()];
    };
    let find = |path: &&str| {
        let Some((position, known, rest)) = positions.nearest(path) else { return begin };
        match positions.block(known) {
            Some((first, block)) if !rest.is_empty() => {
                let content = |line: &&str| !line.trim().is_empty();
                let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
                let outer = text.lines().skip(first - 1).find(content).map_or(0, indent);
                let inner = block.lines().find(content).map_or(0, indent);
                let document = block.lines().position(has_content).map_or(1, |n| n + 1);
                let within = find_position(block, document, rest);
                Position { line: first - 1 + within.line, column: within.column + outer.saturating_sub(inner) }
            }
            _ => position,
        }
    };
    paths.iter().map(find).collect()
}

/// The positions of the fields of the document that begins on line `document`; `None` if the chunk does not parse.
fn read_positions<'p>(chunk: Chunk<'_>, document: usize, paths: &[&'p str]) -> Option<Positions<'p>> {
    let (mut positions, mut begun) = (Positions::of(paths), false);
    let read = read_events(chunk.text, |event, at| {
        let at = Position { line: at.line + chunk.line - 1, ..at };
        begun |= event.is_node() && at.line == document;
        if begun {
            positions.event(&event, at);
        }
        // A later document of the same chunk, after `...`, is another one.
        begun &= !matches!(event, Event::DocumentEnd);
        Ok(())
    });
    read.is_ok().then_some(positions)
}

/// Parses the documents of a chunk in any form of YAML.
fn parse_events(chunk: &str, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
    let mut builder = Builder::new(limits);
    read_events(chunk, |event, at| builder.event(event, at.line))?;
    Ok(builder.into_documents())
}

/// Parses a sequence of JSON texts; `None` if the text is not JSON, because it may be YAML in flow style.
fn parse_json(text: &str) -> Option<Vec<Document>> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut documents = Vec::new();
    let (mut line, mut counted) = (1, 0);
    loop {
        let rest = &text[stream.byte_offset()..];
        let start = stream.byte_offset() + rest.len() - rest.trim_start().len();
        let Some(value) = stream.next() else { return Some(documents) };
        let value = value.ok()?;
        line += count_lines(&text[counted..start]);
        counted = start;
        if !value.is_null() {
            documents.push(Document { line, value });
        }
    }
}

fn count_lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// Splits a text at `---` lines, each of which belongs to the chunk after it. Chunks without content are left out.
#[must_use]
pub fn split_documents(text: &str) -> Vec<Chunk<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut line) = (0, 1, 1);
    let mut offset = 0;
    for raw in text.split_inclusive('\n') {
        let separator = raw.strip_prefix("---");
        if separator.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])) && offset > start
        {
            chunks.push(Chunk { line: start_line, text: &text[start..offset] });
            (start, start_line) = (offset, line);
        }
        offset += raw.len();
        line += 1;
    }
    chunks.push(Chunk { line: start_line, text: &text[start..] });
    // Directives and comments before a separator are a separate chunk.
    chunks.retain(|chunk| chunk.text.lines().any(has_content));
    chunks
}

/// Whether a line has content other than a comment or a directive.
fn has_content(line: &str) -> bool {
    !matches!(line.trim_start().bytes().next(), None | Some(b'#' | b'%'))
}

/// The reason, which may quote the text.
fn shortened(reason: &impl fmt::Display) -> String {
    Shortened::of(reason, MAX_REASON_BYTES)
}

/// Passes every event of a chunk to `take`, with its position in the chunk.
fn read_events<'t>(
    chunk: &'t str,
    mut take: impl FnMut(Event<'t>, Position) -> Result<(), BuildError>,
) -> Result<(), SyntaxError> {
    let mut options = Options::default();
    options.emit_comments = false;
    let mut parser = Parser::new_from_str_with_options(chunk, options);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| {
            let marker = error.marker();
            SyntaxError { line: marker.line().max(1), column: marker.col() + 1, reason: shortened(&error.info()) }
        })?;
        let (is_end, start) = (matches!(event, Event::StreamEnd), span.start);
        let at = Position { line: start.line(), column: start.col() + 1 };
        let taken = take(event, at);
        taken.map_err(|error| SyntaxError { line: at.line, column: at.column, reason: shortened(&error) })?;
        if is_end {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
