//! Reads many files in parallel, on all cores but one. The remaining core runs the dataflow.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use super::parsed_file::{FileRecord, ParsedFile, Reader};
use super::read::read_text;
use super::text::FileText;
use crate::Problem;

/// Number of files that each thread reads ahead of the receiver.
const MAX_FILES_AHEAD: usize = 256;

/// The text of a file and its parsed objects.
pub(super) type FileRead = Result<(FileText<'static>, ParsedFile), Problem>;

/// Reads files for the first time, and passes each to `take`, in their order.
pub(super) fn read_in_parallel(reader: &Reader, paths: &[PathBuf], mut take: impl FnMut(&Path, FileRead)) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores - 1).min(paths.len()).max(1);
    let read = |path: &Path| {
        let text = FileText::new(Cow::Owned(read_text(path)?));
        let parsed = reader.read(path, &text, &FileRecord::default());
        Ok((text, parsed))
    };
    thread::scope(|scope| {
        let start = |first: usize| {
            let (sender, receiver) = sync_channel(MAX_FILES_AHEAD);
            scope.spawn(move || {
                for path in paths.iter().skip(first).step_by(threads) {
                    if sender.send(read(path)).is_err() {
                        // The receiver is dropped.
                        return;
                    }
                }
            });
            receiver
        };
        let receivers: Vec<_> = (0..threads).map(start).collect();
        for (path, receiver) in paths.iter().zip(receivers.iter().cycle()) {
            // A thread that ends before its last file has panicked: the scope passes the panic on.
            let Ok(read) = receiver.recv() else { break };
            take(path, read);
        }
    });
}
