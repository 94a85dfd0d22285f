//! The text of a file, split into documents that are looked up by the hash of their content.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use sluice_parse::yaml::{self, Chunk};

/// Hash of a document's text. It is compared within this process only.
pub(super) type DocumentHash = u64;

/// A text and its documents.
pub(super) struct FileText<'t> {
    text: Cow<'t, str>,
    documents: Vec<(DocumentHash, usize, Range<usize>)>,
    by_hash: BTreeMap<DocumentHash, usize>,
}

impl<'t> FileText<'t> {
    pub(super) fn new(text: Cow<'t, str>) -> Self {
        let mut documents = Vec::new();
        for chunk in yaml::split_documents(&text) {
            let start = chunk.text.as_ptr() as usize - text.as_ptr() as usize;
            let mut hasher = DefaultHasher::new();
            // The separator is not part of a document's content.
            let text = chunk.text.strip_prefix("---\n").or_else(|| chunk.text.strip_prefix("---\r\n"));
            text.unwrap_or(chunk.text).hash(&mut hasher);
            documents.push((hasher.finish(), chunk.line, start..start + chunk.text.len()));
        }
        let by_hash = documents.iter().enumerate().map(|(ix, (hash, ..))| (*hash, ix)).collect();
        Self { text, documents, by_hash }
    }

    /// The documents in order.
    pub(super) fn documents(&self) -> impl Iterator<Item = (DocumentHash, Chunk<'_>)> {
        self.documents.iter().map(|(hash, line, range)| (*hash, Chunk { line: *line, text: &self.text[range.clone()] }))
    }

    /// The document with that hash.
    pub(super) fn find(&self, hash: DocumentHash) -> Option<Chunk<'_>> {
        let (_, line, range) = self.documents.get(*self.by_hash.get(&hash)?)?;
        Some(Chunk { line: *line, text: &self.text[range.clone()] })
    }
}
