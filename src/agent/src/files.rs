//! Atomic writes of files.

use std::fs::{OpenOptions, Permissions};
use std::io::{Result, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Replaces a file atomically. Only the agent's user may read it.
///
/// # Errors
/// The directory is not writable.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    write_atomic(path, content, 0o600)
}

/// Replaces a file atomically, with these permissions.
///
/// # Errors
/// The directory is not writable.
pub(crate) fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
    // A temporary file of an earlier run may have other permissions.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    drop(file);
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_file_is_readable_by_its_owner_and_replaced_atomically() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key.pem");
        write_private(&path, b"one").expect("write");
        write_private(&path, b"2").expect("write again");
        assert_eq!(std::fs::read(&path).expect("read"), b"2");
        assert_eq!(std::fs::metadata(&path).expect("stat").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).expect("list").count(), 1);
    }
}
