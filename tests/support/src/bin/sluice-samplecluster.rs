//! The sample cluster of the examples in the documents: an API server with the objects of files, pods of a control plane and of
//! add-ons whose ports are forwarded, and a connected sidecar. It needs a `sluiced` on the usual ports of the loopback, and runs
//! until it is killed.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::{StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use tokio::net::TcpListener;

const SYSTEM: &str = "istio-system";
/// The namespace of the sample mesh.
const MESH: &str = "teashop";
/// Ports of `sluiced` that the pod of the control plane has.
const CONTROL_PLANE_PORTS: [u16; 3] = [8_080, 15_014, 9_876];
const GRPC_PORT: u16 = 15_010;
const ADMIN_PORT: u16 = 15_000;
/// Add-ons of Istio: the name of the pod, the label that finds it, and its port.
const ADD_ONS: [(&str, &str, &str, u16); 6] = [
    ("prometheus", "app.kubernetes.io/name", "prometheus", 9_090),
    ("grafana", "app.kubernetes.io/name", "grafana", 3_000),
    ("kiali", "app", "kiali", 20_001),
    ("jaeger", "app", "jaeger", 16_686),
    ("zipkin", "app", "zipkin", 9_411),
    ("skywalking", "app", "skywalking-ui", 8_080),
];
/// The account by which a control plane of another cluster reads this one.
const READER: &str = "istio-reader-service-account";
const ROOTS: &str = include_str!("../../../../src/ctl/tests/recorded/certificate.pem");
/// What an Envoy answers.
const CONFIG_DUMP: &str = include_str!("../../../../src/ctl/tests/recorded/config_dump.web.json");

/// Serves a sample cluster.
#[derive(Parser)]
#[command(version)]
struct SampleArguments {
    /// The kubeconfig is written to this file once all is ready.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Files, and directories with files, of objects. Lists are read as their items.
    files: Vec<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = SampleArguments::parse();
    let api = ApiServer::start().await?;
    let kind =
        ResourceKind { group: "gateway.networking.k8s.io", versions: vec!["v1"], name: "Gateway", plural: "gateways" };
    api.define(kind, true);
    apply_files(&api, &arguments.files)?;
    apply_mesh(&api);
    for port in CONTROL_PLANE_PORTS {
        api.forward_port(SYSTEM, "istiod-1", port, (Ipv4Addr::LOCALHOST, port).into());
    }
    let pages = serve(envoy_dump()?).await?;
    for (name, .., port) in ADD_ONS {
        api.forward_port(SYSTEM, name, port, pages);
    }
    for pod in ["counter", "menu"] {
        api.forward_port(MESH, pod, ADMIN_PORT, pages);
    }
    api.forward_port(SYSTEM, "ztunnel-1", ADMIN_PORT, serve(ztunnel_dump()).await?);
    let mut stream = connect_sidecar().await?;
    // With one rename, so that no half of it is read.
    let staged = arguments.kubeconfig.with_extension("staged");
    api.write_kubeconfig(&staged)?;
    std::fs::rename(&staged, &arguments.kubeconfig).context("rename the kubeconfig")?;
    while let Some(update) = stream.next().await? {
        stream.ack(&update)?;
    }
    Ok(())
}

/// Applies the objects of files whose kinds the API server has.
fn apply_files(api: &ApiServer, files: &[PathBuf]) -> Result<()> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in files {
        match path.is_dir() {
            true => paths.extend(entries(path)?),
            false => paths.push(path.clone()),
        }
    }
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        for document in parse_documents(&text, &Limits::default()) {
            let document = document.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?.value;
            let items = document["items"].as_array().cloned().unwrap_or_else(|| vec![document]);
            for item in items {
                let version = item["apiVersion"].as_str().unwrap_or_default();
                let group = version.split_once('/').map_or("", |(group, _)| group);
                if api.plural(group, item["kind"].as_str().unwrap_or_default()).is_some() {
                    api.apply(item);
                }
            }
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Namespaces, and pods beside those of the files.
fn apply_mesh(api: &ApiServer) {
    for (name, labels) in [(SYSTEM, json!({})), ("kube-system", json!({})), (MESH, json!({"istio.io/rev": "default"}))]
    {
        let uid = format!("uid-of-{name}");
        api.apply(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels, "uid": uid}}),
        );
    }
    let node = json!({"nodeInfo": {"kubeletVersion": "v1.34.0"}});
    api.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": node}));
    let metadata = json!({"namespace": SYSTEM, "name": READER});
    api.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
    api.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"namespace": SYSTEM, "name": "reader", "annotations": {"kubernetes.io/service-account.name": READER}},
        "data": {"ca.crt": STANDARD.encode(ROOTS), "token": STANDARD.encode("a token")},
    }));
    let pod = |name: &str, labels: Value| {
        api.apply(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": SYSTEM, "name": name, "labels": labels},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "sample"}]},
            "status": {"phase": "Running"},
        }));
    };
    pod("istiod-1", json!({"app": "istiod", "istio.io/rev": "default"}));
    pod("ztunnel-1", json!({"app": "ztunnel"}));
    for (name, label, value, _) in ADD_ONS {
        pod(name, json!({label: value}));
    }
    let roots = json!({"root-cert.pem": ROOTS});
    for namespace in [SYSTEM, MESH] {
        let metadata = json!({"namespace": namespace, "name": "istio-ca-root-cert"});
        api.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": roots}));
    }
}

