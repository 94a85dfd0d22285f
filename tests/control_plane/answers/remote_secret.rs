//! `sluicectl create-remote-secret`: a control plane reads what it prints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until_async;

use super::mesh::run;
use super::port_forward::ForwardingCluster;

const SYSTEM: &str = "istio-system";
const READER: &str = "istio-reader-service-account";

/// A cluster with the account and the token of a reader.
async fn readable_cluster(token: &str) -> ForwardingCluster {
    let cluster = ForwardingCluster::start().await;
    for name in [SYSTEM, "kube-system"] {
        let metadata = json!({"name": name, "uid": format!("uid-of-{name}")});
        cluster.api.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    let account = json!({"namespace": SYSTEM, "name": READER});
    cluster.api.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}));
    let key = KeyPair::generate().expect("a key");
    let root = CertificateParams::new(Vec::new()).expect("parameters").self_signed(&key).expect("a certificate");
    cluster.api.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"namespace": SYSTEM, "name": "reader-token", "annotations": {"kubernetes.io/service-account.name": READER}},
        "data": {"ca.crt": STANDARD.encode(root.pem()), "token": STANDARD.encode(token)},
    }));
    cluster
}

/// The Secret as the API server stores it.
fn stored(printed: &str) -> Value {
    let mut secret = parse_value(printed, &Limits::default()).expect("one document");
    let texts = secret["stringData"].take();
    secret.as_object_mut().map(|fields| fields.remove("stringData"));
    for (name, text) in texts.as_object().into_iter().flatten() {
        secret["data"][name] = STANDARD.encode(text.as_str().expect("a text")).into();
    }
    secret
}

async fn sync_status(server: &Sluiced, cluster: &str) -> Option<String> {
    let (_, text) = server.get("/debug/clusterz").await.ok()?;
    let clusters: Value = serde_json::from_str(&text).ok()?;
    let clusters = clusters.as_array()?.iter().find(|it| it["id"] == cluster)?;
    clusters["syncStatus"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_secret_is_read_by_a_control_plane() {
    let east = readable_cluster("t0ken-of-the-reader").await;
    let printed = east.ctl(&["create-remote-secret", "--name", "east"]).await;
    assert_eq!(printed.code, 0, "{}", printed.errors);
    assert!(printed.errors.starts_with("warn: server in Kubeconfig is http://127.0.0.1:"), "{}", printed.errors);
    // From now on, only the token of the Secret is accepted.
    east.api.accept_only_tokens(&["t0ken-of-the-reader"]);

    let west = ApiServer::start().await.expect("a server");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    west.write_kubeconfig(&kubeconfig).expect("written");
    let options = Options { kubeconfig: Some(kubeconfig), ..Options::new(directory.path()) };
    let server = Sluiced::start(&options).await.expect("sluiced starts");
    west.apply(stored(&printed.out));
    until_async("the cluster is read", async || sync_status(&server, "east").await.filter(|status| status == "synced"))
        .await;
    let clusters = run(&["remote-clusters", &format!("--address=http://{}", server.http)]).await;
    assert!(clusters.out.contains("istio-system/istio-remote-secret-east"), "{}", clusters.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_accounts_and_servers_are_those_of_the_flags() {
    let east = readable_cluster("t0ken").await;
    let secret = async |arguments: &[&str]| {
        let printed = east.ctl(&[&["create-remote-secret"], arguments].concat()).await;
        assert_eq!(printed.code, 0, "{arguments:?}: {}", printed.errors);
        (parse_value(&printed.out, &Limits::default()).expect("one document"), printed.errors)
    };
    let (unnamed, _) = secret(&[]).await;
    assert_eq!(unnamed["metadata"]["annotations"]["networking.istio.io/cluster"], "uid-of-kube-system");
    assert!(unnamed["stringData"]["uid-of-kube-system"].is_string(), "{unnamed}");
    let (config, errors) = secret(&[
        "--type",
        "config",
        "--service-account",
        READER,
        "--name",
        "east",
        "--server",
        "https://api.east:6443",
    ])
    .await;
    assert_eq!(errors, "");
    assert_eq!(config["metadata"]["name"], "istio-kubeconfig");
    assert!(config["stringData"]["config"].as_str().is_some_and(|it| it.contains("https://api.east:6443")), "{config}");
    let plugin =
        ["--name", "east", "--auth-type", "plugin", "--auth-plugin-name", "gcp", "--auth-plugin-config", "a=b,c=d"];
    let (plugin, _) = secret(&plugin).await;
    let text = plugin["stringData"]["east"].as_str().expect("a kubeconfig");
    assert!(text.contains("auth-provider") && !text.contains("t0ken"), "{text}");

    let fails = async |arguments: &[&str], code: i32, reason: &str| {
        let refused = east.ctl(&[&["create-remote-secret"], arguments].concat()).await;
        assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{arguments:?}: {}", refused.errors);
        assert!(refused.errors.contains(reason), "{}", refused.errors);
    };
    fails(&["--name", "East"], 2, "--name \"East\" is not a valid DNS 1123 label").await;
    fails(&["--service-account", "none"], 1, "namespace \"istio-system\" has no service account \"none\"").await;
    fails(&["--secret-name", "none"], 1, "namespace \"istio-system\" has no Secret \"none\"").await;
    fails(&["-i", "mesh", "--create-service-account=false"], 1, "has no service account \"istio-reader").await;
    fails(&["--auth-type", "plugin"], 2, "--auth-plugin-name").await;
    east.api.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"namespace": SYSTEM, "name": "other"},
        "data": {"token": STANDARD.encode("another-secret")},
    }));
    fails(&["--secret-name", "other"], 1, "has no token of the service account istio-reader-service-account").await;
}
