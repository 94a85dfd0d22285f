//! Mesh config and mesh networks from files (C12, C17). An existing file replaces that part of the ConfigMap.
//!
//! The directories of both files are watched. Both files are also read at an interval, because a directory may be
//! created later, and a symbolic link may point outside of the watched directories. If a file is invalid, the previous
//! settings stay.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_model::{Kind, MeshConfig, MeshSettings, Object, ParsedObject, Text};
use sluice_parse::yaml::{self, Limits};
use sluice_parse::{Findings, merge_mesh_config, parse_mesh_networks};
use sluice_tasks::NamedThread;
use sluice_telemetry::unix_time;
use sluice_watch::{Due, FollowGuard, MAX_CHANGE_DELAY, SETTLE_TIME, Watch};
use tracing::{info, warn};

use super::mesh_override::MeshPart;
use super::{Change, ChangeOrigin, Problem, Reporter, Sink};

/// Interval of checks for changes without a notification.
const RESCAN_INTERVAL: Duration = Duration::from_secs(2);

/// Files with mesh settings that cannot be used. [`MeshFileError::Read`] is retryable.
#[derive(Debug, thiserror::Error)]
pub enum MeshFileError {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        reason: Text,
    },
    /// A file is not YAML, or invalid.
    #[error("{}: line {}: {}", path.display(), problem.line, problem.reason)]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        problem: Problem,
    },
    /// The thread that reads files cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The content of a path.
#[derive(Debug, Eq, PartialEq)]
enum FileContent {
    Nothing,
    Bytes(Vec<u8>),
    /// It cannot be read; the reason.
    Failure(Text),
}

/// One of the files.
#[derive(Debug)]
struct MeshFile {
    part: MeshPart,
    /// As configured.
    path: PathBuf,
    /// The absolute path, as it is watched.
    absolute: PathBuf,
    /// The content of the last read.
    content: FileContent,
    /// When to read it again.
    due: Option<Instant>,
    /// Since when the file is missing. Its removal is applied after [`SETTLE_TIME`].
    missing_since: Option<Instant>,
}

/// The files with mesh settings, read.
#[derive(Debug)]
pub struct MeshFiles {
    files: [MeshFile; 2],
    initial: Vec<Change>,
}

impl MeshFiles {
    /// Reads both files, if they exist.
    ///
    /// # Errors
    /// An existing file cannot be read or is invalid.
    pub fn open(mesh: &Path, networks: &Path) -> Result<Self, MeshFileError> {
        let file = |part, path: &Path| {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            MeshFile {
                part,
                path: path.to_owned(),
                absolute,
                content: FileContent::Nothing,
                due: None,
                missing_since: None,
            }
        };
        let mut files = [file(MeshPart::Mesh, mesh), file(MeshPart::Networks, networks)];
        let mut initial = Vec::new();
        for file in &mut files {
            let path = || file.path.clone();
            file.content = read_content(&file.path);
            match &file.content {
                FileContent::Nothing => {}
                FileContent::Failure(reason) => {
                    return Err(MeshFileError::Read { path: path(), reason: reason.clone() });
                }
                FileContent::Bytes(bytes) => {
                    let settings = file.parse(bytes);
                    let settings = settings.map_err(|problem| MeshFileError::Invalid { path: path(), problem })?;
                    initial.push(file.change(Some(settings)));
                }
            }
        }
        Ok(Self { files, initial })
    }

    /// Commits the settings. Call it before any other commit.
    pub fn load(&self, sink: &dyn Sink) {
        sink.commit(self.initial.clone());
    }

    /// Follows changes since the files were read, on a separate thread, until the returned guard is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(self, sink: Arc<dyn Sink>, reporter: Reporter) -> Result<FollowGuard, MeshFileError> {
        let paths = self.files.each_ref().map(|file| file.absolute.clone());
        let watch = Watch::new(move |path| paths.iter().any(|wanted| wanted == path));
        let stop = watch.handle();
        let mut follower = Follower { files: self.files, watch, reporter };
        let thread = NamedThread::start("mesh-files", move || follower.run(&*sink));
        Ok(FollowGuard::new(stop, thread.map_err(MeshFileError::Thread)?))
    }
}

struct Follower {
    files: [MeshFile; 2],
    watch: Watch,
    reporter: Reporter,
}

impl Follower {
    fn run(&mut self, sink: &dyn Sink) {
        let mut next_rescan = Instant::now();
        let mut last_check = Instant::now();
        loop {
            let due = self.files.iter().filter_map(|file| file.due).min();
            match self.watch.next(due.map_or(next_rescan, |due| due.min(next_rescan))) {
                Due::Stop => return,
                Due::Everything => self.schedule_all(),
                Due::File(path, at) => {
                    for file in self.files.iter_mut().filter(|file| file.absolute == path) {
                        file.due = Some(at);
                    }
                }
                Due::Nothing => {}
            }
            if self.watch.has_more() && last_check.elapsed() < MAX_CHANGE_DELAY {
                continue;
            }
            last_check = Instant::now();
            self.read_due(sink);
            if next_rescan <= Instant::now() {
                self.rescan();
                next_rescan = Instant::now() + RESCAN_INTERVAL;
            }
        }
    }

    /// Schedules a read of both files at the same time, because one symbolic link may have changed both. If one of them
    /// is being written, both are read when it is complete.
    fn schedule_all(&mut self) {
        let at = self.files.iter().filter_map(|file| file.due).max().unwrap_or_else(Instant::now);
        for file in &mut self.files {
            file.due = Some(at);
        }
    }

