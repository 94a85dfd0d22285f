//! Reads and writes objects of a cluster as an administrator.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::{Method, Request, header};
use serde_json::{Value, json};
use sluice_parse::yaml::{self, Limits};

use super::Cluster;

/// The name under which the tests write objects.
pub const ADMIN: &str = "test";

/// Time in which a definition is established, or another condition is met that the cluster's controllers bring about.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Creates or updates an object by server-side apply. Returns the stored object.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        self.apply_as(ADMIN, object).await
    }

    /// The same under the name of another program.
    ///
    /// # Errors
    /// As [`Cluster::apply`].
    pub async fn apply_as(&self, manager: &str, object: &Value) -> Result<Value> {
        let uri = format!("{}?fieldManager={manager}&force=true", path_of(object)?);
        self.send(Method::PATCH, &uri, "application/apply-patch+yaml", object).await
    }

    /// Applies all objects of a YAML text, in order.
    ///
    /// # Errors
    /// The text does not parse, or the API server rejects an object.
    pub async fn apply_yaml(&self, text: &str) -> Result<()> {
        for object in documents(text)? {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Applies all objects of a file.
    ///
    /// # Errors
    /// As [`Cluster::apply_yaml`], or the file cannot be read.
    pub async fn apply_file(&self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        self.apply_yaml(&text).await.with_context(|| format!("apply {}", file.display()))
    }

    /// The object of a kind, if it exists. The namespace of cluster-scoped kinds is empty.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<Option<Value>> {
        let request = Request::get(path(api_version, kind, namespace, name)).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("get {kind} {namespace}/{name}")),
        }
    }

    /// All objects of a kind in all namespaces.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn list(&self, api_version: &str, kind: &str) -> Result<Vec<Value>> {
        let uri = path(api_version, kind, "", "");
        let mut list: Value = self.client.request(Request::get(uri.trim_end_matches('/')).body(Vec::new())?).await?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn patch(&self, api_version: &str, kind: &str, key: (&str, &str), patch: &Value) -> Result<Value> {
        let uri = path(api_version, kind, key.0, key.1);
        self.send(Method::PATCH, &uri, "application/merge-patch+json", patch).await
    }

    /// Writes the status of an object, as a kubelet or a controller does.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn write_status(&self, api_version: &str, kind: &str, key: (&str, &str), status: Value) -> Result<()> {
        let uri = format!("{}/status", path(api_version, kind, key.0, key.1));
        self.send(Method::PATCH, &uri, "application/merge-patch+json", &json!({"status": status})).await.map(drop)
    }

    /// Writes the status of a running pod, as its kubelet does.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn report_pod(&self, key: (&str, &str), address: &str, is_ready: bool) -> Result<()> {
        let ready = if is_ready { "True" } else { "False" };
        let status = json!({
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.10",
            "conditions": [{"type": "Ready", "status": ready}],
        });
        self.write_status("v1", "Pod", key, status).await
    }

    /// Deletes an object without a grace period. An object with finalizers, such as a Namespace, disappears later.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<()> {
        let uri = path(api_version, kind, namespace, name);
        let options = json!({"gracePeriodSeconds": 0});
        self.send(Method::DELETE, &uri, "application/json", &options).await.map(drop)
    }

    /// Creates a namespace, and waits for its default service account.
    ///
    /// # Errors
    /// The API server rejects it, or the controller manager does not create the service account in time.
    pub async fn create_namespace(&self, name: &str, labels: Value) -> Result<()> {
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}))
            .await?;
        self.exists("v1", "ServiceAccount", name, "default").await
    }

    /// Waits until an object exists.
    ///
    /// # Errors
    /// It does not exist in time.
    pub async fn exists(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<()> {
        self.settles(&format!("{kind} {namespace}/{name} exists"), async || {
            Ok(self.get(api_version, kind, namespace, name).await?.is_some())
        })
        .await
    }

    /// A token of a service account for an audience, as a projected volume contains it. With the name and the UID of a pod,
    /// the token is bound to the pod.
    ///
    /// # Errors
    /// The API server rejects the request.
    pub async fn create_token(
        &self,
        (namespace, account): (&str, &str),
        audience: Option<&str>,
        pod: Option<(&str, &str)>,
    ) -> Result<String> {
        let uri = format!("{}/token", path("v1", "ServiceAccount", namespace, account));
        let pod = pod.map(|(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}));
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audience.map(|audience| vec![audience]), "boundObjectRef": pod},
        });
        let response = self.send(Method::POST, &uri, "application/json", &request).await?;
        response["status"]["token"].as_str().map(str::to_owned).context("the response has a token")
    }

    /// Installs the CRDs of a file beside the programs, `istio.yaml` or `gateway-api.yaml`, whose names begin with one of the
    /// prefixes, and waits until their kinds are served.
    ///
    /// # Errors
    /// The API server rejects one.
    pub async fn install_crds(&self, file: &str, prefixes: &[&str]) -> Result<usize> {
        let definitions = self.crds(file, prefixes)?;
        for definition in &definitions {
            self.apply(definition).await?;
        }
        for definition in &definitions {
            let name = name_of(definition);
            self.settles(&format!("{name} is served"), async || self.is_served(definition).await).await?;
        }
        Ok(definitions.len())
    }

    /// Deletes CRDs that [`Cluster::install_crds`] installed, and waits until they and their objects have disappeared.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn remove_crds(&self, file: &str, prefixes: &[&str]) -> Result<()> {
        const CRD: (&str, &str) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        for definition in self.crds(file, prefixes)? {
            let name = name_of(&definition);
            self.delete(CRD.0, CRD.1, "", name).await?;
            self.settles(&format!("{name} is removed"), async || Ok(self.get(CRD.0, CRD.1, "", name).await?.is_none()))
                .await?;
        }
        Ok(())
    }

    fn crds(&self, file: &str, prefixes: &[&str]) -> Result<Vec<Value>> {
        let file = self.running.programs.join("crds").join(file);
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let is_wanted = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        Ok(documents(&text)?.into_iter().filter(|definition| is_wanted(name_of(definition))).collect())
    }

    /// Whether the API server serves all versions of a definition.
    async fn is_served(&self, definition: &Value) -> Result<bool> {
        let spec = &definition["spec"];
        let (group, plural) = (spec["group"].as_str().unwrap_or_default(), &spec["names"]["plural"]);
        for version in spec["versions"].as_array().into_iter().flatten().filter(|version| version["served"] == true) {
            let version = version["name"].as_str().unwrap_or_default();
            let request = Request::get(format!("/apis/{group}/{version}")).body(Vec::new())?;
            let Ok(list) = self.client.request::<Value>(request).await else { return Ok(false) };
            if !list["resources"].as_array().into_iter().flatten().any(|resource| resource["name"] == *plural) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn settles(&self, what: &str, is_met: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while !is_met().await? {
            if Instant::now() > deadline {
                bail!("{what}: not after {SETTLE_TIMEOUT:?}\n{}", self.log_tail("kube-controller-manager"));
            }
            tokio::time::sleep(super::POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn send(&self, method: Method, uri: &str, content_type: &str, body: &Value) -> Result<Value> {
        let request = Request::builder()
            .method(method.clone())
            .uri(uri)
            .header(header::CONTENT_TYPE, content_type)
            .body(body.to_string().into_bytes())?;
        self.client.request(request).await.with_context(|| format!("{method} {uri}"))
    }
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = yaml::parse_documents(text, &Limits::default());
    documents.into_iter().map(|document| Ok(document?.value)).collect()
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn path_of(object: &Value) -> Result<String> {
    let text = |value: &'_ Value| value.as_str().map(str::to_owned);
    let api_version = text(&object["apiVersion"]).context("the object has an apiVersion")?;
    let kind = text(&object["kind"]).context("the object has a kind")?;
    let namespace = text(&object["metadata"]["namespace"]).unwrap_or_default();
    Ok(path(&api_version, &kind, &namespace, name_of(object)))
}

/// The path of an object.
fn path(api_version: &str, kind: &str, namespace: &str, name: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    let plural = plural(kind);
    match namespace {
        "" => format!("/{root}/{api_version}/{plural}/{name}"),
        _ => format!("/{root}/{api_version}/namespaces/{namespace}/{plural}/{name}"),
    }
}

/// The plural name of a kind, as Kubernetes forms it.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.as_bytes() {
        [.., b's'] => kind + "es",
        [.., before, b'y'] if !b"aeiou".contains(before) => format!("{}ies", &kind[..kind.len() - 1]),
        _ => kind + "s",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plural_names_are_those_of_the_api() {
        let kinds = ["Ingress", "Gateway", "ServiceEntry", "AuthorizationPolicy", "Pod", "CustomResourceDefinition"];
        let expect =
            ["ingresses", "gateways", "serviceentries", "authorizationpolicies", "pods", "customresourcedefinitions"];
        assert_eq!(kinds.map(plural), expect);
        assert_eq!(path("apps/v1", "Deployment", "n", "a"), "/apis/apps/v1/namespaces/n/deployments/a");
        assert_eq!(path("v1", "Node", "", "a"), "/api/v1/nodes/a");
    }
}
