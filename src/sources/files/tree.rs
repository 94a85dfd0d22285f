//! Which object every file holds, and what a changed file changes.
//!
//! Memory is one small record an object; values go on to the sink. A file is compared document by document with what it
//! was, so a change in a big file costs the reading of it and the parsing of what changed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, Text};
use sluice_parse::yaml::{self, Chunk, Limits};
use sluice_parse::{ObjectError, parse_object};
use tracing::{debug, info, warn};

use super::object::{FileObject, read_objects};
use super::text::{FileText, TextHash};
use crate::sources::report::{Problem, RejectLog};
use crate::sources::{Change, Cluster, Origin, Reporter, now};

/// Kind and place: what makes two texts one object.
type Id = (Kind, ObjectKey);

/// Tells the texts of objects apart: the document, and the object's place in it.
type Content = (TextHash, usize);

/// Where a file holds an object. If it does more than once, the last time.
#[derive(Clone, Debug)]
struct Entry {
    content: Content,
    line: usize,
    /// How often the file declares it.
    times: usize,
}

/// A file as it was last read.
#[derive(Debug, Default)]
struct FileRecord {
    entries: BTreeMap<Id, Entry>,
    /// Documents that hold nothing that is read.
    foreign: BTreeSet<TextHash>,
}

/// The objects of a directory.
#[derive(Debug)]
pub(super) struct Tree {
    cluster: Cluster,
    limits: Limits,
    files: BTreeMap<PathBuf, FileRecord>,
    /// The files that hold an object; the last one counts, as if all had been applied in order of their names.
    holders: BTreeMap<Id, BTreeSet<PathBuf>>,
    /// The text that each object was last sent with.
    sent: BTreeMap<Id, Content>,
    reporter: Reporter,
    log: RejectLog,
}

/// What a file's text was found to hold.
#[derive(Default)]
struct Reading {
    record: FileRecord,
    /// Objects of documents that the file did not have before.
    values: BTreeMap<Content, Value>,
    problem: Option<Problem>,
}

impl Tree {
    pub(super) fn new(cluster: Cluster, reporter: Reporter) -> Self {
        Self {
            cluster,
            limits: Limits::default(),
            files: BTreeMap::new(),
            holders: BTreeMap::new(),
            sent: BTreeMap::new(),
            reporter,
            log: RejectLog::default(),
        }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Takes the text of a file, and returns what that changes. `reread` gives the text of another file of the tree,
    /// needed when an object that two files hold changes hands.
    pub(super) fn set(&mut self, path: &Path, text: &str, reread: impl Fn(&Path) -> Option<String>) -> Vec<Change> {
        let text = FileText::new(Cow::Borrowed(text));
        let mut reading = self.read(path, &text);
        self.reporter.set(&shown(path), reading.problem.clone());
        let old = self.files.remove(path).unwrap_or_default();
        let mut touched: BTreeSet<Id> = old.entries.keys().cloned().collect();
        self.forget(&old, path);
        if reading.problem.is_some() {
            // Perhaps half a text, still being written: what it does not show may only not be there yet.
            for (id, entry) in old.entries {
                reading.record.entries.entry(id).or_insert(entry);
            }
        }
        for id in reading.record.entries.keys() {
            touched.insert(id.clone());
            self.holders.entry(id.clone()).or_default().insert(path.to_owned());
        }
        self.files.insert(path.to_owned(), reading.record);
        self.settle(touched, path, Some((text, reading.values)), reread)
    }

    /// Notes that a file cannot be read; what it held stays.
    pub(super) fn fail(&mut self, path: &Path, line: usize, reason: String) {
        self.reporter.set(&shown(path), Some(Problem { line, reason: reason.into() }));
    }

    /// Takes a file away, and returns what that changes.
    pub(super) fn remove(&mut self, path: &Path, reread: impl Fn(&Path) -> Option<String>) -> Vec<Change> {
        self.reporter.set(&shown(path), None);
        let Some(old) = self.files.remove(path) else { return Vec::new() };
        self.forget(&old, path);
        self.settle(old.entries.into_keys().collect(), path, None, reread)
    }

    fn forget(&mut self, old: &FileRecord, path: &Path) {
        for id in old.entries.keys() {
            if let Some(holders) = self.holders.get_mut(id) {
                holders.remove(path);
            }
        }
    }

    /// Cuts a text into objects; documents that the file had before are not parsed again.
    fn read(&self, path: &Path, text: &FileText<'_>) -> Reading {
        let empty = FileRecord::default();
        let old = self.files.get(path).unwrap_or(&empty);
        // A document is known by all its objects, which it is not if one of them lost against another document.
        let mut known: BTreeMap<TextHash, Vec<(&Id, &Entry)>> = BTreeMap::new();
        let mut contested = BTreeSet::new();
        for (id, entry) in &old.entries {
            known.entry(entry.content.0).or_default().push((id, entry));
        }
        if old.entries.values().any(|entry| entry.times > 1) {
            contested.extend(known.keys().copied());
        }
        let mut reading = Reading::default();
        for (hash, chunk) in text.documents() {
            if old.foreign.contains(&hash) {
                reading.record.foreign.insert(hash);
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
                    reading.values.insert((hash, place), value);
                }
                Err(error) => note_foreign(path, line, &error),
            }
        }
        if is_foreign {
            reading.record.foreign.insert(hash);
        }
    }

