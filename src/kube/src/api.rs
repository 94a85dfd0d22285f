//! Requests to the API server.

use std::fmt;

use futures::{Stream, StreamExt};
use http::Request;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::Value;
use sluice_model::{Kind, Text};
use sluice_parse::KindInfo;

use crate::{KubeOptions, explain};

/// A collection of objects of the API.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `/api/v1/pods` or the like.
    path: String,
    /// Condition for what is listed, as a query parameter.
    selector: String,
    /// What is asked for instead of whole objects.
    accept: Option<&'static str>,
}

impl Resource {
    /// All objects of a kind, or those of one namespace.
    pub fn new(info: &KindInfo, version: &str, namespace: Option<Text>) -> Self {
        let root =
            if info.group.is_empty() { format!("/api/{version}") } else { format!("/apis/{}/{version}", info.group) };
        let scope = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        let selector = match info.kind {
            // Pods that failed have no addresses and stay for long.
            Kind::Pod => "&fieldSelector=status.phase%21%3DFailed",
            // There are many of these types, they are big, and no proxy uses them.
            Kind::Secret => {
                "&fieldSelector=type%21%3Dhelm.sh%2Frelease.v1%2Ctype%21%3Dkubernetes.io%2Fservice-account-token"
            }
            _ => "",
        };
        Self { path: format!("{root}{scope}/{}", info.plural), selector: selector.to_owned(), accept: None }
    }

    /// The ConfigMaps of one name in every namespace.
    pub fn config_maps_named(name: &str) -> Self {
        let selector = format!("&fieldSelector=metadata.name%3D{}", escape(name));
        Self { path: "/api/v1/configmaps".to_owned(), selector, accept: None }
    }

    /// The Secrets of a namespace that say how remote clusters are reached.
    pub fn cluster_secrets(namespace: &str) -> Self {
        let selector = "&labelSelector=istio%2FmultiCluster%3Dtrue".to_owned();
        Self { path: format!("/api/v1/namespaces/{namespace}/secrets"), selector, accept: None }
    }

    /// The names of all definitions of extensions, without the definitions: those are big.
    pub fn definitions() -> Self {
        Self {
            path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
            selector: String::new(),
            accept: Some(
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            ),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub struct Page {
    #[serde(default)]
    pub metadata: PageMetadata,
    #[serde(default)]
    pub items: Option<Vec<Value>>,
}

/// Where a page stands.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PageMetadata {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// Why a request failed, as far as it matters what to do next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ApiError {
    /// What was asked to go on from is too old: list again (410).
    Gone,
    /// There is no such kind (404).
    Absent,
    /// Anything else; to be tried again later.
    Other(String),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) => Self::from_status(status.code, &status.message),
            _ => Self::Other(explain(&error)),
        }
    }
}

impl ApiError {
    fn from_status(code: u16, message: &str) -> Self {
        match code {
            410 => Self::Gone,
            404 => Self::Absent,
            _ => Self::Other(format!("{code}: {message}")),
        }
    }
}

/// What a watch tells.
#[derive(Debug)]
pub enum Told {
    /// The object is there and like this.
    Set(Value),
    /// The object is gone; this is how it was.
    Deleted(Value),
    /// Nothing, but everything up to that resourceVersion has been told.
    Bookmark(String),
}

/// A client with what it is asked for.
#[derive(Clone)]
pub struct Api {
    client: Client,
    options: KubeOptions,
    cluster: Option<Text>,
}

impl Api {
    pub fn new(client: Client, options: KubeOptions) -> Self {
        Self { client, options, cluster: None }
    }

    /// That of this cluster, for the log.
    pub fn of_cluster(self, cluster: Text) -> Self {
        Self { cluster: Some(cluster), ..self }
    }

    /// Which cluster it is of, if that is known.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// One page of a list.
    pub async fn list(&self, resource: &Resource, next: Option<&str>) -> Result<Page, ApiError> {
        let next = next.map(|token| format!("&continue={}", escape(token))).unwrap_or_default();
        let uri = format!("{}?limit={}{}{next}", resource.path, self.options.page, resource.selector);
        Ok(self.client.request(request(resource, &uri)?).await?)
    }

    /// What changes after a resourceVersion, until the server ends the watch.
    pub async fn watch(
        &self,
        resource: &Resource,
        version: &str,
    ) -> Result<impl Stream<Item = Result<Told, ApiError>> + use<>, ApiError> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}{}",
            resource.path,
            escape(version),
            self.options.watch.as_secs().max(1),
            resource.selector
        );
        let events = self.client.request_events::<Value>(request(resource, &uri)?).await?;
        Ok(events.map(|event: Result<WatchEvent<Value>, kube::Error>| match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Ok(Told::Set(object)),
            WatchEvent::Deleted(object) => Ok(Told::Deleted(object)),
            WatchEvent::Bookmark(bookmark) => Ok(Told::Bookmark(bookmark.metadata.resource_version)),
            WatchEvent::Error(status) => Err(ApiError::from_status(status.code, &status.message)),
        }))
    }

    /// The versions of an API group that are served.
    pub async fn versions(&self, group: &str) -> Result<Vec<String>, ApiError> {
        #[derive(Deserialize)]
        struct Group {
            #[serde(default)]
            versions: Vec<Version>,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let uri = format!("/apis/{group}");
        let request = Request::get(&uri).body(Vec::new()).map_err(|error| ApiError::Other(error.to_string()))?;
        let group: Group = self.client.request(request).await?;
        Ok(group.versions.into_iter().map(|version| version.version).collect())
    }
}

fn request(resource: &Resource, uri: &str) -> Result<Request<Vec<u8>>, ApiError> {
    let mut request = Request::get(uri);
    if let Some(accept) = resource.accept {
        request = request.header(http::header::ACCEPT, accept);
    }
    request.body(Vec::new()).map_err(|error| ApiError::Other(error.to_string()))
}

/// A value within a query.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}
