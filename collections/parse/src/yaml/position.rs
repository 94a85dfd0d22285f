//! Positions of the fields of a document in its text.

use std::collections::BTreeMap;

use granit_parser::{Event, ScalarStyle};

use super::build::{key_text, resolve};

/// A position in a text; line and column are counted from 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// An open collection and its path.
enum Frame {
    Sequence { path: String, next: usize },
    Mapping { path: String, key: Option<String> },
}

/// Positions of the fields of one document, by path.
#[derive(Default)]
pub(super) struct Positions {
    stack: Vec<Frame>,
    positions: BTreeMap<String, Position>,
    /// Block scalars, which may contain documents: the line where the text begins, and the text.
    blocks: BTreeMap<String, (usize, String)>,
}

impl Positions {
    /// The position of a field or of its nearest enclosing field, the path of that field, and the rest of `path`.
    pub(super) fn nearest<'p>(&self, path: &'p str) -> Option<(Position, &'p str, &'p str)> {
        let mut known = path;
        loop {
            if let Some(position) = self.positions.get(known) {
                return Some((*position, known, path[known.len()..].trim_start_matches('.')));
            }
            known = &known[..known.rfind(['.', '['])?];
        }
    }

    /// The block scalar at `path`: the line where it begins, and its text.
    pub(super) fn block(&self, path: &str) -> Option<(usize, &str)> {
        self.blocks.get(path).map(|(line, text)| (*line, text.as_str()))
    }

    /// Processes an event at a position. Paths have the form `spec.http[0].match`.
    pub(super) fn event(&mut self, event: &Event<'_>, at: Position) {
        match event {
            Event::Scalar(text, style, _, tag) => {
                if let Some(Frame::Mapping { path, key: key @ None }) = self.stack.last_mut() {
                    let name = resolve(text, *style, tag.as_deref()).and_then(key_text).unwrap_or_default();
                    // A field path has keys of maps in brackets and names of fields after a dot. This may be either.
                    let field = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    if !path.is_empty() {
                        self.positions.insert(format!("{path}[{name}]"), at);
                    }
                    self.positions.insert(field.clone(), at);
                    *key = Some(field);
                } else {
                    let path = self.enter(at);
                    if *style == ScalarStyle::Literal {
                        self.blocks.insert(path, (at.line, text.to_string()));
                    }
                }
            }
            Event::Alias(_) => drop(self.enter(at)),
            Event::SequenceStart(..) => {
                let path = self.enter(at);
                self.stack.push(Frame::Sequence { path, next: 0 });
            }
            Event::MappingStart(..) => {
                let path = self.enter(at);
                self.stack.push(Frame::Mapping { path, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => drop(self.stack.pop()),
            _ => {}
        }
    }

    /// The path of the value that begins at this position.
    fn enter(&mut self, at: Position) -> String {
        match self.stack.last_mut() {
            None => String::new(),
            Some(Frame::Mapping { key, .. }) => key.take().unwrap_or_default(),
            Some(Frame::Sequence { path, next }) => {
                let item = format!("{path}[{next}]");
                *next += 1;
                self.positions.insert(item.clone(), at);
                item
            }
        }
    }
}
