//! Releases of the charts in a cluster: installed, upgraded, beside another revision, and uninstalled by the real helm.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::cluster::{Cluster, Helm};

use crate::charts::{label, objects};
use crate::fixture::{RunningControlPlane, SYSTEM, manifest, programs, until};
use crate::webhooks::{create_pod, until_webhooks_are_called};

const GATEWAYS: &str = "istio-ingress";

/// An address of this machine that is not one of the loopback: EndpointSlices cannot have those.
pub(crate) fn address() -> Result<IpAddr> {
    // No packet is sent.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9").context("this machine has an address in a network")?;
    Ok(socket.local_addr()?.ip())
}

/// Runs the control plane of a Deployment, which no kubelet does here: with its service account and variables, and as the
/// endpoint of its Service.
async fn run_pod(cluster: &Cluster, name: &str, revision: &str) -> Result<RunningControlPlane> {
    let address = address()?;
    let variables = [("POD_NAME", name), ("REVISION", revision)];
    let control_plane =
        RunningControlPlane::start_in_pod(cluster, cluster.address(), (name, address), &variables).await?;
    let port = control_plane.server.https.context("the port of the webhooks")?.port();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": SYSTEM, "name": name, "labels": {"kubernetes.io/service-name": name}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": [{"name": "https-webhook", "port": port, "protocol": "TCP"}],
    });
    cluster.apply(&slice).await?;
    Ok(control_plane)
}

/// The objects of a release that exist.
pub(crate) async fn existing(cluster: &Cluster, manifest: &str) -> Result<BTreeSet<String>> {
    let mut existing = BTreeSet::new();
    for object in objects(manifest)? {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
        if cluster.get(&version, &kind, &namespace, &name).await?.is_some() {
            existing.insert(label(&object));
        }
    }
    Ok(existing)
}

struct Release<'c> {
    helm: &'c Helm,
    name: &'static str,
    namespace: &'static str,
    chart: String,
}

impl Release<'_> {
    fn run(&self, command: &str, values: &[&str]) -> Result<()> {
        let mut arguments = vec![command, self.name, &self.chart, "--namespace", self.namespace, "--create-namespace"];
        arguments.extend(values.iter().flat_map(|value| ["--set", value]));
        self.helm.run(&arguments).map(drop)
    }

    fn manifest(&self) -> Result<String> {
        self.helm.run(&["get", "manifest", self.name, "--namespace", self.namespace])
    }

    fn uninstall(&self) -> Result<()> {
        self.helm.run(&["uninstall", self.name, "--namespace", self.namespace]).map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_installed_upgraded_and_uninstalled() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let cluster = Cluster::start(&programs).await?;
    let helm = cluster.helm();
    let directory = tempfile::tempdir()?;
    let rendered = Command::new(manifest("manifests/render"))
        .arg(directory.path())
        .env("SLUICE_CLUSTER", &programs)
        .output()
        .context("run manifests/render")?;
    ensure!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    for file in ["sluice.yaml", "gateway.yaml", "base.yaml", "gateway-api-crds.yaml"] {
        assert!(!objects(&std::fs::read_to_string(directory.path().join(file))?)?.is_empty(), "{file}");
    }
    let release = |name, namespace, chart: &str| {
        let chart = directory.path().join("charts").join(chart).display().to_string();
        Release { helm: &helm, name, namespace, chart }
    };

    // The order of Istio's charts: CRDs, control plane, gateway.
    let base = release("istio-base", SYSTEM, "base");
    base.run("install", &[])?;
    let istiod = release("istiod", SYSTEM, "sluice");
    istiod.run("install", &[])?;
    let control_plane = run_pod(&cluster, "istiod", "default").await?;
    until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
    cluster.create_namespace("shop", json!({"istio-injection": "enabled"})).await?;
    let (containers, annotations) = create_pod(&cluster, "shop").await?;
    assert_eq!(containers, ["app", "istio-proxy"]);
    assert_eq!(annotations["istio.io/rev"], "default");
    let invalid = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"namespace": "shop", "name": "cart"}, "spec": {"hosts": ["cart"], "http": [{}]},
    });
    let refused = format!("{:#}", cluster.apply(&invalid).await.expect_err("a route without a destination"));
    assert!(refused.contains("validation.istio.io\" denied the request"), "{refused}");

    let gateway = release("istio-ingressgateway", GATEWAYS, "gateway");
    gateway.run("install", &[])?;
    until("the pod of the gateway is injected", async || {
        let request = http::Request::get(format!("/api/v1/namespaces/{GATEWAYS}/pods")).body(Vec::new())?;
        let pods: Value = cluster.client().request(request).await?;
        let proxy = &pods["items"][0]["spec"]["containers"][0];
        Ok(proxy["name"] == "istio-proxy" && proxy["image"].as_str().is_some_and(|image| image.contains("/proxyv2:")))
    })
    .await?;

    // An upgrade keeps what the control plane has written.
    istiod.run("upgrade", &["pilot.autoscaleEnabled=false", "pilot.replicaCount=2"])?;
    until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
    let deployment = cluster.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.context("it exists")?;
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert!(cluster.get("autoscaling/v2", "HorizontalPodAutoscaler", SYSTEM, "istiod").await?.is_none());

    // Another revision beside it, selected by a tag.
    let canary = release("istiod-canary", SYSTEM, "sluice");
    // The webhook for validation by default stays with the first release.
    canary.run("install", &["revision=canary", "revisionTags={prod,default}"])?;
    let other = run_pod(&cluster, "istiod-canary", "canary").await?;
    cluster.create_namespace("next", json!({"istio.io/rev": "prod"})).await?;
    for name in ["istio-sidecar-injector-canary", "istio-revision-tag-prod"] {
        until_webhooks_are_called(&cluster, name).await?;
    }
    let (containers, annotations) = create_pod(&cluster, "next").await?;
    assert_eq!((containers.len(), &annotations["istio.io/rev"]), (2, &json!("canary")));
    for control_plane in [&control_plane, &other] {
        // They are ready only after they have read the configuration of their injector, so no pod was denied.
        let mut warnings = control_plane.warnings()?;
        // A lease may expire on a busy machine.
        warnings.retain(|warning| !warning.contains("lost the leadership"));
        assert_eq!(warnings, Vec::<String>::new());
    }
    let requests =
        cluster.audited()?.into_iter().filter(|it| it.user.starts_with("system:serviceaccount:istio-system:istiod"));
    let refused: Vec<_> = requests.filter(|it| matches!(it.code, 401 | 403)).collect();
    assert_eq!(refused, []);
    drop((control_plane, other));

    for release in [&gateway, &canary, &istiod] {
        let manifest = release.manifest()?;
        assert!(existing(&cluster, &manifest).await?.len() > 5, "{}", release.name);
        release.uninstall()?;
        until("nothing is left", async || Ok(existing(&cluster, &manifest).await?.is_empty())).await?;
    }
    // The CRDs are kept, because all objects would disappear with them.
    let manifest = base.manifest()?;
    let mut crds = existing(&cluster, &manifest).await?;
    assert!(crds.remove("ServiceAccount istio-reader-service-account"), "{crds:?}");
    base.uninstall()?;
    assert_eq!(existing(&cluster, &manifest).await?, crds);
    Ok(())
}
