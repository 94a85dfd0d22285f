//! An image layout as one file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tar::{EntryType, Header};

/// Writes a layout as a tar archive, which `docker load`, `podman load`, `ctr images import` and `skopeo` read. Equal layouts give
/// equal archives.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_archive(layout: &Path, file: &Path) -> Result<()> {
    let mut paths = Vec::new();
    collect(layout, &mut paths)?;
    paths.sort();
    let target = std::fs::File::create(file).with_context(|| format!("create {}", file.display()))?;
    let mut archive = tar::Builder::new(std::io::BufWriter::new(target));
    for path in paths {
        let content = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        let name = path.strip_prefix(layout).unwrap_or(&path);
        archive.append_data(&mut header, name, content.as_slice())?;
    }
    archive.into_inner().context("finish the archive")?.into_inner().context("write the archive")?;
    Ok(())
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, paths)? } else { paths.push(path) }
    }
    Ok(())
}
