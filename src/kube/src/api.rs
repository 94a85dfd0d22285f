//! The collections of an API server, and clients for them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind, Resource as _};
use kube::runtime::watcher;
use rand::Rng as _;
use sluice_model::{DEFAULT_REVISION_WEBHOOK, Kind, Text, label};
use sluice_parse::KindInfo;
use tokio::sync::Notify;

use crate::raw_object::RawObject;
use crate::reachability::Reachability;
use crate::watch_states::{WatchGuard, shortened};
use crate::{KubeOptions, RequestError, WatchStates};

/// A collection of objects of the API server.
#[derive(Clone, Debug)]
pub struct Resource {
    pub(crate) kind: ApiResource,
    /// The only namespace; `None` is all.
    pub(crate) namespace: Option<Text>,
    fields: Option<String>,
    labels: Option<String>,
    /// The objects of the kind that are meant, for the log.
    selection: Option<String>,
    /// Only the metadata of the objects is requested.
    pub(crate) metadata_only: bool,
}

impl Resource {
    /// All objects of a kind in a group and version of the API, or those of one namespace.
    #[must_use]
    pub fn new(info: &KindInfo, (group, version): (&str, &str), namespace: Option<Text>) -> Self {
        let fields = match info.kind {
            // Failed pods have no addresses, and are kept for a long time.
            Kind::Pod => Some("status.phase!=Failed".to_owned()),
            // Secrets of these types are numerous and large, and no proxy uses them.
            Kind::Secret => Some("type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token".to_owned()),
            // Which revision is the default one. The others are not read.
            Kind::ValidatingWebhookConfiguration => Some(format!("metadata.name={DEFAULT_REVISION_WEBHOOK}")),
            _ => None,
        };
        // Those of tags.
        let labels = (info.kind == Kind::MutatingWebhookConfiguration).then(|| label::TAG.to_owned());
        let all = Self::all(group, version, info.name, info.plural);
        Self { namespace, fields, labels, ..all }
    }

    /// All objects of a type.
    #[must_use]
    pub fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self::all(&K::group(&()), &K::version(&()), &K::kind(&()), &K::plural(&()))
    }

    /// Only those in a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Only those that a label selector selects, such as `app=web,tier!=test`.
    #[must_use]
    pub fn with_labels(self, selector: &str) -> Self {
        Self { labels: Some(selector.to_owned()), ..self }.selected(selector)
    }

    /// Only those that a field selector selects, such as `status.phase!=Failed`.
    #[must_use]
    pub fn with_fields(self, selector: &str) -> Self {
        Self { fields: Some(selector.to_owned()), ..self }.selected(selector)
    }

    /// Adds a selector to what the log shows.
    fn selected(self, selector: &str) -> Self {
        let selection = match &self.selection {
            Some(selection) => format!("{selection}&{selector}"),
            None => format!("?{selector}"),
        };
        Self { selection: Some(selection), ..self }
    }

    /// ConfigMaps of this name, in every namespace or in one.
    #[must_use]
    pub fn config_maps_named(name: &str, namespace: Option<Text>) -> Self {
        Self {
            namespace,
            fields: Some(format!("metadata.name={name}")),
            selection: Some(format!("?metadata.name={name}")),
            ..Self::all("", "v1", "ConfigMap", "configmaps")
        }
    }

    /// The ConfigMap of this name in a namespace.
    #[must_use]
    pub fn config_map(namespace: &str, name: &str) -> Self {
        Self::config_maps_named(name, Some(namespace.into()))
    }

    /// Webhook configurations with the label of a revision.
    #[must_use]
    pub fn webhook_configurations(kind: &str, plural: &str, revision: &str) -> Self {
        let labels = format!("istio.io/rev={revision}");
        Self {
            selection: Some(format!("?{labels}")),
            labels: Some(labels),
            ..Self::all("admissionregistration.k8s.io", "v1", kind, plural)
        }
    }

    /// Secrets of a namespace that hold kubeconfigs of remote clusters.
    #[must_use]
    pub fn cluster_secrets(namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.into()),
            labels: Some("istio/multiCluster=true".to_owned()),
            selection: Some("?istio/multiCluster=true".to_owned()),
            ..Self::all("", "v1", "Secret", "secrets")
        }
    }

    /// Objects of a kind that have a label, in all namespaces.
    #[must_use]
    pub fn with_label(group: &str, version: &str, kind: &str, plural: &str, label: &str) -> Self {
        Self {
            labels: Some(label.to_owned()),
            selection: Some(format!("?{label}")),
            ..Self::all(group, version, kind, plural)
        }
    }

    /// Metadata of all CustomResourceDefinitions, without their specs, which are large.
    #[must_use]
    pub fn custom_resource_definitions() -> Self {
        Self {
            metadata_only: true,
            ..Self::all("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        }
    }

    fn all(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        Self { kind, namespace: None, fields: None, labels: None, selection: None, metadata_only: false }
    }

    /// The parameters of its lists and watches.
    pub(crate) fn watcher_config(&self, options: &KubeOptions) -> watcher::Config {
        // The watches of all kinds should not end together.
        let timeout = options.watch_timeout.mul_f64(rand::rng().random_range(0.75..=1.0));
        watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1)),
            page_size: Some(options.page_size),
            ..watcher::Config::default()
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&RawObject::<false>::url_path(&self.kind, self.namespace.as_deref()))?;
        f.write_str(self.selection.as_deref().unwrap_or_default())
    }
}

