//! OCI image layouts: blobs by digest, and an index.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

/// A SHA-256 digest in the form `sha256:HEX`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Digest(String);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_hash(digest(&SHA256, bytes).as_ref())
    }

    pub(crate) fn of_hash(hash: &[u8]) -> Self {
        Self(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Its hexadecimal form.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// Writes a layout into an empty directory.
pub(crate) struct LayoutWriter {
    directory: PathBuf,
}

impl LayoutWriter {
    /// Replaces the directory.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        if directory.exists() {
            std::fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
        }
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).with_context(|| format!("create {}", blobs.display()))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Writes a blob. Returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Result<Value> {
        let digest = Digest::of(bytes);
        self.file(&format!("blobs/sha256/{}", digest.hex()), bytes)?;
        Ok(json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()}))
    }

    /// Writes the index, which names one image.
    pub(crate) fn finish(&self, manifest: Value) -> Result<()> {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        self.file("index.json", index.to_string().as_bytes())?;
        self.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.directory.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    }
}
