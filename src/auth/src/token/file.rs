//! Keys in a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures::future::BoxFuture;

use super::KeySource;
use super::keys::KeySet;

/// A file with a JSON web key set, read again when it has changed.
#[derive(Debug)]
pub struct FileKeys {
    file: PathBuf,
    read: Mutex<Option<(Stamp, Arc<KeySet>)>>,
}

/// When a file was written, and its length.
type Stamp = (SystemTime, u64);

impl FileKeys {
    /// Of this file, which may come later.
    #[must_use]
    pub fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), read: Mutex::default() }
    }

    fn load(&self) -> Result<Arc<KeySet>, String> {
        let fail = |error: std::io::Error| format!("cannot read {}: {error}", self.file.display());
        let metadata = std::fs::metadata(&self.file).map_err(fail)?;
        let stamp = (metadata.modified().map_err(fail)?, metadata.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, keys)) = &*read
            && *of == stamp
        {
            return Ok(keys.clone());
        }
        let text = std::fs::read_to_string(&self.file).map_err(fail)?;
        let keys = KeySet::parse(&text).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let keys = Arc::new(keys);
        *read = Some((stamp, keys.clone()));
        Ok(keys)
    }
}

impl KeySource for FileKeys {
    fn keys(&self, _: bool) -> BoxFuture<'_, Result<Arc<KeySet>, String>> {
        let keys = self.load();
        Box::pin(async move { keys })
    }
}
