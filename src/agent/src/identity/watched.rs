//! Files that others replace, by writing or by moving links as Kubernetes does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Changes that no notice came of are seen after this long.
const SWEEP: Duration = Duration::from_secs(10);

/// Files that never rest are read all the same after this many times the debounce duration.
const MOST_RESTS: u32 = 10;

/// Says when files may have changed.
pub(super) struct Watched {
    files: Vec<PathBuf>,
    debounce: Duration,
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
    notices: mpsc::Receiver<()>,
}

impl Watched {
    pub(super) fn new(files: Vec<PathBuf>, debounce: Duration) -> Self {
        // One notice is as good as many.
        let (sender, notices) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // That we read it is no news.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                let _ = sender.try_send(());
            }
        });
        let watcher = watcher.ok();
        let mut watched = Self { files, debounce, watcher, directories: BTreeSet::new(), notices };
        watched.follow();
        watched
    }

    /// Watches the directories the files are in now, behind links and before.
    fn follow(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut wanted = BTreeSet::new();
        for file in &self.files {
            let directory = file.parent().unwrap_or(Path::new(".")).to_path_buf();
            let behind = file.canonicalize().ok().and_then(|file| file.parent().map(Path::to_path_buf));
            // A directory that is a link, or is not there yet, changes where it is itself.
            let above = (!directory.is_dir() || directory.is_symlink())
                .then(|| directory.parent().map(Path::to_path_buf))
                .flatten();
            wanted.extend([Some(directory), behind, above].into_iter().flatten());
        }
        for directory in self.directories.difference(&wanted) {
            let _ = watcher.unwatch(directory);
        }
        // Again each time: one that was replaced is another directory by the same name.
        for directory in &wanted {
            let _ = watcher.watch(directory, RecursiveMode::NonRecursive);
        }
        self.directories = wanted;
    }

    /// Waits until the files may have changed and rested.
    pub(super) async fn changed(&mut self) {
        let _ = tokio::time::timeout(SWEEP, self.notices.recv()).await;
        for _ in 0..MOST_RESTS {
            if tokio::time::timeout(self.debounce, self.notices.recv()).await.is_err() {
                break;
            }
        }
        self.follow();
    }
}
