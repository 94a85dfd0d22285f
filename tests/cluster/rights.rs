//! The rights of the chart are those that the control plane uses.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_model::label;
use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::api_server::{Right, granted};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use sluice_xds_protocol::HEALTH_TYPE;

use crate::fixture::{ALL, Proxy, SYSTEM, USER, node, render_templates, start_with_crds, until};
use crate::identity::connect;
use crate::kube_suite::gateway_objects::gateway_objects;
use crate::webhooks::start_with_webhooks;

/// Granted rights that a short run does not use, and why.
fn is_not_used_here((_, group, resource, verb): &Right) -> bool {
    match (group.as_str(), resource.as_str(), verb.as_str()) {
        // The module of the Gateway API does not contain this kind.
        ("inference.networking.k8s.io", _, _) => true,
        // The root is renewed after years.
        ("", "secrets", "update") => true,
        // Objects are created by requests to patch them.
        ("" | "apps" | "autoscaling" | "policy", _, "create") => true,
        // Lists are streamed. They are read with `list` from API servers that cannot do that.
        (_, _, "list") => true,
        _ => false,
    }
}

/// An object of each of Istio's kinds that asks for the condition `Reconciled`. They change nothing for other objects.
fn asking_objects() -> Vec<Value> {
    let host = "asks.example";
    let wasm = json!({"url": "https://asks.example/filter.wasm", "selector": {"matchLabels": {"app": "asks"}}});
    let object = |group: &str, version: &str, kind: &str, spec: Value| {
        json!({
            "apiVersion": format!("{group}.istio.io/{version}"), "kind": kind,
            "metadata": {
                "namespace": "shop", "name": "asks", "annotations": {label::RECONCILED_CONDITION: "true"},
            },
            "spec": spec,
        })
    };
    let selector = json!({"selector": {"matchLabels": {"app": "asks"}}});
    let port = json!({"number": 80, "name": "http", "protocol": "HTTP"});
    vec![
        object(
            "extensions",
            "v1alpha1",
            "TrafficExtension",
            json!({"wasm": {"url": wasm["url"]}, "selector": wasm["selector"]}),
        ),
        object("extensions", "v1alpha1", "WasmPlugin", wasm.clone()),
        object("networking", "v1", "DestinationRule", json!({"host": host})),
        object("networking", "v1alpha3", "EnvoyFilter", json!({"workloadSelector": {"labels": {"app": "asks"}}})),
        object(
            "networking",
            "v1",
            "Gateway",
            json!({"servers": [{"port": port, "hosts": [host]}], "selector": {"app": "asks"}}),
        ),
        object("networking", "v1beta1", "ProxyConfig", json!({"concurrency": 1, "selector": selector["selector"]})),
        object("networking", "v1", "ServiceEntry", json!({"hosts": [host], "ports": [port], "resolution": "DNS"})),
        object(
            "networking",
            "v1",
            "Sidecar",
            json!({"workloadSelector": {"labels": {"app": "asks"}}, "egress": [{"hosts": ["*/*"]}]}),
        ),
        object(
            "networking",
            "v1",
            "VirtualService",
            json!({
                "hosts": [host], "http": [{"route": [{"destination": {"host": host}}]}],
            }),
        ),
        object("networking", "v1", "WorkloadEntry", json!({"address": "192.0.2.9"})),
        object("networking", "v1", "WorkloadGroup", json!({"template": {"serviceAccount": "default"}})),
        object("security", "v1", "AuthorizationPolicy", selector.clone()),
        object("security", "v1", "PeerAuthentication", selector.clone()),
        object("security", "v1", "RequestAuthentication", selector.clone()),
        object("telemetry", "v1", "Telemetry", selector.clone()),
    ]
}

