//! The parsed content of a file: its documents and their objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, ParsedObject, Text};
use sluice_parse::yaml::{Chunk, Limits};
use sluice_parse::{ObjectError, WORKLOAD_KINDS, kind_info, parse_object};
use tracing::{debug, info, warn};

use super::object::{FileObject, read_objects};
use super::text::{DocumentHash, FileText};
use crate::report::Problem;
use crate::{Cluster, Original};

/// Kind and key of an object. Two texts with equal ids declare the same object.
pub(super) type Id = (Kind, ObjectKey);

/// Identifies the text of an object: the hash of its document, and its index in the document.
pub(super) type Content = (DocumentHash, usize);

/// The position of an object in a file. If the file declares it more than once, that of the last declaration.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) content: Content,
    pub(super) line: usize,
    /// How often the file declares the object.
    pub(super) times: usize,
}

/// The objects of a file when it was last read.
#[derive(Debug, Default)]
pub(super) struct FileRecord {
    /// Sorted by id.
    entries: Box<[(Id, Entry)]>,
    /// Documents without an object that is read; sorted.
    skipped: Box<[DocumentHash]>,
}

impl FileRecord {
    /// The position of an object in the file.
    pub(super) fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.binary_search_by(|(known, _)| known.cmp(id)).ok().map(|at| &self.entries[at].1)
    }

    /// All objects, sorted by id.
    pub(super) fn entries(&self) -> &[(Id, Entry)] {
        &self.entries
    }
}

/// A parsed object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) parsed: Box<ParsedObject>,
    /// Its resourceVersion, empty if it has none.
    pub(super) version: Text,
    /// Its generation, if it has one.
    pub(super) generation: Option<i64>,
    /// The object itself, if it is one of configuration.
    pub(super) original: Option<Original>,
}

/// The objects of a file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) entries: BTreeMap<Id, Entry>,
    /// Documents without an object that is read.
    skipped: BTreeSet<DocumentHash>,
    /// Objects of documents that the file did not contain before.
    pub(super) objects: BTreeMap<Content, Object>,
    pub(super) problem: Option<Problem>,
}

/// Parses files. The result depends on the text alone, so that many files can be read in parallel.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    cluster: Cluster,
    limits: Limits,
    /// An object of [`WORKLOAD_KINDS`] was logged.
    logged_workload: Arc<AtomicBool>,
}

