//! The objects of every file, and the changes that a changed file makes.
//!
//! The tree holds one small record for each object; values are passed to the sink. A changed file is compared with its
//! previous state document by document: it is read as a whole, and only its changed documents are parsed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use sluice_model::Text;
use sluice_parse::yaml;
use sluice_telemetry::unix_time;
use smallvec::SmallVec;
use tracing::warn;

use super::parsed_file::{Content, Entry, FileRecord, Id, Object, ParsedFile, Reader};
use super::text::FileText;
use crate::report::{Duplicate, Problem, log_rejects};
use crate::{Change, ChangeOrigin, Cluster, Reporter};

/// The state of an object.
#[derive(Debug, Default)]
struct ObjectState {
    /// The files that declare it, sorted. The last one is used, as if the files were applied in the order of their
    /// names.
    files: SmallVec<[Arc<Path>; 1]>,
    /// The text that was last sent to the sink.
    sent: Option<Content>,
}

/// The objects of a directory.
#[derive(Debug)]
pub(super) struct Tree {
    reader: Reader,
    files: HashMap<Arc<Path>, FileRecord>,
    objects: HashMap<Id, ObjectState>,
    reporter: Reporter,
}

impl Tree {
    pub(super) fn new(cluster: Cluster, reporter: Reporter) -> Self {
        Self { reader: Reader::new(cluster), files: HashMap::new(), objects: HashMap::new(), reporter }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.values().filter(|state| state.sent.is_some()).count()
    }

    /// The reader of the files.
    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes the text of a file and returns the changes. `reread` returns the text of another file of the tree; it is
    /// called when that file becomes the one that declares an object.
    pub(super) fn set(&mut self, path: &Path, text: &str, reread: impl Fn(&Path) -> Option<String>) -> Vec<Change> {
        let text = FileText::new(Cow::Borrowed(text));
        let parsed = self.reader.read(path, &text, self.files.get(path).unwrap_or(&FileRecord::default()));
        self.take(path, &text, parsed, reread)
    }

    /// Takes the parsed text of a file.
    pub(super) fn take(
        &mut self,
        path: &Path,
        text: &FileText<'_>,
        mut parsed: ParsedFile,
        reread: impl Fn(&Path) -> Option<String>,
    ) -> Vec<Change> {
        self.reporter.set(&display(path), parsed.problem.clone());
        let (path, old) = self.files.remove_entry(path).unwrap_or_else(|| (path.into(), FileRecord::default()));
        let mut touched: BTreeSet<Id> = old.entries().iter().map(|(id, _)| id.clone()).collect();
        self.remove_holder(&old, &path);
        if parsed.problem.is_some() {
            // The file may be incomplete because it is still being written: its missing objects stay.
            for (id, entry) in old.entries() {
                parsed.entries.entry(id.clone()).or_insert_with(|| entry.clone());
            }
        }
        let (record, objects) = parsed.into_parts();
        for (id, _) in record.entries() {
            touched.insert(id.clone());
            let files = &mut self.objects.entry(id.clone()).or_default().files;
            if let Err(at) = files.binary_search(&path) {
                files.insert(at, path.clone());
            }
        }
        self.files.insert(path.clone(), record);
        self.diff(touched, &path, Some((text, objects)), reread)
    }

    /// Reports a file that cannot be read. Its objects stay.
    pub(super) fn fail(&self, path: &Path, problem: Problem) {
        self.reporter.set(&display(path), Some(problem));
    }

    /// Removes a file and returns the changes.
    pub(super) fn remove(&mut self, path: &Path, reread: impl Fn(&Path) -> Option<String>) -> Vec<Change> {
        self.reporter.set(&display(path), None);
        let Some(old) = self.files.remove(path) else { return Vec::new() };
        self.remove_holder(&old, path);
        self.diff(old.entries().iter().map(|(id, _)| id.clone()).collect(), path, None, reread)
    }

    /// Removes a file from the holders of its objects.
    fn remove_holder(&mut self, old: &FileRecord, path: &Path) {
        for (id, _) in old.entries() {
            if let Some(state) = self.objects.get_mut(id) {
                state.files.retain(|file| **file != *path);
            }
        }
    }

    /// The changes of the touched objects whose text differs from the one last sent. `current` is the text of the file
    /// at `path`, and the objects that were parsed from it.
    fn diff(
        &mut self,
        touched: BTreeSet<Id>,
        path: &Path,
        current: Option<(&FileText<'_>, BTreeMap<Content, Object>)>,
        reread: impl Fn(&Path) -> Option<String>,
    ) -> Vec<Change> {
        let received = unix_time();
        let (text, mut objects) = current.map_or_else(Default::default, |(text, objects)| (Some(text), objects));
        let mut other_texts: BTreeMap<Arc<Path>, Option<FileText<'_>>> = BTreeMap::new();
        let mut changes = Vec::new();
        for id in touched {
            let Some(state) = self.objects.get(&id) else { continue };
            let Some(holder) = state.files.last().cloned() else {
                self.reporter.remove_duplicate(&id);
                if self.objects.remove(&id).is_some_and(|state| state.sent.is_some()) {
                    let origin = ChangeOrigin { place: display(path), received, ..ChangeOrigin::default() };
                    changes.push(Change { kind: id.0, key: id.1, object: None, origin });
                }
                continue;
            };
            let entry = self.files.get(&holder).and_then(|file| file.get(&id)).cloned();
            let Some(entry) = entry else { continue };
            let is_sent = state.sent == Some(entry.content);
            self.report_duplicates(&id, &entry, &holder);
            if is_sent {
                continue;
            }
            let text = if *holder == *path {
                text
            } else {
                let read = || reread(&holder).map(|text| FileText::new(Cow::Owned(text)));
                other_texts.entry(holder.clone()).or_insert_with(read).as_ref()
            };
            let chunk = text.and_then(|text| text.find(entry.content.0));
            let object = if *holder == *path { objects.remove(&entry.content) } else { None };
            // The object was not parsed: another file declared it until now.
            let Some(object) = object.or_else(|| self.reader.find(chunk?, entry.content.1)) else { continue };
            let Object { parsed, version, generation, original } = object;
            log_rejects(&parsed, &holder.display().to_string(), |fields| {
                let Some(chunk) = chunk else { return Vec::new() };
                let positions = yaml::find_positions(chunk.text, entry.line - chunk.line + 1, fields);
                positions.into_iter().map(|position| chunk.line - 1 + position.line).collect()
            });
            let place = format!("{}:{}", holder.display(), entry.line).into();
            let origin = ChangeOrigin { place, version, generation, received, original, condition_request: None };
            if let Some(state) = self.objects.get_mut(&id) {
                state.sent = Some(entry.content);
            }
            changes.push(Change { kind: id.0, key: id.1, object: Some(parsed), origin });
        }
        changes
    }

    fn report_duplicates(&self, id: &Id, entry: &Entry, holder: &Path) {
        let paths = self.objects.get(id).map_or(&[][..], |state| &state.files);
        if entry.times < 2 && paths.len() < 2 {
            return self.reporter.remove_duplicate(id);
        }
        let files: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let (kind, object, file, line) = (id.0, &id.1, holder.display(), entry.line);
        let used = format!("{file}:{line}");
        if self.reporter.add_duplicate(Duplicate { kind, object: object.clone(), files: files.clone(), used }) {
            warn!(%kind, %object, %file, line, files = files.join(", "), "object is declared more than once, the last declaration is used");
        }
    }
}

fn display(path: &Path) -> Text {
    path.display().to_string().into()
}

#[cfg(test)]
mod tests;
