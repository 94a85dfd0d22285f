//! `sluicectl preview` on the objects of the demo.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/demo")
}

fn preview(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicectl"))
        .args(["preview", "-f"])
        .arg(directory)
        .args(arguments)
        .output()
        .expect("run sluicectl")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn sidecar_receives_clusters_listeners_and_routes_of_the_mesh() {
    let output = preview(&demo(), &["--pod", "counter.teashop"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for name in ["outbound|80|v1|kettle.teashop.svc.cluster.local", "virtualInbound", "  80  "] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn route_tables_contain_the_routes_of_virtual_services() {
    let output =
        preview(&demo(), &["--pod", "counter.teashop", "--resource-types", "rds", "--name", "80", "-o", "json"]);
    let routes = json(&output);
    let hosts = routes["routes"][0]["virtualHosts"].as_array().expect("virtual hosts").clone();
    let kettle = hosts.iter().find(|host| host["name"] == "kettle.teashop.svc.cluster.local:80").expect("the kettle");
    assert_eq!(kettle["routes"][0]["route"]["cluster"], "outbound|80|v1|kettle.teashop.svc.cluster.local");
}

#[test]
fn gateway_receives_the_listeners_of_its_servers() {
    let output =
        preview(&demo(), &["--pod", "front-door.teashop", "--proxy-type", "router", "--resource-types", "lds"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("0.0.0.0_8080"), "{output:?}");
}

#[test]
fn services_without_slices_are_reported_with_the_deployments_beside_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let objects = "\
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: default}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ratings-v1}
";
    std::fs::write(directory.path().join("bookinfo.yaml"), objects).expect("write");
    let node = directory.path().join("node.txt");
    std::fs::write(&node, r#"{"id": "sidecar~10.0.0.9~web.default~default.svc.cluster.local"}"#).expect("write");
    let output = preview(directory.path(), &["--node", node.to_str().expect("a path"), "--resource-types", "cds"]);
    assert!(output.status.success(), "{output:?}");
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(notes.contains("default/ratings") && notes.contains("Deployment default/ratings-v1"), "{notes}");
}

#[test]
fn unknown_pod_names_the_known_ones() {
    let output = preview(&demo(), &["--pod", "kettle.teashop"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("kettle-v1.teashop"), "{error}");
}
