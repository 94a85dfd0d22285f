//! `sluicectl tag` and `experimental revision` with the objects of a cluster.

use serde_json::{Value, json};

use super::port_forward::ForwardingCluster;

const SYSTEM: &str = "istio-system";
const ADMISSION: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";

/// The webhooks and the Service of a revision, as the chart makes them.
fn install(cluster: &ForwardingCluster, revision: &str) {
    let name = if revision == "default" { "istiod".to_owned() } else { format!("istiod-{revision}") };
    let labels = json!({"app": "istiod", "istio.io/rev": revision});
    cluster.api.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": SYSTEM, "name": name, "labels": labels},
        "spec": {},
    }));
    let is_in = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let is_absent = |key: &str| json!({"key": key, "operator": "DoesNotExist"});
    let client =
        json!({"service": {"namespace": SYSTEM, "name": name, "path": "/inject", "port": 443}, "caBundle": "cm9vdHM="});
    let mut webhooks = vec![json!({
        "name": "rev.namespace.sidecar-injector.istio.io", "clientConfig": client,
        "namespaceSelector": {"matchExpressions": [is_in("istio.io/rev", revision), is_absent("istio-injection")]},
    })];
    if revision == "default" {
        webhooks.push(json!({
            "name": "namespace.sidecar-injector.istio.io", "clientConfig": client,
            "namespaceSelector": {"matchExpressions": [is_in("istio-injection", "enabled")]},
        }));
    }
    cluster.api.apply(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": format!("istio-sidecar-injector-{revision}"), "labels": {"app": "sidecar-injector", "istio.io/rev": revision}},
        "webhooks": webhooks,
    }));
}

