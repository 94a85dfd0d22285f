//! YAML and JSON text to JSON values, read the way Kubernetes tools read them.
//!
//! Text is cut at `---` lines first, so that a document that does not parse never hides its neighbours. Plain scalars
//! follow YAML 1.1 where Kubernetes does (`yes`, `0644`), numbers that are whole become integers, mapping keys become
//! text. What aliases expand to is bounded, so that a small text cannot become a big value.

mod build;
mod position;
mod scalar;
mod simple;

use std::fmt;

use granit_parser::{Event, Options, Parser};
use serde_json::Value;

use build::Builder;
use position::Positions;

pub use position::Position;

/// How much one document may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text of one document.
    pub document_bytes: usize,
    /// Bytes that the aliases of one document may expand to, counted as they are copied.
    pub alias_bytes: usize,
    /// Levels of nesting.
    pub depth: usize,
}

impl Default for Limits {
    /// 64 MiB a document, for a list of many objects may be one; 1 MiB of aliases; 100 levels.
    fn default() -> Self {
        Self { document_bytes: 64 << 20, alias_bytes: 1 << 20, depth: 100 }
    }
}

/// One document of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Line its content begins on, counted from 1.
    pub line: usize,
    /// Its content; never `null`, empty documents are left out.
    pub value: Value,
}

/// Why a text is no document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SyntaxError {
    /// Line within the text, counted from 1.
    pub line: usize,
    /// Column within the line, counted from 1; 0 if unknown.
    pub column: usize,
    /// What is wrong there, a lower-case fragment.
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

/// The text of one document of a stream, or of several that nothing but `...` or JSON's own braces divides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chunk<'t> {
    /// Line of the whole text it begins on, counted from 1.
    pub line: usize,
    /// The text, its `---` line included.
    pub text: &'t str,
}

impl Chunk<'_> {
    /// Its documents.
    ///
    /// # Errors
    /// The text does not parse, or is beyond a limit; the line counts within the whole text.
    pub fn parse(&self, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
        let length = self.text.len();
        if length > limits.document_bytes {
            let reason = format!("document of {length} bytes, the limit is {}", limits.document_bytes);
            return Err(SyntaxError { line: self.line, column: 0, reason });
        }
        let json = if self.text.trim_start().starts_with('{') { parse_json(self.text) } else { None };
        let simple = || simple::parse(self.text, limits).map(|document| vec![document]);
        let mut documents = match json.or_else(simple) {
            Some(documents) => documents,
            None => parse_events(self.text, limits).map_err(|mut error| {
                error.line += self.line - 1;
                error
            })?,
        };
        for document in &mut documents {
            document.line += self.line - 1;
        }
        Ok(documents)
    }
}

/// The documents of a YAML or JSON text in order, each a value or why it is none.
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

/// The one value of a text, `null` if it is empty.
///
/// # Errors
/// The text does not parse, or holds more than one document.
pub fn parse_value(text: &str, limits: &Limits) -> Result<Value, SyntaxError> {
    let mut documents = parse_documents(text, limits).into_iter();
    let Some(first) = documents.next() else { return Ok(Value::Null) };
    let first = first?;
    match documents.next() {
        None => Ok(first.value),
        Some(Err(error)) => Err(error),
        Some(Ok(second)) => {
            let reason = "a second document, expected one".to_owned();
            Err(SyntaxError { line: second.line, column: 0, reason })
        }
    }
}

/// The place of a field of the document that begins on line `document`, or of the nearest field around it.
///
/// `path` is a field path such as `spec.http[0].route`; within a document that stands in a block of text, as a mesh config
/// does in its ConfigMap, the path goes on. Reads the text again: meant for what is reported, not for every object.
#[must_use]
pub fn find_position(text: &str, document: usize, path: &str) -> Position {
    let begin = Position { line: document, column: 1 };
    let Some(Chunk { line: first_line, text: chunk }) =
        split_documents(text).into_iter().rfind(|chunk| chunk.line <= document)
    else {
        return begin;
    };
    let (mut positions, mut begun) = (Positions::default(), false);
    let read = read_events(chunk, |event, at| {
        let at = Position { line: at.line + first_line - 1, ..at };
        begun |= event.is_node() && at.line == document;
        if begun {
            positions.event(&event, at);
        }
        // Another document of the same chunk, after `...`, is not the one asked for.
        begun &= !matches!(event, Event::DocumentEnd);
        Ok(())
    });
    if read.is_err() {
        return begin;
    }
    let Some((place, known, rest)) = positions.nearest(path) else { return begin };
    match positions.block(known) {
        Some((first, block)) if !rest.is_empty() => {
            let content = |line: &&str| !line.trim().is_empty();
            let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
            let outer = text.lines().skip(first - 1).find(content).map_or(0, indent);
            let inner = block.lines().find(content).map_or(0, indent);
            let document = block.lines().position(says_something).map_or(1, |n| n + 1);
            let within = find_position(block, document, rest);
            Position { line: first - 1 + within.line, column: within.column + outer.saturating_sub(inner) }
        }
        _ => place,
    }
}

/// The documents of a chunk, whatever is in it.
fn parse_events(chunk: &str, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
    let mut builder = Builder::new(limits);
    read_events(chunk, |event, at| builder.event(event, at.line))?;
    Ok(builder.into_documents())
}

/// JSON texts one after the other; `None` if the text is not JSON, for it may still be YAML in flow style.
fn parse_json(text: &str) -> Option<Vec<Document>> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut documents = Vec::new();
    loop {
        let rest = &text[stream.byte_offset()..];
        let start = stream.byte_offset() + rest.len() - rest.trim_start().len();
        let Some(value) = stream.next() else { return Some(documents) };
        let value = value.ok()?;
        if !value.is_null() {
            documents.push(Document { line: count_lines(&text[..start]) + 1, value });
        }
    }
}

fn count_lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// Cuts a text at `---` lines, which belong to what follows them, and leaves out chunks with nothing to read.
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
    // Directives and comments before a separator are a chunk of their own.
    chunks.retain(|chunk| chunk.text.lines().any(says_something));
    chunks
}

/// Whether a line is more than a comment or a directive.
fn says_something(line: &str) -> bool {
    !matches!(line.trim_start().bytes().next(), None | Some(b'#' | b'%'))
}

/// Hands every event of a chunk to `take`, with its place counted from the chunk's first line, 1.
fn read_events<'t>(
    chunk: &'t str,
    mut take: impl FnMut(Event<'t>, Position) -> Result<(), String>,
) -> Result<(), SyntaxError> {
    let mut options = Options::default();
    options.emit_comments = false;
    let mut parser = Parser::new_from_str_with_options(chunk, options);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| {
            let marker = error.marker();
            SyntaxError { line: marker.line().max(1), column: marker.col() + 1, reason: error.info() }
        })?;
        let (is_end, start) = (matches!(event, Event::StreamEnd), span.start);
        let at = Position { line: start.line(), column: start.col() + 1 };
        take(event, at).map_err(|reason| SyntaxError { line: at.line, column: at.column, reason })?;
        if is_end {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod simple_tests;
#[cfg(test)]
mod tests;
