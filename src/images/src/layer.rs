//! Layers: gzipped tar archives.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{Context as Hasher, SHA256};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use crate::file_system::{Entry, FileSystem};
use crate::layout::Digest;

/// A layer in memory.
pub(crate) struct Layer {
    /// The compressed archive.
    pub(crate) blob: Vec<u8>,
    /// The digest of the archive before compression.
    pub(crate) diff_id: Digest,
}

/// Hashes what is written before it is compressed.
struct HashedGzip {
    gzip: GzEncoder<Vec<u8>>,
    hasher: Hasher,
}

impl Write for HashedGzip {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.gzip.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.gzip.flush()
    }
}

impl Layer {
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn of(files: &FileSystem) -> Result<Self> {
        // The header of gzip has no name and no time, so that equal content gives equal bytes.
        let gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(6));
        let mut archive = tar::Builder::new(HashedGzip { gzip, hasher: Hasher::new(&SHA256) });
        for (path, entry) in &files.0 {
            append(&mut archive, path, entry).with_context(|| format!("add {}", path.display()))?;
        }
        let HashedGzip { gzip, hasher } = archive.into_inner().context("finish the archive")?;
        Ok(Self { blob: gzip.finish().context("compress")?, diff_id: Digest::of_hash(hasher.finish().as_ref()) })
    }
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &Path, entry: &Entry) -> Result<()> {
    match entry {
        Entry::Directory { mode, owner } => {
            let mut header = header(EntryType::Directory, 0, *mode, *owner);
            archive.append_data(&mut header, path.join(""), io::empty())?;
        }
        Entry::Copy { source, mode } => {
            let content = std::fs::read(source).with_context(|| format!("read {}", source.display()))?;
            let mut header = header(EntryType::Regular, content.len(), *mode, 0);
            archive.append_data(&mut header, path, content.as_slice())?;
        }
        Entry::Executable(source) => {
            let content = without_debug_information(source)?;
            let mut header = header(EntryType::Regular, content.len(), 0o755, 0);
            archive.append_data(&mut header, path, content.as_slice())?;
        }
        Entry::Text(text) => {
            let mut header = header(EntryType::Regular, text.len(), 0o644, 0);
            archive.append_data(&mut header, path, text.as_bytes())?;
        }
        Entry::Link(target) => {
            let mut header = header(EntryType::Symlink, 0, 0o777, 0);
            archive.append_link(&mut header, path, target)?;
        }
    }
    Ok(())
}

fn without_debug_information(executable: &Path) -> Result<Vec<u8>> {
    let stripped = tempfile::NamedTempFile::new().context("create a temporary file")?;
    let status = Command::new("strip")
        .args(["--strip-debug", "--enable-deterministic-archives", "-o"])
        .arg(stripped.path())
        .arg(executable)
        .status()
        .context("run strip, which binutils contains")?;
    ensure!(status.success(), "strip {}: {status}", executable.display());
    std::fs::read(stripped.path()).context("read the output of strip")
}

fn header(kind: EntryType, size: usize, mode: u32, owner: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(0);
    header
}
