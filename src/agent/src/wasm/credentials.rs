//! Credentials for registries, in the format of Docker's `config.json`, which Kubernetes pull secrets use too.
//!
//! The crate `docker_credential` (1.4) is not used here: it runs the credential helper that the file names, and the file may
//! come from the Secret of any namespace. It also has no `registrytoken`, and leaves credentials in memory after use.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

/// Key of the default registry in the file.
const DEFAULT_REGISTRY_KEY: &str = "https://index.docker.io/v1/";

/// How the agent authenticates to a registry.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) enum Credentials {
    #[default]
    Anonymous,
    /// User and password, as the value of the header `Authorization`.
    Basic(Zeroizing<String>),
    /// A token, as the value of the header `Authorization`.
    Bearer(Zeroizing<String>),
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, RegistryAuth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RegistryAuth {
    auth: Zeroizing<String>,
    username: Zeroizing<String>,
    password: Zeroizing<String>,
    registrytoken: Zeroizing<String>,
}

/// The credentials for a registry in a `config.json`.
///
/// # Errors
/// The file is malformed. The message does not quote it.
pub(super) fn find(file: &[u8], registry: &str) -> Result<Credentials> {
    let Ok(file) = serde_json::from_slice::<DockerConfig>(file) else {
        bail!("the credentials are not a Docker configuration file")
    };
    let key = if registry == "index.docker.io" { DEFAULT_REGISTRY_KEY } else { registry };
    let entry = file.auths.get(key).or_else(|| {
        let is_same_host = |(name, _): &(&String, &RegistryAuth)| host_of(name) == host_of(key);
        file.auths.iter().find(is_same_host).map(|(_, entry)| entry)
    });
    let Some(entry) = entry else { return Ok(Credentials::Anonymous) };
    if !entry.registrytoken.is_empty() {
        return Ok(Credentials::Bearer(Zeroizing::new(format!("Bearer {}", entry.registrytoken.as_str()))));
    }
    if !entry.auth.is_empty() {
        let Ok(decoded) = STANDARD.decode(entry.auth.trim()).map(Zeroizing::new) else {
            bail!("the credentials for {registry} are not valid base64")
        };
        // Some tools append a NUL byte.
        return Ok(basic(decoded.strip_suffix(b"\0").unwrap_or(&decoded)));
    }
    if entry.username.is_empty() && entry.password.is_empty() {
        return Ok(Credentials::Anonymous);
    }
    let pair = Zeroizing::new(format!("{}:{}", entry.username.as_str(), entry.password.as_str()));
    Ok(basic(pair.as_bytes()))
}

/// Credentials from `USER:PASSWORD`.
pub(super) fn basic(pair: &[u8]) -> Credentials {
    Credentials::Basic(Zeroizing::new(format!("Basic {}", STANDARD.encode(pair))))
}

/// The host of a key: `https://HOST/v1/` and `HOST` name the same registry.
fn host_of(name: &str) -> &str {
    let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    name.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(file: &str, registry: &str) -> Option<String> {
        match find(file.as_bytes(), registry).expect("credentials") {
            Credentials::Anonymous => None,
            Credentials::Basic(value) | Credentials::Bearer(value) => Some(value.to_string()),
        }
    }

    #[test]
    fn each_registry_has_its_own_credentials() {
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
        assert_eq!(header(file, "r.test"), None, "the port is part of the registry");
    }

    #[test]
    fn error_does_not_quote_malformed_credentials() {
        for file in ["hush", "{\"auths\": {\"r.test\": \"hush\"}}", "{\"auths\": {\"r.test\": {\"auth\": \"hush!\"}}}"]
        {
            let error = find(file.as_bytes(), "r.test").err().expect("an error");
            assert!(!format!("{error:#}").contains("hush"), "{error:#}");
        }
    }
}
