//! Another process asks for panics by files in a directory, which an environment variable names.
//!
//! It moves a file `panics` there, with the names of tasks as lines, and reads in `tasks` which tasks run. A line of that
//! file is a name, what follows a panic, and the number of panics, separated by tabs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{inject_panic, points};

/// The environment variable with the directory.
const DIRECTORY: &str = "SLUICE_TEST_FAULTS";
/// Time between two reads of the directory.
const INTERVAL: Duration = Duration::from_millis(10);

/// Follows the requests from now on, if the environment names a directory.
pub(super) fn follow() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    // Threads panic when they start: the first requests have to be known before that.
    accept_requests(&directory);
    let follow = move || {
        loop {
            accept_requests(&directory);
            list_tasks(&directory).expect("the directory for requests of tests can be written");
            std::thread::sleep(INTERVAL);
        }
    };
    std::thread::Builder::new().name("test-faults".to_owned()).spawn(follow).expect("a thread for requests of tests");
}

fn accept_requests(directory: &Path) {
    let accepted = directory.join("panics.accepted");
    if std::fs::rename(directory.join("panics"), &accepted).is_err() {
        return;
    }
    for name in std::fs::read_to_string(accepted).unwrap_or_default().lines() {
        inject_panic(name);
    }
}

fn list_tasks(directory: &Path) -> std::io::Result<()> {
    let mut text = String::new();
    for (name, point) in &*points() {
        if let Some(reaction) = point.running.last() {
            let _ = writeln!(text, "{name}\t{reaction:?}\t{}", point.panics);
        }
    }
    let incomplete = directory.join("tasks.incomplete");
    std::fs::write(&incomplete, text)?;
    std::fs::rename(incomplete, directory.join("tasks"))
}
