//! The API server calls the webhooks of `sluiced`.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;

use crate::fixture::{ALL, RunningControlPlane, SYSTEM, apply_templates, start_with_crds, until};

const API: &str = "admissionregistration.k8s.io/v1";
const VALIDATING: &str = "ValidatingWebhookConfiguration";
const MUTATING: &str = "MutatingWebhookConfiguration";

/// Starts a control plane whose certificate has a name that the API server of a test can resolve, and applies the chart's
/// configuration of the injector and its webhook configurations with this name. Waits until validation fails closed.
pub(crate) async fn start_with_webhooks(cluster: &Cluster) -> Result<RunningControlPlane> {
    let variables = [("POD_NAME", "istiod-1"), ("ISTIOD_CUSTOM_HOST", "localhost")];
    let control_plane = RunningControlPlane::start_with(cluster, cluster.address(), &variables).await?;
    let port = control_plane.server.https.context("the port of the webhooks")?.port();
    let injection = format!("istiodRemote.injectionURL=https://localhost:{port}/inject");
    let validation = format!("base.validationURL=https://localhost:{port}/validate");
    apply_templates(cluster, &["injector", "webhooks"], &["--set", &injection, "--set", &validation]).await?;
    until_webhooks_are_called(cluster, "istio-sidecar-injector").await?;
    Ok(control_plane)
}

/// Waits until webhooks have roots, and validation fails closed.
pub(crate) async fn until_webhooks_are_called(cluster: &Cluster, injector: &str) -> Result<()> {
    let all = async |kind: &str, name: &str, is_met: fn(&Value) -> bool| -> Result<bool> {
        let object = cluster.get(API, kind, "", name).await?.with_context(|| format!("{name} exists"))?;
        let webhooks = object["webhooks"].as_array().context("it has webhooks")?;
        Ok(!webhooks.is_empty() && webhooks.iter().all(is_met))
    };
    until("injection has the roots", async || {
        all(MUTATING, injector, |it| it["clientConfig"]["caBundle"].is_string()).await
    })
    .await?;
    for name in ["istio-validator-istio-system", "istiod-default-validator"] {
        until("validation fails closed", async || all(VALIDATING, name, |it| it["failurePolicy"] == "Fail").await)
            .await?;
    }
    Ok(())
}

/// Creates a pod, once the control plane has the configuration of its injector. Returns the names of its containers, and its
/// annotations.
pub(crate) async fn create_pod(cluster: &Cluster, namespace: &str) -> Result<(Vec<String>, Value)> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": "cart"},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    let mut created = Value::Null;
    until("the pod is created", async || match cluster.apply(&pod).await {
        Ok(pod) => {
            created = pod;
            Ok(true)
        }
        Err(error) if format!("{error:#}").contains("no valid injection configuration has been read yet") => Ok(false),
        Err(error) => Err(error),
    })
    .await?;
    let containers = created["spec"]["containers"].as_array().context("it has containers")?;
    let names = containers.iter().filter_map(|it| it["name"].as_str().map(str::to_owned)).collect();
    Ok((names, created["metadata"]["annotations"].clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_injected_and_invalid_objects_are_refused() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({"istio-injection": "enabled"})).await?;
    cluster.create_namespace("other", json!({})).await?;
    let control_plane = start_with_webhooks(&cluster).await?;
    assert!(cluster.get("networking.istio.io/v1", "Gateway", SYSTEM, "invalid-gateway").await?.is_none());

    for (namespace, expect) in [("shop", vec!["app", "istio-proxy"]), ("other", vec!["app"])] {
        let (names, _) = create_pod(&cluster, namespace).await?;
        assert_eq!(names, expect, "{namespace}");
    }

    let service = |http: Value| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"namespace": "shop", "name": "cart"}, "spec": {"hosts": ["cart"], "http": http},
        })
    };
    let refused = cluster.apply(&service(json!([{"match": [{"uri": {"prefix": "/"}}]}]))).await;
    let refused = format!("{:#}", refused.expect_err("a route without a destination"));
    assert!(refused.contains("denied the request: configuration is invalid: spec.http[0]"), "{refused}");
    cluster.apply(&service(json!([{"route": [{"destination": {"host": "cart"}}]}]))).await?;
    let mut warnings = control_plane.warnings()?;
    warnings.retain(|line| !line.contains("no valid injection configuration has been read yet"));
    assert_eq!(warnings, Vec::<String>::new());
    Ok(())
}
