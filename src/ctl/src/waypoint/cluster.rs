//! Waypoints and namespaces of a cluster.

use http::header::CONTENT_TYPE;
use http::{Method, Request};
use serde_json::{Value, json};
use sluice_install::TargetCluster;

use crate::answer_output::{elements, text};
use crate::connect::QueryError;
use crate::install_args::ClusterArgs;

/// GatewayClass of waypoints.
pub(super) const CLASS: &str = "istio-waypoint";
/// Label of what a waypoint processes.
pub(super) const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Label of the waypoint that a namespace uses.
pub(super) const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Manager of the fields of a waypoint: istioctl's, so that each of both programs can change a waypoint of the other.
const FIELD_MANAGER: &str = "istioctl";
const NOT_FOUND: u16 = 404;

/// The cluster of a kubeconfig.
pub(super) struct WaypointCluster {
    target: TargetCluster,
}

/// A response of the API server that is an error.
enum ApiError {
    Status { code: u16, message: String },
    Unreachable(String),
}

impl ApiError {
    /// The error of a request that a user understands: what was tried.
    fn of(self, what: &str) -> QueryError {
        match self {
            Self::Status { message, .. } => QueryError::NotFound(format!("{what}: {message}")),
            Self::Unreachable(reason) => QueryError::Cluster(format!("{what}: {reason}")),
        }
    }

    fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: NOT_FOUND, .. })
    }
}

impl WaypointCluster {
    pub(super) async fn connect(args: &ClusterArgs) -> Result<Self, QueryError> {
        let target = TargetCluster::connect(args.kubeconfig.as_deref(), args.context.as_deref()).await;
        Ok(Self { target: target.map_err(|error| QueryError::Cluster(error.to_string()))? })
    }

    /// The waypoints of a namespace, or of all, by namespace and name; those of a revision if one is given.
    pub(super) async fn waypoints(&self, namespace: &str, revision: Option<&str>) -> Result<Vec<Value>, QueryError> {
        let selector = revision.map(|revision| format!("?labelSelector=istio.io%2Frev%3D{revision}"));
        let path = format!("{}{}", gateways(namespace), selector.unwrap_or_default());
        let list = self.send(Method::GET, &path, "", None).await;
        let list = list.map_err(|error| missing_definitions(error, "list waypoints"))?;
        let mut found: Vec<Value> = elements(&list["items"]).iter().filter(|it| is_waypoint(it)).cloned().collect();
        let key = |it: &Value| ["namespace", "name"].map(|field| text(&it["metadata"], field).to_owned());
        found.sort_by_cached_key(key);
        Ok(found)
    }

    /// A waypoint.
    pub(super) async fn waypoint(&self, namespace: &str, name: &str) -> Result<Option<Value>, QueryError> {
        match self.send(Method::GET, &format!("{}/{name}", gateways(namespace)), "", None).await {
            Ok(waypoint) => Ok(Some(waypoint)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.of("read the waypoint")),
        }
    }

    /// Applies a waypoint on the server.
    pub(super) async fn apply(&self, namespace: &str, name: &str, object: &Value) -> Result<(), QueryError> {
        let path = format!("{}/{name}?fieldManager={FIELD_MANAGER}", gateways(namespace));
        let applied = self.send(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await;
        applied.map(drop).map_err(|error| missing_definitions(error, "apply the waypoint"))
    }

    /// Deletes a waypoint. Returns whether it existed.
    pub(super) async fn delete(&self, namespace: &str, name: &str) -> Result<bool, QueryError> {
        match self.send(Method::DELETE, &format!("{}/{name}", gateways(namespace)), "", None).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.of("delete the waypoint")),
        }
    }

    /// The labels of a namespace.
    pub(super) async fn namespace_labels(&self, namespace: &str) -> Result<Value, QueryError> {
        let path = format!("/api/v1/namespaces/{namespace}");
        match self.send(Method::GET, &path, "", None).await {
            Ok(mut object) => Ok(object["metadata"]["labels"].take()),
            Err(error) if error.is_not_found() => {
                Err(QueryError::NotFound(format!("namespace: {namespace} not found")))
            }
            Err(error) => Err(error.of("read the namespace")),
        }
    }

    /// Labels a namespace with its waypoint.
    pub(super) async fn enroll(&self, namespace: &str, waypoint: &str) -> Result<(), QueryError> {
        let mut patch = json!({"metadata": {"labels": {}}});
        patch["metadata"]["labels"][USE_WAYPOINT] = waypoint.into();
        let path = format!("/api/v1/namespaces/{namespace}");
        let patched = self.send(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).await;
        patched.map(drop).map_err(|error| error.of("label the namespace"))
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        let mut request = Request::builder().method(method).uri(path);
        if !kind.is_empty() {
            request = request.header(CONTENT_TYPE, kind);
        }
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = request.body(body).map_err(|error| ApiError::Unreachable(format!("{path}: {error}")))?;
        match sluice_kube::request(self.target.client(), request).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => {
                Err(ApiError::Status { code: status.code, message: status.message.clone() })
            }
            Err(error) => Err(ApiError::Unreachable(sluice_kube::chain(&error))),
        }
    }
}

fn gateways(namespace: &str) -> String {
    const API: &str = "/apis/gateway.networking.k8s.io/v1";
    if namespace.is_empty() { format!("{API}/gateways") } else { format!("{API}/namespaces/{namespace}/gateways") }
}

fn is_waypoint(gateway: &Value) -> bool {
    gateway["spec"]["gatewayClassName"] == CLASS
}

fn missing_definitions(error: ApiError, what: &str) -> QueryError {
    if error.is_not_found() {
        let hint = "missing Kubernetes Gateway CRDs need to be installed before applying a waypoint";
        return error.of(hint);
    }
    error.of(what)
}
