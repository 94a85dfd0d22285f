//! Runs `sluicectl analyze` on files.

use std::io::Write;
use std::process::{Command, Output};

const ROUTES: &str = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routes, namespace: shop}
spec:
  hosts: [shop.test]
  gateways:
  - mesh
  - edge
";

fn analyze(text: &str, args: &[&str]) -> Output {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
    command.args(["analyze", "--use-kube=false"]).args(args).arg(file.path()).output().expect("it runs")
}

#[test]
fn messages_have_code_object_file_and_line() {
    let output = analyze(ROUTES, &["-A"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.lines().find(|line| line.contains("IST0101")).expect("a message");
    assert!(line.starts_with("Error [IST0101] (VirtualService routes.shop "), "{line}");
    assert!(line.contains(".yaml:8) gateway \"edge\" does not exist"), "{line}");
    assert_eq!(output.status.code(), Some(79));
}

#[test]
fn exit_code_depends_on_threshold_namespace_and_suppression() {
    let code = |text: &str, args: &[&str]| analyze(text, args).status.code();
    assert_eq!(code(ROUTES, &["-n", "other"]), Some(0));
    assert_eq!(code(ROUTES, &["-n", "shop", "-o", "json"]), Some(0));
    let suppressed = ["-n", "shop", "-S", "IST0101=VirtualService *.shop", "-S", "IST0106=*"];
    assert_eq!(code(ROUTES, &suppressed), Some(0));
    assert_eq!(code(ROUTES, &[&suppressed[..], &["--failure-threshold", "Warning"]].concat()), Some(79));
    assert_eq!(code("a: b\n", &["-A"]), Some(65));
    assert_eq!(code("a: b\n", &["-A", "--ignore-unknown"]), Some(0));
}

#[test]
fn json_names_origin_reference_and_documentation() {
    let output = analyze(ROUTES, &["-A", "-o", "json"]);
    let messages: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let message = messages.iter().find(|message| message["code"] == "IST0101").expect("a message");
    assert_eq!(message["origin"], "VirtualService routes.shop");
    assert_eq!(message["level"], "Error");
    assert!(message["reference"].as_str().is_some_and(|reference| reference.ends_with(".yaml:8")), "{message}");
    let url = "https://istio.io/latest/docs/reference/config/analysis/ist0101/";
    assert_eq!(message["documentationUrl"], url);
}

#[test]
fn files_alone_are_not_compared_with_services_that_they_do_not_have() {
    let route = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routes, namespace: shop}
spec: {hosts: [shop.test], http: [{route: [{destination: {host: web}}]}]}
";
    let service = "\
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
";
    let alone = analyze(route, &["-A"]);
    assert_eq!((alone.stdout.as_slice(), alone.status.code()), (&b""[..], Some(0)));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("analyzers are left out"));
    let with_services = analyze(&format!("{route}{service}"), &["-A"]);
    assert!(String::from_utf8_lossy(&with_services.stdout).contains("[IST0101] (VirtualService routes.shop "));
    assert_eq!(with_services.status.code(), Some(79));
}
