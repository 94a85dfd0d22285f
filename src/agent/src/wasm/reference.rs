//! References to images.

use anyhow::{Context, Result, ensure};

/// Scheme of URLs that refer to images.
pub(super) const SCHEME: &str = "oci://";
/// The registry of references without one.
const DEFAULT_REGISTRY: &str = "index.docker.io";
const SHA256: &str = "sha256:";

/// A reference to an image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ImageReference {
    /// Host, with its port if it has one.
    pub(super) registry: String,
    pub(super) repository: String,
    /// A digest `sha256:…`, or a tag.
    pub(super) version: String,
}

impl ImageReference {
    /// From `oci://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`.
    ///
    /// # Errors
    /// The URL is not a reference to an image.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let name = url.strip_prefix(SCHEME).context("the URL is not that of an image")?;
        let name = name.split(['?', '#']).next().unwrap_or_default();
        let (name, digest) = match name.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (name, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            // A colon before a slash belongs to a port.
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
            ensure!(sha256_of(digest).is_some(), "the digest is not a SHA-256 digest");
        }
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let is_valid = is_plain(&repository) && !repository.split('/').any(|part| part.is_empty() || part == "..");
        ensure!(is_valid, "{repository:?} is not the name of a repository");
        ensure!(digest.is_some() || (is_plain(tag) && !tag.is_empty()), "{tag:?} is not a tag");
        Ok(Self { registry: registry.to_owned(), repository, version: version.to_owned() })
    }

    /// The hexadecimal digest, if the reference has one instead of a tag.
    pub(super) fn digest(&self) -> Option<&str> {
        sha256_of(&self.version)
    }

    /// The URL without tag and digest.
    pub(super) fn repository_url(&self) -> String {
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

/// The hexadecimal digits of a digest `sha256:…`.
pub(super) fn sha256_of(digest: &str) -> Option<&str> {
    let digits = digest.strip_prefix(SHA256)?;
    (digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed() {
        let parse = |url: &str| {
            let ImageReference { registry, repository, version } = ImageReference::parse(url).expect("a reference");
            (registry, repository, version)
        };
        let expected = |registry: &str, repository: &str, version: &str| {
            (registry.to_owned(), repository.to_owned(), version.to_owned())
        };
        assert_eq!(parse("oci://ghcr.io/a/b:1"), expected("ghcr.io", "a/b", "1"));
        assert_eq!(parse("oci://localhost:5000/b"), expected("localhost:5000", "b", "latest"));
        assert_eq!(parse("oci://a/b"), expected("index.docker.io", "a/b", "latest"));
        assert_eq!(parse("oci://docker.io/library/b:x"), expected("index.docker.io", "library/b", "x"));
        assert_eq!(parse("oci://b:2"), expected("index.docker.io", "library/b", "2"));
        let digest = format!("sha256:{}", "a".repeat(64));
        let by_digest = ImageReference::parse(&format!("oci://r.test/b:tag@{digest}")).expect("a reference");
        assert_eq!(by_digest.digest(), Some("a".repeat(64).as_str()));
        assert_eq!(by_digest.repository_url(), "oci://r.test/b");
        assert_eq!(ImageReference::parse("oci://r.test:1/b").expect("a reference").host(), "r.test");
    }

    #[test]
    fn malformed_references_are_rejected() {
        for bad in ["http://a/b", "oci://r.test/", "oci://r.test/a/../b", "oci://r.test/b@md5:1", "oci://r.test/b:"] {
            assert!(ImageReference::parse(bad).is_err(), "{bad}");
        }
    }
}