async fn cluster() -> ForwardingCluster {
    let cluster = ForwardingCluster::start().await;
    install(&cluster, "canary");
    install(&cluster, "stable");
    for (name, tag) in [("shop", "prod"), ("bank", "other")] {
        let metadata = json!({"name": name, "labels": {"istio.io/rev": tag}});
        cluster.api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    cluster
}

fn configuration(cluster: &ForwardingCluster, name: &str) -> Option<Value> {
    cluster.api.get(ADMISSION, MUTATING, "", name)
}

async fn succeeds(cluster: &ForwardingCluster, arguments: &[&str]) -> String {
    let done = cluster.ctl(&[&["tag"], arguments].concat()).await;
    assert_eq!(done.code, 0, "{arguments:?}: {}", done.errors);
    done.out
}

async fn fails(cluster: &ForwardingCluster, arguments: &[&str], code: i32, reason: &str) {
    let refused = cluster.ctl(&[&["tag"], arguments].concat()).await;
    assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{arguments:?}: {}", refused.errors);
    assert!(refused.errors.contains(reason), "{reason}: {}", refused.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_set_listed_changed_and_removed() {
    let cluster = cluster().await;
    assert_eq!(succeeds(&cluster, &["list"]).await, "TAG REVISION NAMESPACES\n    canary   \n    stable   \n");
    let created = "Revision tag \"prod\" created, referencing control plane revision \"canary\". To enable injection using this\n\
                   revision tag, use 'kubectl label namespace <NAMESPACE> istio.io/rev=prod'\n";
    assert_eq!(succeeds(&cluster, &["set", "prod", "--revision", "canary"]).await, created);
    let tag = configuration(&cluster, "istio-revision-tag-prod").expect("it exists");
    assert_eq!(tag["webhooks"][0]["clientConfig"]["caBundle"], "cm9vdHM=");
    assert_eq!(tag["webhooks"][0]["clientConfig"]["service"]["name"], "istiod-canary");
    let service = || cluster.api.get("", "services", SYSTEM, "istiod-revision-tag-prod");
    assert_eq!(service().expect("it exists")["spec"]["selector"]["istio.io/rev"], "canary");
    let listed = "TAG  REVISION NAMESPACES\nprod canary   shop\n     stable   \n";
    assert_eq!(succeeds(&cluster, &["list"]).await, listed);
    let json: Value = serde_json::from_str(&succeeds(&cluster, &["list", "-o", "json"]).await).expect("JSON");
    assert_eq!(json[0], json!({"tag": "prod", "revision": "canary", "namespaces": ["shop"]}));

    fails(
        &cluster,
        &["set", "prod", "-r", "stable"],
        1,
        "revision tag \"prod\" already exists, and --overwrite is false",
    )
    .await;
    fails(&cluster, &["set", "stable", "-r", "canary"], 1, "found existing control plane revision with same name")
        .await;
    fails(
        &cluster,
        &["set", "new", "-r", "none"],
        1,
        "cannot find MutatingWebhookConfiguration with revision \"none\"",
    )
    .await;
    succeeds(&cluster, &["set", "prod", "-r", "stable", "--overwrite"]).await;
    let tag = configuration(&cluster, "istio-revision-tag-prod").expect("it exists");
    assert_eq!(tag["webhooks"][0]["clientConfig"]["service"]["name"], "istiod-stable");
    assert_eq!(tag["metadata"]["labels"]["istio.io/rev"], "stable");

    let revisions = cluster.ctl(&["experimental", "revision", "list"]).await;
    let expected = "\
REVISION   TAG        PODS   NAMESPACES
canary     <no-tag>   0
stable     prod       0      shop
";
    assert_eq!((revisions.code, revisions.out.as_str()), (0, expected), "{}", revisions.errors);
    let described = cluster.ctl(&["x", "revision", "describe", "stable", "-o", "json"]).await;
    assert_eq!(described.json()["webhooks"][0]["name"], "istio-revision-tag-prod");
    let unknown = cluster.ctl(&["x", "revision", "describe", "none"]).await;
    assert_eq!(unknown.code, 1, "{}", unknown.errors);
    assert!(unknown.errors.contains("the revisions are: canary, stable"), "{}", unknown.errors);

    // Without a terminal, the question about namespaces cannot be answered.
    fails(&cluster, &["remove", "prod"], 2, "standard input is no terminal").await;
    assert!(configuration(&cluster, "istio-revision-tag-prod").is_some());
    assert_eq!(succeeds(&cluster, &["remove", "prod", "-y"]).await, "Revision tag prod removed\n");
    assert!(configuration(&cluster, "istio-revision-tag-prod").is_none() && service().is_none());
    let reason = "cannot remove tag \"prod\": cannot find MutatingWebhookConfiguration or Service for tag";
    fails(&cluster, &["remove", "prod"], 1, reason).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_objects_are_printed_and_not_applied() {
    let cluster = cluster().await;
    let printed = succeeds(&cluster, &["generate", "prod", "-r", "canary", "--webhook-name", "own"]).await;
    let documents: Vec<Value> = sluice_parse::yaml::parse_documents(&printed, &sluice_parse::yaml::Limits::default())
        .into_iter()
        .map(|document| document.expect("YAML").value)
        .collect();
    let keys: Vec<_> = documents.iter().map(|it| (it["kind"].as_str(), it["metadata"]["name"].as_str())).collect();
    let expected =
        [(Some("Service"), Some("istiod-revision-tag-prod")), (Some("MutatingWebhookConfiguration"), Some("own"))];
    assert_eq!(keys, expected);
    assert_eq!(cluster.api.list(ADMISSION, MUTATING).len(), 2, "nothing is applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn tag_default_deactivates_the_former_default_revision() {
    let cluster = cluster().await;
    install(&cluster, "default");
    succeeds(&cluster, &["set", "default", "-r", "canary"]).await;
    let never = json!({"matchLabels": {"istio.io/deactivated": "never-match"}});
    let former = configuration(&cluster, "istio-sidecar-injector-default").expect("it stays");
    for webhook in former["webhooks"].as_array().expect("webhooks") {
        assert_eq!((&webhook["namespaceSelector"], &webhook["objectSelector"]), (&never, &never));
    }
    let default = configuration(&cluster, "istio-revision-tag-default").expect("it exists");
    assert_eq!(default["webhooks"].as_array().map(Vec::len), Some(4));
    let validator = cluster.api.get(ADMISSION, "validatingwebhookconfigurations", "", "istiod-default-validator");
    assert_eq!(validator.expect("it exists")["webhooks"][0]["clientConfig"]["service"]["name"], "istiod-canary");
    succeeds(&cluster, &["remove", "default"]).await;
    assert_eq!(cluster.api.list(ADMISSION, "validatingwebhookconfigurations"), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_that_inject_twice_are_a_conflict() {
    let cluster = cluster().await;
    succeeds(&cluster, &["set", "prod", "-r", "canary"]).await;
    let arguments = ["set", "prod", "-r", "stable", "--webhook-name", "second", "--overwrite"];
    let refused = cluster.ctl(&[&["tag"][..], &arguments].concat()).await;
    assert_eq!(refused.code, 2, "{}", refused.errors);
    let expected = ["creating tag would conflict, pass --skip-confirmation to proceed:", "[IST0139]", "no terminal"];
    assert!(expected.iter().all(|part| refused.errors.contains(part)), "{}", refused.errors);
    assert!(configuration(&cluster, "second").is_none());
    succeeds(&cluster, &[&arguments[..], &["-y"]].concat()).await;
    assert!(configuration(&cluster, "second").is_some());
}
