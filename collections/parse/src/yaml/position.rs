//! Where the fields of a document stand in its text.

use std::collections::BTreeMap;

use granit_parser::Event;

use super::build::{key_text, resolve};

/// An open collection and the path to it.
enum Frame {
    Sequence { path: String, next: usize },
    Mapping { path: String, key: Option<String> },
}

/// Notes the line of each field of one document, by its path.
#[derive(Default)]
pub(super) struct Positions {
    stack: Vec<Frame>,
    lines: BTreeMap<String, usize>,
}

impl Positions {
    pub(super) fn into_lines(self) -> BTreeMap<String, usize> {
        self.lines
    }

    /// Takes one event of the line given. Paths are those of field paths: `spec.http[0].match`.
    pub(super) fn event(&mut self, event: &Event<'_>, line: usize) {
        match event {
            Event::Scalar(text, style, _, tag) => {
                if let Some(Frame::Mapping { path, key: key @ None }) = self.stack.last_mut() {
                    let name = resolve(text, *style, tag.as_deref()).and_then(key_text).unwrap_or_default();
                    let field = if path.is_empty() { name } else { format!("{path}.{name}") };
                    self.lines.insert(field.clone(), line);
                    *key = Some(field);
                } else {
                    self.enter(line);
                }
            }
            Event::Alias(_) => drop(self.enter(line)),
            Event::SequenceStart(..) => {
                let path = self.enter(line);
                self.stack.push(Frame::Sequence { path, next: 0 });
            }
            Event::MappingStart(..) => {
                let path = self.enter(line);
                self.stack.push(Frame::Mapping { path, key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => drop(self.stack.pop()),
            _ => {}
        }
    }

    /// The path of the value that begins here.
    fn enter(&mut self, line: usize) -> String {
        match self.stack.last_mut() {
            None => String::new(),
            Some(Frame::Mapping { key, .. }) => key.take().unwrap_or_default(),
            Some(Frame::Sequence { path, next }) => {
                let item = format!("{path}[{next}]");
                *next += 1;
                self.lines.insert(item.clone(), line);
                item
            }
        }
    }
}
