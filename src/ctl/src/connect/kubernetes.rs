//! Pods of the control plane and of proxies, found in the cluster of a kubeconfig.

use clap::Args;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use sluice_install::{TargetCluster, cluster_config};
use tokio::runtime::Runtime;

use super::QueryError;
use crate::install_args::ClusterArgs;

/// Label of the revision of a control plane.
const REVISION_LABEL: &str = "istio.io/rev";

/// Flags about the cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterFlags {
    #[command(flatten, next_help_heading = "Server")]
    pub(crate) target: ClusterArgs,
    /// Namespace of the control plane.
    #[arg(
        short = 'i',
        long = "istioNamespace",
        value_name = "NAMESPACE",
        default_value = "istio-system",
        help_heading = "Server"
    )]
    pub(crate) istio_namespace: String,
    /// Revision of the control plane. Without it, the pods of all revisions are asked.
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) revision: Option<String>,
}

/// A pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PodReference {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// Label `istio.io/rev`; empty if it has none.
    pub(crate) revision: String,
}

/// The cluster of a kubeconfig.
pub(crate) struct KubeconfigCluster {
    target: TargetCluster,
    /// Address of the API server.
    server: String,
}

impl KubeconfigCluster {
    /// Reads the kubeconfig.
    pub(crate) async fn of(args: &ClusterArgs) -> Result<Self, QueryError> {
        let config = cluster_config(args.kubeconfig.as_deref(), args.context.as_deref()).await;
        let config = config.map_err(|error| QueryError::Cluster(error.to_string()))?;
        let server = config.cluster_url.to_string();
        let client = sluice_kube::client(config);
        let client = client.map_err(|error| QueryError::Cluster(sluice_kube::chain(&error)))?;
        Ok(Self { target: TargetCluster::new(client), server: server.trim_end_matches('/').to_owned() })
    }

    /// Reads the kubeconfig for a command that does not need one.
    pub(super) async fn connect(flags: &ClusterFlags) -> Result<Self, QueryError> {
        let hint = "--address is the address of a control plane without a kubeconfig";
        Self::of(&flags.target).await.map_err(|error| QueryError::Cluster(format!("{error}; {hint}")))
    }

    pub(crate) fn target(&self) -> &TargetCluster {
        &self.target
    }

