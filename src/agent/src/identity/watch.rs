//! Watches files that other programs replace, by writing or by renaming symbolic links as Kubernetes does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Interval of checks without a notification, which may be lost.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Files that change all the time are read after this many debounce durations.
const MAX_DEBOUNCE_ROUNDS: u32 = 10;

/// Reports when files may have changed.
pub(super) struct FileWatcher {
    files: Vec<PathBuf>,
    debounce: Duration,
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
    notifications: mpsc::Receiver<()>,
}

impl FileWatcher {
    pub(super) fn new(files: Vec<PathBuf>, debounce: Duration) -> Self {
        // One pending notification represents any number of notifications.
        let (sender, notifications) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Read events are ignored.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                let _ = sender.try_send(());
            }
        });
        let watcher = watcher.ok();
        let mut file_watcher = Self { files, debounce, watcher, directories: BTreeSet::new(), notifications };
        file_watcher.update_directories();
        file_watcher
    }

    /// Watches the directories of the files: of the links, and of the files that they refer to.
    fn update_directories(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut needed = BTreeSet::new();
        for file in &self.files {
            let directory = file.parent().unwrap_or(Path::new(".")).to_path_buf();
            let target = file.canonicalize().ok().and_then(|file| file.parent().map(Path::to_path_buf));
            // If a directory is a symbolic link or does not exist, its parent has to be watched.
            let parent = (!directory.is_dir() || directory.is_symlink())
                .then(|| directory.parent().map(Path::to_path_buf))
                .flatten();
            needed.extend([Some(directory), target, parent].into_iter().flatten());
        }
        for directory in self.directories.difference(&needed) {
            let _ = watcher.unwatch(directory);
        }
        // The watch is added again each time, because a replaced directory has the same name.
        for directory in &needed {
            let _ = watcher.watch(directory, RecursiveMode::NonRecursive);
        }
        self.directories = needed;
    }

    /// Waits until the files may have changed, and then for the debounce duration without a change.
    pub(super) async fn changed(&mut self) {
        let _ = tokio::time::timeout(RECHECK_INTERVAL, self.notifications.recv()).await;
        for _ in 0..MAX_DEBOUNCE_ROUNDS {
            if tokio::time::timeout(self.debounce, self.notifications.recv()).await.is_err() {
                break;
            }
        }
        self.update_directories();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn change_is_reported_after_the_debounce_duration() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("key.pem");
        let reported = async |debounce: Duration| {
            let mut watcher = FileWatcher::new(vec![file.clone()], debounce);
            let started = Instant::now();
            std::fs::write(&file, "content").expect("write");
            watcher.changed().await;
            started.elapsed()
        };
        let long = Duration::from_millis(700);
        assert!(reported(long).await >= long);
        assert!(reported(Duration::from_millis(1)).await < RECHECK_INTERVAL);
    }
}
