//! `sluicectl analyze` on clusters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_testkit::api_server::ApiServer;

use super::mesh::{Answer, run};

fn service(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": port}]},
    })
}

/// The Secret with kubeconfigs of other clusters, by name.
fn clusters(kubeconfigs: &[(&str, String)]) -> Value {
    let data: Value = kubeconfigs
        .iter()
        .map(|(name, text)| ((*name).to_owned(), json!(STANDARD.encode(text))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {"name": "remotes", "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
    })
}

async fn analyze(server: &ApiServer, arguments: &[&str]) -> Answer {
    let file = tempfile::NamedTempFile::new().expect("a file");
    server.write_kubeconfig(file.path()).expect("written");
    let kubeconfig = format!("--kubeconfig={}", file.path().display());
    let only = "--analyzer=services.MultiClusterServiceAnalyzer";
    run(&[&["analyze", "-A", &kubeconfig, only], arguments].concat()).await
}

#[tokio::test]
async fn services_of_remote_clusters_are_compared() {
    let (home, east) = (ApiServer::start().await.expect("a server"), ApiServer::start().await.expect("a server"));
    home.apply(service(80));
    east.apply(service(81));
    let alone = analyze(&home, &[]).await;
    assert_eq!((alone.out.as_str(), alone.code), ("", 0), "{}", alone.errors);

    home.apply(clusters(&[("east", east.kubeconfig(json!({})).to_string())]));
    let differs = analyze(&home, &["--failure-threshold=Warning"]).await;
    assert!(differs.out.starts_with("Warning [IST0170] [cluster-default] (Service web.shop) "), "{}", differs.out);
    assert!(differs.out.contains("default, east: the ports differ"), "{}", differs.out);
    assert_eq!(differs.code, 79);
    let answer = analyze(&home, &["-o", "json"]).await.json();
    assert_eq!((&answer[0]["code"], &answer[0]["cluster"]), (&json!("IST0170"), &json!("default")));

    east.apply(service(80));
    let equal = analyze(&home, &[]).await;
    assert_eq!((equal.out.as_str(), equal.errors.contains("No messages")), ("", true), "{}", equal.errors);
}

#[tokio::test]
async fn kubeconfig_of_a_secret_that_runs_programs_is_refused() {
    let (home, east) = (ApiServer::start().await.expect("a server"), ApiServer::start().await.expect("a server"));
    home.apply(service(80));
    east.apply(service(81));
    let directory = tempfile::tempdir().expect("a directory");
    let marker = directory.path().join("ran");
    let exec = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "touch", "args": [marker.display().to_string()],
    }});
    home.apply(clusters(&[("east", east.kubeconfig(exec).to_string()), ("west", "hidden: [".to_owned())]));
    let refused = analyze(&home, &[]).await;
    assert_eq!((refused.out.as_str(), refused.code), ("", 0), "{}", refused.errors);
    for cluster in ["cluster east: the kubeconfig in Secret remotes.istio-system", "cluster west:"] {
        assert!(refused.errors.contains(cluster), "{}", refused.errors);
    }
    assert!(!refused.errors.contains("hidden") && !marker.exists(), "{}", refused.errors);
    assert_eq!(east.count("list", "services"), 0);
}
