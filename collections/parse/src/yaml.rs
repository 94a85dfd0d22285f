//! YAML and JSON text to JSON values, read the way Kubernetes tools read them.
//!
//! Text is cut at `---` lines first, so that a document that does not parse never hides its neighbours. Plain scalars
//! follow YAML 1.1 where Kubernetes does (`yes`, `0644`), numbers that are whole become integers, mapping keys become
//! text. What aliases expand to is bounded, so that a small text cannot become a big value.

mod build;
mod position;
mod scalar;

use std::fmt;

use granit_parser::{Event, Options, Parser};
use serde_json::Value;

use build::Builder;
use position::Positions;

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
    /// 8 MiB a document (an API server holds at most 3 MiB an object), 1 MiB of aliases, 100 levels.
    fn default() -> Self {
        Self { document_bytes: 8 << 20, alias_bytes: 1 << 20, depth: 100 }
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

/// The documents of a YAML or JSON text in order, each a value or why it is none.
#[must_use]
pub fn parse_documents(text: &str, limits: &Limits) -> Vec<Result<Document, SyntaxError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{')
        && let Some(documents) = parse_json(text)
    {
        return documents.into_iter().map(Ok).collect();
    }
    let mut documents = Vec::new();
    for (first_line, chunk) in split_documents(text) {
        if chunk.len() > limits.document_bytes {
            let reason = format!("document of {} bytes, the limit is {}", chunk.len(), limits.document_bytes);
            documents.push(Err(SyntaxError { line: first_line, column: 0, reason }));
            continue;
        }
        let mut builder = Builder::new(limits);
        match read_events(chunk, |event, line| builder.event(event, line)) {
            Ok(()) => documents.extend(builder.into_documents().into_iter().map(|mut document| {
                document.line += first_line - 1;
                Ok(document)
            })),
            Err(mut error) => {
                error.line += first_line - 1;
                documents.push(Err(error));
            }
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

/// The line of a field of the document that begins on line `document`, or of the nearest field around it.
///
/// `path` is a field path such as `spec.http[0].route`. Reads the text again: meant for what is reported, not for every
/// object.
#[must_use]
pub fn find_line(text: &str, document: usize, path: &str) -> usize {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some((first_line, chunk)) = split_documents(text).into_iter().rfind(|(first_line, _)| *first_line <= document)
    else {
        return document;
    };
    let (mut positions, mut begun) = (Positions::default(), false);
    let read = read_events(chunk, |event, line| {
        begun |= event.is_node() && line + first_line - 1 == document;
        if begun {
            positions.event(&event, line + first_line - 1);
        }
        // Another document of the same chunk, after `...`, is not the one asked for.
        begun &= !matches!(event, Event::DocumentEnd);
        Ok(())
    });
    let lines = if read.is_ok() { positions.into_lines() } else { return document };
    let mut path = path;
    loop {
        if let Some(line) = lines.get(path) {
            return *line;
        }
        match path.rfind(['.', '[']) {
            Some(end) => path = &path[..end],
            None => return document,
        }
    }
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

/// The text between `---` lines, each with the number of its first line. A separator belongs to what follows it.
fn split_documents(text: &str) -> Vec<(usize, &str)> {
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut line) = (0, 1, 1);
    let mut offset = 0;
    for raw in text.split_inclusive('\n') {
        let is_separator =
            raw.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if is_separator && offset > start {
            chunks.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, line);
        }
        offset += raw.len();
        line += 1;
    }
    chunks.push((start_line, &text[start..]));
    // Directives and comments before a separator are a chunk of their own, with nothing to read in it.
    chunks.retain(|(_, chunk)| {
        chunk.lines().any(|line| !matches!(line.trim_start().bytes().next(), None | Some(b'#' | b'%')))
    });
    chunks
}

/// Hands every event of a chunk to `take`, with its line counted from the chunk's first, 1.
fn read_events<'t>(
    chunk: &'t str,
    mut take: impl FnMut(Event<'t>, usize) -> Result<(), String>,
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
        take(event, start.line()).map_err(|reason| SyntaxError {
            line: start.line(),
            column: start.col() + 1,
            reason,
        })?;
        if is_end {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