    /// Returns the touched objects whose text is not the one last sent. `current` is the text of the file at `path` with
    /// the values already read from it.
    fn settle(
        &mut self,
        touched: BTreeSet<Id>,
        path: &Path,
        current: Option<(FileText<'_>, BTreeMap<Content, Value>)>,
        reread: impl Fn(&Path) -> Option<String>,
    ) -> Vec<Change> {
        let received = now();
        let (text, mut values) = current.map_or_else(Default::default, |(text, values)| (Some(text), values));
        let mut others: BTreeMap<PathBuf, Option<FileText<'_>>> = BTreeMap::new();
        let mut changes = Vec::new();
        for id in touched {
            let holder = self.holders.get(&id).and_then(BTreeSet::last).cloned();
            let Some(holder) = holder else {
                self.holders.remove(&id);
                if self.sent.remove(&id).is_some() {
                    let origin = Origin { place: shown(path), version: Text::default(), received };
                    changes.push(Change { kind: id.0, key: id.1, object: None, origin });
                }
                continue;
            };
            let entry = self.files.get(&holder).and_then(|file| file.entries.get(&id)).cloned();
            let Some(entry) = entry else { continue };
            if self.sent.get(&id) == Some(&entry.content) {
                continue;
            }
            self.warn_of_duplicates(&id, &entry, &holder);
            let text = if holder == path {
                text.as_ref()
            } else {
                let read = || reread(&holder).map(|text| FileText::new(Cow::Owned(text)));
                others.entry(holder.clone()).or_insert_with(read).as_ref()
            };
            let chunk = text.and_then(|text| text.find(entry.content.0));
            let value = if holder == path { values.remove(&entry.content) } else { None };
            // Not at hand when another file had been the one that counts.
            let Some(value) = value.or_else(|| self.find(chunk?, entry.content.1)) else { continue };
            let Ok(object) = parse_object(&self.cluster.id, &self.cluster.domain, &value) else { continue };
            self.log.log(&object, &holder.display().to_string(), |field| {
                chunk.map(|chunk| {
                    chunk.line - 1 + yaml::find_position(chunk.text, entry.line - chunk.line + 1, field).line
                })
            });
            let place = format!("{}:{}", holder.display(), entry.line).into();
            let version = value.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
            let origin = Origin { place, version: version.into(), received };
            changes.push(Change { kind: id.0, key: id.1.clone(), object: Some(Box::new(object)), origin });
            self.sent.insert(id, entry.content);
        }
        changes
    }

    fn warn_of_duplicates(&self, id: &Id, entry: &Entry, holder: &Path) {
        let files = self.holders.get(id);
        if entry.times > 1 || files.is_some_and(|files| files.len() > 1) {
            let among: Vec<_> = files.into_iter().flatten().map(|path| path.display().to_string()).collect();
            let (kind, object, file, line) = (id.0, &id.1, holder.display(), entry.line);
            warn!(%kind, %object, %file, line, among = among.join(", "), "declared more than once: the last counts");
        }
    }

    /// The object at that place of a document.
    fn find(&self, chunk: Chunk<'_>, place: usize) -> Option<Value> {
        let documents = chunk.parse(&self.limits).ok()?.into_iter();
        let mut objects = documents.flat_map(|document| read_objects(&self.cluster.id, document.value));
        objects.nth(place)?.ok().map(|object| object.value)
    }
}

impl Reading {
    fn add(&mut self, id: Id, content: Content, line: usize) {
        let times = self.record.entries.get(&id).map_or(0, |entry| entry.times) + 1;
        self.record.entries.insert(id, Entry { content, line, times });
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

fn shown(path: &Path) -> Text {
    path.display().to_string().into()
}

/// Most directories also hold objects that are none of ours; what looks like ours and is not deserves a word.
fn note_foreign(path: &Path, line: usize, error: &ObjectError) {
    let file = path.display();
    match error {
        ObjectError::UnknownKind { api_version, .. } if !api_version.contains(".istio.io/") => {
            debug!(%file, line, %error, "not read");
        }
        _ => warn!(%file, line, %error, "not read"),
    }
}

#[cfg(test)]
mod tests;
