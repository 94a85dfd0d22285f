//! Which object every file holds, and what a changed file changes.
//!
//! Memory is one small record an object; values go on to the sink. A file is compared document by document with what it
//! was, so a change in a big file costs the reading of it and the parsing of what changed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use sluice_model::Text;
use sluice_parse::yaml;
use sluice_telemetry::unix_time;
use smallvec::SmallVec;
use tracing::warn;

use super::reading::{Content, Entry, FileRecord, Id, Object, Reader, Reading};
use super::text::FileText;
use crate::report::{Problem, RejectLog};
use crate::{Change, Cluster, Origin, Reporter};

/// What is known of an object.
#[derive(Debug, Default)]
struct Held {
    /// The files that hold it, sorted; the last one counts, as if all had been applied in order of their names.
    files: SmallVec<[Arc<Path>; 1]>,
    /// The text that it was last sent with.
    sent: Option<Content>,
}

/// The objects of a directory.
#[derive(Debug)]
pub(super) struct Tree {
    reader: Reader,
    files: HashMap<Arc<Path>, FileRecord>,
    objects: HashMap<Id, Held>,
    reporter: Reporter,
    log: RejectLog,
}

impl Tree {
    pub(super) fn new(cluster: Cluster, reporter: Reporter) -> Self {
        Self {
            reader: Reader::new(cluster),
            files: HashMap::new(),
            objects: HashMap::new(),
            reporter,
            log: RejectLog::default(),
        }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.values().filter(|held| held.sent.is_some()).count()
    }

    /// What reads the files.
    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes the text of a file, and returns what that changes. `reread` gives the text of another file of the tree,
    /// needed when an object that two files hold changes hands.
    pub(super) fn set(&mut self, path: &Path, text: &str, reread: impl Fn(&Path) -> Option<String>) -> Vec<Change> {
        let text = FileText::new(Cow::Borrowed(text));
        let reading = self.reader.read(path, &text, self.files.get(path).unwrap_or(&FileRecord::default()));
        self.take(path, &text, reading, reread)
    }

    /// Takes what was read of a file's text, after what [`Tree::set`] has last been told of it.
    pub(super) fn take(
        &mut self,
        path: &Path,
        text: &FileText<'_>,
        mut reading: Reading,
        reread: impl Fn(&Path) -> Option<String>,
    ) -> Vec<Change> {
        self.reporter.set(&shown(path), reading.problem.clone());
        let (path, old) = self.files.remove_entry(path).unwrap_or_else(|| (path.into(), FileRecord::default()));
        let mut touched: BTreeSet<Id> = old.entries().iter().map(|(id, _)| id.clone()).collect();
        self.forget(&old, &path);
        if reading.problem.is_some() {
            // Perhaps half a text, still being written: what it does not show may only not be there yet.
            for (id, entry) in old.entries() {
                reading.entries.entry(id.clone()).or_insert_with(|| entry.clone());
            }
        }
        let (record, objects) = reading.into_parts();
        for (id, _) in record.entries() {
            touched.insert(id.clone());
            let files = &mut self.objects.entry(id.clone()).or_default().files;
            if let Err(place) = files.binary_search(&path) {
                files.insert(place, path.clone());
            }
        }
        self.files.insert(path.clone(), record);
        self.settle(touched, &path, Some((text, objects)), reread)
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
        self.settle(old.entries().iter().map(|(id, _)| id.clone()).collect(), path, None, reread)
    }

    fn forget(&mut self, old: &FileRecord, path: &Path) {
        for (id, _) in old.entries() {
            if let Some(held) = self.objects.get_mut(id) {
                held.files.retain(|file| **file != *path);
            }
        }
    }

    /// Returns the touched objects whose text is not the one last sent. `current` is the text of the file at `path` with
    /// the values already read from it.
    fn settle(
        &mut self,
        touched: BTreeSet<Id>,
        path: &Path,
        current: Option<(&FileText<'_>, BTreeMap<Content, Object>)>,
        reread: impl Fn(&Path) -> Option<String>,
    ) -> Vec<Change> {
        let received = unix_time();
        let (text, mut objects) = current.map_or_else(Default::default, |(text, objects)| (Some(text), objects));
        let mut others: BTreeMap<Arc<Path>, Option<FileText<'_>>> = BTreeMap::new();
        let mut changes = Vec::new();
        for id in touched {
            let Some(held) = self.objects.get(&id) else { continue };
            let Some(holder) = held.files.last().cloned() else {
                if self.objects.remove(&id).is_some_and(|held| held.sent.is_some()) {
                    let origin = Origin { place: shown(path), version: Text::default(), received };
                    changes.push(Change { kind: id.0, key: id.1, object: None, origin });
                }
                continue;
            };
            let entry = self.files.get(&holder).and_then(|file| file.get(&id)).cloned();
            let Some(entry) = entry else { continue };
            if held.sent == Some(entry.content) {
                continue;
            }
            self.warn_of_duplicates(&id, &entry, &holder);
            let text = if *holder == *path {
                text
            } else {
                let read = || reread(&holder).map(|text| FileText::new(Cow::Owned(text)));
                others.entry(holder.clone()).or_insert_with(read).as_ref()
            };
            let chunk = text.and_then(|text| text.find(entry.content.0));
            let object = if *holder == *path { objects.remove(&entry.content) } else { None };
            // Not at hand when another file had been the one that counts.
            let Some(object) = object.or_else(|| self.reader.find(chunk?, entry.content.1)) else { continue };
            let Object { parsed, version } = object;
            self.log.log(&parsed, &holder.display().to_string(), |field| {
                chunk.map(|chunk| {
                    chunk.line - 1 + yaml::find_position(chunk.text, entry.line - chunk.line + 1, field).line
                })
            });
            let place = format!("{}:{}", holder.display(), entry.line).into();
            let origin = Origin { place, version, received };
            if let Some(held) = self.objects.get_mut(&id) {
                held.sent = Some(entry.content);
            }
            changes.push(Change { kind: id.0, key: id.1, object: Some(parsed), origin });
        }
        changes
    }

    fn warn_of_duplicates(&self, id: &Id, entry: &Entry, holder: &Path) {
        let files = self.objects.get(id).map_or(&[][..], |held| &held.files);
        if entry.times > 1 || files.len() > 1 {
            let among: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
            let (kind, object, file, line) = (id.0, &id.1, holder.display(), entry.line);
            warn!(%kind, %object, %file, line, among = among.join(", "), "declared more than once: the last counts");
        }
    }
}

fn shown(path: &Path) -> Text {
    path.display().to_string().into()
}

#[cfg(test)]
mod tests;
