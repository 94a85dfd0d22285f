//! Reading of the objects of a cluster, and of the Services of the other clusters of the mesh.

mod remote;

use kube::{Client, Config};
use serde_json::Value;
use sluice_analyze::{AnalyzedObject, Origin};
use sluice_install::cluster_config;

use crate::analyze_args::AnalyzeArgs;

/// Number of objects in one answer of the API server.
const PAGE_SIZE: usize = 500;

/// Path of the API, plural and kind of objects.
type ListedKind = (&'static str, &'static str, &'static str);

const SERVICES: ListedKind = ("api/v1", "services", "Service");

/// The objects that are read.
#[rustfmt::skip]
pub(crate) const KINDS: &[ListedKind] = &[
    ("api/v1", "configmaps", "ConfigMap"),
    ("api/v1", "namespaces", "Namespace"),
    ("api/v1", "nodes", "Node"),
    ("api/v1", "pods", "Pod"),
    ("api/v1", "secrets", "Secret"),
    SERVICES,
    ("apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition"),
    ("apis/apps/v1", "deployments", "Deployment"),
    ("apis/extensions.istio.io/v1alpha1", "trafficextensions", "TrafficExtension"),
    ("apis/extensions.istio.io/v1alpha1", "wasmplugins", "WasmPlugin"),
    ("apis/gateway.networking.k8s.io/v1", "gateways", "Gateway"),
    ("apis/gateway.networking.k8s.io/v1", "grpcroutes", "GRPCRoute"),
    ("apis/gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute"),
    ("apis/networking.istio.io/v1", "destinationrules", "DestinationRule"),
    ("apis/networking.istio.io/v1", "gateways", "Gateway"),
    ("apis/networking.istio.io/v1", "serviceentries", "ServiceEntry"),
    ("apis/networking.istio.io/v1", "sidecars", "Sidecar"),
    ("apis/networking.istio.io/v1", "virtualservices", "VirtualService"),
    ("apis/networking.istio.io/v1", "workloadentries", "WorkloadEntry"),
    ("apis/networking.istio.io/v1", "workloadgroups", "WorkloadGroup"),
    ("apis/networking.istio.io/v1alpha3", "envoyfilters", "EnvoyFilter"),
    ("apis/networking.istio.io/v1beta1", "proxyconfigs", "ProxyConfig"),
    ("apis/security.istio.io/v1", "authorizationpolicies", "AuthorizationPolicy"),
    ("apis/security.istio.io/v1", "peerauthentications", "PeerAuthentication"),
    ("apis/security.istio.io/v1", "requestauthentications", "RequestAuthentication"),
    ("apis/telemetry.istio.io/v1", "telemetries", "Telemetry"),
];

/// Namespaces of Kubernetes itself, which are no part of a mesh.
pub(crate) const IGNORED_NAMESPACES: [&str; 4] =
    ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

/// The objects of a cluster.
pub(super) struct ClusterObjects {
    pub(super) resources: Vec<AnalyzedObject>,
    /// Namespace of the kubeconfig's context.
    pub(super) default_namespace: String,
    /// Other clusters whose objects are not read, each with the reason.
    pub(super) unreadable: Vec<String>,
    /// Whether there are other clusters.
    pub(super) has_remote_clusters: bool,
}

/// Reads all kinds that analyzers use. Kinds that the cluster does not have are left out.
pub(super) fn read(args: &AnalyzeArgs) -> Result<ClusterObjects, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        tokio::time::timeout(args.timeout, read_all(args)).await.unwrap_or_else(|_| {
            Err(format!("the objects of the cluster were not read in {:?} (--timeout)", args.timeout))
        })
    })
}

async fn read_all(args: &AnalyzeArgs) -> Result<ClusterObjects, String> {
    let config = config(args, args.cluster.context.as_deref()).await?;
    let default_namespace = config.default_namespace.clone();
    let client = sluice_kube::client(config).map_err(|error| sluice_kube::chain(&error))?;
    let mut resources = Vec::new();
    for kind in KINDS {
        let found = objects(&client, kind, &Origin::Cluster).await?;
        resources.extend(found.into_iter().filter(|resource| is_analyzed(resource, &args.revision)));
    }
    let (clusters, mut unreadable) = remote::clusters(args, &resources).await?;
    let has_remote_clusters = !clusters.is_empty() || !unreadable.is_empty();
    for (name, client) in clusters {
        match objects(&client, &SERVICES, &Origin::RemoteCluster(name.clone())).await {
            Ok(found) => resources.extend(found.into_iter().filter(|resource| is_analyzed(resource, &args.revision))),
            Err(reason) => unreadable.push(format!("cluster {name}: {reason}")),
        }
    }
    Ok(ClusterObjects { resources, default_namespace, unreadable, has_remote_clusters })
}

/// The objects of a kind.
async fn objects(
    client: &Client,
    (api, plural, kind): &ListedKind,
    origin: &Origin,
) -> Result<Vec<AnalyzedObject>, String> {
    let version = api.trim_start_matches("apis/").trim_start_matches("api/");
    let found = list(client, api, plural).await?.into_iter().map(|mut object| {
        // Items of a list do not state their kind.
        object["apiVersion"] = Value::String(version.to_owned());
        object["kind"] = Value::String((*kind).to_owned());
        AnalyzedObject::new(object, origin.clone(), "")
    });
    Ok(found.collect())
}

/// The cluster of a context of the kubeconfig; `None` is its current one.
async fn config(args: &AnalyzeArgs, context: Option<&str>) -> Result<Config, String> {
    let config = cluster_config(args.cluster.kubeconfig.as_deref(), context).await;
    config.map_err(|error| {
        format!("no cluster can be read: {error}; use --kubeconfig, or --use-kube=false to analyze files alone")
    })
}

/// All objects of a kind below the path of an API; none if the cluster does not have the kind.
pub(crate) async fn list(client: &Client, api: &str, plural: &str) -> Result<Vec<Value>, String> {
    let (mut found, mut next) = (Vec::new(), String::new());
    loop {
        let uri = format!("/{api}/{plural}?limit={PAGE_SIZE}{next}");
        let request = http::Request::get(uri).body(Vec::new()).map_err(|error| format!("{plural}: {error}"))?;
        let mut page: Value = match client.request(request).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            Err(error) => return Err(format!("{plural} of {api} cannot be read: {}", sluice_kube::chain(&error))),
        };
        if let Some(items) = page.get_mut("items").and_then(Value::as_array_mut) {
            found.append(items);
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            // The token is base64 for URLs.
            Some(token) if !token.is_empty() => next = format!("&continue={token}"),
            _ => return Ok(found),
        }
    }
}

/// Whether an object is of an analyzed namespace and, if it is of an Istio kind, of the revision.
fn is_analyzed(resource: &AnalyzedObject, revision: &str) -> bool {
    let is_istio = resource.kind().group.ends_with("istio.io");
    let label = resource.labels().get("istio.io/rev").copied().unwrap_or_default().to_owned();
    !IGNORED_NAMESPACES.contains(&resource.namespace()) && (!is_istio || label.is_empty() || label == revision)
}
