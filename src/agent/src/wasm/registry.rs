//! Modules in container images: the manifest names the layer with the module; both come from the registry by HTTP.
//!
//! The crate `oci-client` (0.18) is not used here, because it cannot enforce the limits that the tests of this module check.
//! It creates its own `reqwest` client, without a DNS resolver or redirect policy of the caller, so blocked addresses and
//! redirects from TLS to plaintext cannot be refused. It sends the password to any token server that the registry names. It reads manifests and
//! token responses of any size. Its TLS does not use the provider and the roots of the agent.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http_auth::{ChallengeParser, ChallengeRef};
use ipnet::IpNet;
use serde::Deserialize;
use sluice_http_client::{HttpResponse, Url};
use tracing::debug;
use zeroize::Zeroizing;

use super::client::{FetchRequest, RetryingClient, success};
use super::credentials::{Credentials, find};
use super::digest::sha256;
use super::reference::{ImageReference, sha256_of};
use super::unpack;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const ACCEPTED_MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
                                  application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// Layers that are a file system, in which the module is a file.
const FILE_SYSTEM_LAYERS: [&str; 2] =
    ["application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"];
/// A layer that is the module itself.
const MODULE_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

/// Networks of this machine. Link-local addresses are blocked for all requests.
const LOCAL_BLOCKS: [&str; 4] = ["127.0.0.0/8", "0.0.0.0/8", "::1/128", "::/128"];
/// Private networks.
const PRIVATE_BLOCKS: [&str; 5] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

fn blocks(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// A client for the registry of one image.
pub(super) struct RegistryClient<'a> {
    client: &'a RetryingClient,
    reference: &'a ImageReference,
    insecure: bool,
    credentials: Credentials,
    /// Value of the header `Authorization`, after the registry has requested it.
    authorization: Option<Zeroizing<String>>,
    scheme: &'static str,
}

/// The layers of an image, and the hexadecimal SHA-256 of its manifest.
#[derive(Debug)]
pub(super) struct ModuleImage {
    pub(super) digest: String,
    layers: Vec<ImageLayer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImageLayer {
    media_type: String,
    digest: String,
}

/// An image manifest, or a list of manifests for several platforms.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manifest {
    media_type: String,
    layers: Vec<ImageLayer>,
    manifests: Vec<ManifestDescriptor>,
}

#[derive(Deserialize)]
struct ManifestDescriptor {
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

/// The response of a token server.
#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    token: Zeroizing<String>,
    #[serde(default)]
    access_token: Zeroizing<String>,
}

impl<'a> RegistryClient<'a> {
    /// With the credentials of the extension's pull secret, else those of the agent's Docker configuration.
    ///
    /// # Errors
    /// The credentials cannot be read.
    pub(super) fn new(
        client: &'a RetryingClient,
        reference: &'a ImageReference,
        insecure: bool,
        pull_secret: Option<&[u8]>,
        docker_config: Option<&Path>,
    ) -> Result<Self> {
        let credentials = match (pull_secret, docker_config) {
            (Some(secret), _) => find(secret, &reference.registry)?,
            (None, Some(file)) if file.exists() => {
                let text = std::fs::read(file).map(Zeroizing::new);
                find(&text.with_context(|| format!("read {}", file.display()))?, &reference.registry)?
            }
            (None, _) => Credentials::Anonymous,
        };
        Ok(Self { client, reference, insecure, credentials, authorization: None, scheme: "https" })
    }

    /// The layers of the image, for Linux on amd64 if it is for several platforms.
    ///
    /// # Errors
    /// The registry does not serve the manifest, or the image is not for this platform.
    pub(super) async fn image(&mut self) -> Result<ModuleImage> {
        let version = self.reference.version.clone();
        let (bytes, manifest) = self.manifest(&version).await?;
        let is_list = [OCI_INDEX, DOCKER_MANIFEST_LIST].contains(&manifest.media_type.as_str());
        if !is_list {
            return Ok(ModuleImage { digest: sha256(&bytes), layers: manifest.layers });
        }
        let matches =
            |entry: &&ManifestDescriptor| entry.platform.os == "linux" && entry.platform.architecture == "amd64";
        let entry = manifest.manifests.iter().find(matches).context("the image has no manifest for linux/amd64")?;
        ensure!(sha256_of(&entry.digest).is_some(), "the image's digest is not a SHA-256 digest");
        let (bytes, manifest) = self.manifest(&entry.digest).await?;
        Ok(ModuleImage { digest: sha256(&bytes), layers: manifest.layers })
    }

