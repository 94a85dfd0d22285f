//! Requests to the API server about single objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use http::{Method, Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value as Json, json};
use sluice_kube::RequestError;
use tokio::sync::Mutex;

use crate::error::InstallError;
use crate::object::{KubeObject, ObjectKey};
use crate::render::Capabilities;

/// The name under which objects are applied. It is that of istioctl, so that fields that it applied before and that are no longer
/// rendered are removed.
const FIELD_MANAGER: &str = "istio-operator";
/// How often a request is sent until the API server answers.
const MAX_ATTEMPTS: u32 = 4;
/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often an object is restored that something else, such as a controller that writes its status, changes meanwhile.
const MAX_RESTORATIONS: u32 = 10;

/// A cluster.
pub struct TargetCluster {
    client: Client,
    /// Served kinds, by version.
    kinds: Mutex<BTreeMap<String, BTreeMap<String, KindPath>>>,
}

/// Where the objects of a kind are.
#[derive(Clone, Debug)]
struct KindPath {
    plural: String,
    is_namespaced: bool,
}

/// Whether a write is stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Write {
    /// It is stored.
    Stored,
    /// The API server validates it and returns the result, but stores nothing.
    DryRun,
}

/// The settings of the cluster of a kubeconfig file, or of the variable `KUBECONFIG`, `~/.kube/config` or the pod's service
/// account; with its current context, or another one.
///
/// # Errors
/// The kubeconfig cannot be used.
pub async fn cluster_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, InstallError> {
    let fail = |error: &dyn std::error::Error| unusable(kubeconfig, error);
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    match kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| fail(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| fail(&error))
        }
        None => match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            Err(error) if context.is_some() => Err(fail(&error)),
            Err(error) => Config::incluster().map_err(|_| fail(&error)),
        },
    }
}

fn unusable(kubeconfig: Option<&Path>, error: &dyn std::error::Error) -> InstallError {
    let path = kubeconfig.map_or_else(|| "kubeconfig".to_owned(), |path| path.display().to_string());
    InstallError::input(path, sluice_kube::chain(error))
}

