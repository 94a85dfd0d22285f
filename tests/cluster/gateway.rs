//! A gateway of the chart `gateway`: its pod is created by a controller, injected by the control plane, and runs as injected.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::TestNode;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs, until};
use crate::traffic::{DELTA, tea_mesh};
use crate::upgrade::{helm, images};
use crate::webhooks::until_webhooks_are_called;

const NAMESPACE: &str = "istio-ingress";
const NAME: &str = "istio-ingressgateway";

#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_through_the_injected_pod_of_the_chart() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    for namespace in [SYSTEM, NAMESPACE] {
        cluster.create_namespace(namespace, json!({})).await?;
    }
    let mut mesh = tea_mesh(&cluster, &["shop"]).await?;
    let host = mesh.pods.host_ip();
    let programs = images(&mesh.pods)?;
    // The image has Envoy at the default path.
    let envoy = format!("meshConfig.defaultConfig.binaryPath={}", mesh.pods.linked_path(&envoy::binary()?)?.display());
    let mut node = TestNode::new(&cluster, &[SYSTEM, NAMESPACE], &mut mesh.pods, 4, programs).await?;
    let discovery = node.serve((SYSTEM, "istiod"), 15012, (host, 15012).into()).await?;
    let ingress = node.serve((NAMESPACE, NAME), 80, (host, 0).into()).await?;
    mesh.pods.add_name("istiod.istio-system.svc", host)?;
    let install = |name, namespace, chart: &str, values: &[&str]| {
        let mut arguments = ["install", name, &manifest(chart).display().to_string()].map(str::to_owned).to_vec();
        arguments.extend(["--namespace", namespace, "--wait", "--timeout", "2m"].map(str::to_owned));
        arguments.extend(values.iter().flat_map(|value| ["--set", value]).map(str::to_owned));
        arguments
    };
    let run = async |arguments: Vec<String>| {
        helm(&cluster, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await.map(drop)
    };
    node.during(async {
        run(install("istiod", SYSTEM, CHART, &["autoscaleEnabled=false", &envoy])).await?;
        until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
        let workloads = [Workload::new("client", "client", PodRole::NoProxy), Workload::new("tea", "tea", DELTA)];
        mesh.deploy(&workloads, discovery).await?;
        // There is no load balancer that would get an address.
        let values = ["service.type=ClusterIP", "autoscaling.enabled=false"];
        run(install(NAME, NAMESPACE, "manifests/charts/gateway", &values)).await?;
        let pods = node.ready();
        let (gateway, _) = pods.iter().find(|(name, _)| name.starts_with(NAME)).context("the gateway is ready")?;
        let environment = node.environment(gateway);
        ensure!(environment["CA_ADDR"] == "istiod.istio-system.svc:15012", "{environment:?}");
        ensure!(environment["POD_NAME"] == *gateway, "{environment:?}");

        let object = |kind: &str, spec| {
            json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec,
                   "metadata": {"namespace": NAMESPACE, "name": "tea"}})
        };
        let servers = json!([{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["tea.example"]}]);
        cluster.apply(&object("Gateway", json!({"selector": {"istio": "ingressgateway"}, "servers": servers}))).await?;
        let route = json!([{"route": [{"destination": {"host": "tea.shop.svc.cluster.local"}}]}]);
        let spec = json!({"hosts": ["tea.example"], "gateways": ["tea"], "http": route});
        cluster.apply(&object("VirtualService", spec)).await?;
        let call = AppRequest::get(ingress, "tea.example");
        until("a request passes through the gateway", async || {
            Ok(mesh.pods.pod("client").call(call.clone()).await?.responder() == "tea v1")
        })
        .await?;

        // The pods of an upgraded release replace the first one.
        let chart = manifest("manifests/charts/gateway").display().to_string();
        let mut upgrade = ["upgrade", NAME, &chart, "--namespace", NAMESPACE, "--wait", "--timeout", "2m"].to_vec();
        upgrade.extend(values.iter().flat_map(|value| ["--set", value]));
        upgrade.extend(["--set", "env.ISTIO_META_CHANGED=yes"]);
        let streams = [Stream::new(mesh.pods.shared("client"), call.clone(), "tea v1")];
        let change = async {
            helm(&cluster, &upgrade).await?;
            until("the first pod has ended", async || Ok(node.ended().iter().any(|pod| pod.name == *gateway))).await
        };
        let ((), requests) = under_load(&streams, change).await?;
        eprintln!("{requests} requests through the gateway");
        let ready = node.ready();
        let (next, _) = ready.iter().find(|(name, _)| name.starts_with(NAME)).context("the gateway is ready")?;
        ensure!(node.environment(next)["ISTIO_META_CHANGED"] == "yes" && next != gateway, "{ready:?}");
        Ok(())
    })
    .await
}
