//! Reads many files in parallel, on all cores but one: that one computes what follows from them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use super::read::{ReadError, read_text};
use super::reading::{FileRecord, Reader, Reading};
use super::text::FileText;

/// Files that each thread reads ahead of the receiver.
const MAX_FILES_AHEAD: usize = 256;

/// A file's text and what it holds.
pub(super) type FileRead = Result<(FileText<'static>, Reading), ReadError>;

/// Reads files that have not been read before, and gives each to `take`, in their order.
pub(super) fn read_at_once(reader: &Reader, paths: &[PathBuf], mut take: impl FnMut(&Path, FileRead)) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores - 1).min(paths.len()).max(1);
    let read = |path: &Path| {
        let text = FileText::new(Cow::Owned(read_text(path)?));
        let reading = reader.read(path, &text, &FileRecord::default());
        Ok((text, reading))
    };
    thread::scope(|scope| {
        let start = |first: usize| {
            let (sender, receiver) = sync_channel(MAX_FILES_AHEAD);
            scope.spawn(move || {
                for path in paths.iter().skip(first).step_by(threads) {
                    if sender.send(read(path)).is_err() {
                        // The receiver has ended.
                        return;
                    }
                }
            });
            receiver
        };
        let receivers: Vec<_> = (0..threads).map(start).collect();
        for (path, receiver) in paths.iter().zip(receivers.iter().cycle()) {
            // A thread that ended before its last file has panicked, which the scope passes on.
            let Ok(read) = receiver.recv() else { break };
            take(path, read);
        }
    });
}
