//! Builds JSON values from parser events.

use std::collections::BTreeMap;

use granit_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Value};

use super::scalar::{NotInJson, resolve_plain};
use super::{Document, Limits};

/// Why a document is invalid at an event; displayed as a lower-case fragment.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error(transparent)]
    Scalar(#[from] NotInJson),
    #[error("tag {0} is not supported")]
    UnsupportedTag(String),
    #[error("{text:?} is not a value of tag {tag}")]
    TagMismatch { text: String, tag: String },
    #[error("a key must not be empty")]
    EmptyKey,
    #[error("a sequence or a mapping cannot be a key")]
    CollectionAsKey,
    #[error("duplicate key {0:?}")]
    DuplicateKey(String),
    #[error("the value of `<<` must be a mapping or a list of mappings")]
    MergeValue,
    #[error("an alias refers to the value that contains it")]
    RecursiveAlias,
    #[error("anchors and aliases expand to more than {0} bytes")]
    AliasBytes(usize),
    #[error("nested deeper than {0} levels")]
    Depth(usize),
}

/// An open collection with its anchor and its size so far.
enum Frame {
    Sequence { items: Vec<Value>, anchor: usize, bytes: usize },
    Mapping { map: Map<String, Value>, merges: Vec<Value>, key: Option<Key>, anchor: usize, bytes: usize },
}

enum Key {
    Name(String),
    /// The merge key `<<`.
    Merge,
}

/// Size of a value without its text, for the alias limit.
const NODE_BYTES: usize = 16;

/// Builder of the documents of one chunk.
pub(super) struct Builder<'l> {
    limits: &'l Limits,
    stack: Vec<Frame>,
    /// Completed anchored values with their sizes. An alias copies one.
    anchors: BTreeMap<usize, (Value, usize)>,
    /// Bytes that anchors and aliases of this document have copied so far.
    copied: usize,
    root: Option<Document>,
    documents: Vec<Document>,
}

