//! Finds the workspace's binaries for tests.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// A binary of this workspace, built beside the running test.
///
/// # Errors
/// It has not been built.
pub fn workspace_binary(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("find the running binary")?;
    let mut directory = here.parent().context("the running binary has a directory")?;
    if directory.ends_with("deps") {
        directory = directory.parent().context("the build has a directory")?;
    }
    let path = directory.join(name);
    if !path.exists() {
        bail!("{} is not built: run `make build` first", path.display());
    }
    Ok(path)
}
