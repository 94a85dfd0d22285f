//! Modules in images: the manifest says which layer has the module, both come from the registry by HTTP.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use tracing::debug;
use zeroize::{Zeroize as _, Zeroizing};

use super::client::{Answer, Ask, Client, accepted};
use super::credentials::{Credentials, find};
use super::reference::{Reference, sha256_of};
use super::{cache, unpack};

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// Layers with a file system, in which the module is a file.
const ARCHIVES: [&str; 2] =
    ["application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"];
/// A layer that is the module.
const MODULE: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

/// Talks to the registry of one image.
pub(super) struct Registry<'a> {
    client: &'a Client,
    reference: &'a Reference,
    insecure: bool,
    credentials: Credentials,
    /// What it wants to be sent, once it said so.
    authorization: Option<Zeroizing<String>>,
    scheme: &'static str,
}

/// What an image is made of, and the digits of its digest.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) digest: String,
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manifest {
    media_type: String,
    layers: Vec<Layer>,
    manifests: Vec<Variant>,
}

/// An image of several, for one kind of machine.
#[derive(Deserialize)]
struct Variant {
    digest: String,
    #[serde(default)]
    platform: Platform,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl<'a> Registry<'a> {
    /// With the credentials that an extension brings, or those of the machine.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn new(
        client: &'a Client,
        reference: &'a Reference,
        insecure: bool,
        secret: Option<&[u8]>,
        docker_config: Option<&Path>,
    ) -> Result<Self> {
        let credentials = match (secret, docker_config) {
            (Some(secret), _) => find(secret, &reference.registry)?,
            (None, Some(file)) if file.exists() => {
                let text = std::fs::read(file).map(Zeroizing::new);
                find(&text.with_context(|| format!("read {}", file.display()))?, &reference.registry)?
            }
            (None, _) => Credentials::Nobody,
        };
        Ok(Self { client, reference, insecure, credentials, authorization: None, scheme: "https" })
    }

    /// What the image is made of.
    ///
    /// # Errors
    /// The registry does not say, or not to us.
    pub(super) async fn image(&mut self) -> Result<Image> {
        let version = self.reference.version.clone();
        let (bytes, manifest) = self.manifest(&version).await?;
        let is_list = [OCI_INDEX, DOCKER_LIST].contains(&manifest.media_type.as_str());
        if !is_list {
            return Ok(Image { digest: cache::sha256(&bytes), layers: manifest.layers });
        }
        let is_ours = |variant: &&Variant| variant.platform.os == "linux" && variant.platform.architecture == "amd64";
        let variant = manifest.manifests.iter().find(is_ours).context("the image is for other machines")?;
        ensure!(sha256_of(&variant.digest).is_some(), "the image's digest is none of SHA-256");
        let (bytes, manifest) = self.manifest(&variant.digest).await?;
        Ok(Image { digest: cache::sha256(&bytes), layers: manifest.layers })
    }

    /// The module in an image.
    ///
    /// # Errors
    /// There is none, it cannot be had, or it is not what the manifest says.
    pub(super) async fn module(&mut self, image: &Image, most: usize) -> Result<Vec<u8>> {
        let last = image.layers.last().context("the image has no layers")?;
        if ARCHIVES.contains(&last.media_type.as_str()) {
            let layer = self.blob(&last.digest).await?;
            return tokio::task::spawn_blocking(move || unpack::module_of_layer(&layer, most)).await?;
        }
        match image.layers.iter().find(|layer| layer.media_type == MODULE) {
            Some(layer) => Ok(self.blob(&layer.digest).await?.to_vec()),
            None => bail!("the image has no layer with a module"),
        }
    }

    async fn manifest(&mut self, version: &str) -> Result<(Bytes, Manifest)> {
        let answer = self.get(&format!("manifests/{version}"), MANIFESTS).await.context("fetch the manifest")?;
        if let Some(digest) = sha256_of(version) {
            ensure!(cache::sha256(&answer.body) == digest.to_ascii_lowercase(), "the manifest has another digest");
        }
        let mut manifest: Manifest = serde_json::from_slice(&answer.body).context("read the manifest")?;
        if manifest.media_type.is_empty() {
            let form = answer.headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
            manifest.media_type = form.split(';').next().unwrap_or_default().trim().to_owned();
        }
        Ok((answer.body, manifest))
    }

    async fn blob(&mut self, digest: &str) -> Result<Bytes> {
        let expected = sha256_of(digest).context("the layer's digest is none of SHA-256")?.to_ascii_lowercase();
        let answer = self.get(&format!("blobs/{digest}"), "*/*").await.context("fetch the layer")?;
        ensure!(cache::sha256(&answer.body) == expected, "the layer has another digest");
        Ok(answer.body)
    }