    /// Address of the API server in the kubeconfig.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn client(&self) -> Client {
        self.target.client().clone()
    }

    /// The running pods of the control plane, by name.
    pub(crate) async fn control_plane(&self, flags: &ClusterFlags) -> Result<Vec<PodReference>, QueryError> {
        let namespace = &flags.istio_namespace;
        let selector = match &flags.revision {
            Some(revision) => format!("app=istiod,{REVISION_LABEL}={revision}"),
            None => "app=istiod".to_owned(),
        };
        let pods = running(&self.pods(namespace, &selector).await?);
        if pods.is_empty() {
            let of = format!("no running Istio pods in {namespace:?} have the labels {selector}");
            return Err(QueryError::Cluster(format!("{of}; --istioNamespace is the namespace of the control plane")));
        }
        Ok(pods)
    }

    /// The pod of a proxy.
    pub(crate) async fn pod_of_proxy(&self, proxy: &str, namespace: &str) -> Result<PodReference, QueryError> {
        let target = ProxyName::parse(proxy, namespace)?;
        let list = self.pods(&target.namespace, "").await?;
        let items = items(&list);
        let found = match &target.workload_kind {
            None => items.iter().find(|pod| pod["metadata"]["name"] == target.name.as_str()),
            Some(kind) => items.iter().find(|pod| is_running(pod) && is_owned_by(pod, kind, &target.name)),
        };
        if let Some(pod) = found {
            return Ok(pod_of(pod));
        }
        let names = items.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        let similar = crate::similar_name::similar(&target.name, names);
        let hint = similar.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        let what =
            target.workload_kind.as_ref().map_or_else(|| "pod".to_owned(), |kind| format!("running pod of {kind}"));
        Err(QueryError::NotFound(format!("namespace {:?} has no {what} {:?}{hint}", target.namespace, target.name)))
    }

    /// The labels of the pods that a name stands for: those of a pod, or those of the pod template of a workload.
    pub(crate) async fn labels_of(&self, name: &ProxyName) -> Result<Value, QueryError> {
        let ProxyName { name: object, namespace, .. } = name;
        let (path, labels) = match &name.workload_kind {
            None => (format!("/api/v1/namespaces/{namespace}/pods/{object}"), "/metadata/labels"),
            Some(kind) => {
                let plural = format!("{}s", kind.to_lowercase());
                (format!("/apis/apps/v1/namespaces/{namespace}/{plural}/{object}"), "/spec/template/metadata/labels")
            }
        };
        let found = self.find(&path).await?;
        let kind = name.workload_kind.as_deref().unwrap_or("pod");
        let missing = || QueryError::NotFound(format!("namespace {namespace:?} has no {kind} {object:?}"));
        Ok(found.ok_or_else(missing)?.pointer(labels).cloned().unwrap_or_default())
    }

    pub(super) async fn pods(&self, namespace: &str, selector: &str) -> Result<Value, QueryError> {
        self.read(&format!("/api/v1/namespaces/{namespace}/pods?labelSelector={}", selector.replace('=', "%3D"))).await
    }

    /// A token of a service account. `spec` is that of the TokenRequest.
    pub(crate) async fn request_token(
        &self,
        namespace: &str,
        account: &str,
        spec: &Value,
    ) -> Result<String, QueryError> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer = self.send(Method::POST, &path, &request).await?;
        let token = answer["status"]["token"].as_str().map(str::to_owned);
        token.ok_or_else(|| QueryError::Cluster(format!("{path}: the answer has no token")))
    }

    /// The answer of the API server to a request for a path.
    pub(crate) async fn read(&self, path: &str) -> Result<Value, QueryError> {
        let found = self.find(path).await?;
        found.ok_or_else(|| QueryError::Cluster(format!("{path}: the API server has no such object or kind")))
    }

    /// As [`Self::read`], `None` if there is no such object or kind.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<Value>, QueryError> {
        self.request(Method::GET, path, Vec::new()).await
    }

    /// Sends a request with a body, and returns the answer of the API server.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, QueryError> {
        let answer = self.request(method, path, body.to_string().into_bytes()).await?;
        answer.ok_or_else(|| QueryError::Cluster(format!("{path}: the API server has no such object or kind")))
    }

    /// Deletes an object, which may be gone already.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), QueryError> {
        self.request(Method::DELETE, path, Vec::new()).await.map(drop)
    }

    async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Option<Value>, QueryError> {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(|error| QueryError::Flags(format!("{path}: {error}")))?;
        match sluice_kube::request(self.target.client(), request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(QueryError::Cluster(format!("{path}: {}", sluice_kube::chain(&error)))),
        }
    }
}

/// The runtime of a command that asks the API server.
pub(crate) fn current_thread() -> Result<Runtime, QueryError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| QueryError::Cluster(format!("cannot start: {error}")))
}

/// What names the pod of a proxy on the command line.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct ProxyName {
    /// `Deployment`, `StatefulSet` or `DaemonSet`, if a workload is named.
    workload_kind: Option<String>,
    pub(crate) name: String,
    pub(crate) namespace: String,
}

