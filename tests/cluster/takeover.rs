//! A release of istiod becomes one of Sluice by `helm upgrade`: objects with the names, labels and writers of istiod's charts are
//! taken over, nothing is left, and no request fails.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::{Image, TestNode};
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::Workload;

use crate::charts::objects;
use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs, until};
use crate::installation::existing;
use crate::traffic::{DELTA, change_route, has_route, reaches_tea, tea_mesh};
use crate::upgrade::{helm, images};
use crate::webhooks::until_webhooks_are_called;

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const VALIDATING: &str = "ValidatingWebhookConfiguration";
const DEFAULT_VALIDATOR: &str = "istiod-default-validator";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// An object of a chart of Istio.
fn object(version: &str, kind: &str, name: &str, content: Value) -> Value {
    let labels = json!({"app": "istiod", "istio": "pilot", "istio.io/rev": "default", "release": "istiod"});
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}});
    let is_global = matches!(kind, "ClusterRole" | "ClusterRoleBinding" | "MutatingWebhookConfiguration" | VALIDATING);
    if !is_global {
        object["metadata"]["namespace"] = SYSTEM.into();
    }
    if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
        object.extend(content);
    }
    object
}

fn role_and_binding(kind: &str, name: &str, rules: Value, account: &str) -> [Value; 2] {
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": SYSTEM});
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let binding = json!({"roleRef": reference, "subjects": [subject]});
    [object(RBAC, kind, name, json!({"rules": rules})), object(RBAC, &format!("{kind}Binding"), name, binding)]
}

