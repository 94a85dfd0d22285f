//! The proxies of Gateways are deployed to a real API server (G04).

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;

use crate::fixture::{ALL, RunningControlPlane, SYSTEM, apply_templates, start_with_crds, until};

/// Owner of the fields that istiod and Sluice write.
const MANAGER: &str = "istio.io/gateway-controller";
const NAMESPACE: &str = "edge";

fn gateway(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"gatewayClassName": "istio", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

fn parameters(overlays: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": NAMESPACE, "name": "params"},
        "data": overlays,
    })
}

async fn object(cluster: &Cluster, kind: &str, name: &str) -> Result<Value> {
    let api_version = match kind {
        "Deployment" => "apps/v1",
        "HorizontalPodAutoscaler" => "autoscaling/v2",
        "PodDisruptionBudget" => "policy/v1",
        "Gateway" => "gateway.networking.k8s.io/v1",
        _ => "v1",
    };
    Ok(cluster.get(api_version, kind, NAMESPACE, name).await?.unwrap_or_default())
}

fn managers(object: &Value) -> Vec<&str> {
    let fields = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    fields.filter_map(|fields| fields["manager"].as_str()).collect()
}

/// A cluster with the Gateway API, the configuration of the injector, and a control plane.
async fn start() -> Result<Option<(Cluster, RunningControlPlane)>> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(None) };
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace(NAMESPACE, json!({})).await?;
    apply_templates(&cluster, &["injector"], &[]).await?;
    let variables = [("POD_NAME", "istiod-1")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    Ok(Some((cluster, control_plane)))
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_follow_the_gateway_its_parameters_and_changes_by_others() -> Result<()> {
    let Some((cluster, control_plane)) = start().await? else { return Ok(()) };
    let overlays = json!({
        "deployment": "spec: {replicas: 2}", "podDisruptionBudget": "spec: {minAvailable: 1}",
    });
    cluster.apply(&parameters(&overlays)).await?;
    let reference = json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "params"}});
    cluster.apply(&gateway("door", &json!({"infrastructure": reference}))).await?;
    until("the Deployment has the overlay", async || {
        Ok(object(&cluster, "Deployment", "door-istio").await?["spec"]["replicas"] == 2)
    })
    .await?;
    until("the budget is created", async || {
        Ok(object(&cluster, "PodDisruptionBudget", "door-istio").await?["spec"]["minAvailable"] == 1)
    })
    .await?;
    let deployment = object(&cluster, "Deployment", "door-istio").await?;
    assert!(managers(&deployment).contains(&MANAGER), "{:?}", managers(&deployment));
    let owned = object(&cluster, "Gateway", "door").await?;
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Gateway"), &owned["metadata"]["uid"]));
    assert!(object(&cluster, "HorizontalPodAutoscaler", "door-istio").await?.is_null());
    // A change by another client is undone, and a deleted object is created again.
    let key = (NAMESPACE, "door-istio");
    cluster.patch("v1", "Service", key, &json!({"spec": {"type": "ClusterIP"}})).await?;
    cluster.delete("v1", "ServiceAccount", NAMESPACE, "door-istio").await?;
    until("the Service is as before", async || {
        Ok(object(&cluster, "Service", "door-istio").await?["spec"]["type"] == "LoadBalancer")
    })
    .await?;
    until("the account exists", async || Ok(object(&cluster, "ServiceAccount", "door-istio").await?.is_object()))
        .await?;
    // Without its overlay, the budget stays as it is.
    cluster.apply(&parameters(&json!({"deployment": "spec: {replicas: 3}"}))).await?;
    until("the overlay applies", async || {
        Ok(object(&cluster, "Deployment", "door-istio").await?["spec"]["replicas"] == 3)
    })
    .await?;
    assert_eq!(object(&cluster, "PodDisruptionBudget", "door-istio").await?["spec"]["minAvailable"], 1);
    // An object that the API server refuses is a finding, and the others are written.
    let overlays = json!({"deployment": "spec: {replicas: -1}", "podDisruptionBudget": "spec: {minAvailable: 2}"});
    cluster.apply(&parameters(&overlays)).await?;
    until("the other overlay applies", async || {
        Ok(object(&cluster, "PodDisruptionBudget", "door-istio").await?["spec"]["minAvailable"] == 2)
    })
    .await?;
    let refused = "the API server refuses the Deployment door-istio: ";
    let is_found = |page: &str| page.contains(refused) && page.contains("spec.replicas");
    control_plane.shows("/debug/rejects", "the finding about the Deployment", is_found).await?;
    cluster.apply(&parameters(&json!({"deployment": "spec: {replicas: 1}"}))).await?;
    control_plane.shows("/debug/rejects", "no finding", |page| !page.contains(refused)).await?;
    assert_eq!(object(&cluster, "Deployment", "door-istio").await?["spec"]["replicas"], 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_istiod_are_taken_over_and_those_of_users_are_left_alone() -> Result<()> {
    let Some((cluster, control_plane)) = start().await? else { return Ok(()) };
    // A Service and an account that a user has created, and a Deployment of an older istiod, whose selector cannot be changed.
    let user = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": NAMESPACE, "name": "mine-istio"},
        "spec": {"ports": [{"port": 7777}], "selector": {"x": "y"}},
    });
    cluster.apply(&user).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": NAMESPACE, "name": "mine-istio"},
    });
    cluster.apply(&account).await?;
    let labels = json!({"istio.io/gateway-name": "mine"});
    let old = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "namespace": NAMESPACE, "name": "mine-istio",
            "labels": {"gateway.istio.io/managed": "istio.io-gateway-controller", "old": "label"},
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels}, "spec": {"containers": [{"name": "istio-proxy", "image": "old"}]},
            },
        },
    });
    cluster.apply_as(MANAGER, &old).await?;
    cluster.apply(&gateway("mine", &Value::Null)).await?;
    let deployment = async || object(&cluster, "Deployment", "mine-istio").await;
    until("the Deployment has the templates of this control plane", async || {
        let containers = deployment().await?["spec"]["template"]["spec"]["containers"].take();
        Ok(containers[0]["image"] != "old" && containers[0]["args"][1] == "router")
    })
    .await?;
    let taken = deployment().await?;
    assert_eq!(taken["spec"]["selector"]["matchLabels"], labels);
    // What only istiod has set is removed, because both are one owner of fields.
    assert!(taken["metadata"]["labels"]["old"].is_null(), "{}", taken["metadata"]["labels"]);
    let service = object(&cluster, "Service", "mine-istio").await?;
    assert_eq!(service["spec"]["ports"][0]["port"], 7777);
    assert!(!managers(&service).contains(&MANAGER), "{:?}", managers(&service));
    let account = object(&cluster, "ServiceAccount", "mine-istio").await?;
    assert!(!managers(&account).contains(&MANAGER), "{:?}", managers(&account));
    let occupied = "objects of these names exist that are not those of the Gateway: Service mine-istio\"";
    control_plane.shows("/debug/rejects", "the finding about the Service", |page| page.contains(occupied)).await?;
    // A Gateway that names its own Service is not managed any more; its objects stay.
    let own = json!({"addresses": [{"type": "Hostname", "value": "mine-istio.edge.svc.cluster.local"}]});
    cluster.apply(&gateway("mine", &own)).await?;
    // Another Gateway is deployed after the change of this one has been read, and a third one after that of the Deployment.
    let next = async |name: &str| {
        cluster.apply(&gateway(name, &Value::Null)).await?;
        let name = format!("{name}-istio");
        until(&name, async || Ok(object(&cluster, "Deployment", &name).await?.is_object())).await
    };
    next("second").await?;
    control_plane.shows("/debug/rejects", "no finding", |page| !page.contains(occupied)).await?;
    let changed = json!({"metadata": {"labels": {"gateway.networking.k8s.io/gateway-class-name": "changed"}}});
    cluster.patch("apps/v1", "Deployment", (NAMESPACE, "mine-istio"), &changed).await?;
    next("third").await?;
    let labels = deployment().await?["metadata"]["labels"].take();
    assert_eq!(labels["gateway.networking.k8s.io/gateway-class-name"], "changed");
    let lease = cluster.get("coordination.k8s.io/v1", "Lease", SYSTEM, "istio-gateway-deployment-default").await?;
    lease.context("the Lease of the leader").map(drop)
}
