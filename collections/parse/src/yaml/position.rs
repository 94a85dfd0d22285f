//! Where the fields of a document stand in its text.

use std::collections::BTreeMap;

use granit_parser::{Event, ScalarStyle};

use super::build::{key_text, resolve};

/// A place in a text, both counted from 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// An open collection and the path to it.
enum Frame {
    Sequence { path: String, next: usize },
    Mapping { path: String, key: Option<String> },
}

/// Notes the place of each field of one document, by its path.
#[derive(Default)]
pub(super) struct Positions {
    stack: Vec<Frame>,
    places: BTreeMap<String, Position>,
    /// Texts written as blocks, which may hold documents of their own: the first line of the text, and the text.
    blocks: BTreeMap<String, (usize, String)>,
}

impl Positions {
    /// The place of a field, or of the nearest field around it, and what of the path that leaves.
    pub(super) fn nearest<'p>(&self, path: &'p str) -> Option<(Position, &'p str, &'p str)> {
        let mut known = path;
        loop {
            if let Some(place) = self.places.get(known) {
                return Some((*place, known, path[known.len()..].trim_start_matches('.')));
            }
            known = &known[..known.rfind(['.', '['])?];
        }
    }

    /// The text written as a block in that field: the line it begins on, and the text.
    pub(super) fn block(&self, path: &str) -> Option<(usize, &str)> {
        self.blocks.get(path).map(|(line, text)| (*line, text.as_str()))
    }

    /// Takes one event of the place given. Paths are those of field paths: `spec.http[0].match`.
    pub(super) fn event(&mut self, event: &Event<'_>, at: Position) {
        match event {
            Event::Scalar(text, style, _, tag) => {
                if let Some(Frame::Mapping { path, key: key @ None }) = self.stack.last_mut() {
                    let name = resolve(text, *style, tag.as_deref()).and_then(key_text).unwrap_or_default();
                    // Keys of maps are written in brackets, names of fields after a dot.
                    let field = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    if !path.is_empty() {
                        self.places.insert(format!("{path}[{name}]"), at);
                    }
                    self.places.insert(field.clone(), at);
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

    /// The path of the value that begins here.
    fn enter(&mut self, at: Position) -> String {
        match self.stack.last_mut() {
            None => String::new(),
            Some(Frame::Mapping { key, .. }) => key.take().unwrap_or_default(),
            Some(Frame::Sequence { path, next }) => {
                let item = format!("{path}[{next}]");
                *next += 1;
                self.places.insert(item.clone(), at);
                item
            }
        }
    }
}
