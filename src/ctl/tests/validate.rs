//! The real binary on real files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BROKEN: &str = "\
# A comment
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: routes
  namespace: shop
spec:
  hosts: [shop.test]
  http:
  - timeout: 100us
    route:
    - destination: {host: cart}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart}
";
const ADVICE: &str = "\
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: shop}
spec:
  mtsl: {mode: STRICT}
";
const FINE: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: all}\n";

fn run(arguments: &[&str], dir: &Path, input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sluicectl"))
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start sluicectl");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("write to it");
    child.wait_with_output().expect("its end")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn what_is_wrong_is_told_where_it_stands() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("deep/.hidden")).expect("directories");
    for (name, content) in [
        ("deep/broken.yaml", BROKEN),
        ("deep/advice.yml", ADVICE),
        ("fine.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#),
        ("deep/.hidden/no.yaml", "a: ["),
        ("readme.md", "a: ["),
    ] {
        std::fs::write(dir.path().join(name), content).expect("a file");
    }
    let told = "\
deep/advice.yml:5:3: warning: PeerAuthentication shop/all: spec.mtsl: unknown field
deep/broken.yaml:10:5: VirtualService shop/routes: spec.http[0].timeout: a duration is at least 1ms
";
    let all = run(&["validate", "-f", "."], dir.path(), "");
    assert_eq!(text(&all.stdout).replace("./", ""), told);
    assert_eq!(text(&all.stderr), "3 files, 3 objects: 1 error, 1 warning; 1 object of other kinds skipped\n");
    assert_eq!(all.status.code(), Some(1));

    let advice = run(&["validate", "deep/advice.yml"], dir.path(), "");
    assert_eq!(advice.status.code(), Some(0), "a warning is none of the errors");
    let strict = run(&["validate", "--strict", "-f", "deep/advice.yml"], dir.path(), "");
    assert_eq!(strict.status.code(), Some(1));
    let missing = run(&["validate", "-f", "deep/broken.yaml", "-f", "missing.yaml"], dir.path(), "");
    assert_eq!(missing.status.code(), Some(2), "unreadable outweighs wrong");
    assert!(text(&missing.stderr).contains("missing.yaml: No such file"), "{}", text(&missing.stderr));
    assert!(text(&missing.stdout).contains("spec.http[0].timeout"), "the rest is told all the same");
}

#[test]
fn standard_input_and_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(&["validate", "-f", "-", "-o", "json"], dir.path(), &format!("{FINE}---\n{BROKEN}---\na: [\n"));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["files"], &json["objects"], &json["skipped"]), (&1.into(), &2.into(), &1.into()));
    let expected = serde_json::json!({
        "file": "stdin", "line": 14, "column": 5, "kind": "VirtualService", "namespace": "shop", "name": "routes",
        "field": "spec.http[0].timeout", "message": "a duration is at least 1ms", "severity": "error", "applies": true,
    });
    assert_eq!(json["findings"][0], expected);
    assert_eq!((&json["findings"][1]["line"], &json["findings"][1]["applies"]), (&22.into(), &false.into()));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(run(&["validate", "-"], dir.path(), FINE).status.code(), Some(0));
}

#[test]
fn mesh_configs_are_validated_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let config_map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: \
                      |-\n    defaultConfig:\n      statusPort: 0\n";
    let output = run(&["validate", "-f", "-"], dir.path(), config_map);
    let path = "ConfigMap istio-system/istio: data.mesh.defaultConfig.statusPort: a port number is 1 to 65535";
    assert_eq!(text(&output.stdout), format!("stdin:7:7: {path}\n"));
    let output = run(&["validate", "-f", "-"], dir.path(), "connectTimeout: 2h\n");
    assert_eq!(text(&output.stdout), "stdin:1:1: connectTimeout: an hour is the most\n");
}

#[test]
fn usage_and_version() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(run(&["validate"], dir.path(), "").status.code(), Some(2));
    assert_eq!(run(&["validate", "--unheard-of"], dir.path(), "").status.code(), Some(2));
    let help = run(&["validate", "--help"], dir.path(), "");
    assert!(text(&help.stdout).contains("helm template") && text(&help.stdout).contains("[default: text]"));
    assert_eq!(help.status.code(), Some(0));
    let version = format!("sluice {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&run(&["version"], dir.path(), "").stdout), version);
}