/// The rights of the requests of `sluiced`, and the refused requests.
fn used(cluster: &Cluster) -> Result<(BTreeSet<Right>, Vec<String>)> {
    let requests = cluster.audited()?.into_iter().filter(|it| it.user == USER && !it.resource.is_empty());
    let (refused, answered): (Vec<_>, Vec<_>) = requests.partition(|it| matches!(it.code, 401 | 403));
    let used = answered.into_iter().map(|it| (it.namespace, it.group, it.resource, it.verb)).collect();
    Ok((used, refused.into_iter().map(|it| format!("{} {}", it.verb, it.uri)).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_refused_and_every_right_is_used() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace("shop", json!({})).await?;
    cluster
        .apply(&json!({
            "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": "api", "namespace": "shop"},
            "spec": {"hosts": ["api.example"], "resolution": "DNS",
                     "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
        }))
        .await?;
    // A workload that registers itself, and an Ingress.
    cluster
        .apply(&json!({
            "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
            "metadata": {"namespace": "shop", "name": "vms"}, "spec": {"template": {"serviceAccount": "default"}},
        }))
        .await?;
    cluster
        .apply(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"namespace": "shop", "name": "web", "annotations": {"kubernetes.io/ingress.class": "istio"}},
            "spec": {"rules": [{"host": "web.example"}]},
        }))
        .await?;
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": SYSTEM, "name": "istio-ingressgateway"},
            "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.7"]},
        }))
        .await?;
    // Statuses of the Gateway API are written.
    cluster.create_namespace("edge", json!({})).await?;
    for object in gateway_objects() {
        cluster.apply(&object).await?;
    }
    // Objects are deployed for Gateways, those that need an overlay too.
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "namespace": SYSTEM, "name": "defaults", "labels": {"gateway.istio.io/defaults-for-class": "istio"},
            },
            "data": {"horizontalPodAutoscaler": "spec: {minReplicas: 1}", "podDisruptionBudget": "spec: {minAvailable: 1}"},
        }))
        .await?;
    // Webhook configurations are written.
    let control_plane = start_with_webhooks(&cluster).await?;
    for object in asking_objects() {
        cluster.apply(&object).await?;
    }
    // A proxy: its token is reviewed, it gets a certificate, and its right to read Secrets is reviewed.
    let channel = connect(&cluster, &control_plane, "shop", &ClientTls::default()).await?;
    let token = cluster.create_token(("shop", "default"), Some("istio-ca"), None).await?;
    CertificateRequest::with_token(&signing_request()?.1, &token).send(&channel).await?;
    let identity = node("router", "shop", "default")?;
    let mut gateway = Proxy::new(AdsStream::open_with_token(channel, Protocol::Delta, identity, &token)?);
    gateway.subscribe(Kind::Sds, &["kubernetes://cert"])?;
    // A workload outside Kubernetes is registered, reports its health, and goes.
    let channel = connect(&cluster, &control_plane, "shop", &ClientTls::default()).await?;
    let vm = Identity::of_node(&json!({
        "id": "sidecar~10.9.8.7~vm.shop~shop.svc.cluster.local",
        "metadata": {"NAMESPACE": "shop", "SERVICE_ACCOUNT": "default", "AUTO_REGISTER_GROUP": "vms"},
    }))?;
    let mut vm = AdsStream::open_with_token(channel, Protocol::Delta, vm, &token)?;
    vm.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    cluster.exists("networking.istio.io/v1", "WorkloadEntry", "shop", "vms-10.9.8.7").await?;
    vm.send_delta(DeltaDiscoveryRequest { type_url: HEALTH_TYPE.to_owned(), ..DeltaDiscoveryRequest::default() })?;
    until("its health is written", async || {
        let entry = cluster.get("networking.istio.io/v1", "WorkloadEntry", "shop", "vms-10.9.8.7").await?;
        Ok(entry.unwrap_or_default()["status"]["conditions"].is_array())
    })
    .await?;
    drop(vm);
    // Its ConfigMap is repaired.
    let roots = ("shop", "istio-ca-root-cert");
    let broken = json!({"data": {"root-cert.pem": "other"}});
    cluster.patch("v1", "ConfigMap", roots, &broken).await?;
    let granted = granted(&render_templates(&cluster.helm(), &["rights"], &[])?);
    assert!(granted.iter().any(|(namespace, ..)| namespace == SYSTEM), "{granted:?}");
    // A right in all namespaces includes the right in each.
    let unused = || -> Result<Vec<Right>> {
        let (used, _) = used(&cluster)?;
        let everywhere = |(namespace, ..): &Right, right: &Right| namespace.is_empty() || *namespace == right.0;
        let is_used = |granted: &Right| {
            used.iter().any(|right| {
                everywhere(granted, right) && (&granted.1, &granted.2, &granted.3) == (&right.1, &right.2, &right.3)
            })
        };
        Ok(granted.iter().filter(|right| !is_used(right) && !is_not_used_here(right)).cloned().collect())
    };
    let waited = until("every right is used", async || Ok(unused()?.is_empty())).await;
    waited.with_context(|| format!("unused: {:?}", unused().unwrap_or_default()))?;
    let entry = async || cluster.get("networking.istio.io/v1", "ServiceEntry", "shop", "api").await;
    until("addresses are allocated", async || {
        let entry = entry().await?.unwrap_or_default();
        Ok(entry.pointer("/status/addresses").is_some_and(Value::is_array))
    })
    .await?;
    let (_, refused) = used(&cluster)?;
    assert_eq!(refused, Vec::<String>::new());
    // The proxy has no right to list Secrets, so it gets none.
    let mut warnings = control_plane.warnings()?;
    warnings.retain(|line| !line.contains("the proxy's service account may not list Secrets"));
    assert_eq!(warnings, Vec::<String>::new());
    Ok(())
}
