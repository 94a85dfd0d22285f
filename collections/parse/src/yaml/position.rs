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

/// An open collection. Its path is `None` if no wanted path continues it.
enum Frame<'p> {
    Sequence { path: Option<&'p str>, next: usize },
    Mapping { path: Option<&'p str>, key: Option<Option<&'p str>> },
}

/// What is known of the field at a path.
#[derive(Default)]
struct PathPosition {
    position: Option<Position>,
    /// A block scalar, which may contain a document: the line where the text begins, and the text.
    block: Option<(usize, String)>,
}

/// Positions of the fields of one document that are on the wanted paths. Other fields cost no memory.
pub(super) struct Positions<'p> {
    stack: Vec<Frame<'p>>,
    /// The wanted paths and all their beginnings.
    places: BTreeMap<&'p str, PathPosition>,
}

impl<'p> Positions<'p> {
    pub(super) fn of(paths: &[&'p str]) -> Self {
        let beginnings = paths.iter().flat_map(|path| beginnings(path)).chain([""]);
        Self { stack: Vec::new(), places: beginnings.map(|path| (path, PathPosition::default())).collect() }
    }

    /// The position of a wanted field or of its nearest enclosing field, the path of that field, and the rest of `path`.
    pub(super) fn nearest(&self, path: &'p str) -> Option<(Position, &'p str, &'p str)> {
        beginnings(path).find_map(|known| {
            let position = self.places.get(known)?.position?;
            Some((position, known, path[known.len()..].trim_start_matches('.')))
        })
    }

    /// The block scalar at `path`: the line where it begins, and its text.
    pub(super) fn block(&self, path: &str) -> Option<(usize, &str)> {
        let (line, text) = self.places.get(path)?.block.as_ref()?;
        Some((*line, text.as_str()))
    }

    /// Processes an event at a position. Paths have the form `spec.http[0].match`.
    pub(super) fn event(&mut self, event: &Event<'_>, at: Position) {
        match event {
            Event::Scalar(text, style, _, tag) => {
                if let Some(Frame::Mapping { path, key: None }) = self.stack.last() {
                    let of = *path;
                    let name = || resolve(text, *style, tag.as_deref()).and_then(key_text).unwrap_or_default();
                    let field = of.and_then(|of| self.note_key(of, &name(), at));
                    if let Some(Frame::Mapping { key, .. }) = self.stack.last_mut() {
                        *key = Some(field);
                    }
                } else {
                    let place = self.enter(at).and_then(|path| self.places.get_mut(path));
                    if let (Some(place), ScalarStyle::Literal) = (place, *style) {
                        // The position is that of the first line that is not blank.
                        let blank = text.bytes().take_while(|byte| *byte == b'\n').count();
                        place.block = Some((at.line.saturating_sub(blank), text.to_string()));
                    }
                }
            }
            Event::Alias(_) => {
                self.enter(at);
            }
            Event::SequenceStart(..) => {
                let path = self.enter(at);
                self.stack.push(Frame::Sequence { path, next: 0 });
            }
            Event::MappingStart(..) => {
                let path = self.enter(at);
                self.stack.push(Frame::Mapping { path, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.stack.pop();
            }
            _ => {}
        }
    }

    /// Records a key of the mapping at `of`, and returns the path of its value.
    fn note_key(&mut self, of: &str, name: &str, at: Position) -> Option<&'p str> {
        // A field path has keys of maps in brackets and names of fields after a dot. This may be either.
        if of.is_empty() {
            return self.note(name, at);
        }
        self.note(&format!("{of}[{name}]"), at);
        self.note(&format!("{of}.{name}"), at)
    }

    /// Records the position of a path that is wanted.
    fn note(&mut self, path: &str, at: Position) -> Option<&'p str> {
        let known = *self.places.get_key_value(path)?.0;
        self.places.entry(known).or_default().position = Some(at);
        Some(known)
    }

    /// The path of the value that begins at this position.
    fn enter(&mut self, at: Position) -> Option<&'p str> {
        let item = match self.stack.last_mut() {
            None => return Some(""),
            Some(Frame::Mapping { key, .. }) => return key.take().flatten(),
            Some(Frame::Sequence { path, next }) => {
                *next += 1;
                format!("{}[{}]", (*path)?, *next - 1)
            }
        };
        self.note(&item, at)
    }
}

/// A path and the paths of its enclosing fields, the longest first.
fn beginnings(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| Some(&path[..path.rfind(['.', '['])?]))
}
