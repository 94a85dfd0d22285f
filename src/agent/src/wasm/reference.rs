//! Names of images.

use anyhow::{Context, Result, ensure};

/// Begins addresses of images.
pub(super) const SCHEME: &str = "oci://";
/// The registry of images that name none.
const DEFAULT_REGISTRY: &str = "index.docker.io";
const SHA256: &str = "sha256:";

/// An image: where it is, and which of those there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reference {
    /// Host, with its port.
    pub(super) registry: String,
    pub(super) repository: String,
    /// `sha256:…`, or a tag.
    pub(super) version: String,
}

impl Reference {
    /// From `oci://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`.
    ///
    /// # Errors
    /// It is no name of an image.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let name = url.strip_prefix(SCHEME).context("it is no image")?;
        let name = name.split(['?', '#']).next().unwrap_or_default();
        let (name, digest) = match name.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (name, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            // A port is followed by a path.
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (name, "latest"),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path.to_owned()),
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{name}")),
        };
        let registry = if registry == "docker.io" { DEFAULT_REGISTRY } else { registry };
        let version = digest.unwrap_or(tag);
        if let Some(digest) = digest {
            ensure!(sha256_of(digest).is_some(), "its digest is none of SHA-256");
        }
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let fine = plain(&repository) && !repository.split('/').any(|part| part.is_empty() || part == "..");
        ensure!(fine, "{repository:?} is no repository");
        ensure!(digest.is_some() || (plain(tag) && !tag.is_empty()), "{tag:?} is no tag");
        Ok(Self { registry: registry.to_owned(), repository, version: version.to_owned() })
    }

    /// The digest, if that is what says which image it is.
    pub(super) fn digest(&self) -> Option<&str> {
        sha256_of(&self.version)
    }

    /// The image, whichever version.
    pub(super) fn module(&self) -> String {
        format!("{SCHEME}{}/{}", self.registry, self.repository)
    }

    /// The registry's host without its port.
    pub(super) fn host(&self) -> &str {
        let host = match self.registry.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.registry,
        };
        host.trim_matches(['[', ']'])
    }
}

/// The digits of a SHA-256 digest.
pub(super) fn sha256_of(digest: &str) -> Option<&str> {
    let digits = digest.strip_prefix(SHA256)?;
    (digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_read() {
        let parse = |url: &str| {
            let Reference { registry, repository, version } = Reference::parse(url).expect("an image");
            (registry, repository, version)
        };
        let own = |registry: &str, repository: &str, version: &str| {
            (registry.to_owned(), repository.to_owned(), version.to_owned())
        };
        assert_eq!(parse("oci://ghcr.io/a/b:1"), own("ghcr.io", "a/b", "1"));
        assert_eq!(parse("oci://localhost:5000/b"), own("localhost:5000", "b", "latest"));
        assert_eq!(parse("oci://a/b"), own("index.docker.io", "a/b", "latest"));
        assert_eq!(parse("oci://docker.io/library/b:x"), own("index.docker.io", "library/b", "x"));
        assert_eq!(parse("oci://b:2"), own("index.docker.io", "library/b", "2"));
        let digest = format!("sha256:{}", "a".repeat(64));
        let by_digest = Reference::parse(&format!("oci://r.test/b:tag@{digest}")).expect("an image");
        assert_eq!(by_digest.digest(), Some("a".repeat(64).as_str()));
        assert_eq!(by_digest.module(), "oci://r.test/b");
        assert_eq!(Reference::parse("oci://r.test:1/b").expect("an image").host(), "r.test");
    }

    #[test]
    fn what_is_no_image_is_refused() {
        for bad in ["http://a/b", "oci://r.test/", "oci://r.test/a/../b", "oci://r.test/b@md5:1", "oci://r.test/b:"] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }
}
