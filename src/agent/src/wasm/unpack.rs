//! Modules out of the archives they come in. Nothing grows beyond a limit.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use tar::Archive;

/// How deep archives may lie in each other.
const DEPTH: usize = 4;
/// Name of the module in an image.
const IN_IMAGE: &str = "plugin.wasm";

/// Whether bytes begin as a module does: its mark and a version.
pub(super) fn is_module(bytes: &[u8]) -> bool {
    bytes.len() >= 8 && bytes.starts_with(b"\0asm")
}

/// The module in what was served: itself, or the first file of an archive, compressed or not.
///
/// # Errors
/// There is none, or it is too big.
pub(super) fn module(mut bytes: Vec<u8>, most: usize) -> Result<Vec<u8>> {
    for _ in 0..DEPTH {
        if is_module(&bytes) {
            return Ok(bytes);
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            bytes = limited(MultiGzDecoder::new(bytes.as_slice()), most).context("decompress it")?;
        } else if bytes.get(257..262) == Some(b"ustar") {
            let mut archive = Archive::new(bytes.as_slice());
            let first = archive.entries().context("read the archive")?.next().context("the archive is empty")?;
            let inner = limited(first.context("read the archive")?, most).context("read the archive")?;
            bytes = inner;
        } else {
            break;
        }
    }
    ensure!(is_module(&bytes), "what is served is no Wasm module");
    Ok(bytes)
}

/// The module in a layer of an image.
///
/// # Errors
/// There is none, or it is too big.
pub(super) fn module_of_layer(layer: &[u8], most: usize) -> Result<Vec<u8>> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    // What is not looked at is decompressed all the same.
    let mut archive = Archive::new(MultiGzDecoder::new(layer).take(limit.saturating_add(limit / 4)));
    for entry in archive.entries().context("read the layer")? {
        let entry = entry.context("read the layer")?;
        let is_it = entry.path().is_ok_and(|path| path.file_name().is_some_and(|name| name == IN_IMAGE));
        if is_it {
            return limited(entry, most).with_context(|| format!("read {IN_IMAGE}"));
        }
    }
    bail!("there is no {IN_IMAGE} in the image")
}

/// All bytes, if they are not too many.
fn limited(reader: impl Read, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1)).read_to_end(&mut bytes)?;
    ensure!(bytes.len() <= most, "it is longer than {most} bytes");
    Ok(bytes)
}
