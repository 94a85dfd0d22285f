//! Objects through a Kubernetes API: a server in this process, or a given cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use serde::Deserialize as _;
use serde_json::Value;
use sluice_testkit::api_server::{self, ApiServer, WrongAnswer};
use tokio::runtime::Handle;

use crate::gateway;

/// Requests in flight at once.
const CONCURRENT_REQUESTS: usize = 16;

/// Requests for reviews of tokens.
const CREATE_REVIEW: &str = "create tokenreviews";

/// Custom resources that are written: group, kind, plural.
const CUSTOM_RESOURCES: &[(&str, &str, &str)] = &[
    ("gateway.networking.k8s.io", "Gateway", "gateways"),
    ("networking.istio.io", "DestinationRule", "destinationrules"),
    ("networking.istio.io", "Gateway", "gateways"),
    ("networking.istio.io", "ServiceEntry", "serviceentries"),
    ("networking.istio.io", "Sidecar", "sidecars"),
    ("networking.istio.io", "VirtualService", "virtualservices"),
    ("networking.istio.io", "WorkloadEntry", "workloadentries"),
    ("security.istio.io", "AuthorizationPolicy", "authorizationpolicies"),
    ("security.istio.io", "PeerAuthentication", "peerauthentications"),
];
/// Built-in kinds that are written.
const BUILT_IN: &[(&str, &str, &str)] = &[
    ("", "ConfigMap", "configmaps"),
    ("", "Namespace", "namespaces"),
    ("", "Node", "nodes"),
    ("", "Pod", "pods"),
    ("", "Secret", "secrets"),
    ("", "Service", "services"),
    ("discovery.k8s.io", "EndpointSlice", "endpointslices"),
];

/// A Kubernetes API, and the objects written to it.
pub(crate) struct Api {
    client: Client,
    /// The server, if it is in this process.
    server: Option<ApiServer>,
    kubeconfig: PathBuf,
    runtime: Handle,
    /// The objects written under each name, by path.
    written: Mutex<BTreeMap<String, Objects>>,
    /// The initial load: objects are stored in the server of this process without requests.
    initial_load: Mutex<bool>,
}

/// Objects by the path of their requests.
type Objects = BTreeMap<String, Value>;

impl Api {
    /// A server in this process. Its kubeconfig is written to `directory`.
    pub(crate) async fn start(directory: &Path) -> Result<Self> {
        let server = ApiServer::start().await?;
        for (group, name, plural) in CUSTOM_RESOURCES {
            server.define(api_server::ResourceKind { group, versions: vec!["v1"], name, plural }, true);
        }
        server.allow_reading_secrets(gateway::NAMESPACE, gateway::NAME, true);
        let kubeconfig = directory.join("kubeconfig");
        server.write_kubeconfig(&kubeconfig)?;
        Ok(Self::new(server.client()?, Some(server), kubeconfig))
    }

    /// The cluster of a kubeconfig. Its namespaces `sb-*`, `bench-gateways`, `bench-waypoints` and `istio-system` are written to.
    pub(crate) async fn connect(kubeconfig: &Path) -> Result<Self> {
        let read = kube::config::Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await?;
        Ok(Self::new(Client::try_from(config)?, None, kubeconfig.to_owned()))
    }

    fn new(client: Client, server: Option<ApiServer>, kubeconfig: PathBuf) -> Self {
        let (written, initial_load) = (Mutex::default(), Mutex::default());
        Self { client, server, kubeconfig, runtime: Handle::current(), written, initial_load }
    }