fn webhook(name: &str, path: &str, rules: Value) -> Value {
    let service = json!({"name": "istiod", "namespace": SYSTEM, "path": path, "port": 443});
    json!({"webhooks": [{
        "name": name, "clientConfig": {"service": service}, "rules": [rules],
        "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }]})
}

fn validating_webhook(name: &str) -> Value {
    let groups = ["networking.istio.io", "security.istio.io", "telemetry.istio.io", "extensions.istio.io"];
    let rules =
        json!({"apiGroups": groups, "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["*"]});
    webhook(name, "/validate", rules)
}

/// What the chart of the control plane of Istio installs. Its pods have fields that those of Sluice do not have.
pub(crate) fn istiod() -> Vec<Value> {
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let container = json!({
        "name": "discovery", "image": "docker.io/istio/pilot:1.31",
        "args": ["discovery", "--monitoringAddr=:15014", "--keepaliveMaxServerConnectionAge", "30m"],
        "env": [
            {"name": "REVISION", "value": "default"},
            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
            {"name": "INJECTION_WEBHOOK_CONFIG_NAME", "value": "istio-sidecar-injector"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 3},
        "volumeMounts": [{"name": "local-certs", "mountPath": "/var/run/secrets/istio-dns"}],
    });
    let volumes = json!([{"name": "local-certs", "emptyDir": {"medium": "Memory"}}]);
    let labels = json!({"app": "istiod", "istio": "pilot", "istio.io/rev": "default"});
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": "istiod", "containers": [container], "volumes": volumes},
    });
    let selector = json!({"istio": "pilot"});
    let port = |name: &str, port: u16, target: u16| json!({"name": name, "port": port, "targetPort": target});
    let ports = [
        port("grpc-xds", 15010, 15010),
        port("https-dns", 15012, 15012),
        port("https-webhook", 443, 15017),
        port("http-monitoring", 15014, 15014),
    ];
    let deployment = json!({"spec": {"selector": {"matchLabels": selector}, "template": template}});
    let config = json!({"data": {"config": "policy: enabled\ntemplates: {}\n", "values": "{}"}});
    let mut objects = vec![
        object("v1", "ServiceAccount", "istiod", json!({})),
        object("v1", "ConfigMap", "istio", json!({"data": {"mesh": "trustDomain: cluster.local\n"}})),
        object("v1", "ConfigMap", "istio-sidecar-injector", config),
        object("v1", "ConfigMap", "values", json!({"data": {"original-values": "{}"}})),
        object("v1", "Service", "istiod", json!({"spec": {"selector": selector, "ports": ports}})),
        object("apps/v1", "Deployment", "istiod", deployment),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            "istiod",
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": selector}}}),
        ),
        object(
            ADMISSION,
            "MutatingWebhookConfiguration",
            "istio-sidecar-injector",
            webhook("rev.namespace.sidecar-injector.istio.io", "/inject", pods),
        ),
        object(ADMISSION, VALIDATING, "istio-validator-istio-system", validating_webhook("rev.validation.istio.io")),
    ];
    // The other names of the webhook for injection select no pod of this test.
    objects[7]["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"none": "selected"}});
    objects.extend(role_and_binding("ClusterRole", "istiod-clusterrole-istio-system", all.clone(), "istiod"));
    objects.extend(role_and_binding("ClusterRole", "istiod-gateway-controller-istio-system", all.clone(), "istiod"));
    let reader = "istio-reader-service-account";
    objects.extend(role_and_binding("ClusterRole", "istio-reader-clusterrole-istio-system", all.clone(), reader));
    objects.extend(role_and_binding("Role", "istiod", all, "istiod"));
    objects
}

/// What the chart `base` of Istio installs beside CRDs.
fn base() -> Vec<Value> {
    vec![
        object("v1", "ServiceAccount", "istio-reader-service-account", json!({})),
        object(ADMISSION, VALIDATING, DEFAULT_VALIDATOR, validating_webhook("validation.istio.io")),
    ]
}

fn write_chart(directory: &Path, name: &str, objects: &[Value]) -> Result<String> {
    let chart = directory.join(name);
    std::fs::create_dir_all(chart.join("templates"))?;
    std::fs::write(chart.join("Chart.yaml"), format!("apiVersion: v2\nname: {name}\nversion: 1.31.0\n"))?;
    let text: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(chart.join("templates/objects.yaml"), text.join("\n---\n"))?;
    Ok(chart.display().to_string())
}

/// The names of the release annotation and of the webhook of the default validator. `None` if it does not exist.
async fn default_validator(cluster: &Cluster) -> Result<Option<(String, Value)>> {
    let Some(object) = cluster.get(ADMISSION, VALIDATING, "", DEFAULT_VALIDATOR).await? else { return Ok(None) };
    let release = object["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str().unwrap_or_default();
    Ok(Some((release.to_owned(), object["webhooks"][0]["failurePolicy"].clone())))
}

async fn roots(cluster: &Cluster) -> Result<Value> {
    let object = cluster.get("v1", "ConfigMap", "shop", "istio-ca-root-cert").await?;
    Ok(object.context("the namespace has roots")?["data"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_istiod_is_taken_over() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let mut mesh = tea_mesh(&cluster, &["shop"]).await?;
    let mut programs = images(&mesh.pods)?;
    // The program of istiod here is that of Sluice, and what it writes is what istiod writes.
    programs.push(Image { name: "/pilot:", ..programs[0].clone() });
    let mut node = TestNode::new(&cluster, &[SYSTEM], &mut mesh.pods, 4, programs).await?;
    let discovery = node.serve((SYSTEM, "istiod"), 15012, (mesh.pods.host_ip(), 0).into()).await?;
    let directory = tempfile::tempdir()?;
    let old_base = write_chart(directory.path(), "base", &base())?;
    let old = write_chart(directory.path(), "istiod", &istiod())?;
    let (new_base, new) =
        (manifest("manifests/charts/base").display().to_string(), manifest(CHART).display().to_string());
    let run = async |command: &str, release: &str, chart: &str, values: &[&str]| {
        let mut arguments = vec![command, release, chart, "--namespace", SYSTEM, "--wait", "--timeout", "2m"];
        arguments.extend(values.iter().flat_map(|value| ["--set", value]));
        helm(&cluster, &arguments).await.map(drop)
    };
    node.during(async {
        run("install", "istio-base", &old_base, &[]).await?;
        run("install", "istiod", &old, &[]).await?;
        until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
        let workloads = [Workload::new("client", "client", DELTA), Workload::new("tea", "tea", DELTA)];
        mesh.deploy(&workloads, discovery).await?;
        change_route(&cluster, 0).await?;
        has_route(&mesh, 0).await?;
        reaches_tea(&mesh, "client").await?;
        let (before, old_roots) = (node.ready(), roots(&cluster).await?);

        let streams = [Stream::new(mesh.pods.shared("client"), mesh.get("shop", "tea").await?, "tea v1")];
        let upgrade = async {
            run("upgrade", "istiod", &new, &["autoscaleEnabled=false"]).await?;
            until("the pods of istiod have ended", async || {
                let ended = node.ended();
                Ok(before.keys().all(|name| ended.iter().any(|pod| pod.name == *name)))
            })
            .await?;
            change_route(&cluster, 1).await?;
            has_route(&mesh, 1).await
        };
        let ((), requests) = under_load(&streams, upgrade).await?;
        eprintln!("{requests} requests while the release was taken over");
        ensure!(roots(&cluster).await? == old_roots, "the authority stays");

        // All objects of the new chart exist, and of the old chart those only.
        let rendered = helm(&cluster, &["get", "manifest", "istiod", "--namespace", SYSTEM]).await?;
        let names =
            |objects: &[Value]| objects.iter().map(crate::charts::label).collect::<std::collections::BTreeSet<_>>();
        let expect = names(&objects(&rendered)?);
        ensure!(existing(&cluster, &rendered).await? == expect, "{expect:?}");
        let old_text = istiod().iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
        let left: Vec<String> = existing(&cluster, &old_text).await?.difference(&expect).cloned().collect();
        ensure!(left.is_empty(), "left of istiod: {left:?}");
        // Of each object, nothing is left that the new chart does not have.
        for object in objects(&rendered)? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
            let stored =
                cluster.get(&text(&object["apiVersion"]), &kind, &namespace, &name).await?.context("it exists")?;
            let parts: &[&str] = match kind.as_str() {
                "ConfigMap" => &["/data"],
                "ClusterRole" | "Role" => &["/rules"],
                "Service" => &["/spec/selector"],
                "Deployment" => &[
                    "/spec/template/metadata/labels",
                    "/spec/template/spec/containers/0/args",
                    "/spec/template/spec/containers/0/volumeMounts/0",
                ],
                _ => &[],
            };
            for part in parts {
                ensure!(stored.pointer(part) == object.pointer(part), "{kind} {name}{part}: {stored}");
            }
            if kind == "Deployment" {
                let of = |object: &Value, part: &str| {
                    let list = object.pointer(part).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                    list.iter().map(|it| it["name"].clone()).collect::<Vec<_>>()
                };
                for part in ["/spec/template/spec/containers/0/env", "/spec/template/spec/volumes"] {
                    ensure!(of(&stored, part) == of(&object, part), "{part}: {:?}", of(&stored, part));
                }
            }
        }

        // The default validator is that of the chart `base`, until this is upgraded. The next upgrade of istiod has it.
        ensure!(default_validator(&cluster).await? == Some(("istio-base".to_owned(), "Fail".into())));
        run("upgrade", "istio-base", &new_base, &["base.enableIstioConfigCRDs=false"]).await?;
        ensure!(default_validator(&cluster).await?.is_none());
        ensure!(cluster.get("v1", "ServiceAccount", SYSTEM, "istio-reader-service-account").await?.is_some());
        run("upgrade", "istiod", &new, &["autoscaleEnabled=false"]).await?;
        // It fails open until the control plane has written the roots, although this is an upgrade.
        let rendered = objects(&helm(&cluster, &["get", "manifest", "istiod", "--namespace", SYSTEM]).await?)?;
        let validator = rendered.iter().find(|it| it["metadata"]["name"] == DEFAULT_VALIDATOR);
        ensure!(validator.context("the release has it")?["webhooks"][0]["failurePolicy"] == "Ignore", "{validator:?}");
        until("the default validator fails closed", async || {
            Ok(default_validator(&cluster).await? == Some(("istiod".to_owned(), "Fail".into())))
        })
        .await?;
        for pod in node.ended() {
            ensure!(pod.code == Some(0), "{} ended with {:?}:\n{}", pod.name, pod.code, pod.log);
        }
        Ok(())
    })
    .await
}