    /// Reads the files that are due, and commits the changes of both at once.
    fn read_due(&mut self, sink: &dyn Sink) {
        let now = Instant::now();
        let mut changes = Vec::new();
        for file in self.files.iter_mut().filter(|file| file.due.is_some_and(|due| due <= now)) {
            changes.extend(file.check(&self.reporter));
            file.due = file.missing_since.map(|since| since + SETTLE_TIME);
        }
        if !changes.is_empty() {
            sink.commit(changes);
        }
    }

    /// Schedules files that changed without a notification.
    fn rescan(&mut self) {
        let mut differs = false;
        for file in &mut self.files {
            if let Some(directory) = file.absolute.parent() {
                // The directory may not exist, or may have replaced the one that was watched. If it cannot be watched,
                // the next rescan reads the file.
                let _ = self.watch.add_directory(directory);
            }
            differs |= file.due.is_none() && is_rereadable(&file.path) && read_content(&file.path) != file.content;
        }
        if differs {
            // The writer may not have finished, and may have changed the other file after it was read here.
            let at = Instant::now() + SETTLE_TIME;
            for file in &mut self.files {
                file.due.get_or_insert(at);
            }
        }
    }
}

impl MeshFile {
    /// Reads the file. Returns a change if its content is new and valid.
    fn check(&mut self, reporter: &Reporter) -> Option<Change> {
        let missing_since = self.missing_since.take();
        if !is_rereadable(&self.path) {
            return None;
        }
        let content = read_content(&self.path);
        if content == self.content {
            return None;
        }
        if content == FileContent::Nothing {
            // Editors remove a file before they put another in its place.
            let since = missing_since.unwrap_or_else(Instant::now);
            if since.elapsed() < SETTLE_TIME {
                self.missing_since = Some(since);
                return None;
            }
        }
        self.content = content;
        let place = Text::from(self.path.display().to_string());
        let settings = match &self.content {
            FileContent::Nothing => Ok(None),
            FileContent::Bytes(bytes) => self.parse(bytes).map(Some),
            FileContent::Failure(reason) => Err(Problem { line: 0, reason: reason.clone() }),
        };
        match settings {
            Ok(settings) => {
                let (part, exists) = (self.part.name(), settings.is_some());
                reporter.set(&place, None);
                info!(file = %place, part, exists, "mesh settings changed");
                Some(self.change(settings))
            }
            Err(problem) => {
                reporter.set(&place, Some(problem));
                None
            }
        }
    }

    /// Parses the settings. Only the part that the file is for is read.
    fn parse(&self, bytes: &[u8]) -> Result<MeshSettings, Problem> {
        let text = std::str::from_utf8(bytes).map_err(|error| Problem::not_utf8(bytes, error))?;
        let value = yaml::parse_value(text, &Limits::default())
            .map_err(|error| Problem { line: error.line, reason: error.reason.into() })?;
        let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
        let findings = Findings::default();
        let mut settings = MeshSettings::default();
        match self.part {
            MeshPart::Mesh => {
                settings.mesh = merge_mesh_config(MeshConfig::default(), &value, "", &findings);
                settings.given = value.to_string().into();
            }
            MeshPart::Networks => settings.networks = Some(parse_mesh_networks(&value, "", &findings)),
        }
        let findings = findings.into_vec();
        let fields: Vec<&str> = findings.iter().map(|finding| finding.field_path.trim_start_matches('.')).collect();
        let positions = yaml::find_positions(text, first_line(text), &fields);
        for ((finding, field), position) in findings.iter().zip(fields).zip(positions) {
            let line = position.line;
            let reason = format!("{field}: {}", finding.reason);
            if finding.severity.is_refusal() {
                return Err(Problem { line, reason: reason.into() });
            }
            warn!(file = %self.path.display(), line, reason, "validation warning in mesh settings");
        }
        Ok(settings)
    }

    /// The change that applies the settings; `None` stands for a missing file.
    fn change(&self, settings: Option<MeshSettings>) -> Change {
        let (kind, key) = (Kind::ConfigMap, self.part.key());
        let object = settings.map(|settings| {
            let object = Some(Object::MeshSettings(Box::new(settings)));
            Box::new(ParsedObject { kind, key: key.clone(), object, rejects: Vec::new() })
        });
        let place = self.path.display().to_string().into();
        Change { kind, key, object, origin: ChangeOrigin { place, received: unix_time(), ..ChangeOrigin::default() } }
    }
}

/// Whether a path can be read again. A pipe can be read only once.
fn is_rereadable(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |metadata| metadata.is_file())
}

fn read_content(path: &Path) -> FileContent {
    match std::fs::read(path) {
        Ok(bytes) => FileContent::Bytes(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => FileContent::Nothing,
        Err(error) => FileContent::Failure(error.to_string().into()),
    }
}

/// The first line of the only document of a text.
fn first_line(text: &str) -> usize {
    let documents = yaml::parse_documents(text, &Limits::default());
    documents.into_iter().next().and_then(Result::ok).map_or(1, |document| document.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_one_symbolic_link_changes_are_read_together() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        let files = MeshFiles::open(&path("config"), &path("networks")).expect("none yet").files;
        let watch = Watch::new(|_| true);
        let mut follower = Follower { files, watch, reporter: Reporter::default() };
        let dues = |follower: &Follower| follower.files.each_ref().map(|file| file.due);
        // A rescan that finds one of them changed schedules both.
        std::fs::write(path("networks"), "networks: {}").expect("written");
        follower.rescan();
        let [mesh, networks] = dues(&follower);
        assert!(mesh.is_some() && mesh == networks);
        // A replaced link schedules both at the time of the one that is already scheduled.
        follower.files[0].due = None;
        follower.schedule_all();
        assert_eq!(dues(&follower), [networks; 2]);
        follower.files.iter_mut().for_each(|file| file.due = None);
        follower.schedule_all();
        assert!(dues(&follower).iter().all(|due| due.is_some_and(|due| due <= Instant::now())));
    }
}