/// A failed request. The variant decides what follows.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The resourceVersion or the continue token has expired (410): list again.
    #[error("the resourceVersion has expired")]
    Gone,
    /// The path does not exist (404). Discovery decides whether the kind is not served.
    #[error("404: {0}")]
    NotFound(String),
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

impl From<watcher::Error> for ApiError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => Self::from_status(status.code, &status.message),
            watcher::Error::NoResourceVersion => Self::Other(error.to_string()),
        }
    }
}

impl ApiError {
    fn from_status(code: u16, message: &str) -> Self {
        match code {
            410 => Self::Gone,
            404 => Self::NotFound(shortened(message).to_owned()),
            _ => Self::Other(format!("{code}: {}", shortened(message))),
        }
    }
}

/// A client of one API server, for lists and watches.
#[derive(Clone)]
pub struct Api {
    pub(crate) client: Client,
    pub(crate) options: KubeOptions,
    cluster: Text,
    reachability: Reachability,
    /// Ends the waits of all watches: the API server is reachable again.
    recovered: Arc<Notify>,
    states: WatchStates,
    /// Lists are requested as streaming lists, until the server rejects one.
    streams_lists: Arc<AtomicBool>,
}

impl Api {
    /// A client of the API server of `cluster`. The watched collections are added to `states` under the id of the cluster.
    #[must_use]
    pub fn new(client: Client, cluster: Text, options: KubeOptions, states: WatchStates) -> Self {
        Self {
            client,
            options,
            cluster,
            reachability: Reachability::default(),
            recovered: Arc::default(),
            states,
            streams_lists: Arc::new(AtomicBool::new(true)),
        }
    }

    /// The id of its cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Whether lists are requested as streaming lists.
    pub(crate) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    /// All further lists are requested in pages.
    pub(crate) fn list_in_pages(&self) {
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    /// The server responded to a request. If it was unreachable before, all kinds try again.
    pub(crate) fn succeeded(&self) {
        if self.reachability.succeeded(self.cluster()) {
            self.recovered.notify_waiters();
        }
    }

    /// Waits until the server is reachable again.
    pub(crate) async fn recovered(&self) {
        self.recovered.notified().await;
    }

    /// Adds a watched collection to the states.
    pub(crate) fn add_state(&self, resource: &Resource) -> WatchGuard {
        self.states.add(self.cluster(), resource.to_string())
    }

    /// The server did not respond to a request.
    pub(crate) fn unreachable(&self, cause: &str) {
        self.reachability.failed(self.cluster(), cause);
    }
}
