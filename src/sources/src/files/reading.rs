//! What a file's text holds: its documents, and the objects that they are parsed into.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, ParsedObject, Text};
use sluice_parse::yaml::{Chunk, Limits};
use sluice_parse::{ObjectError, parse_object};
use tracing::{debug, info, warn};

use super::object::{FileObject, read_objects};
use super::text::{FileText, TextHash};
use crate::Cluster;
use crate::report::Problem;

/// Kind and place: what makes two texts one object.
pub(super) type Id = (Kind, ObjectKey);

/// Tells the texts of objects apart: the document, and the object's place in it.
pub(super) type Content = (TextHash, usize);

/// Where a file holds an object. If it does more than once, the last time.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) content: Content,
    pub(super) line: usize,
    /// How often the file declares it.
    pub(super) times: usize,
}

/// A file as it was last read.
#[derive(Debug, Default)]
pub(super) struct FileRecord {
    /// Sorted by id.
    entries: Box<[(Id, Entry)]>,
    /// Documents that hold nothing that is read; sorted.
    foreign: Box<[TextHash]>,
}

impl FileRecord {
    /// Where the file holds an object.
    pub(super) fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.binary_search_by(|(known, _)| known.cmp(id)).ok().map(|at| &self.entries[at].1)
    }

    /// All objects, sorted by id.
    pub(super) fn entries(&self) -> &[(Id, Entry)] {
        &self.entries
    }
}

/// An object of a text.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) parsed: Box<ParsedObject>,
    /// Its resourceVersion, empty if it has none.
    pub(super) version: Text,
}

/// What a file's text was found to hold.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) entries: BTreeMap<Id, Entry>,
    /// Documents that hold nothing that is read.
    foreign: BTreeSet<TextHash>,
    /// Objects of documents that the file did not have before.
    pub(super) objects: BTreeMap<Content, Object>,
    pub(super) problem: Option<Problem>,
}

/// What makes objects of texts: a function of the text alone, so that many can be read at once.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    cluster: Cluster,
    limits: Limits,
    /// An object of [`WORKLOAD_KINDS`] was logged.
    logged_workload: Arc<AtomicBool>,
}

/// Kinds for which a cluster creates pods.
const WORKLOAD_KINDS: [&str; 6] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"];

impl Reader {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, limits: Limits::default(), logged_workload: Arc::default() }
    }

    /// Cuts a text into objects; documents that the file had before, as `old` says, are not parsed again.
    pub(super) fn read(&self, path: &Path, text: &FileText<'_>, old: &FileRecord) -> Reading {
        // A document is known by all its objects, which it is not if one of them lost against another document.
        let mut known: BTreeMap<TextHash, Vec<(&Id, &Entry)>> = BTreeMap::new();
        let mut contested = BTreeSet::new();
        for (id, entry) in old.entries() {
            known.entry(entry.content.0).or_default().push((id, entry));
        }
        if old.entries().iter().any(|(_, entry)| entry.times > 1) {
            contested.extend(known.keys().copied());
        }
        let mut reading = Reading::default();
        for (hash, chunk) in text.documents() {
            if old.foreign.binary_search(&hash).is_ok() {
                reading.foreign.insert(hash);
            } else if let Some(entries) = known.get(&hash).filter(|_| !contested.contains(&hash)) {
                let first = entries.iter().map(|(_, entry)| entry.line).min().unwrap_or_default();
                let old_start = first.saturating_sub(first_line_offset(chunk));
                for (id, entry) in entries {
                    let line = chunk.line + entry.line.saturating_sub(old_start);
                    reading.add((*id).clone(), entry.content, line);
                }
            } else {
                self.read_document(path, chunk, hash, &mut reading);
            }
        }
        reading
    }

    fn read_document(&self, path: &Path, chunk: Chunk<'_>, hash: TextHash, reading: &mut Reading) {
        let documents = match chunk.parse(&self.limits) {
            Ok(documents) => documents,
            Err(error) => {
                let problem = Problem { line: error.line, reason: error.reason.into() };
                reading.problem.get_or_insert(problem);
                return;
            }
        };
        let objects = documents.into_iter().flat_map(|document| {
            let line = document.line;
            read_objects(&self.cluster.id, document.value).into_iter().map(move |object| (line, object))
        });
        let mut is_foreign = true;
        for (place, (line, object)) in objects.enumerate() {
            match object {
                Ok(FileObject { id, value }) => {
                    let (kind, key) = (id.info.kind, id.key);
                    if !self.cluster.reads(kind) {
                        let file = path.display();
                        info!(%file, line, %kind, object = %key, "read in the own cluster only, not in a remote one");
                        continue;
                    }
                    if !self.cluster.follows(id.info, &value) {
                        info!(file = %path.display(), line, %kind, object = %key, "is for another revision");
                        continue;
                    }
                    is_foreign = false;
                    reading.add((kind, key), (hash, place), line);
                    reading.objects.extend(self.parse(&value).map(|object| ((hash, place), object)));
                }
                Err(error) => self.log_foreign(path, line, &error),
            }
        }
        if is_foreign {
            reading.foreign.insert(hash);
        }
    }

    /// The object at that place of a document.
    pub(super) fn find(&self, chunk: Chunk<'_>, place: usize) -> Option<Object> {
        let documents = chunk.parse(&self.limits).ok()?.into_iter();
        let mut objects = documents.flat_map(|document| read_objects(&self.cluster.id, document.value));
        self.parse(&objects.nth(place)?.ok()?.value)
    }

    /// Logs an object that is not read. Directories often contain objects of other kinds, so only those that look like
    /// Istio's are warnings.
    fn log_foreign(&self, path: &Path, line: usize, error: &ObjectError) {
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
        let version = value.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        Some(Object { parsed: Box::new(parsed), version: version.into() })
    }
}

impl Reading {
    /// What is to be remembered of the file, and the objects.
    pub(super) fn into_parts(self) -> (FileRecord, BTreeMap<Content, Object>) {
        let record =
            FileRecord { entries: self.entries.into_iter().collect(), foreign: self.foreign.into_iter().collect() };
        (record, self.objects)
    }

    fn add(&mut self, id: Id, content: Content, line: usize) {
        let times = self.entries.get(&id).map_or(0, |entry| entry.times) + 1;
        self.entries.insert(id, Entry { content, line, times });
    }
}

/// How many lines a document's first node is below the first line of its text.
fn first_line_offset(chunk: Chunk<'_>) -> usize {
    let is_content = |line: &&str| {
        let line = line.trim_start();
        !(line.is_empty() || line.starts_with('#') || line.starts_with('%') || line.trim_end() == "---")
    };
    chunk.text.lines().position(|line| is_content(&line)).unwrap_or_default()
}
