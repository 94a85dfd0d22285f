//! A remote cluster, with the profile `remote` of the chart, and read with exactly its rights.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_testkit::ads::Kind;
use sluice_testkit::cluster::Cluster;

use crate::fixture::{
    ALL, CHART, RunningControlPlane, SYSTEM, USER, apply_templates, create_node, create_pod, manifest, service, start,
    start_with_crds, start_with_values, until,
};
use crate::installation::address;
use crate::webhooks::create_pod as inject_pod;

/// Installs the release of a remote cluster, and the account that reads the cluster, which the chart `base` has.
async fn install_remote_profile(remote: &Cluster, values: &[&str]) -> Result<()> {
    let helm = remote.helm();
    let chart = manifest(CHART).display().to_string();
    let mut arguments =
        vec!["upgrade", "--install", "istiod", &chart, "--namespace", SYSTEM, "--set", "profile=remote"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    helm.run(&arguments)?;
    let base = manifest("manifests/charts/base");
    let values = ["--namespace", SYSTEM, "--set", "base.enableIstioConfigCRDs=false"];
    let account = helm.render(("istio-base", &base), &values)?;
    remote.apply_yaml(&account).await
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_a_remote_cluster_reach_a_proxy() -> Result<()> {
    let Some(own) = start_with_crds(ALL).await? else { return Ok(()) };
    let programs = Cluster::programs().context("the programs are built")?;
    let remote = Cluster::start(&programs).await?;
    remote.create_namespace(SYSTEM, json!({})).await?;
    install_remote_profile(&remote, &[]).await?;
    for (cluster, address) in [(&own, "10.244.0.5"), (&remote, "10.245.0.5")] {
        create_node(cluster, "node-1").await?;
        cluster.create_namespace("shop", json!({})).await?;
        cluster.apply(&service("shop", "cart")).await?;
        create_pod(cluster, "shop", "cart-1", "cart").await?;
        cluster.report_pod(("shop", "cart-1"), address, true).await?;
    }
    let control_plane = RunningControlPlane::start(&own).await?;
    let mut proxy = control_plane.proxy("shop").await?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.subscribe(Kind::Eds, &[name])?;
    let has = |endpoints: &serde_json::Value, address: &str| endpoints.to_string().contains(address);
    proxy.receives(name, "the endpoint of the own cluster", |it| has(it, "10.244.0.5")).await?;

    // The Secret, as `istioctl create-remote-secret` writes it.
    let reader = "istio-reader-service-account";
    let token = remote.create_token((SYSTEM, reader), None, None).await?;
    let kubeconfig = remote.kubeconfig(remote.address(), &token).to_string();
    own.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"east": kubeconfig},
        "metadata": {"name": "east", "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}},
    }))
    .await?;
    proxy.receives(name, "the endpoint of the remote cluster", |it| has(it, "10.245.0.5")).await?;
    remote.report_pod(("shop", "cart-1"), "10.245.0.6", true).await?;
    proxy.receives(name, "a change in the remote cluster", |it| has(it, "10.245.0.6")).await?;
    own.delete("v1", "Secret", SYSTEM, "east").await?;
    proxy.receives(name, "the cluster is removed", |it| !has(it, "10.245.0.") && has(it, "10.244.0.5")).await?;

    let user = format!("system:serviceaccount:{SYSTEM}:{reader}");
    until("the requests are logged", async || Ok(remote.audited()?.iter().any(|it| it.user == user))).await?;
    let mut refused = remote.audited()?;
    refused.retain(|request| request.user == user && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

/// Starts a remote cluster with the profile `remote`. Returns a kubeconfig as `kubectl config` writes it, for cluster `id`.
async fn start_remote(id: &str) -> Result<(Cluster, Value)> {
    let programs = Cluster::programs().context("the programs are built")?;
    let remote = Cluster::start(&programs).await?;
    remote.create_namespace(SYSTEM, json!({})).await?;
    install_remote_profile(&remote, &[]).await?;
    let token = remote.create_token((SYSTEM, "istio-reader-service-account"), None, None).await?;
    let mut kubeconfig = remote.kubeconfig(remote.address(), &token);
    kubeconfig["clusters"][0]["name"] = id.into();
    kubeconfig["contexts"][0]["context"]["cluster"] = id.into();
    Ok((remote, kubeconfig))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_of_remote_clusters_are_read_from_a_directory_and_followed() -> Result<()> {
    let Some(own) = start_with_crds(ALL).await? else { return Ok(()) };
    let (remote, kubeconfig) = start_remote("east").await?;
    create_node(&remote, "node-1").await?;
    for cluster in [&own, &remote] {
        cluster.create_namespace("shop", json!({})).await?;
        cluster.apply(&service("shop", "cart")).await?;
    }
    create_pod(&remote, "shop", "cart-1", "cart").await?;
    remote.report_pod(("shop", "cart-1"), "10.245.0.5", true).await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().display().to_string();
    let variables = [("POD_NAME", "istiod-1"), ("PILOT_MULTICLUSTER_KUBECONFIG_PATH", path.as_str())];
    let control_plane = RunningControlPlane::start_with(&own, own.address(), &variables).await?;
    let mut proxy = control_plane.proxy("shop").await?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.subscribe(Kind::Eds, &[name])?;
    let file = directory.path().join("remote.yaml");
    std::fs::write(&file, kubeconfig.to_string())?;
    proxy.receives(name, "the endpoint of the remote cluster", |it| it.to_string().contains("10.245.0.5")).await?;
    let clusters = control_plane.page("/debug/clusterz").await?;
    assert!(clusters.contains("\"east\"") && clusters.contains("remote.yaml"), "{clusters}");
    // An invalid file changes nothing, and a removed one removes the cluster.
    std::fs::write(&file, "clusters: {")?;
    until("the file is read", async || Ok(control_plane.log()?.contains("invalid YAML in line"))).await?;
    remote.report_pod(("shop", "cart-1"), "10.245.0.6", true).await?;
    proxy.receives(name, "a change in the remote cluster", |it| it.to_string().contains("10.245.0.6")).await?;
    std::fs::remove_file(&file)?;
    proxy.receives(name, "the cluster is removed", |it| !it.to_string().contains("10.245.0.")).await?;
    let mut warnings = control_plane.warnings()?;
    warnings.retain(|line| !line.contains("invalid YAML in line"));
    assert_eq!(warnings, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_written_into_webhook_configurations_of_a_remote_cluster_that_requests_it() -> Result<()> {
    let Some(own) = start_with_crds(ALL).await? else { return Ok(()) };
    let (remote, kubeconfig) = start_remote("east").await?;
    let configuration = |kind: &str, name: &str, webhook: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "labels": {"istio.io/rev": "default"}},
            "webhooks": [{
                "name": webhook, "clientConfig": {"url": "https://istiod.example/inject"},
                "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            }],
        })
    };
    let (mutating, validating) = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration");
    remote.apply(&configuration(mutating, "injector", "rev.object.sidecar-injector.istio.io")).await?;
    remote.apply(&configuration(validating, "validator", "rev.validation.istio.io")).await?;
    own.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"east": kubeconfig.to_string()},
        "metadata": {"name": "east", "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}},
    }))
    .await?;
    let variables = [("POD_NAME", "istiod-1"), ("EXTERNAL_ISTIOD", "true")];
    let control_plane = RunningControlPlane::start_with(&own, own.address(), &variables).await?;
    let bundle = async |kind: &str, name: &str| -> Result<Value> {
        let object = remote.get("admissionregistration.k8s.io/v1", kind, "", name).await?.unwrap_or_default();
        Ok(object["webhooks"][0]["clientConfig"]["caBundle"].clone())
    };
    control_plane.shows("/debug/clusterz", "the cluster is synced", |page| page.contains("\"synced\"")).await?;
    assert_eq!(bundle(mutating, "injector").await?, Value::Null, "no annotation requests it");
    let annotation = json!({"metadata": {"annotations": {"topology.istio.io/controlPlaneClusters": "*"}}});
    remote.patch("v1", "Namespace", ("", SYSTEM), &annotation).await?;
    until("the roots are written", async || Ok(bundle(mutating, "injector").await?.is_string())).await?;
    assert_eq!(bundle(validating, "validator").await?, Value::Null, "validation is that of the own cluster");
    let user = format!("system:serviceaccount:{SYSTEM}:istio-reader-service-account");
    let mut refused = remote.audited()?;
    refused.retain(|request| request.user == user && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_remote_cluster_are_injected_by_the_address_of_its_control_plane() -> Result<()> {
    let Some(own) = start().await? else { return Ok(()) };
    apply_templates(&own, &["injector"], &[]).await?;
    let programs = Cluster::programs().context("the programs are built")?;
    let remote = Cluster::start(&programs).await?;
    remote.create_namespace(SYSTEM, json!({})).await?;
    remote.create_namespace("shop", json!({"istio-injection": "enabled"})).await?;
    // The control plane of the other cluster, at an address that the API server of this one can reach.
    let variables = [("POD_NAME", "istiod-1")];
    let pod = ("istiod", address()?);
    let control_plane = RunningControlPlane::start_in_pod(&own, own.address(), pod, &variables).await?;
    let port = control_plane.server.https.context("the port of the webhooks")?.port();
    own.exists("v1", "ConfigMap", SYSTEM, "istio-ca-root-cert").await?;
    let roots = own.get("v1", "ConfigMap", SYSTEM, "istio-ca-root-cert").await?.context("roots are written")?;
    let roots = STANDARD.encode(roots["data"]["root-cert.pem"].as_str().context("the ConfigMap has roots")?);
    let address = format!("global.remotePilotAddress={}", pod.1);
    let values = [address.as_str(), &format!("istiodRemote.injectionCABundle={roots}")];
    install_remote_profile(&remote, &values).await?;
    // The chart has the port of an installation, and not that of the test.
    let slice = remote.get("discovery.k8s.io/v1", "EndpointSlice", SYSTEM, "istiod").await?.context("it exists")?;
    assert_eq!(slice["endpoints"][0]["addresses"], json!([pod.1]));
    let ports = json!({"ports": [{"name": "https-webhook", "port": port, "protocol": "TCP"}]});
    remote.patch("discovery.k8s.io/v1", "EndpointSlice", (SYSTEM, "istiod"), &ports).await?;
    let (containers, _) = inject_pod(&remote, "shop").await?;
    assert_eq!(containers, ["app", "istio-proxy"]);
    assert!(remote.get("apps/v1", "Deployment", SYSTEM, "istiod").await?.is_none());
    remote.helm().run(&["uninstall", "istiod", "--namespace", SYSTEM]).map(drop)
}

/// Variables of Multi-Cluster Services.
const MULTI_CLUSTER: [&str; 3] = ["ENABLE_MCS_SERVICE_DISCOVERY", "ENABLE_MCS_HOST", "ENABLE_MCS_AUTO_EXPORT"];
const MULTI_CLUSTER_API: &str = "multicluster.x-k8s.io/v1alpha1";

/// Defines ServiceExport and ServiceImport.
async fn install_multi_cluster_api(cluster: &Cluster, api_version: &str) -> Result<()> {
    let (group, version) = api_version.split_once('/').context("group and version")?;
    for (kind, plural) in [("ServiceExport", "serviceexports"), ("ServiceImport", "serviceimports")] {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        cluster
            .apply(&json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": format!("{plural}.{group}"),
                    "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
                },
                "spec": {
                    "group": group, "scope": "Namespaced",
                    "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural},
                    "versions": [
                        {"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
                    ],
                },
            }))
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_a_remote_cluster_are_used_once_it_exports_the_service() -> Result<()> {
    let switches = MULTI_CLUSTER.map(|name| format!("pilot.env.{name}=true"));
    let switches = switches.each_ref().map(String::as_str);
    let values: Vec<&str> = switches.iter().flat_map(|value| ["--set-string", value]).collect();
    let Some(own) = start_with_values(&values).await? else { return Ok(()) };
    own.install_crds("istio.yaml", ALL).await?;
    let programs = Cluster::programs().context("the programs are built")?;
    let remote = Cluster::start(&programs).await?;
    remote.create_namespace(SYSTEM, json!({})).await?;
    install_remote_profile(&remote, &switches).await?;
    for (cluster, address) in [(&own, "10.244.0.5"), (&remote, "10.245.0.5")] {
        install_multi_cluster_api(cluster, MULTI_CLUSTER_API).await?;
        create_node(cluster, "node-1").await?;
        cluster.create_namespace("shop", json!({})).await?;
        cluster.apply(&service("shop", "cart")).await?;
        create_pod(cluster, "shop", "cart-1", "cart").await?;
        cluster.report_pod(("shop", "cart-1"), address, true).await?;
    }
    let token = remote.create_token((SYSTEM, "istio-reader-service-account"), None, None).await?;
    own.apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "stringData": {"east": remote.kubeconfig(remote.address(), &token).to_string()},
        "metadata": {"name": "east", "namespace": SYSTEM, "labels": {"istio/multiCluster": "true"}},
    }))
    .await?;
    let variables: Vec<_> =
        [("POD_NAME", "istiod-1")].into_iter().chain(MULTI_CLUSTER.map(|name| (name, "true"))).collect();
    let control_plane = RunningControlPlane::start_with(&own, own.address(), &variables).await?;
    control_plane.shows("/debug/clusterz", "the cluster is synced", |page| page.contains("\"synced\"")).await?;

    own.exists(MULTI_CLUSTER_API, "ServiceExport", "shop", "cart").await?;
    let export = own.get(MULTI_CLUSTER_API, "ServiceExport", "shop", "cart").await?.unwrap_or_default();
    let exported = own.get("v1", "Service", "shop", "cart").await?.unwrap_or_default();
    assert_eq!(export["metadata"]["ownerReferences"][0]["uid"], exported["metadata"]["uid"]);
    let local = own.get(MULTI_CLUSTER_API, "ServiceExport", "default", "kubernetes").await?;
    assert_eq!(local, None, "the Service is limited to its cluster");
    let mut proxy = control_plane.proxy("shop").await?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.subscribe(Kind::Eds, &[name])?;
    let has = |endpoints: &Value, address: &str| endpoints.to_string().contains(address);
    let is_local = |it: &Value| has(it, "10.244.0.5") && !has(it, "10.245.0.5");
    proxy.receives(name, "only the endpoint of the own cluster", is_local).await?;
    assert_eq!(remote.get(MULTI_CLUSTER_API, "ServiceExport", "shop", "cart").await?, None, "it is not requested");

    let annotation = json!({"metadata": {"annotations": {"topology.istio.io/controlPlaneClusters": "*"}}});
    remote.patch("v1", "Namespace", ("", SYSTEM), &annotation).await?;
    remote.exists(MULTI_CLUSTER_API, "ServiceExport", "shop", "cart").await?;
    proxy.receives(name, "the endpoint of the remote cluster", |it| has(it, "10.245.0.5")).await?;

    own.apply(&json!({
        "apiVersion": MULTI_CLUSTER_API, "kind": "ServiceImport", "metadata": {"name": "cart", "namespace": "shop"},
        "spec": {"type": "ClusterSetIP", "ips": ["10.96.200.1"], "ports": [{"port": 80}]},
    }))
    .await?;
    let imported = "outbound|80||cart.shop.svc.clusterset.local";
    proxy.subscribe(Kind::Eds, &[imported])?;
    let both = |it: &Value| has(it, "10.244.0.5") && has(it, "10.245.0.5");
    proxy.receives(imported, "the endpoints of both clusters", both).await?;
    let page: Value = serde_json::from_str(&control_plane.page("/debug/mcsz").await?)?;
    let (local, set) = ("cart.shop.svc.cluster.local", "cart.shop.svc.clusterset.local");
    let row = |cluster: &str, is_imported: bool, address: &str, hosts: &[&str]| {
        let hosts: std::collections::BTreeMap<_, _> = hosts.iter().map(|host| (*host, "AlwaysDiscoverable")).collect();
        json!({
            "Cluster": cluster, "Name": "cart", "Namespace": "shop", "Exported": true, "Imported": is_imported,
            "ClusterSetVIP": address, "Discoverability": hosts,
        })
    };
    let rows = [row("Kubernetes", true, "10.96.200.1", &[local, set]), row("east", false, "", &[local])];
    assert_eq!(page, json!(rows));

    // The API server deletes the ServiceExport with the Service.
    remote.delete("v1", "Service", "shop", "cart").await?;
    let is_gone = async || Ok(remote.get(MULTI_CLUSTER_API, "ServiceExport", "shop", "cart").await?.is_none());
    until("the ServiceExport is deleted", is_gone).await?;
    proxy.receives(imported, "the cluster exports nothing", is_local).await?;

    let users = ["istiod", "istio-reader-service-account"].map(|name| format!("system:serviceaccount:{SYSTEM}:{name}"));
    let mut refused = own.audited()?;
    refused.extend(remote.audited()?);
    refused.retain(|request| users.contains(&request.user) && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn service_exports_of_another_api_group_are_created_and_read() -> Result<()> {
    let variables =
        [("ENABLE_MCS_SERVICE_DISCOVERY", "true"), ("ENABLE_MCS_AUTO_EXPORT", "true"), ("MCS_API_GROUP", "net.gke.io")];
    let values = variables.map(|(name, value)| format!("pilot.env.{name}={value}"));
    let values: Vec<&str> = values.iter().flat_map(|value| ["--set-string", value]).collect();
    let Some(cluster) = start_with_values(&values).await? else { return Ok(()) };
    cluster.install_crds("istio.yaml", ALL).await?;
    install_multi_cluster_api(&cluster, "net.gke.io/v1").await?;
    cluster.create_namespace("shop", json!({})).await?;
    cluster.apply(&service("shop", "cart")).await?;
    let more = [("POD_NAME", "istiod-1"), ("MCS_API_VERSION", "v1")];
    let variables: Vec<_> = variables.into_iter().chain(more).collect();
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    cluster.exists("net.gke.io/v1", "ServiceExport", "shop", "cart").await?;
    control_plane.shows("/debug/mcsz", "the ServiceExport", |page| page.contains("\"cart\"")).await?;
    let mut refused = cluster.audited()?;
    refused.retain(|request| request.user == USER && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}