    /// Asks for something of the repository, and again with credentials if the registry wants them.
    async fn get(&mut self, what: &str, accept: &'static str) -> Result<Answer> {
        let answer = match self.ask(what, accept).await {
            Err(error) if self.scheme == "https" && (self.insecure || self.is_on_this_machine()) => {
                debug!(target: "wasm", registry = self.reference.registry, "no TLS, plaintext is tried: {error:#}");
                self.scheme = "http";
                self.ask(what, accept).await?
            }
            answer => answer?,
        };
        if answer.status != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return accepted(answer);
        }
        self.authorization = Some(self.authorize(&answer.headers).await.context("be let in")?);
        accepted(self.ask(what, accept).await?)
    }

    async fn ask(&self, what: &str, accept: &'static str) -> Result<Answer> {
        let Reference { registry, repository, .. } = self.reference;
        let uri = format!("{}://{registry}/v2/{repository}/{what}", self.scheme);
        let uri = uri.parse().with_context(|| format!("{registry:?} is no registry"))?;
        let authorization = self.authorization.clone();
        self.client.get(&Ask { uri, accept, authorization, insecure: self.insecure }).await
    }

    /// What the registry wants to be sent.
    async fn authorize(&self, headers: &HeaderMap) -> Result<Zeroizing<String>> {
        if let Credentials::Bearer(value) = &self.credentials {
            return Ok(value.clone());
        }
        let challenges = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<&str> = challenges.collect();
        let of_kind = |kind: &str| {
            let is = |text: &&str| text.get(..kind.len()).is_some_and(|found| found.eq_ignore_ascii_case(kind));
            challenges.iter().copied().find(is).map(|text| &text[kind.len()..])
        };
        if let Some(challenge) = of_kind("bearer ") {
            return self.token(challenge).await;
        }
        match (&self.credentials, of_kind("basic")) {
            (Credentials::Basic(value), Some(_)) => Ok(value.clone()),
            _ => Err(anyhow!("the registry wants other credentials")),
        }
    }

    /// A token of the server that the registry names.
    async fn token(&self, challenge: &str) -> Result<Zeroizing<String>> {
        let parameter = |name: &str| parameter(challenge, name);
        let realm = parameter("realm").context("the registry does not say who gives tokens")?;
        self.check_realm(&realm)?;
        let scope = parameter("scope").unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository));
        let mut uri = format!("{realm}{}scope={}", if realm.contains('?') { '&' } else { '?' }, escape(&scope));
        if let Some(service) = parameter("service") {
            uri.push_str(&format!("&service={}", escape(&service)));
        }
        let authorization = match &self.credentials {
            Credentials::Basic(value) => Some(value.clone()),
            _ => None,
        };
        let uri = uri.parse().context("who gives tokens has no address")?;
        let ask = Ask { uri, accept: "application/json", authorization, insecure: self.insecure };
        let answer = accepted(self.client.get(&ask).await?).context("ask for a token")?;
        let Ok(mut token) = serde_json::from_slice::<Token>(&answer.body) else { bail!("there is no token") };
        let value = if token.token.is_empty() { &token.access_token } else { &token.token };
        ensure!(!value.is_empty(), "there is no token");
        let header = Zeroizing::new(format!("Bearer {value}"));
        token.token.zeroize();
        token.access_token.zeroize();
        Ok(header)
    }

    /// A registry must not have us ask others on this machine or network, nor send credentials in plaintext.
    fn check_realm(&self, realm: &str) -> Result<()> {
        let uri: Uri = realm.parse().context("who gives tokens has no address")?;
        let host = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        ensure!(!host.is_empty() && !host.contains('@'), "who gives tokens has no address");
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if self.scheme == "http" => {}
            _ => bail!("who gives tokens is not reached over TLS"),
        }
        if host == self.reference.registry {
            return Ok(());
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = host == "localhost"
            || host == "metadata.google.internal"
            || host.parse::<IpAddr>().is_ok_and(|address| match address.to_canonical() {
                IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
            });
        ensure!(!is_near, "tokens may not come from {host}, which is not the registry");
        Ok(())
    }

    fn is_on_this_machine(&self) -> bool {
        let host = self.reference.host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// A parameter of a challenge: `name="value"` or `name=value`.
fn parameter(challenge: &str, name: &str) -> Option<String> {
    let mut rest = challenge;
    loop {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_matches([' ', ',']);
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

/// A value as it stands in a query.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = r#"realm="https://a.test/token?x=1,2",service="r.test",scope=pull,error="x""#;
        assert_eq!(parameter(challenge, "realm").as_deref(), Some("https://a.test/token?x=1,2"));
        assert_eq!(parameter(challenge, "Service").as_deref(), Some("r.test"));
        assert_eq!(parameter(challenge, "scope").as_deref(), Some("pull"));
        assert_eq!(parameter(challenge, "other"), None);
        assert_eq!(escape("repository:a/b:pull,push x"), "repository:a/b:pull%2Cpush%20x");
    }
}
