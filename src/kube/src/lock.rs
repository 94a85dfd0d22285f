//! The locks by which control planes agree which of them writes (O17, S18).
//!
//! A lock is an object of the control plane's namespace with a record of its holder. Their names and forms are those of the
//! reference, so that of Sluice and istiod in one cluster only one writes.

use std::borrow::Cow;
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_model::{DEFAULT_TAG_WEBHOOK, Text};

use crate::{ObjectPath, RequestError, transport};

/// Guards the roots in namespaces, and the ClusterTrustBundle.
pub const ROOTS_LOCK: Lock = Lock::config_map("istio-namespace-controller-election");
/// Guards the addresses in the statuses of ServiceEntries.
pub const ADDRESSES_LOCK: Lock = Lock::config_map("istio-ip-autoallocate");

/// Guards the statuses of Ingresses.
pub const INGRESS_LOCK: Lock = Lock::config_map("istio-leader");

/// Guards the taints of nodes.
pub const UNTAINT_LOCK: Lock = Lock::config_map("istio-node-untaint");

/// Guards the ServiceExports that are created.
pub const EXPORTS_LOCK: Lock = Lock::config_map("istio-serviceexport-controller-election");

/// Guards the conditions of objects.
pub const STATUS_LOCK: Lock = Lock { name: Cow::Borrowed("istio-status-leader"), kind: LockKind::SharedLease };

/// Annotation of a ConfigMap with the record of its holder.
const RECORD: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotation of a Lease with the key of its holder.
const LEASE_KEY: &str = "leader.istio.io/holder-key";
/// The webhook configuration whose label names the default revision.
const DEFAULT_REVISION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations\
                                ?fieldSelector=metadata.name%3Distio-revision-tag-default";

/// An object that one control plane holds at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lock {
    name: Cow<'static, str>,
    kind: LockKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LockKind {
    /// A ConfigMap with the record in an annotation. All revisions share it, and some take precedence.
    ConfigMap,
    /// A Lease. All its candidates have equal rights.
    Lease,
    /// A Lease with the key of its holder in an annotation. All revisions share it, and some take precedence.
    SharedLease,
}

impl Lock {
    const fn config_map(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), kind: LockKind::ConfigMap }
    }

    /// A Lease of this name. All its candidates have equal rights.
    #[must_use]
    pub fn lease(name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), kind: LockKind::Lease }
    }

    /// The lock of the replica of a revision that writes roots into the webhook configurations of the revision. The reference
    /// has none: all its replicas write.
    #[must_use]
    pub fn webhooks(revision: &str) -> Self {
        const NAME: &str = "istio-webhook-controller-election";
        let name = match revision {
            "" | "default" => NAME.into(),
            revision => format!("{NAME}-{revision}").into(),
        };
        Self { name, kind: LockKind::Lease }
    }

    /// The lock of the replica of a revision that writes statuses of the Gateway API.
    #[must_use]
    pub fn gateway_statuses(revision: &str) -> Self {
        Self::of_revision("istio-gateway-status-leader", revision)
    }

    /// The lock of the replica of a revision that deploys the proxies of Gateways.
    #[must_use]
    pub fn gateway_deployments(revision: &str) -> Self {
        Self::of_revision("istio-gateway-deployment", revision)
    }

    /// The lock of the replica of a revision that writes the Services of InferencePools. All replicas of the reference write.
    #[must_use]
    pub fn inference_pools(revision: &str) -> Self {
        Self::of_revision("istio-gateway-inferencepool", revision)
    }

    /// A Lease for each revision, also for the default one.
    fn of_revision(name: &str, revision: &str) -> Self {
        let revision = if revision.is_empty() { "default" } else { revision };
        Self { name: format!("{name}-{revision}").into(), kind: LockKind::Lease }
    }

    /// The lock of the replica that removes the WorkloadEntries of proxies that have gone. The reference has none.
    #[must_use]
    pub const fn workload_cleanup() -> Self {
        Self { name: Cow::Borrowed("istio-workload-cleanup-election"), kind: LockKind::Lease }
    }

    /// The name of the object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether all revisions share the lock, so that the key of its holder decides whether another may take it.
    pub(crate) fn is_shared(&self) -> bool {
        self.kind != LockKind::Lease
    }

    /// The holder that an object of the lock records; empty if none holds it.
    #[must_use]
    pub fn holder(&self, object: &Value) -> String {
        self.record(object).unwrap_or_default().holder
    }

    fn record(&self, object: &Value) -> Result<Record, serde_json::Error> {
        match self.kind {
            LockKind::ConfigMap => match object["metadata"]["annotations"][RECORD].as_str() {
                Some(text) => serde_json::from_str(text),
                None => Ok(Record::default()),
            },
            LockKind::Lease | LockKind::SharedLease => {
                let spec = &object["spec"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Ok(Record {
                    holder: text(&spec["holderIdentity"]),
                    key: text(&object["metadata"]["annotations"][LEASE_KEY]),
                    duration_seconds: spec["leaseDurationSeconds"].as_f64().unwrap_or_default(),
                    acquired: text(&spec["acquireTime"]),
                    renewed: text(&spec["renewTime"]),
                    transitions: spec["leaseTransitions"].as_i64().unwrap_or_default(),
                })
            }
        }
    }

    /// The collection of the object.
    fn objects(&self) -> ObjectPath {
        match self.kind {
            LockKind::ConfigMap => ObjectPath::new("/api/v1", "configmaps"),
            LockKind::Lease | LockKind::SharedLease => ObjectPath::new("/apis/coordination.k8s.io/v1", "leases"),
        }
    }

    /// Writes a record into an object of the lock.
    fn set_record(&self, object: &mut Value, record: &Record) {
        match self.kind {
            LockKind::ConfigMap => {
                let text = json!({
                    "holderIdentity": record.holder, "holderKey": record.key,
                    "leaseDurationSeconds": whole_seconds(record.duration_seconds),
                    "acquireTime": record.acquired, "renewTime": record.renewed,
                    "leaderTransitions": record.transitions,
                });
                object["metadata"]["annotations"][RECORD] = text.to_string().into();
            }
            LockKind::Lease | LockKind::SharedLease => {
                if self.is_shared() {
                    object["metadata"]["annotations"][LEASE_KEY] = record.key.as_str().into();
                }
                let spec = &mut object["spec"];
                spec["holderIdentity"] = record.holder.as_str().into();
                spec["leaseDurationSeconds"] = whole_seconds(record.duration_seconds).into();
                spec["acquireTime"] = record.acquired.as_str().into();
                spec["renewTime"] = record.renewed.as_str().into();
                spec["leaseTransitions"] = record.transitions.into();
            }
        }
    }
}