impl ProxyName {
    /// `POD[.NAMESPACE]`, or `KIND/NAME[.NAMESPACE]`. The default namespace is `namespace`, or `default`.
    pub(crate) fn parse(text: &str, namespace: &str) -> Result<Self, QueryError> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (Some(kind), name),
            None => (None, text),
        };
        let workload_kind = match kind {
            None | Some("pod" | "pods" | "po") => None,
            Some("deploy" | "deployment" | "deployments") => Some("Deployment".to_owned()),
            Some("sts" | "statefulset" | "statefulsets") => Some("StatefulSet".to_owned()),
            Some("ds" | "daemonset" | "daemonsets") => Some("DaemonSet".to_owned()),
            Some(other) => {
                let accepted = "pod, deploy, sts and ds are accepted";
                return Err(QueryError::Flags(format!("PROXY {text:?}: kind {other:?} is unknown; {accepted}")));
            }
        };
        let (name, own) = name.rsplit_once('.').unwrap_or((name, ""));
        let namespace = [own, namespace, "default"].into_iter().find(|it| !it.is_empty()).unwrap_or_default();
        if name.is_empty() {
            return Err(QueryError::Flags(format!("PROXY {text:?} has no name; POD.NAMESPACE is accepted")));
        }
        Ok(Self { workload_kind, name: name.to_owned(), namespace: namespace.to_owned() })
    }

    /// `POD.NAMESPACE`.
    pub(crate) fn id(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }
}

pub(super) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a pod runs and is not being deleted.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

pub(super) fn running(list: &Value) -> Vec<PodReference> {
    let mut pods: Vec<PodReference> = items(list).iter().filter(|pod| is_running(pod)).map(pod_of).collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    pods
}

/// What identifies a pod.
pub(crate) fn pod_of(pod: &Value) -> PodReference {
    let metadata = &pod["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    PodReference {
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        revision: text(&metadata["labels"][REVISION_LABEL]),
    }
}

/// Whether a workload owns a pod. Of a Deployment, this is told from the name of the ReplicaSet: it ends in a hash.
fn is_owned_by(pod: &Value, kind: &str, name: &str) -> bool {
    let hash = pod["metadata"]["labels"]["pod-template-hash"].as_str().unwrap_or_default();
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    owners.iter().any(|owner| match kind {
        "Deployment" => owner["kind"] == "ReplicaSet" && owner["name"] == format!("{name}-{hash}"),
        _ => owner["kind"] == kind && owner["name"] == name,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxies_are_named_as_for_istioctl() {
        let parse = |text, namespace| ProxyName::parse(text, namespace).expect("valid").id();
        assert_eq!(parse("cart-7f.shop", "bank"), "cart-7f.shop");
        assert_eq!(parse("cart-7f", "bank"), "cart-7f.bank");
        assert_eq!(parse("cart-7f", ""), "cart-7f.default");
        assert_eq!(parse("deploy/cart.shop", ""), "cart.shop");
        for text in ["job/cart", ".shop", "deploy/"] {
            assert_eq!(ProxyName::parse(text, "").expect_err(text).exit_code(1), 2, "{text}");
        }
    }

    #[test]
    fn only_running_pods_that_are_not_deleted_are_asked() {
        let pod = |name: &str, phase: &str, deleted: Value| {
            json!({
                "metadata": {"name": name, "namespace": "istio-system", "labels": {"istio.io/rev": "canary"}, "deletionTimestamp": deleted},
                "status": {"phase": phase},
            })
        };
        let list = json!({"items": [
            pod("istiod-b", "Running", Value::Null), pod("istiod-a", "Running", Value::Null),
            pod("istiod-c", "Pending", Value::Null), pod("istiod-d", "Running", json!("2026-01-01T00:00:00Z")),
        ]});
        let pods = running(&list);
        assert_eq!(pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["istiod-a", "istiod-b"]);
        assert!(pods.iter().all(|pod| pod.revision == "canary" && pod.namespace == "istio-system"));
    }

    #[test]
    fn pods_of_a_deployment_are_those_of_its_replica_sets() {
        let pod = json!({"metadata": {
            "labels": {"pod-template-hash": "5f"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "cart-v1-5f"}],
        }});
        assert!(is_owned_by(&pod, "Deployment", "cart-v1"));
        assert!(!is_owned_by(&pod, "Deployment", "cart"), "cart-v1 is another Deployment");
        assert!(!is_owned_by(&pod, "StatefulSet", "cart-v1"));
    }
}