/// A server with the pages of all add-ons, and of Envoy or ztunnel.
async fn serve(dump: String) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen for pages")?;
    let address = listener.local_addr()?;
    let router = Router::new().fallback(move |uri: Uri| {
        let page = page(uri.path(), &dump);
        async move { page.map_or((StatusCode::NOT_FOUND, String::new()), |page| (StatusCode::OK, page)) }
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

fn page(path: &str, dump: &str) -> Option<String> {
    Some(match path {
        "/" | "/kiali" => "a page of an add-on".to_owned(),
        "/config_dump" => dump.to_owned(),
        "/clusters" => {
            let address = json!({"socket_address": {"address": "10.244.0.21", "port_value": 8_080}});
            let host = json!({"address": address, "health_status": {"eds_health_status": "HEALTHY"}});
            let name = format!("outbound|80||kettle.{MESH}.svc.cluster.local");
            json!({"cluster_statuses": [{"name": name, "host_statuses": [host]}]}).to_string()
        }
        "/logging" => "active loggers:\n  admin: warning\n  rbac: warning\n".to_owned(),
        "/stats" => "server.live: 1\n".to_owned(),
        "/api/v1/query" => {
            let result = json!([{"metric": {}, "value": [1_800_000_000, "2.5"]}]);
            json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string()
        }
        _ => return None,
    })
}

/// A recorded dump, with the roots of the mesh.
fn envoy_dump() -> Result<String> {
    let mut dump: Value = serde_json::from_str(CONFIG_DUMP).context("parse the recorded dump")?;
    let roots = json!({
        "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
        "dynamic_active_secrets": [{"name": "ROOTCA", "secret": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": "ROOTCA", "validation_context": {"trusted_ca": {"inline_string": ROOTS}},
        }}],
    });
    let configs = dump["configs"].as_array_mut().context("the recorded dump has parts")?;
    configs.retain(|part| part["@type"] != roots["@type"]);
    configs.push(roots);
    Ok(dump.to_string())
}

fn ztunnel_dump() -> String {
    let workload = json!({
        "uid": format!("Kubernetes//Pod/{MESH}/menu"), "name": "menu", "namespace": MESH, "workloadIps": ["10.244.0.11"],
        "node": "node-1", "protocol": "HBONE", "status": "Healthy",
    });
    json!({"workloads": [workload], "services": [], "policies": [], "certificates": []}).to_string()
}

/// A sidecar that has received its clusters, listeners and routes.
async fn connect_sidecar() -> Result<AdsStream> {
    let node = json!({
        "id": format!("sidecar~10.244.0.10~counter.{MESH}~{MESH}.svc.cluster.local"),
        "metadata": {
            "NAME": "counter", "NAMESPACE": MESH, "LABELS": {"app": "counter"}, "WORKLOAD_NAME": "counter",
            "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0",
        },
    });
    let channel = connect((Ipv4Addr::LOCALHOST, GRPC_PORT).into()).await?;
    let mut stream = AdsStream::open(channel, Protocol::Delta, Identity::of_node(&node)?)?;
    let kinds = [(Kind::Cds, vec![]), (Kind::Lds, vec![]), (Kind::Rds, vec!["80".to_owned()])];
    for (kind, names) in &kinds {
        stream.subscribe(kind.type_url(), names, BTreeMap::new())?;
    }
    for _ in &kinds {
        let update =
            stream.next_within(Duration::from_secs(30)).await?.context("the control plane closed the stream")?;
        stream.ack(&update)?;
    }
    Ok(stream)
}
