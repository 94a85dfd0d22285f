//! Key material of the authority in a directory.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sluice_ca::store::{Contents, FILES};
use zeroize::Zeroizing;

use super::AuthorityError;

/// The existing files of an authority.
pub(super) fn read(directory: &Path) -> Result<Contents, AuthorityError> {
    let mut contents = Contents::new();
    for name in FILES {
        let file = directory.join(name);
        match std::fs::read_to_string(&file) {
            Ok(text) => drop(contents.insert(name.to_owned(), Zeroizing::new(text))),
            // NotADirectory: a part of the path is a file.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(AuthorityError::File { action: "read", file, error }),
        }
    }
    Ok(contents)
}

/// Writes files that only their owner can read, each atomically.
pub(super) fn write(directory: &Path, contents: &Contents) -> Result<(), AuthorityError> {
    let fail = |file: &Path, error| AuthorityError::File { action: "write", file: file.to_owned(), error };
    if !directory.exists() {
        std::fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
    }
    for (name, text) in contents {
        let (file, new) = (directory.join(name), directory.join(format!(".{name}.new")));
        let written = || -> io::Result<()> {
            match std::fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut out = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            std::fs::rename(&new, &file)
        };
        written().map_err(|error| fail(&file, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn written_files_are_readable_by_their_owner_only() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("cacerts");
        assert!(read(&directory).expect("no directory yet").is_empty());
        let contents = Contents::from([("ca-key.pem".to_owned(), Zeroizing::new("key".to_owned()))]);
        write(&directory, &contents).expect("write");
        assert_eq!(read(&directory).expect("read"), contents);
        let file = directory.join("ca-key.pem");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("open it up");
        write(&directory, &contents).expect("write again");
        assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 1, "nothing else is left");
    }
}