impl TargetCluster {
    /// A cluster behind a client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, kinds: Mutex::default() }
    }

    /// The cluster of a kubeconfig file, or of the variable `KUBECONFIG`, `~/.kube/config` or the pod's service account; with
    /// its current context, or another one.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self, InstallError> {
        let config = cluster_config(kubeconfig, context).await?;
        let client = sluice_kube::client(config);
        Ok(Self::new(client.map_err(|error| unusable(kubeconfig, &error))?))
    }

    /// The client of the API server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the cluster supports.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn capabilities(&self) -> Result<Capabilities, InstallError> {
        let version: Json = self.read("/version").await.map_err(|cause| InstallError::request("/version", cause))?;
        let groups: Json = self.read("/apis").await.map_err(|cause| InstallError::request("/apis", cause))?;
        let versions = groups["groups"].as_array().into_iter().flatten();
        let versions = versions.flat_map(|group| group["versions"].as_array().into_iter().flatten());
        let names = versions.filter_map(|version| version["groupVersion"].as_str().map(str::to_owned));
        Ok(Capabilities {
            kube_version: version["gitVersion"].as_str().unwrap_or_default().to_owned(),
            api_versions: names.chain(["v1".to_owned()]).collect(),
        })
    }

    /// An object, if it exists. A kind that is not served has none.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<KubeObject>, InstallError> {
        let Some(path) = self.path(key).await? else { return Ok(None) };
        match self.read(&path).await {
            Ok(json) => Ok(KubeObject::new(json)),
            Err(RequestError::Status { code: 404, .. }) => Ok(None),
            Err(cause) => Err(InstallError::request(key, cause)),
        }
    }

    /// The objects of a kind that a selector of labels selects. Objects that belong to another object are left out.
    pub(crate) async fn list(
        &self,
        (version, kind): (&str, &str),
        selector: &str,
    ) -> Result<Vec<KubeObject>, InstallError> {
        let Some(found) = self.kind(version, kind).await? else { return Ok(Vec::new()) };
        let path = format!("{}/{}?labelSelector={}", root(version), found.plural, escaped(selector));
        let list = self.read(&path).await.map_err(|cause| InstallError::request(&found.plural, cause))?;
        let mut objects = Vec::new();
        for item in list["items"].as_array().into_iter().flatten() {
            let mut item = item.clone();
            // Elements of a list do not repeat them.
            item["apiVersion"] = version.into();
            item["kind"] = kind.into();
            let is_owned = item["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
            objects.extend(KubeObject::new(item).filter(|_| !is_owned));
        }
        Ok(objects)
    }

    /// Creates or changes an object by server-side apply. Returns the result.
    ///
    /// # Errors
    /// The API server does not answer or refuses it, or does not serve its kind.
    pub async fn apply(&self, object: &KubeObject, write: Write) -> Result<KubeObject, InstallError> {
        let key = object.key();
        let path = self.path(key).await?.ok_or_else(|| not_served(key))?;
        let dry_run = if write == Write::DryRun { "&dryRun=All" } else { "" };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=true{dry_run}");
        self.write(Method::PATCH, &path, "application/apply-patch+yaml", object.json(), key).await
    }

    /// Restores an object as it was, also which program has applied which field. The object may have been removed meanwhile.
    pub(crate) async fn restore(&self, before: &KubeObject) -> Result<(), InstallError> {
        let mut attempt = 1;
        loop {
            let is_conflict = |error: &InstallError| {
                matches!(error, InstallError::Request { cause: RequestError::Status { code: 409, .. }, .. })
            };
            match self.try_restore(before).await {
                Err(error) if is_conflict(&error) && attempt < MAX_RESTORATIONS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn try_restore(&self, before: &KubeObject) -> Result<(), InstallError> {
        let key = before.key();
        let path = self.path(key).await?.ok_or_else(|| not_served(key))?;
        let mut json = before.json().clone();
        let managed = json["metadata"]["managedFields"].clone();
        for field in ["uid", "creationTimestamp", "generation", "managedFields", "resourceVersion"] {
            json["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
        }
        let mut current = match self.get(key).await? {
            Some(current) if current.json()["metadata"]["deletionTimestamp"].is_string() => {
                return Err(InstallError::refused(key, "it is being deleted, which its finalizers delay"));
            }
            Some(current) => {
                json["metadata"]["resourceVersion"] = current.json()["metadata"]["resourceVersion"].clone();
                let path = format!("{path}?fieldManager={FIELD_MANAGER}");
                self.write(Method::PUT, &path, "application/json", &json, key).await?
            }
            None => {
                let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
                let collection = format!("{collection}?fieldManager={FIELD_MANAGER}");
                self.write(Method::POST, &collection, "application/json", &json, key).await?
            }
        };
        if managed.is_null() {
            return Ok(());
        }
        // The fields that the first write changed would otherwise be its own, and the next apply would not remove them.
        current.change(|json| json["metadata"]["managedFields"] = managed);
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.write(Method::PUT, &path, "application/json", current.json(), key).await.map(drop)
    }

    /// Deletes an object and what belongs to it. Returns whether it existed.
    pub(crate) async fn delete(&self, key: &ObjectKey) -> Result<bool, InstallError> {
        let Some(path) = self.path(key).await? else { return Ok(false) };
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        match self.send(Method::DELETE, &path, "application/json", &options).await {
            Ok(_) => Ok(true),
            Err(RequestError::Status { code: 404, .. }) => Ok(false),
            Err(cause) => Err(InstallError::request(key, cause)),
        }
    }

    /// Whether the caller may use a verb on objects of a kind.
    pub(crate) async fn may(&self, verb: &str, key: &ObjectKey) -> Result<bool, InstallError> {
        let Some(kind) = self.kind(&key.api_version, &key.kind).await? else { return Ok(true) };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "group": key.group(), "resource": kind.plural, "namespace": key.namespace,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.send(Method::POST, path, "application/json", &review).await;
        let answer = answer.map_err(|cause| InstallError::request("SelfSubjectAccessReview", cause))?;
        Ok(answer["status"]["allowed"] == true)
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Json,
        key: &ObjectKey,
    ) -> Result<KubeObject, InstallError> {
        let json = self.send(method, path, content_type, body).await;
        let json = json.map_err(|cause| InstallError::request(key, cause))?;
        KubeObject::new(json).ok_or_else(|| InstallError::refused(key, "the answer of the API server is no object"))
    }

    /// The path of an object. `None` if its kind is not served.
    async fn path(&self, key: &ObjectKey) -> Result<Option<String>, InstallError> {
        let Some(kind) = self.kind(&key.api_version, &key.kind).await? else { return Ok(None) };
        let root = root(&key.api_version);
        Ok(Some(match kind.is_namespaced {
            true => format!("{root}/namespaces/{}/{}/{}", key.namespace, kind.plural, key.name),
            false => format!("{root}/{}/{}", kind.plural, key.name),
        }))
    }

    /// Whether the objects of a kind are in namespaces. `None` if the kind is not served.
    pub(crate) async fn is_namespaced(&self, key: &ObjectKey) -> Result<Option<bool>, InstallError> {
        Ok(self.kind(&key.api_version, &key.kind).await?.map(|kind| kind.is_namespaced))
    }

    async fn kind(&self, version: &str, kind: &str) -> Result<Option<KindPath>, InstallError> {
        let mut kinds = self.kinds.lock().await;
        if let Some(known) = kinds.get(version) {
            return Ok(known.get(kind).cloned());
        }
        let path = root(version);
        let list = match self.read(&path).await {
            Ok(list) => list,
            Err(RequestError::Status { code: 404, .. }) => return Ok(None),
            Err(cause) => return Err(InstallError::request(path, cause)),
        };
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let resources = list["resources"].as_array().into_iter().flatten();
        let resources = resources.filter(|resource| !text(&resource["name"]).contains('/'));
        let served: BTreeMap<String, KindPath> = resources
            .map(|resource| {
                let plural = text(&resource["name"]);
                (text(&resource["kind"]), KindPath { plural, is_namespaced: resource["namespaced"] == true })
            })
            .collect();
        let found = served.get(kind).cloned();
        kinds.insert(version.to_owned(), served);
        Ok(found)
    }

    /// A collection or an object.
    pub(crate) async fn read(&self, path: &str) -> Result<Json, RequestError> {
        self.attempt(|| Request::get(path).body(Vec::new())).await
    }

    async fn send(&self, method: Method, path: &str, content_type: &str, body: &Json) -> Result<Json, RequestError> {
        let body = body.to_string().into_bytes();
        self.attempt(|| {
            let request = Request::builder().method(method.clone()).uri(path);
            request.header(header::CONTENT_TYPE, content_type).body(body.clone())
        })
        .await
    }

    /// Sends a request again while the server does not answer, or is overloaded.
    async fn attempt(&self, request: impl Fn() -> Result<Request<Vec<u8>>, http::Error>) -> Result<Json, RequestError> {
        let mut attempt = 1;
        loop {
            let request = request().map_err(|error| RequestError::Malformed(error.to_string()))?;
            let error = match sluice_kube::request(&self.client, request).await {
                Ok(json) => return Ok(json),
                Err(error) => RequestError::from(error),
            };
            let is_retryable = match &error {
                RequestError::Unreachable(_) => true,
                RequestError::Status { code, .. } => *code == 429 || *code >= 500,
                _ => false,
            };
            if !is_retryable || attempt == MAX_ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

fn not_served(key: &ObjectKey) -> InstallError {
    InstallError::refused(key, format!("the API server does not serve {} of {}", key.kind, key.api_version))
}

fn root(version: &str) -> String {
    if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") }
}

/// A selector as part of a URL.
fn escaped(selector: &str) -> String {
    let mut out = String::with_capacity(selector.len() + 16);
    for byte in selector.bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'/' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
