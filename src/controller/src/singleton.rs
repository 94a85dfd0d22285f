//! A file as the source of a singleton (K08).

use std::fmt::Display;
use std::path::{Path, PathBuf};

use sluice_engine::{Input, Value};
use sluice_watch::{FollowGuard, follow_changes};
use tracing::warn;

use crate::files::{FileSourceError, read_text};
use crate::guard;

type ParseText<V> = Box<dyn Fn(&str) -> Result<V, String> + Send>;

/// Keeps a singleton equal to a file. The last valid value stays while the file is missing or invalid.
pub struct FileSource<V> {
    path: PathBuf,
    value: Input<(), V>,
    problems: Option<Input<String, String>>,
    parse: ParseText<V>,
}

impl<V: Value> FileSource<V> {
    /// The file at `path`, parsed by `parse` from its text.
    #[must_use]
    pub fn new<E: Display>(
        path: impl Into<PathBuf>,
        value: Input<(), V>,
        parse: impl Fn(&str) -> Result<V, E> + Send + 'static,
    ) -> Self {
        let parse = Box::new(move |text: &str| guard::call(|| parse(text)));
        Self { path: path.into(), value, problems: None, parse }
    }

    /// Writes the problem of the file, by its path.
    #[must_use]
    pub fn with_problems(self, problems: Input<String, String>) -> Self {
        Self { problems: Some(problems), ..self }
    }

    /// Reads the file, marks the input as synced, and follows changes until the guard is dropped.
    ///
    /// # Errors
    /// The file cannot be read or parsed, or no thread can be started.
    pub fn start(self) -> Result<FollowGuard, FileSourceError> {
        let first = self.read()?;
        let directory = match self.path.parent() {
            Some(directory) if directory != Path::new("") => directory.to_owned(),
            _ => PathBuf::from("."),
        };
        self.value.set((), first);
        self.value.mark_synced();
        self.problems.iter().for_each(Input::mark_synced);
        let name = self.path.file_name().map(ToOwned::to_owned);
        let wanted = move |path: &Path| path.file_name() == name.as_deref();
        // What changes before the watch begins is read at the next check.
        let following = follow_changes(&[directory], wanted, move || self.refresh());
        following.map_err(FileSourceError::Thread)
    }

    fn read(&self) -> Result<V, FileSourceError> {
        let path = || self.path.clone();
        let text = read_text(&self.path).map_err(|error| FileSourceError::Read { path: path(), error })?;
        (self.parse)(&text).map_err(|reason| FileSourceError::Invalid { path: path(), reason })
    }

    fn refresh(&self) {
        let key = self.path.display().to_string();
        match self.read() {
            Ok(value) => {
                self.value.set((), value);
                self.problems.iter().for_each(|problems| problems.delete(key.clone()));
            }
            Err(error) => {
                warn!(%error, "problem of a file; its last value stays");
                self.problems.iter().for_each(|problems| problems.set(key.clone(), error.to_string()));
            }
        }
    }
}
