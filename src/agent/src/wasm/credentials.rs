//! Credentials for registries, as Kubernetes and Docker keep them.

use std::collections::BTreeMap;
use std::ops::Deref;

use anyhow::{Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

/// What the file calls the registry of images that name none.
const DEFAULT: &str = "https://index.docker.io/v1/";

/// Who asks a registry.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) enum Credentials {
    #[default]
    Nobody,
    /// Value of the header that says user and password.
    Basic(Zeroizing<String>),
    /// Value of the header with a token.
    Bearer(Zeroizing<String>),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Hidden,
    username: Hidden,
    password: Hidden,
    registrytoken: Hidden,
}

/// A text that is wiped when it is dropped.
#[derive(Default, Deserialize)]
#[serde(from = "String")]
struct Hidden(Zeroizing<String>);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl Deref for Hidden {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The credentials for a registry out of a `config.json`.
///
/// # Errors
/// It cannot be read. The message does not quote it.
pub(super) fn find(file: &[u8], registry: &str) -> Result<Credentials> {
    let Ok(file) = serde_json::from_slice::<File>(file) else { bail!("the credentials are no Docker configuration") };
    let wanted = if registry == "index.docker.io" { DEFAULT } else { registry };
    let entry = file.auths.get(wanted).or_else(|| {
        let same = |(name, _): &(&String, &Entry)| host_of(name) == host_of(wanted);
        file.auths.iter().find(same).map(|(_, entry)| entry)
    });
    let Some(entry) = entry else { return Ok(Credentials::Nobody) };
    if !entry.registrytoken.is_empty() {
        return Ok(Credentials::Bearer(Zeroizing::new(format!("Bearer {}", &*entry.registrytoken))));
    }
    if !entry.auth.is_empty() {
        let Ok(decoded) = STANDARD.decode(entry.auth.trim()).map(Zeroizing::new) else {
            bail!("the credentials for {registry} are not in base64")
        };
        // Some end it with a zero.
        return Ok(basic(decoded.strip_suffix(b"\0").unwrap_or(&decoded)));
    }
    if entry.username.is_empty() && entry.password.is_empty() {
        return Ok(Credentials::Nobody);
    }
    let pair = Zeroizing::new(format!("{}:{}", &*entry.username, &*entry.password));
    Ok(basic(pair.as_bytes()))
}

/// From `USER:PASSWORD`.
pub(super) fn basic(pair: &[u8]) -> Credentials {
    Credentials::Basic(Zeroizing::new(format!("Basic {}", STANDARD.encode(pair))))
}

/// `https://HOST/v1/` and `HOST` are the same.
fn host_of(name: &str) -> &str {
    let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    name.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(file: &str, registry: &str) -> Option<String> {
        match find(file.as_bytes(), registry).expect("credentials") {
            Credentials::Nobody => None,
            Credentials::Basic(value) | Credentials::Bearer(value) => Some(value.to_string()),
        }
    }

    #[test]
    fn each_registry_has_its_own() {
        let file = r#"{"auths": {
            "r.test:5000": {"auth": "bWU6aHVzaA=="},
            "https://q.test/v2/": {"username": "me", "password": "hush"},
            "https://index.docker.io/v1/": {"registrytoken": "t"},
            "empty.test": {}
        }}"#;
        assert_eq!(header(file, "r.test:5000").as_deref(), Some("Basic bWU6aHVzaA=="));
        assert_eq!(header(file, "q.test").as_deref(), Some("Basic bWU6aHVzaA=="));
        assert_eq!(header(file, "index.docker.io").as_deref(), Some("Bearer t"));
        assert_eq!(header(file, "empty.test"), None);
        assert_eq!(header(file, "r.test"), None, "another port is another registry");
    }

    #[test]
    fn what_cannot_be_read_is_not_quoted() {
        for file in ["hush", "{\"auths\": {\"r.test\": \"hush\"}}", "{\"auths\": {\"r.test\": {\"auth\": \"hush!\"}}}"]
        {
            let error = find(file.as_bytes(), "r.test").err().expect("an error");
            assert!(!format!("{error:#}").contains("hush"), "{error:#}");
        }
    }
}