    /// The address of the server, if it is in this process.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(ApiServer::address)
    }

    /// Compacts the history of the server, and ends all watches.
    pub(crate) fn compact(&self) {
        if let Some(server) = &self.server {
            server.compact();
            server.disconnect();
        }
    }

    /// Sets whether the server, if it is in this process, leaves reviews of tokens without an answer.
    pub(crate) fn hang_token_reviews(&self, hang: bool) {
        if let Some(server) = &self.server {
            server.answer_wrongly(CREATE_REVIEW, hang.then_some(WrongAnswer::Nothing));
        }
    }

    /// The root of the authority that a control plane has created in the server of this process, as PEM.
    pub(crate) fn root_certificate(&self) -> Result<String> {
        let server = self.server.as_ref().context("the API server is in this process")?;
        let secret = server.get("", "secrets", "istio-system", "istio-ca-secret").context("there is an authority")?;
        let root = secret["data"]["ca-cert.pem"].as_str().context("the authority has a certificate")?;
        Ok(String::from_utf8(STANDARD.decode(root)?)?)
    }

    /// The kubeconfig for a control plane.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Begins the initial load, before the control plane reads the objects.
    pub(crate) fn begin_initial_load(&self) {
        *self.initial_load.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Ends the initial load. Serializes all lists, so that a list request does not wait for that.
    pub(crate) fn finish_initial_load(&self) -> Result<()> {
        *self.initial_load.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if let Some(server) = &self.server {
            server.compact();
            server.warm();
        }
        Ok(())
    }

    /// Writes the differences between these objects and those written under the name before. Returns the time of the
    /// first write.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<Instant> {
        let mut objects = Objects::new();
        for document in serde_yaml_ng::Deserializer::from_str(text) {
            let object = Value::deserialize(document).with_context(|| format!("read {name}"))?;
            if !object.is_null() {
                objects.insert(path(&object)?, object);
            }
        }
        let old = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.insert(name.to_owned(), objects.clone()).unwrap_or_default()
        };
        if let Some(server) = &self.server
            && *self.initial_load.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let at = Instant::now();
            for object in objects.into_values() {
                server.apply(object);
            }
            return Ok(at);
        }
        let removed: Vec<String> = old.keys().filter(|path| !objects.contains_key(*path)).cloned().collect();
        let changed: Vec<(String, Value, bool)> = objects
            .into_iter()
            .filter(|(path, object)| old.get(path) != Some(object))
            .map(|(path, object)| {
                let exists = old.contains_key(&path);
                (path, object, exists)
            })
            .collect();
        tokio::task::block_in_place(|| self.runtime.block_on(self.send(changed, removed)))
    }

    async fn send(&self, changed: Vec<(String, Value, bool)>, removed: Vec<String>) -> Result<Instant> {
        let at = Instant::now();
        let writes = changed.into_iter().map(|(path, object, exists)| self.put(path, object, exists));
        futures::stream::iter(writes).buffer_unordered(CONCURRENT_REQUESTS).try_collect::<Vec<()>>().await?;
        let removals = removed.into_iter().map(|path| self.delete(path));
        futures::stream::iter(removals).buffer_unordered(CONCURRENT_REQUESTS).try_collect::<Vec<()>>().await?;
        Ok(at)
    }

    async fn put(&self, path: String, object: Value, exists: bool) -> Result<()> {
        // An earlier run may have left the object in the cluster.
        if exists || (self.server.is_none() && self.patch(&path, &object).await.is_ok()) {
            self.patch(&path, &object).await?;
        } else {
            let (collection, _) = path.rsplit_once('/').unwrap_or_default();
            self.request("POST", collection, "application/json", &object).await?;
        }
        // A status is written separately, through the status subresource.
        if !object["status"].is_null() {
            let status = serde_json::json!({"status": object["status"]});
            self.patch(&format!("{path}/status"), &status).await?;
        }
        Ok(())
    }

    async fn patch(&self, path: &str, object: &Value) -> Result<()> {
        self.request("PATCH", path, "application/merge-patch+json", object).await
    }

    async fn delete(&self, path: String) -> Result<()> {
        self.request("DELETE", &path, "application/json", &serde_json::json!({"gracePeriodSeconds": 0})).await
    }

    async fn request(&self, method: &str, path: &str, content: &str, body: &Value) -> Result<()> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(serde_json::to_vec(body)?)
            .with_context(|| format!("build the request for {path}"))?;
        self.client.request_text(request).await.with_context(|| format!("{method} {path}"))?;
        Ok(())
    }
}

/// The path of requests for an object.
fn path(object: &Value) -> Result<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("/apiVersion"), text("/kind"));
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let plural = CUSTOM_RESOURCES.iter().chain(BUILT_IN).find(|(of, name, _)| *of == group && *name == kind);
    let (_, _, plural) = plural.with_context(|| format!("objects of kind {kind} of {version} are not supported"))?;
    let name = text("/metadata/name");
    ensure!(!name.is_empty(), "an object has no name");
    let root = if group.is_empty() { "/api" } else { "/apis" };
    Ok(match text("/metadata/namespace") {
        "" => format!("{root}/{version}/{plural}/{name}"),
        namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}/{name}"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn objects_have_the_paths_of_the_api() -> Result<()> {
        let at = |version: &str, kind: &str, namespace: &str| {
            path(
                &serde_json::json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x", "namespace": namespace}}),
            )
        };
        assert_eq!(at("v1", "Pod", "a")?, "/api/v1/namespaces/a/pods/x");
        assert_eq!(at("v1", "Namespace", "")?, "/api/v1/namespaces/x");
        let gateway = at("networking.istio.io/v1", "Gateway", "a")?;
        assert_eq!(gateway, "/apis/networking.istio.io/v1/namespaces/a/gateways/x");
        assert!(at("v1", "Lease", "a").is_err());
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_differences_are_written() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let api = Api::start(directory.path()).await?;
        let pod = |name: &str, label: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: n, labels: {{app: {label}}}}}\n"
            )
        };
        api.begin_initial_load();
        api.write("pods", &(pod("a", "one") + &pod("b", "one")))?;
        api.finish_initial_load()?;
        let server = api.server.as_ref().context("a server")?;
        let label = |name: &str| server.get("", "pods", "n", name).map(|pod| pod["metadata"]["labels"]["app"].clone());
        assert_eq!(label("a"), Some("one".into()));
        let before = Instant::now();
        let at = api.write("pods", &(pod("a", "one") + &pod("c", "two")))?;
        assert!(at >= before && at.duration_since(before) < Duration::from_secs(60));
        assert_eq!((label("a"), label("b"), label("c")), (Some("one".into()), None, Some("two".into())));
        assert_eq!((server.count("patch", "pods"), server.count("create", "pods")), (0, 1));
        api.write("pods", &(pod("a", "three") + &pod("c", "two")))?;
        assert_eq!((label("a"), server.count("patch", "pods")), (Some("three".into()), 1));
        Ok(())
    }
}