impl Reader {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, limits: Limits::default(), logged_workload: Arc::default() }
    }

    /// Splits a text into objects. Documents that the file already contained, according to `old`, are not parsed again.
    pub(super) fn read(&self, path: &Path, text: &FileText<'_>, old: &FileRecord) -> ParsedFile {
        // A known document need not be parsed again, because all its objects are in `old`. That is not certain in a
        // file that declares an object more than once, because `old` has the last declaration only.
        let mut known: BTreeMap<DocumentHash, Vec<(&Id, &Entry)>> = BTreeMap::new();
        let mut duplicated = BTreeSet::new();
        for (id, entry) in old.entries() {
            known.entry(entry.content.0).or_default().push((id, entry));
        }
        if old.entries().iter().any(|(_, entry)| entry.times > 1) {
            duplicated.extend(known.keys().copied());
        }
        let mut parsed = ParsedFile::default();
        for (hash, chunk) in text.documents() {
            if old.skipped.binary_search(&hash).is_ok() {
                parsed.skipped.insert(hash);
            } else if let Some(entries) = known.get(&hash).filter(|_| !duplicated.contains(&hash)) {
                let first = entries.iter().map(|(_, entry)| entry.line).min().unwrap_or_default();
                let old_start = first.saturating_sub(first_line_offset(chunk));
                for (id, entry) in entries {
                    let line = chunk.line + entry.line.saturating_sub(old_start);
                    parsed.add((*id).clone(), entry.content, line);
                }
            } else {
                self.read_document(path, chunk, hash, &mut parsed);
            }
        }
        parsed
    }

    fn read_document(&self, path: &Path, chunk: Chunk<'_>, hash: DocumentHash, parsed: &mut ParsedFile) {
        let documents = match chunk.parse(&self.limits) {
            Ok(documents) => documents,
            Err(error) => {
                let problem = Problem { line: error.line, reason: error.reason.into() };
                parsed.problem.get_or_insert(problem);
                return;
            }
        };
        let objects = documents.into_iter().flat_map(|document| {
            let line = document.line;
            read_objects(&self.cluster.id, document.value).into_iter().map(move |object| (line, object))
        });
        let mut is_skipped = true;
        for (index, (line, object)) in objects.enumerate() {
            match object {
                Ok(FileObject { id, value }) => {
                    let (kind, key) = (id.info.kind, id.key);
                    if !self.cluster.reads(kind) {
                        let file = path.display();
                        info!(%file, line, %kind, object = %key, "object is not read: its kind is read from the local cluster only");
                        continue;
                    }
                    if !self.cluster.reads_revision_of(id.info, &value) {
                        info!(file = %path.display(), line, %kind, object = %key, "object is not read: it is for another revision");
                        continue;
                    }
                    is_skipped = false;
                    parsed.add((kind, key), (hash, index), line);
                    parsed.objects.extend(self.parse(&value).map(|object| ((hash, index), object)));
                }
                Err(error) => self.log_skipped(path, line, &error),
            }
        }
        if is_skipped {
            parsed.skipped.insert(hash);
        }
    }

    /// The object with an index in a document.
    pub(super) fn find(&self, chunk: Chunk<'_>, index: usize) -> Option<Object> {
        let documents = chunk.parse(&self.limits).ok()?.into_iter();
        let mut objects = documents.flat_map(|document| read_objects(&self.cluster.id, document.value));
        self.parse(&objects.nth(index)?.ok()?.value)
    }

    /// Logs an object that is not read. Directories often contain objects of other kinds, so only objects of Istio's
    /// API groups are warnings.
    fn log_skipped(&self, path: &Path, line: usize, error: &ObjectError) {
        let file = path.display();
        match error {
            ObjectError::UnknownKind { kind, .. } if WORKLOAD_KINDS.contains(&kind.as_str()) => {
                if !self.logged_workload.swap(true, Ordering::Relaxed) {
                    info!(
                        %file, line, kind,
                        "workloads in a directory create no pods: without EndpointSlices, their Services have no endpoints"
                    );
                }
            }
            ObjectError::UnknownKind { api_version, .. } if !api_version.contains(".istio.io/") => {
                debug!(%file, line, %error, "object is not read");
            }
            _ => warn!(%file, line, %error, "object is not read"),
        }
    }

    fn parse(&self, value: &Value) -> Option<Object> {
        let parsed = parse_object(&self.cluster.id, &self.cluster.domain, value).ok()?;
        let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let generation = value["metadata"]["generation"].as_i64();
        let original = kind_info(parsed.kind).and_then(|info| Original::of(&self.cluster, info, value));
        Some(Object { parsed: Box::new(parsed), version: version.into(), generation, original })
    }
}

impl ParsedFile {
    /// The record of the file, and its new objects.
    pub(super) fn into_parts(self) -> (FileRecord, BTreeMap<Content, Object>) {
        let record =
            FileRecord { entries: self.entries.into_iter().collect(), skipped: self.skipped.into_iter().collect() };
        (record, self.objects)
    }

    fn add(&mut self, id: Id, content: Content, line: usize) {
        let times = self.entries.get(&id).map_or(0, |entry| entry.times) + 1;
        self.entries.insert(id, Entry { content, line, times });
    }
}

/// Number of lines between the start of a document's text and its first node.
fn first_line_offset(chunk: Chunk<'_>) -> usize {
    let is_content = |line: &&str| {
        let line = line.trim_start();
        !(line.is_empty() || line.starts_with('#') || line.starts_with('%') || line.trim_end() == "---")
    };
    chunk.text.lines().position(|line| is_content(&line)).unwrap_or_default()
}