    /// The module in an image.
    ///
    /// # Errors
    /// The image has no module, the layer is not served, or its digest differs from the manifest's.
    pub(super) async fn module(&mut self, image: &ModuleImage, max_bytes: usize) -> Result<Vec<u8>> {
        let last = image.layers.last().context("the image has no layers")?;
        if FILE_SYSTEM_LAYERS.contains(&last.media_type.as_str()) {
            let layer = self.blob(&last.digest).await?;
            return tokio::task::spawn_blocking(move || unpack::module_of_layer(&layer, max_bytes)).await?;
        }
        match image.layers.iter().find(|layer| layer.media_type == MODULE_LAYER) {
            Some(layer) => Ok(self.blob(&layer.digest).await?.to_vec()),
            None => bail!("the image has no layer with a module"),
        }
    }

    async fn manifest(&mut self, version: &str) -> Result<(Bytes, Manifest)> {
        let response =
            self.get(&format!("manifests/{version}"), ACCEPTED_MANIFESTS).await.context("fetch the manifest")?;
        if let Some(digest) = sha256_of(version) {
            ensure!(sha256(&response.body) == digest.to_ascii_lowercase(), "the manifest has another digest");
        }
        let mut manifest: Manifest = serde_json::from_slice(&response.body).context("parse the manifest")?;
        if manifest.media_type.is_empty() {
            let media_type = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            manifest.media_type =
                media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        }
        Ok((response.body, manifest))
    }

    async fn blob(&mut self, digest: &str) -> Result<Bytes> {
        let expected = sha256_of(digest).context("the layer's digest is not a SHA-256 digest")?.to_ascii_lowercase();
        let response = self.get(&format!("blobs/{digest}"), "*/*").await.context("fetch the layer")?;
        ensure!(sha256(&response.body) == expected, "the layer has another digest");
        Ok(response.body)
    }

