//! Requests to the API server.

use std::fmt;

use futures::{Stream, StreamExt};
use http::Request;
use kube::{Client, core};
use serde::Deserialize;
use serde_json::Value;
use sluice_model::{Kind, Text};
use sluice_parse::KindInfo;

use crate::server::Reachability;
use crate::{KubeOptions, RequestError};

/// A collection of objects of the API server.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Such as `/api/v1/pods`.
    path: String,
    /// Field or label selector, as a query parameter.
    selector: String,
    /// Media types to accept instead of whole objects.
    accept: Option<&'static str>,
}

impl Resource {
    /// All objects of a kind, or those of one namespace.
    #[must_use]
    pub fn new(info: &KindInfo, version: &str, namespace: Option<Text>) -> Self {
        let root =
            if info.group.is_empty() { format!("/api/{version}") } else { format!("/apis/{}/{version}", info.group) };
        let scope = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        let selector = match info.kind {
            // Failed pods have no addresses, and are kept for a long time.
            Kind::Pod => "&fieldSelector=status.phase%21%3DFailed",
            // Secrets of these types are numerous and large, and no proxy uses them.
            Kind::Secret => {
                "&fieldSelector=type%21%3Dhelm.sh%2Frelease.v1%2Ctype%21%3Dkubernetes.io%2Fservice-account-token"
            }
            _ => "",
        };
        Self { path: format!("{root}{scope}/{}", info.plural), selector: selector.to_owned(), accept: None }
    }

    /// ConfigMaps of this name in every namespace.
    #[must_use]
    pub fn config_maps_named(name: &str) -> Self {
        let selector = format!("&fieldSelector=metadata.name%3D{}", escape(name));
        Self { path: "/api/v1/configmaps".to_owned(), selector, accept: None }
    }

    /// Secrets of a namespace that hold kubeconfigs of remote clusters.
    #[must_use]
    pub fn cluster_secrets(namespace: &str) -> Self {
        let selector = "&labelSelector=istio%2FmultiCluster%3Dtrue".to_owned();
        Self { path: format!("/api/v1/namespaces/{namespace}/secrets"), selector, accept: None }
    }

    /// Metadata of all CustomResourceDefinitions, without their specs, which are large.
    #[must_use]
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
    /// Its position in the list.
    #[serde(default)]
    pub metadata: PageMetadata,
    /// Its objects.
    #[serde(default)]
    pub items: Option<Vec<Value>>,
}

/// The position of a page in its list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PageMetadata {
    /// The version of the list.
    pub resource_version: String,
    /// Token of the next page.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// A failed request, by what has to follow.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The resourceVersion or the continue token has expired (410): list again.
    #[error("the resourceVersion has expired")]
    Gone,
    /// The API server does not serve the kind (404).
    #[error("the API server does not serve the kind")]
    Absent,
    /// No response: retry later.
    #[error("{0}")]
    Unreachable(String),
    /// Any other failure: retry later.
    #[error("{0}")]
    Other(String),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match RequestError::from(error) {
            RequestError::Status { code, message } => Self::from_status(code, &message),
            RequestError::Unreachable(text) => Self::Unreachable(text),
            other => Self::Other(other.to_string()),
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

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// The object was added or modified.
    Apply(Value),
    /// The object was deleted; this is its last state.
    Delete(Value),
    /// All events up to this resourceVersion have been delivered.
    Bookmark(String),
}

/// A client of one API server, for lists and watches.
#[derive(Clone)]
pub struct Api {
    client: Client,
    options: KubeOptions,
    cluster: Option<Text>,
    pub(crate) reachability: Reachability,
}

impl Api {
    /// For an API server whose cluster the log does not name.
    #[must_use]
    pub fn new(client: Client, options: KubeOptions) -> Self {
        Self { client, options, cluster: None, reachability: Reachability::default() }
    }

    /// With the name of its cluster, for the log.
    #[must_use]
    pub fn of_cluster(self, cluster: Text) -> Self {
        Self { cluster: Some(cluster), ..self }
    }

    /// The name of its cluster.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// One page of a list.
    ///
    /// # Errors
    /// The request fails.
    pub async fn list(&self, resource: &Resource, next: Option<&str>) -> Result<Page, ApiError> {
        let next = next.map(|token| format!("&continue={}", escape(token))).unwrap_or_default();
        let uri = format!("{}?limit={}{}{next}", resource.path, self.options.page, resource.selector);
        Ok(self.client.request(request(resource, &uri)?).await?)
    }

    /// Changes after a resourceVersion, until the server ends the watch.
    ///
    /// # Errors
    /// The request fails.
    pub async fn watch(
        &self,
        resource: &Resource,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent, ApiError>> + use<>, ApiError> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}{}",
            resource.path,
            escape(version),
            self.options.watch.as_secs().max(1),
            resource.selector
        );
        let events = self.client.request_events::<Value>(request(resource, &uri)?).await?;
        Ok(events.map(|event: Result<core::WatchEvent<Value>, kube::Error>| match event? {
            core::WatchEvent::Added(object) | core::WatchEvent::Modified(object) => Ok(WatchEvent::Apply(object)),
            core::WatchEvent::Deleted(object) => Ok(WatchEvent::Delete(object)),
            core::WatchEvent::Bookmark(bookmark) => Ok(WatchEvent::Bookmark(bookmark.metadata.resource_version)),
            core::WatchEvent::Error(status) => Err(ApiError::from_status(status.code, &status.message)),
        }))
    }

    /// The served versions of an API group.
    ///
    /// # Errors
    /// The request fails.
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

/// Percent-encodes a query value.
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