/// Kubernetes has whole seconds, of which zero is not valid.
fn whole_seconds(seconds: f64) -> u64 {
    Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs().max(1)
}

/// The holder of a lock.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Record {
    #[serde(rename = "holderIdentity")]
    pub(crate) holder: String,
    /// The revision of the holder, after `^` if it is of another cluster.
    #[serde(rename = "holderKey")]
    pub(crate) key: String,
    #[serde(rename = "leaseDurationSeconds")]
    pub(crate) duration_seconds: f64,
    #[serde(rename = "acquireTime")]
    pub(crate) acquired: String,
    #[serde(rename = "renewTime")]
    pub(crate) renewed: String,
    #[serde(rename = "leaderTransitions")]
    pub(crate) transitions: i64,
}

/// The stored object of a lock, and its record.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    object: Value,
    pub(crate) record: Record,
}

/// A failed read or write of a lock.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("{0}")]
    Request(#[from] RequestError),
    /// Another program has written it. No candidate leads until it is corrected or deleted.
    #[error("annotation {RECORD} is not a record of a holder: {0}")]
    Record(#[from] serde_json::Error),
}

/// Reads and writes one lock.
pub(crate) struct LockApi {
    pub(crate) client: Client,
    pub(crate) namespace: Text,
    pub(crate) lock: Lock,
}

impl LockApi {
    pub(crate) async fn get(&self) -> Result<Option<Stored>, LockError> {
        match self.send(Method::GET, self.object(), Vec::new()).await {
            Ok(object) => Ok(Some(Stored { record: self.lock.record(&object)?, object })),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(RequestError::from(error).into()),
        }
    }

    /// Writes a record into a stored object, or creates the object. `None` if another replica wrote first. The whole object is
    /// written with its resourceVersion: server-side apply would not notice another writer.
    pub(crate) async fn write(&self, stored: Option<&Stored>, record: &Record) -> Result<Option<Stored>, LockError> {
        let (api_version, kind) = match self.lock.kind {
            LockKind::ConfigMap => ("v1", "ConfigMap"),
            LockKind::Lease | LockKind::SharedLease => ("coordination.k8s.io/v1", "Lease"),
        };
        let new = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": self.lock.name, "namespace": self.namespace},
        });
        let (method, path, mut object) = match stored {
            Some(stored) => (Method::PUT, self.object(), stored.object.clone()),
            None => (Method::POST, self.lock.objects().all(&self.namespace), new),
        };
        self.lock.set_record(&mut object, record);
        match self.send(method, path, object.to_string().into_bytes()).await {
            Ok(object) => Ok(Some(Stored { record: self.lock.record(&object)?, object })),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(RequestError::from(error).into()),
        }
    }

    /// The default revision of the cluster, if there is one.
    pub(crate) async fn default_revision(&self) -> Result<Option<String>, LockError> {
        let request = Request::get(DEFAULT_REVISION).body(Vec::new()).map_err(kube::Error::HttpError);
        let list: Value =
            transport::request(&self.client, request.map_err(RequestError::from)?).await.map_err(RequestError::from)?;
        // A server that ignores the selector lists all.
        let is_tag = |object: &&Value| object["metadata"]["name"] == DEFAULT_TAG_WEBHOOK;
        let tag = list["items"].as_array().into_iter().flatten().find(is_tag);
        let revision = tag.and_then(|object| object["metadata"]["labels"]["istio.io/rev"].as_str());
        Ok(revision.filter(|revision| !revision.is_empty()).map(str::to_owned))
    }

    /// The path of the object.
    fn object(&self) -> String {
        self.lock.objects().of(&self.namespace, &self.lock.name, "")
    }

    async fn send(&self, method: Method, path: String, body: Vec<u8>) -> Result<Value, kube::Error> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        transport::request(&self.client, request.map_err(kube::Error::HttpError)?).await
    }
}
