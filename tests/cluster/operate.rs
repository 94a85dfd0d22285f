//! The operating commands of `sluicectl` with a real API server: analysis, injection, Secrets about remote clusters, and tags.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_testkit::ads::Kind;
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::cluster::Cluster;

use crate::fixture::{
    ALL, RunningControlPlane, SYSTEM, apply_templates, create_node, create_pod, service, start, start_with_crds, until,
    virtual_service,
};
use crate::webhooks::{create_pod as inject_pod, start_with_webhooks};

/// Runs `sluicectl` as an administrator of a cluster, and returns its exit code and both outputs.
pub(crate) async fn ctl(cluster: &Cluster, arguments: &[&str]) -> Result<(i32, String, String)> {
    let output = tokio::process::Command::new(workspace_binary("sluicectl")?)
        .args(arguments)
        .arg(format!("--kubeconfig={}", cluster.admin_kubeconfig().display()))
        .output()
        .await
        .context("run sluicectl")?;
    let text = |bytes| String::from_utf8(bytes).context("the output is UTF-8");
    Ok((output.status.code().context("an exit code")?, text(output.stdout)?, text(output.stderr)?))
}

pub(crate) async fn succeeds(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let (code, out, errors) = ctl(cluster, arguments).await?;
    ensure!(code == 0, "{arguments:?}: {code}: {out}{errors}");
    Ok(out)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_cluster_are_analyzed_with_codes_and_references() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({"istio-injection": "enabled"})).await?;
    create_node(&cluster, "node-1").await?;
    cluster.apply(&service("shop", "cart")).await?;
    // A host that does not exist (IST0101), and a Gateway that does not exist.
    let mut routes = virtual_service("shop", "cart", "nowhere.shop.svc.cluster.local");
    routes["spec"]["gateways"] = json!(["mesh", "edge"]);
    cluster.apply(&routes).await?;
    // A subset that no pod has (IST0173), and a host in a file that replaces the one of the cluster.
    cluster
        .apply(&json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"namespace": "shop", "name": "cart"},
            "spec": {"host": "cart", "subsets": [{"name": "v9", "labels": {"version": "v9"}}]},
        }))
        .await?;
    // A pod without a sidecar in a namespace with injection (IST0103).
    create_pod(&cluster, "shop", "cart-1", "cart").await?;
    cluster.report_pod(("shop", "cart-1"), "10.244.0.5", true).await?;

    let (code, out, errors) = ctl(&cluster, &["analyze", "-n", "shop", "-o", "json"]).await?;
    ensure!(code == 0, "{out}{errors}");
    let messages: Vec<Value> = serde_json::from_str(&out)?;
    let has = |code: &str, origin: &str, text: &str| {
        let is_it = |it: &&Value| it["code"] == code && it["origin"] == origin;
        let found = messages.iter().find(|it| is_it(it) && it["message"].as_str().is_some_and(|it| it.contains(text)));
        ensure!(found.is_some(), "{code} {origin} {text}: {out}");
        let url = format!("https://istio.io/latest/docs/reference/config/analysis/{}/", code.to_lowercase());
        ensure!(found.is_some_and(|it| it["documentationUrl"] == url), "{out}");
        Ok(())
    };
    has("IST0101", "VirtualService cart.shop", "nowhere.shop.svc.cluster.local")?;
    has("IST0101", "VirtualService cart.shop", "edge")?;
    has("IST0173", "DestinationRule cart.shop", "v9")?;
    has("IST0103", "Pod cart-1.shop", "")?;
    // Objects of the cluster have no file.
    assert!(messages.iter().all(|it| it["reference"].is_null()), "{out}");

    let directory = tempfile::tempdir()?;
    let file = directory.path().join("routes.yaml");
    std::fs::write(&file, virtual_service("shop", "cart", "cart").to_string())?;
    let path = file.display().to_string();
    let (code, out, errors) = ctl(&cluster, &["analyze", "-n", "shop", &path]).await?;
    assert_eq!(code, 79, "the DestinationRule is as before: {out}{errors}");
    assert!(!out.contains("nowhere") && out.contains("IST0103") && out.contains("Pod cart-1.shop"), "{out}");
    let (code, out, _) = ctl(&cluster, &["analyze", "-n", "shop"]).await?;
    assert_eq!(code, 79, "{out}");
    let (code, out, _) = ctl(&cluster, &["analyze", "-n", "default"]).await?;
    assert!(code == 0 && !out.contains("shop"), "{out}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_inject_adds_what_the_webhook_adds_to_a_stored_pod() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    create_node(&cluster, "node-1").await?;
    cluster.write_status("v1", "Node", ("", "node-1"), json!({"nodeInfo": node_info("v1.34.0")})).await?;
    cluster.create_namespace("shop", json!({"istio-injection": "enabled"})).await?;
    let _control_plane = start_with_webhooks(&cluster).await?;
    let (containers, annotations) = inject_pod(&cluster, "shop").await?;
    let stored = cluster.get("v1", "Pod", "shop", "cart").await?.context("the pod exists")?;

    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pod.json");
    std::fs::write(&file, pod.to_string())?;
    let printed = succeeds(&cluster, &["kube-inject", "-f", &file.display().to_string()]).await?;
    let printed = parse_value(&printed, &Limits::default())?;
    let names = |pod: &Value, list: &str| -> Vec<String> {
        let items = pod["spec"][list].as_array().into_iter().flatten();
        items.filter_map(|it| it["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(&printed, "containers"), containers);
    assert_eq!(names(&printed, "initContainers"), names(&stored, "initContainers"));
    let status = |annotations: &Value| -> Result<Value> {
        let text = annotations["sidecar.istio.io/status"].as_str().context("a status")?;
        Ok(serde_json::from_str(text)?)
    };
    assert_eq!(status(&printed["metadata"]["annotations"])?, status(&annotations)?);
    let images = |pod: &Value| -> Vec<Value> {
        let lists =
            ["initContainers", "containers"].map(|list| pod["spec"][list].as_array().cloned().unwrap_or_default());
        lists.concat().iter().map(|it| json!([it["image"], it["args"]])).collect()
    };
    assert_eq!(images(&printed), images(&stored));

    let checked = succeeds(&cluster, &["x", "check-inject", "cart.shop"]).await?;
    let row = checked.lines().find(|line| line.starts_with("istio-sidecar-injector")).context("a row")?;
    assert!(row.contains('✔') && row.ends_with("Namespace label istio-injection=enabled matches"), "{checked}");
    Ok(())
}

fn node_info(version: &str) -> Value {
    let fields = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info: Value =
        fields.iter().map(|field| ((*field).to_owned(), json!(""))).collect::<serde_json::Map<_, _>>().into();
    info["kubeletVersion"] = version.into();
    info
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_secret_makes_a_control_plane_read_a_new_cluster() -> Result<()> {
    let Some(own) = start_with_crds(ALL).await? else { return Ok(()) };
    let programs = Cluster::programs().context("the programs are built")?;
    // It has neither the namespace of a control plane nor a reader.
    let remote = Cluster::start(&programs).await?;
    create_node(&remote, "node-1").await?;
    for cluster in [&own, &remote] {
        cluster.create_namespace("shop", json!({})).await?;
        cluster.apply(&service("shop", "cart")).await?;
    }
    create_pod(&remote, "shop", "cart-1", "cart").await?;
    remote.report_pod(("shop", "cart-1"), "10.245.0.5", true).await?;
    let control_plane = RunningControlPlane::start(&own).await?;
    let mut proxy = control_plane.proxy("shop").await?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.subscribe(Kind::Eds, &[name])?;

    let has = |endpoints: &Value| endpoints.to_string().contains("10.245.0.5");
    for (token, further) in [("of a Secret", &[][..]), ("without a Secret", &["--token-duration", "1h"][..])] {
        let printed = succeeds(&remote, &[&["create-remote-secret", "--name", "east"], further].concat()).await?;
        let secret = parse_value(&printed, &Limits::default())?;
        assert_eq!(secret["metadata"]["name"], "istio-remote-secret-east");
        own.apply(&secret).await?;
        proxy.receives(name, &format!("the endpoint, with a token {token}"), has).await?;
        own.delete("v1", "Secret", SYSTEM, "istio-remote-secret-east").await?;
        proxy.receives(name, "the cluster is removed", |it| !has(it)).await?;
    }
    let reader = "istio-reader-service-account";
    assert!(remote.get("v1", "ServiceAccount", SYSTEM, reader).await?.is_some());
    let user = format!("system:serviceaccount:{SYSTEM}:{reader}");
    let mut refused = remote.audited()?;
    refused.retain(|request| request.user == user && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_inject_pods_until_they_are_removed() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    let _control_plane = start_with_webhooks(&cluster).await?;
    cluster.create_namespace("next", json!({"istio.io/rev": "prod"})).await?;
    let created = succeeds(&cluster, &["tag", "set", "prod", "--revision", "default"]).await?;
    assert!(created.starts_with("Revision tag \"prod\" created"), "{created}");
    let listed = succeeds(&cluster, &["tag", "list"]).await?;
    assert!(listed.lines().any(|line| line.split_whitespace().eq(["prod", "default", "next"])), "{listed}");
    let (containers, annotations) = inject_pod(&cluster, "next").await?;
    assert_eq!((containers.len(), &annotations["istio.io/rev"]), (2, &json!("default")));
    let (code, _, errors) = ctl(&cluster, &["tag", "set", "prod", "--revision", "default"]).await?;
    assert!(code == 1 && errors.contains("already exists, and --overwrite is false"), "{errors}");
    succeeds(&cluster, &["tag", "set", "prod", "--revision", "default", "--overwrite"]).await?;

    // The namespace still uses the tag, which a question would name.
    succeeds(&cluster, &["tag", "remove", "prod", "-y"]).await?;
    for (version, kind, namespace, name) in [
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", "istio-revision-tag-prod"),
        ("v1", "Service", SYSTEM, "istiod-revision-tag-prod"),
    ] {
        assert!(cluster.get(version, kind, namespace, name).await?.is_none(), "{kind}");
    }
    cluster.delete("v1", "Pod", "next", "cart").await?;
    until("the pod is gone", async || Ok(cluster.get("v1", "Pod", "next", "cart").await?.is_none())).await?;
    let (containers, _) = inject_pod(&cluster, "next").await?;
    assert_eq!(containers, ["app"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn report_of_a_cluster_names_its_secrets_without_their_data() -> Result<()> {
    let Some(cluster) = start().await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({})).await?;
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": {"tls.key": "content-of-a-secret"},
            "metadata": {"namespace": "shop", "name": "tls-cart"},
        }))
        .await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().display().to_string();
    let (code, out, errors) = ctl(&cluster, &["bug-report", "--output-dir", &path]).await?;
    ensure!(code == 0, "{out}{errors}");
    let file = std::fs::File::open(directory.path().join("bug-report.tar.gz"))?;
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut secrets = String::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.display().to_string();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text)?;
        ensure!(!text.contains("content-of-a-secret") && !text.contains("Y29udGVudC1vZi1hLXNlY3JldA"), "{name}");
        if name.ends_with("secrets-without-data.yaml") {
            secrets = text;
        }
    }
    assert!(secrets.contains("name: tls-cart") && secrets.contains("f:tls.key"), "{secrets}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waypoint_is_applied_enrolled_and_deleted() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace("shop", json!({"istio.io/dataplane-mode": "ambient"})).await?;
    apply_templates(&cluster, &["injector"], &[]).await?;
    let variables = [("POD_NAME", "istiod-1"), ("PILOT_ENABLE_AMBIENT", "true")];
    let _control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;

    let applied =
        succeeds(&cluster, &["waypoint", "apply", "-n", "shop", "--enroll-namespace", "--for", "service"]).await?;
    assert!(applied.contains("✅ waypoint shop/waypoint applied"), "{applied}");
    assert!(!applied.contains("Warning"), "the namespace is in ambient mode: {applied}");
    let namespace = cluster.get("v1", "Namespace", "", "shop").await?.context("the namespace exists")?;
    assert_eq!(namespace["metadata"]["labels"]["istio.io/use-waypoint"], "waypoint");
    until("the control plane deploys the waypoint", async || {
        Ok(cluster.get("apps/v1", "Deployment", "shop", "waypoint").await?.is_some())
    })
    .await?;
    until("the control plane accepts the waypoint", async || {
        let shown = succeeds(&cluster, &["waypoint", "status", "-n", "shop", "--wait=false", "-o", "json"]).await?;
        let shown: Value = serde_json::from_str(&shown)?;
        let conditions = shown[0]["status"]["conditions"].as_array().into_iter().flatten();
        Ok(conditions.into_iter().any(|it| it["type"] == "Accepted" && it["status"] == "True"))
    })
    .await?;
    let listed = succeeds(&cluster, &["waypoint", "list", "-n", "shop"]).await?;
    let row: Vec<&str> = listed.lines().nth(1).context("a row")?.split_whitespace().collect();
    assert_eq!(row[..3], ["waypoint", "default", "service"], "{listed}");

    let deleted = succeeds(&cluster, &["waypoint", "delete", "waypoint", "-n", "shop"]).await?;
    assert_eq!(deleted, "waypoint shop/waypoint deleted\n");
    assert!(cluster.get("gateway.networking.k8s.io/v1", "Gateway", "shop", "waypoint").await?.is_none());
    Ok(())
}
