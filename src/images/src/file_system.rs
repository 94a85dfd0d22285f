//! The files of an image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::libraries::shared_libraries;

/// User and group of the processes of most images: those of Istio's images.
pub const OWNER: u64 = 1337;

/// CA certificates of the machine that builds the image.
const CA_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// An entry of an image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    /// A directory with this mode, of this owner.
    Directory { mode: u32, owner: u64 },
    /// A copy of a file, with this mode.
    Copy { source: PathBuf, mode: u32 },
    /// An executable without its debug information.
    Executable(PathBuf),
    /// A file with this content.
    Text(String),
    /// A symbolic link.
    Link(PathBuf),
}

/// The files of a layer, by absolute path without the first slash. A directory sorts before its content.
#[derive(Clone, Debug, Default)]
pub struct FileSystem(pub(crate) BTreeMap<PathBuf, Entry>);

impl FileSystem {
    /// Directories, accounts and CA certificates, without a shell and without a package manager.
    ///
    /// # Errors
    /// This machine has no CA certificates.
    pub fn base() -> Result<Self> {
        let mut files = Self::default();
        files.directory("tmp", 0o1777, 0);
        files.text("etc/passwd", &format!("root:x:0:0::/:/sbin/nologin\nproxy:x:{OWNER}:{OWNER}::/:/sbin/nologin\n"));
        files.text("etc/group", &format!("root:x:0:\nproxy:x:{OWNER}:\n"));
        files.text("etc/nsswitch.conf", "hosts: files dns\n");
        ensure!(Path::new(CA_CERTIFICATES).exists(), "{CA_CERTIFICATES} does not exist: install ca-certificates");
        files.copy(CA_CERTIFICATES, Path::new(CA_CERTIFICATES), 0o644);
        Ok(files)
    }

    /// Adds the shared libraries of a binary, at the paths where its loader looks for them.
    ///
    /// # Errors
    /// The binary cannot be read, or a library is missing on this machine.
    pub fn libraries_of(&mut self, binary: &Path) -> Result<()> {
        for library in shared_libraries(binary)? {
            let source = library.canonicalize().with_context(|| format!("find {}", library.display()))?;
            self.copy(&library, &source, 0o755);
        }
        Ok(())
    }

    /// Adds an executable, without its debug information. It keeps its symbols, which backtraces need.
    pub fn executable(&mut self, path: impl AsRef<Path>, source: &Path) {
        self.insert(path.as_ref(), Entry::Executable(source.to_owned()));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.insert(path.as_ref(), Entry::Link(target.into()));
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: impl AsRef<Path>, mode: u32, owner: u64) {
        self.insert(path.as_ref(), Entry::Directory { mode, owner });
    }

    /// Adds a file with this content.
    pub fn text(&mut self, path: impl AsRef<Path>, text: &str) {
        self.insert(path.as_ref(), Entry::Text(text.to_owned()));
    }

    fn copy(&mut self, path: impl AsRef<Path>, source: &Path, mode: u32) {
        self.insert(path.as_ref(), Entry::Copy { source: source.to_owned(), mode });
    }

    /// Inserts an entry, and the directories above it.
    fn insert(&mut self, path: &Path, entry: Entry) {
        let path = path.strip_prefix("/").unwrap_or(path);
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            self.0.entry(above.to_owned()).or_insert(Entry::Directory { mode: 0o755, owner: 0 });
        }
        self.0.insert(path.to_owned(), entry);
    }
}