    /// Fetches a path of the repository, and again with credentials if the registry requests them.
    async fn get(&mut self, path: &str, accept: &'static str) -> Result<HttpResponse> {
        let response = match self.request(path, accept).await {
            Err(error) if self.scheme == "https" && (self.insecure || self.is_on_loopback()) => {
                let error = format!("{error:#}");
                debug!(target: "wasm", registry = self.reference.registry, error, "TLS failed, plaintext is tried");
                self.scheme = "http";
                self.request(path, accept).await?
            }
            response => response?,
        };
        if response.status != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return success(response);
        }
        let authorization = self.authorize(&response).await.context("authenticate to the registry")?;
        self.authorization = Some(authorization);
        success(self.request(path, accept).await?)
    }

    async fn request(&self, path: &str, accept: &'static str) -> Result<HttpResponse> {
        let ImageReference { registry, repository, .. } = self.reference;
        let url = format!("{}://{registry}/v2/{repository}/{path}", self.scheme);
        let url = url.parse().with_context(|| format!("{registry:?} is not the host of a registry"))?;
        let authorization = self.authorization.clone();
        let is_secret = authorization.is_some() && self.has_credentials();
        let fetch =
            FetchRequest { url, accept, authorization, is_secret, blocked: Vec::new(), insecure: self.insecure };
        self.client.get(&fetch).await
    }

    fn has_credentials(&self) -> bool {
        self.credentials != Credentials::Anonymous
    }

    /// The value of `Authorization` that the registry's challenge requires.
    async fn authorize(&self, response: &HttpResponse) -> Result<Zeroizing<String>> {
        if let Credentials::Bearer(value) = &self.credentials {
            return Ok(value.clone());
        }
        let texts = response.headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|value| value.to_str().ok());
        let challenges: Vec<ChallengeRef<'_>> = texts.flat_map(ChallengeParser::new).filter_map(Result::ok).collect();
        let of_scheme =
            |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        if let Some(challenge) = of_scheme("Bearer") {
            return self.fetch_token(challenge, response.peer).await;
        }
        match (&self.credentials, of_scheme("Basic")) {
            (Credentials::Basic(value), Some(_)) => Ok(value.clone()),
            _ => Err(anyhow!("the registry does not accept the configured credentials")),
        }
    }

    /// A token of the token server that the registry's challenge names. `peer` is the address of the registry.
    async fn fetch_token(&self, challenge: &ChallengeRef<'_>, peer: Option<IpAddr>) -> Result<Zeroizing<String>> {
        let parameter = |name: &str| {
            let pair = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            pair.map(|(_, value)| value.to_unescaped())
        };
        let realm = parameter("realm").context("the registry's challenge names no token server")?;
        let (url, blocked) = self.check_realm(&realm, peer)?;
        let scope = parameter("scope").unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository));
        let mut url = format!("{url}{}scope={}", if url.query().is_some() { '&' } else { '?' }, escape(&scope));
        if let Some(service) = parameter("service") {
            url.push_str(&format!("&service={}", escape(&service)));
        }
        let authorization = match &self.credentials {
            Credentials::Basic(value) => Some(value.clone()),
            _ => None,
        };
        let url = url.parse().context("the URL of the token server is malformed")?;
        let (accept, insecure, is_secret) = ("application/json", self.insecure, authorization.is_some());
        let fetch = FetchRequest { url, accept, authorization, is_secret, blocked, insecure };
        let response = success(self.client.get(&fetch).await?).context("request a token")?;
        // The error of the parser is dropped: it may quote the token.
        let Ok(token) = serde_json::from_slice::<TokenResponse>(&response.body) else {
            bail!("the token server's response contains no token")
        };
        let value = if token.token.is_empty() { &token.access_token } else { &token.token };
        ensure!(!value.is_empty(), "the token server's response contains no token");
        Ok(Zeroizing::new(format!("Bearer {}", value.as_str())))
    }

    /// Checks the token server that a registry names: the registry must not direct requests to other servers on this
    /// machine or its network, nor have credentials sent in plaintext. Returns the networks that the server must not be in,
    /// by the address of the connection and not by name.
    fn check_realm(&self, realm: &str, peer: Option<IpAddr>) -> Result<(Url, Vec<IpNet>)> {
        let url: Url = realm.parse().context("the URL of the token server is malformed")?;
        ensure!(url.username().is_empty() && url.password().is_none(), "the URL of the token server contains a user");
        match url.scheme() {
            "https" => {}
            "http" if self.scheme == "http" && !self.has_credentials() => {}
            _ => bail!("the token server is not reached over TLS"),
        }
        let registry: Option<Url> = format!("{}://{}", url.scheme(), self.reference.registry).parse().ok();
        if registry.is_some_and(|registry| registry.origin() == url.origin()) {
            return Ok((url, Vec::new()));
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let private = blocks(&PRIVATE_BLOCKS);
        let is_private = |address: IpAddr| private.iter().any(|block| block.contains(&address.to_canonical()));
        let is_literal = host.parse::<IpAddr>().is_ok_and(is_private);
        ensure!(!is_literal, "tokens may not come from {host}, which is not the registry");
        let mut blocked = blocks(&LOCAL_BLOCKS);
        // The token server of a registry in a private network may be there too.
        if !peer.is_some_and(is_private) {
            blocked.extend(private);
        }
        Ok((url, blocked))
    }

    fn is_on_loopback(&self) -> bool {
        let host = self.reference.host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// A value as a query parameter. Registries expect `:` and `/` unescaped.
fn escape(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    let escape = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_escaped() {
        assert_eq!(escape("repository:a/b:pull,push x"), "repository:a/b:pull%2Cpush%20x");
    }
}