impl<'l> Builder<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self { limits, stack: Vec::new(), anchors: BTreeMap::new(), copied: 0, root: None, documents: Vec::new() }
    }

    /// The documents in order, without those that are `null`.
    pub(super) fn into_documents(self) -> Vec<Document> {
        self.documents
    }

    /// Processes an event at `line`.
    ///
    /// # Errors
    /// The document is invalid at this event.
    pub(super) fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), BuildError> {
        if self.root.is_none() && event.is_node() {
            self.root = Some(Document { line, value: Value::Null });
        }
        match event {
            Event::DocumentStart(..) => {
                self.anchors.clear();
                self.copied = 0;
                self.root = None;
            }
            Event::DocumentEnd => self.documents.extend(self.root.take().filter(|document| !document.value.is_null())),
            Event::Scalar(text, style, anchor, tag) => {
                let size = NODE_BYTES + text.len();
                if style == ScalarStyle::Plain && text == "<<" && tag.is_none() && self.takes_key() {
                    self.set_key(Key::Merge);
                } else {
                    let value = resolve(&text, style, tag.as_deref())?;
                    self.put(value, anchor, size)?;
                }
            }
            Event::Alias(anchor) => {
                let (value, size) = self.anchors.get(&anchor).cloned().ok_or(BuildError::RecursiveAlias)?;
                self.copy(size)?;
                self.put(value, 0, size)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(Frame::Sequence { items: Vec::new(), anchor, bytes: NODE_BYTES })?;
            }
            Event::MappingStart(_, anchor, _) => {
                let (map, merges) = (Map::new(), Vec::new());
                self.open(Frame::Mapping { map, merges, key: None, anchor, bytes: NODE_BYTES })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            _ => {}
        }
        Ok(())
    }

    fn takes_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame::Mapping { key: None, .. }))
    }

    fn set_key(&mut self, name: Key) {
        if let Some(Frame::Mapping { key, .. }) = self.stack.last_mut() {
            *key = Some(name);
        }
    }

    fn open(&mut self, frame: Frame) -> Result<(), BuildError> {
        if self.takes_key() {
            return Err(BuildError::CollectionAsKey);
        }
        if self.stack.len() >= self.limits.depth {
            return Err(BuildError::Depth(self.limits.depth));
        }
        self.stack.push(frame);
        Ok(())
    }

    fn close(&mut self) -> Result<(), BuildError> {
        match self.stack.pop() {
            Some(Frame::Sequence { items, anchor, bytes }) => self.put(Value::Array(items), anchor, bytes),
            Some(Frame::Mapping { mut map, merges, anchor, bytes, .. }) => {
                merges.into_iter().try_for_each(|merge| merge_under(&mut map, merge))?;
                self.put(Value::Object(map), anchor, bytes)
            }
            None => Ok(()),
        }
    }

    /// Adds a complete value as a key, an item, a field or the document.
    fn put(&mut self, value: Value, anchor: usize, size: usize) -> Result<(), BuildError> {
        if anchor != 0 {
            self.copy(size)?;
            self.anchors.insert(anchor, (value.clone(), size));
        }
        if self.takes_key() {
            self.set_key(Key::Name(key_text(value)?));
            return Ok(());
        }
        match self.stack.last_mut() {
            None => {
                if let Some(root) = &mut self.root {
                    root.value = value;
                }
            }
            Some(Frame::Sequence { items, bytes, .. }) => {
                items.push(value);
                *bytes += size;
            }
            Some(Frame::Mapping { map, merges, key, bytes, .. }) => {
                *bytes += size;
                match key.take() {
                    Some(Key::Name(name)) => {
                        if !self.limits.allows_duplicate_keys && map.contains_key(&name) {
                            return Err(BuildError::DuplicateKey(name));
                        }
                        *bytes += name.len();
                        map.insert(name, value);
                    }
                    Some(Key::Merge) => merges.push(value),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn copy(&mut self, bytes: usize) -> Result<(), BuildError> {
        self.copied += bytes;
        if self.copied > self.limits.alias_bytes {
            return Err(BuildError::AliasBytes(self.limits.alias_bytes));
        }
        Ok(())
    }
}

/// The text of a mapping key.
pub(super) fn key_text(value: Value) -> Result<String, BuildError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => Err(BuildError::EmptyKey),
        Value::Array(_) | Value::Object(_) => Err(BuildError::CollectionAsKey),
    }
}

/// Merges a mapping, or a list of mappings, into `map` without replacing keys; earlier mappings have precedence.
fn merge_under(map: &mut Map<String, Value>, merge: Value) -> Result<(), BuildError> {
    match merge {
        Value::Object(fields) => {
            for (name, value) in fields {
                map.entry(name).or_insert(value);
            }
            Ok(())
        }
        Value::Array(merges) => merges.into_iter().try_for_each(|merge| merge_under(map, merge)),
        _ => Err(BuildError::MergeValue),
    }
}

/// The value of a scalar.
pub(super) fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, BuildError> {
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { Ok(resolve_plain(text)?) } else { Ok(Value::String(text.to_owned())) };
    };
    let value = match tag.core_suffix() {
        Some("str") => return Ok(Value::String(text.to_owned())),
        Some("null") if text.is_empty() => return Ok(Value::Null),
        Some("int" | "float" | "bool" | "null") => resolve_plain(text)?,
        // The tag `!` only means that the scalar is not plain.
        None if tag.suffix().is_empty() => return Ok(Value::String(text.to_owned())),
        _ => return Err(BuildError::UnsupportedTag(tag.original().to_string())),
    };
    let agrees = match tag.core_suffix() {
        Some("bool") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("int") => value.is_i64() || value.is_u64(),
        _ => value.is_number(),
    };
    if agrees {
        Ok(value)
    } else {
        Err(BuildError::TagMismatch { text: text.to_owned(), tag: tag.original().to_string() })
    }
}
