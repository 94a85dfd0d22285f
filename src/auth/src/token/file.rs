//! Keys in a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures::future::BoxFuture;

use super::keys::KeySet;
use super::{KeySource, KeysError};

/// A file with a JSON web key set, read again when it has changed.
#[derive(Debug)]
pub struct FileKeys {
    file: PathBuf,
    /// The keys of the last successful read, and the version of the file that they are from.
    read: Mutex<Option<(FileVersion, Arc<KeySet>)>>,
}

/// Modification time and length of a file.
type FileVersion = (SystemTime, u64);

impl FileKeys {
    /// Keys of this file, which may not exist yet.
    #[must_use]
    pub fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), read: Mutex::default() }
    }

    fn load(&self) -> Result<Arc<KeySet>, KeysError> {
        let fail = |error: std::io::Error| KeysError::Read { file: self.file.clone(), error };
        let metadata = std::fs::metadata(&self.file).map_err(fail)?;
        let version = (metadata.modified().map_err(fail)?, metadata.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, keys)) = &*read
            && *of == version
        {
            return Ok(keys.clone());
        }
        let text = std::fs::read_to_string(&self.file).map_err(fail)?;
        let keys = KeySet::parse(&text).map_err(|error| KeysError::Content { file: self.file.clone(), error })?;
        let keys = Arc::new(keys);
        *read = Some((version, keys.clone()));
        Ok(keys)
    }
}

impl KeySource for FileKeys {
    fn keys(&self, _: bool) -> BoxFuture<'_, Result<Arc<KeySet>, KeysError>> {
        let keys = self.load();
        Box::pin(async move { keys })
    }
}
