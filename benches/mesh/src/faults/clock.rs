//! A clock that jumps, for the server process only.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The library of Debian's package `libfaketime`, for programs with threads.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// A wall clock that runs ahead or behind by the offset in a file. Monotonic clocks are real.
pub(super) struct FakeClock {
    offset: PathBuf,
    _directory: tempfile::TempDir,
}

impl FakeClock {
    /// A clock without offset, or why there is none.
    pub(super) fn install() -> Result<Self, String> {
        if !Path::new(LIBRARY).exists() {
            return Err(format!("{LIBRARY} does not exist: install libfaketime"));
        }
        let directory = tempfile::tempdir().map_err(|error| format!("make a directory: {error}"))?;
        let clock = Self { offset: directory.path().join("offset"), _directory: directory };
        clock.jump("+0d").map_err(|error| format!("{error:#}"))?;
        Ok(clock)
    }

    /// Variables of a process that reads this clock.
    pub(super) fn environment(&self) -> Vec<(String, OsString)> {
        vec![
            ("LD_PRELOAD".to_owned(), LIBRARY.into()),
            ("FAKETIME_TIMESTAMP_FILE".to_owned(), self.offset.clone().into()),
            ("FAKETIME_CACHE_DURATION".to_owned(), "1".into()),
            ("DONT_FAKE_MONOTONIC".to_owned(), "1".into()),
        ]
    }

    /// Sets the offset, such as `+1d`. The process follows it within a second.
    pub(super) fn jump(&self, offset: &str) -> Result<()> {
        // A reader never sees an empty file.
        let next = self.offset.with_extension("next");
        std::fs::write(&next, offset).and_then(|()| std::fs::rename(&next, &self.offset)).context("set the clock")
    }
}
