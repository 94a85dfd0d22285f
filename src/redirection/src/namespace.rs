//! Network namespaces, and threads in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::fstatfs;

/// `NSFS_MAGIC` of `linux/magic.h`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// The namespace of the calling process.
const OWN: &str = "/proc/self/ns/net";

/// An open network namespace. It exists at least as long as the value.
#[derive(Debug)]
pub struct NetworkNamespace {
    file: File,
    id: NamespaceId,
}

/// The identity of a namespace: device and inode.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

/// A namespace that cannot be opened or entered.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The file cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file is not a namespace.
    #[error("{}: not a network namespace", path.display())]
    NotANamespace {
        /// The file.
        path: PathBuf,
    },
    /// It is the namespace of the calling process or of the node, whose rules are never changed for a pod.
    #[error("{}: is the network namespace of the node", path.display())]
    Node {
        /// The file.
        path: PathBuf,
    },
    /// The namespace cannot be entered.
    #[error("enter the network namespace: {0}")]
    Enter(io::Error),
    /// The function panicked.
    #[error("panic in the network namespace")]
    Panicked,
}

impl NetworkNamespace {
    /// Opens a namespace: a bind mount such as `/var/run/netns/NAME`, or `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// The file is missing or not a namespace.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        let failed = |error| NamespaceError::Open { path: path.to_owned(), error };
        let file = File::open(path).map_err(failed)?;
        let kind = fstatfs(&file).map_err(|error| failed(error.into()))?.filesystem_type();
        if kind.0 != NSFS_MAGIC {
            return Err(NamespaceError::NotANamespace { path: path.to_owned() });
        }
        let id = id_of(&file).map_err(failed)?;
        Ok(Self { file, id })
    }

    /// Opens the namespace of a pod.
    ///
    /// # Errors
    /// As [`open`](Self::open), or it is the namespace of the calling process or one of `nodes`.
    pub fn open_pod(path: &Path, nodes: &[NamespaceId]) -> Result<Self, NamespaceError> {
        let namespace = Self::open(path)?;
        let own = Self::open(Path::new(OWN))?;
        if namespace.id == own.id || nodes.contains(&namespace.id) {
            return Err(NamespaceError::Node { path: path.to_owned() });
        }
        Ok(namespace)
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Runs a function on a new thread in the namespace and waits for it. Programs that it starts are in the namespace, too.
    ///
    /// # Errors
    /// The namespace cannot be entered, for which `CAP_SYS_ADMIN` is necessary, or the function panics.
    pub fn run<T: Send>(&self, function: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
                Ok(function())
            });
            let thread = thread.map_err(NamespaceError::Enter)?;
            thread.join().map_err(|_| NamespaceError::Panicked)?.map_err(NamespaceError::Enter)
        })
    }
}

fn id_of(file: &File) -> io::Result<NamespaceId> {
    let metadata = file.metadata()?;
    Ok(NamespaceId { device: metadata.dev(), inode: metadata.ino() })
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_is_never_that_of_a_pod() {
        let error = NetworkNamespace::open_pod(Path::new(OWN), &[]).expect_err("the namespace of the process");
        assert!(matches!(error, NamespaceError::Node { .. }), "{error}");
    }

    #[test]
    fn regular_file_is_not_a_namespace() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = NetworkNamespace::open(file.path()).expect_err("a regular file");
        assert!(error.to_string().ends_with("not a network namespace"), "{error}");
    }
}
