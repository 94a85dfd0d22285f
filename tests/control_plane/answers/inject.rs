//! `sluicectl kube-inject`, `experimental check-inject` and `experimental injector` with the objects of a cluster.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_testkit::kube_api::{KubeApi, Route};
use tempfile::TempDir;

use super::mesh::{Answer, run};
use crate::kube_api::own;
use crate::kube_suite::webhooks::{HTTPS, WebhookFixture, injector, template};

/// Runs `sluicectl` with the kubeconfig of a cluster.
async fn ctl(directory: &TempDir, arguments: &[&str]) -> Answer {
    let kubeconfig = format!("--kubeconfig={}", directory.path().join("kubeconfig").display());
    run(&[arguments, &[&kubeconfig]].concat()).await
}

fn with_kubeconfig(api: &KubeApi) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = api.kubeconfig(Route::Direct).to_string();
    std::fs::write(directory.path().join("kubeconfig"), kubeconfig).expect("written");
    directory
}

/// The pod that a webhook makes of a pod.
async fn injected(mesh: &WebhookFixture, pod: &Value) -> Value {
    let request = json!({"uid": "u-1", "namespace": pod["metadata"]["namespace"], "object": pod});
    let response = mesh.review("/inject", request).await;
    let patch = STANDARD.decode(response["patch"].as_str().expect("a patch")).expect("base64");
    let mut injected = pod.clone();
    json_patch::patch(&mut injected, &serde_json::from_slice::<json_patch::Patch>(&patch).expect("a patch"))
        .expect("it applies");
    injected
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_inject_and_the_webhook_give_the_same_pod() {
    let api = own().await.expect("a server");
    api.apply(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
        "status": {"nodeInfo": {"kubeletVersion": "v1.34.0"}},
    }))
    .await;
    let directory = with_kubeconfig(&api);
    let without = ctl(&directory, &["kube-inject", "-f", "/dev/null"]).await;
    assert_eq!(without.code, 3, "{}", without.errors);
    let reason = "namespace \"istio-system\" has no ConfigMap \"istio-sidecar-injector\"";
    assert!(without.errors.contains(reason), "{}", without.errors);
    for revision in ["", "-canary"] {
        api.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "istio-system", "name": format!("istio{revision}")},
            "data": {"mesh": format!("trustDomain: mesh{revision}.example\n")},
        }))
        .await;
    }
    let mut canary = injector(&template("proxy:canary"));
    canary["metadata"]["name"] = "istio-sidecar-injector-canary".into();
    api.apply(canary).await;
    let mesh = WebhookFixture::start(api, Some(injector(&template("proxy:one"))), &[HTTPS]).await;
    mesh.injects("proxy:one").await;
    mesh.injects("mesh.example").await;

    let spec = json!({"containers": [{"name": "app", "image": "cart"}]});
    let metadata = json!({"namespace": "shop", "labels": {"app": "cart", "pod-template-hash": "7f"}});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    pod["metadata"]["generateName"] = "cart-7f-".into();
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7f", "controller": true}]);
    let expected = injected(&mesh, &pod).await;
    let template = json!({"metadata": {"labels": metadata["labels"]}, "spec": spec});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"template": template},
    });
    let file = directory.path().join("deployment.json");
    std::fs::write(&file, deployment.to_string()).expect("written");
    let file = format!("--filename={}", file.display());
    let printed = ctl(&directory, &["kube-inject", &file]).await;
    assert_eq!(printed.code, 0, "{}", printed.errors);
    let printed = parse_value(&printed.out, &Limits::default()).expect("one document");
    let template = &printed["spec"]["template"];
    assert_eq!(template["spec"], expected["spec"]);
    assert!(template["spec"].to_string().contains("mesh.example"), "{template}");
    assert_eq!(template["metadata"]["annotations"], expected["metadata"]["annotations"]);
    assert_eq!(template["metadata"]["labels"], expected["metadata"]["labels"]);

    let canary = ctl(&directory, &["kube-inject", &file, "--revision", "canary"]).await;
    assert!(canary.out.contains("proxy:canary") && canary.out.contains("mesh-canary.example"), "{}", canary.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_inject_compares_labels_with_the_webhooks_of_the_cluster() {
    let api = own().await.expect("a server");
    let directory = with_kubeconfig(&api);
    let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    api.apply(namespace("shop", json!({"istio.io/rev": "prod"}))).await;
    api.apply(namespace("bank", json!({}))).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "cart", "labels": {"app": "cart"}},
        "spec": {"containers": []},
    });
    api.apply(pod).await;
    let empty = ctl(&directory, &["x", "check-inject", "cart.shop"]).await;
    assert_eq!((empty.code, empty.out.as_str()), (0, "ERROR: no Istio injection hooks present.\n"), "{}", empty.errors);
    let configuration = |name: &str, revision: &str, label: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name, "labels": {"istio.io/rev": revision}},
            "webhooks": [{
                "name": "rev.namespace.sidecar-injector.istio.io",
                "namespaceSelector": {"matchExpressions": [{"key": "istio.io/rev", "operator": "In", "values": [label]}]},
                "objectSelector": {"matchExpressions": [{"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]}]},
            }],
        })
    };
    api.apply(configuration("istio-revision-tag-prod", "canary", "prod")).await;
    api.apply(configuration("istio-sidecar-injector", "default", "default")).await;
    let expected = "\
WEBHOOK                  REVISION  INJECTED  REASON
istio-revision-tag-prod  canary    ✔         Namespace label istio.io/rev=prod matches
istio-sidecar-injector   default   ✘         No matching namespace labels (istio.io/rev=default) or pod labels ()
";
    let checked = ctl(&directory, &["experimental", "check-inject", "cart", "-n", "shop"]).await;
    assert_eq!((checked.code, checked.out.as_str()), (0, expected), "{}", checked.errors);
    let labels =
        ctl(&directory, &["x", "check-inject", "-n", "shop", "-l", "a=b,sidecar.istio.io/inject=false", "-o", "json"])
            .await;
    assert_eq!(labels.json()[0]["injected"], false);
    assert_eq!(labels.json()[0]["reason"], "Pod has sidecar.istio.io/inject=false label, preventing injection");
    let bank = ctl(&directory, &["x", "check-inject", "-n", "bank", "-l", "app=a", "-o", "json"]).await;
    assert!(bank.json().as_array().expect("rows").iter().all(|row| row["injected"] == false), "{}", bank.out);
    for (arguments, code) in
        [(["none.shop", "-o", "json"], 1), (["-l", "app=a", "-nnone"], 1), (["-l", "app", "-nshop"], 2)]
    {
        let refused = ctl(&directory, &[&["x", "check-inject"][..], &arguments].concat()).await;
        assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{arguments:?}: {}", refused.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn injectors_are_listed_with_the_namespaces_and_pods_of_the_cluster() {
    let api = own().await.expect("a server");
    let directory = with_kubeconfig(&api);
    let list = ["experimental", "injector", "list"];
    let empty = ctl(&directory, &list).await;
    let none = "No Istio injected namespaces present.\n\nNo Istio injection hooks present.\n";
    assert_eq!((empty.code, empty.out.as_str()), (0, none), "{}", empty.errors);
    for (name, labels) in [
        ("istio-system", json!({})),
        ("kube-system", json!({})),
        ("mesh", json!({"istio.io/dataplane-mode": "ambient"})),
        ("shop", json!({"istio.io/rev": "prod"})),
        ("bank", json!({})),
    ] {
        api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})).await;
    }
    let pod = |namespace: &str, name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
            "spec": {"containers": []},
        })
    };
    let injected = json!({"sidecar.istio.io/status": json!({"revision": "canary"}).to_string()});
    for pod in [
        pod("shop", "cart", injected.clone()),
        pod("shop", "new", json!({})),
        pod("mesh", "other", json!({})),
        pod("bank", "teller", json!({})),
    ] {
        api.apply(pod).await;
    }
    let values = json!({"global": {"hub": "registry.example/istio", "tag": "1.31", "proxy": {"image": "proxyv2"}}});
    api.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istio-sidecar-injector-canary", "labels": {"istio.io/rev": "canary"}},
        "data": {"values": values.to_string()},
    }))
    .await;
    let service = json!({"namespace": "istio-system", "name": "istiod-canary", "path": "/inject", "port": 443});
    api.apply(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "istio-revision-tag-prod", "labels": {"istio.io/rev": "canary", "istio.io/tag": "prod"}},
        "webhooks": [{
            "name": "rev.namespace.sidecar-injector.istio.io",
            "clientConfig": {"service": service, "caBundle": STANDARD.encode(include_str!("../../../src/ctl/tests/recorded/certificate.pem"))},
            "namespaceSelector": {"matchExpressions": [{"key": "istio.io/rev", "operator": "In", "values": ["prod"]}]},
        }],
    }))
    .await;
    let expected = "\
NAMESPACE ISTIO-REVISION POD-REVISIONS
bank                     <non-Istio>: 1
shop      canary         <non-Istio>: 1 NEEDS RESTART: 1
shop      canary         canary: 1

NAMESPACES INJECTOR-HOOK           ISTIO-REVISION SIDECAR-IMAGE                       SERVER                                 CA-BUNDLE
shop       istio-revision-tag-prod canary         registry.example/istio/proxyv2:1.31 istiod-canary.istio-system:443/inject valid until 2036-01-01
";
    let listed = ctl(&directory, &list).await;
    let squeezed = |text: &str| {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!((listed.code, squeezed(&listed.out)), (0, squeezed(expected)), "{}", listed.errors);
    let json = ctl(&directory, &[&list[..], &["-n", "shop", "-o", "json"]].concat()).await.json();
    assert_eq!(
        (&json["namespaces"][0]["pods"], &json["namespaces"][0]["injectedPods"]),
        (&json!(2), &json!(1)),
        "{json}"
    );
    assert_eq!((&json["namespaces"][1], &json["injectors"][0]["tag"]), (&Value::Null, &json!("prod")), "{json}");
    let unknown = ctl(&directory, &["x", "injector", "list", "-n", "none"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (1, ""), "{}", unknown.errors);
    assert!(unknown.errors.contains("there is no namespace \"none\""), "{}", unknown.errors);
}
