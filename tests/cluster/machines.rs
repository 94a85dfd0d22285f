//! Virtual machines join the mesh with the files of `sluicectl workload entry configure` (I12, D10).

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::balancer::Balancer;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::pod_set::ControlPlaneAccess;
use sluice_testkit::pods::workload::Workload;

use crate::fixture::{ALL, RunningControlPlane, SYSTEM, apply_templates, service, start_with_crds, until};
use crate::operate::{ctl, succeeds};
use crate::traffic::{DELTA, reaches_tea, tea_mesh};

/// Port of the control plane in the files of machines.
const DISCOVERY_PORT: u16 = 15012;

#[tokio::test(flavor = "multi_thread")]
async fn machine_joins_the_mesh_with_the_files_of_sluicectl_alone() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    // All traffic between proxies is mutual TLS.
    let mut mesh = tea_mesh(&cluster, &["shop"]).await?;
    apply_templates(&cluster, &["injector"], &[]).await?;
    cluster.apply(&service("shop", "cup")).await?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let gateway = IpAddr::from(mesh.pods.host_ip());
    let balancer = Balancer::start(SocketAddr::new(gateway, DISCOVERY_PORT)).await?;
    balancer.set_targets([control_plane.server.secure.context("the port of xDS over TLS")?]);
    let pods = [Workload::new("client", "client", DELTA), Workload::new("cup", "cup", DELTA)];
    mesh.deploy(&pods, balancer.address).await?;

    // The group of the machine, whose service account is that of the Service's workloads.
    let account = json!({"namespace": "shop", "name": "tea"});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await?;
    let binary = mesh.pods.linked_path(&envoy::binary()?)?;
    let proxy_config = format!("proxy.istio.io/config=binaryPath: {}", binary.display());
    let create =
        ["workload", "group", "create", "--name=vms", "-n=shop", "-l=app=tea,version=v1", "-p=http=8080", "-s=tea"];
    let printed = tokio::process::Command::new(workspace_binary("sluicectl")?)
        .args(create)
        .args(["-a", &proxy_config])
        .output()
        .await
        .context("run sluicectl")?;
    let mut group = parse_value(std::str::from_utf8(&printed.stdout)?, &Limits::default())?;
    group["spec"]["probe"] = json!({"periodSeconds": 1, "httpGet": {"path": "/", "port": 8080}});
    cluster.apply(&group).await?;

    let workload = Workload::new("vm-1", "tea", DELTA);
    let net = mesh.pods.add_network()?;
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("vm-1");
    let configured = succeeds(
        &cluster,
        &[
            "x",
            "workload",
            "entry",
            "configure",
            "--name=vms",
            "--namespace=shop",
            "--autoregister",
            &format!("--ingressIP={gateway}"),
            &format!("--internalIP={}", net.ip),
            &format!("-o={}", output.display()),
        ],
    )
    .await?;
    ensure!(configured.contains("was successful"), "{configured}");
    let hosts = std::fs::read_to_string(output.join("hosts"))?;
    assert_eq!(hosts, format!("{gateway} istiod.istio-system.svc\n"));
    for line in hosts.lines() {
        let (address, name) = line.split_once(' ').context("an address and a name")?;
        mesh.pods.add_name(name, address.parse()?)?;
    }

    let access = ControlPlaneAccess {
        discovery: balancer.address,
        token: String::new(),
        variables: Vec::new(),
        machine: Some(output),
    };
    mesh.pods.start([(&workload, net.clone())], async |_| Ok(access.clone())).await?;

    // Its entry exists, and is healthy.
    let entry = format!("vms-{}", net.ip);
    let healthy = async || {
        let entry = cluster.get("networking.istio.io/v1", "WorkloadEntry", "shop", &entry).await?.unwrap_or_default();
        let conditions = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|it: &Value| it["type"] == "Healthy" && it["status"] == "True"))
    };
    until("the machine is registered and healthy", healthy).await?;
    // It answers calls to the Service of pods and machines, and calls others.
    reaches_tea(&mesh, "client").await?;
    let call: AppRequest = mesh.get("shop", "cup").await?;
    until("the machine reaches a pod", async || {
        Ok(mesh.pods.pod("vm-1").call(call.clone()).await?.responder() == "cup v1")
    })
    .await?;
    let envoy = mesh.pods.pod("vm-1").envoy.as_ref().context("it has an Envoy")?;
    let rejected = envoy.rejected().await?;
    ensure!(rejected.is_empty(), "{rejected:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_objects_are_named_and_nothing_is_written() -> Result<()> {
    let Some(cluster) = start_with_crds(&["workload"]).await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({})).await?;
    let directory = tempfile::tempdir()?;
    let group = directory.path().join("group.yaml");
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
        "metadata": {"name": "vms", "namespace": "shop"}, "spec": {"template": {"serviceAccount": "tea"}},
    });
    std::fs::write(&group, object.to_string())?;
    let output = directory.path().join("vm-1");
    let target = format!("-o={}", output.display());
    let configure = async |arguments: &[&str]| {
        let command = ["workload", "entry", "configure", "--clusterID=Kubernetes", &target];
        ctl(&cluster, &[&command[..], arguments].concat()).await
    };
    let of_file = format!("-f={}", group.display());
    let (code, _, errors) = configure(&["--name=vms", "-n=shop"]).await?;
    assert!(code == 1 && errors.contains("no WorkloadGroup \"vms\""), "{code} {errors}");
    let (code, _, errors) = configure(&[&of_file]).await?;
    assert!(code == 1 && errors.contains("no ConfigMap \"istio-ca-root-cert\""), "{code} {errors}");
    let roots = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio-ca-root-cert", "namespace": "shop"},
        "data": {"root-cert.pem": "a certificate"},
    });
    cluster.apply(&roots).await?;
    let (code, _, errors) = configure(&[&of_file]).await?;
    assert!(code == 1 && errors.contains("no service account \"tea\""), "{code} {errors}");
    let (code, _, errors) = configure(&[&of_file, "--revision=canary"]).await?;
    assert!(code == 3 && errors.contains("no ConfigMap \"istio-canary\""), "{code} {errors}");
    ensure!(!output.exists(), "nothing is written");

    let account = json!({"namespace": "shop", "name": "tea"});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await?;
    let (code, _, errors) = configure(&[&of_file]).await?;
    assert!(code == 0 && errors.contains("--ingressIP is that address"), "{code} {errors}");
    assert_eq!(std::fs::read_to_string(output.join("hosts"))?, "");
    // The Service is that of another namespace, and has an address.
    let mut edge = service("shop", "edge");
    edge["spec"]["externalIPs"] = json!(["192.0.2.7"]);
    cluster.apply(&edge).await?;
    let (code, _, errors) = configure(&[&of_file, "--ingressService=edge.shop"]).await?;
    assert!(code == 0 && !errors.contains("--ingressIP"), "{code} {errors}");
    assert_eq!(std::fs::read_to_string(output.join("hosts"))?, format!("192.0.2.7 istiod.{SYSTEM}.svc\n"));
    Ok(())
}
