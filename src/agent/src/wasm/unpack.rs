//! Extracts modules from archives, within a size limit.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use tar::Archive;

/// Limit on nested archives and compressions.
const MAX_NESTING: usize = 4;
/// File name of the module in an image.
const MODULE_FILE_NAME: &str = "plugin.wasm";

/// Whether the bytes begin with the magic number and version of a Wasm module.
pub(super) fn is_module(bytes: &[u8]) -> bool {
    bytes.len() >= 8 && bytes.starts_with(b"\0asm")
}

/// The module in a response body: the body itself, or the first file of a tar archive; either may be compressed by gzip.
///
/// # Errors
/// There is no module, or it exceeds the limit.
pub(super) fn module(mut bytes: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>> {
    for _ in 0..MAX_NESTING {
        if is_module(&bytes) {
            return Ok(bytes);
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            bytes = limited(MultiGzDecoder::new(bytes.as_slice()), max_bytes).context("decompress it")?;
        } else if bytes.get(257..262) == Some(b"ustar") {
            let mut archive = Archive::new(bytes.as_slice());
            let first = archive.entries().context("read the archive")?.next().context("the archive is empty")?;
            let inner = limited(first.context("read the archive")?, max_bytes).context("read the archive")?;
            bytes = inner;
        } else {
            break;
        }
    }
    ensure!(is_module(&bytes), "the server's response is not a Wasm module");
    Ok(bytes)
}

/// The module in a file-system layer of an image.
///
/// # Errors
/// There is no module, or it exceeds the limit.
pub(super) fn module_of_layer(layer: &[u8], max_bytes: usize) -> Result<Vec<u8>> {
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    // Entries that are skipped are decompressed too, so the whole layer is limited.
    let mut archive = Archive::new(MultiGzDecoder::new(layer).take(limit.saturating_add(limit / 4)));
    for entry in archive.entries().context("read the layer")? {
        let entry = entry.context("read the layer")?;
        let is_module_file =
            entry.path().is_ok_and(|path| path.file_name().is_some_and(|name| name == MODULE_FILE_NAME));
        if is_module_file {
            return limited(entry, max_bytes).with_context(|| format!("read {MODULE_FILE_NAME}"));
        }
    }
    bail!("the image contains no {MODULE_FILE_NAME}")
}

/// Reads all bytes, up to the limit.
fn limited(reader: impl Read, max_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1)).read_to_end(&mut bytes)?;
    ensure!(bytes.len() <= max_bytes, "the content exceeds {max_bytes} bytes");
    Ok(bytes)
}
