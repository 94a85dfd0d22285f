//! Runs the `sluicectl` binary on files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const INVALID_TIMEOUT: &str = "\
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
kind: StatefulSet
metadata: {name: cart}
";
const UNKNOWN_FIELD: &str = "\
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: all, namespace: shop}
spec:
  mtsl: {mode: STRICT}
";
const WARNING: &str = "\
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: all, namespace: shop}
spec:
  tracing:
  - providers: [{name: a}, {name: b}]
";
const VALID: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: all}\n";

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
fn findings_have_file_line_and_field() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("deep/.hidden")).expect("directories");
    for (name, content) in [
        ("deep/broken.yaml", INVALID_TIMEOUT),
        ("deep/warning.yml", WARNING),
        ("fine.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#),
        ("deep/.hidden/no.yaml", "a: ["),
        ("readme.md", "a: ["),
    ] {
        std::fs::write(dir.path().join(name), content).expect("a file");
    }
    let expected = "\
deep/broken.yaml:10:5: VirtualService shop/routes: spec.http[0].timeout: a duration must be at least 1ms, found 100µs
deep/warning.yml:6:5: warning: Telemetry shop/all: spec.tracing[0].providers: only the first provider is used
";
    let all = run(&["validate", "-f", "."], dir.path(), "");
    assert_eq!(text(&all.stdout).replace("./", ""), expected);
    assert_eq!(text(&all.stderr), "3 files, 3 objects: 1 error, 1 warning; 1 object of other kinds skipped\n");
    assert_eq!(all.status.code(), Some(1));

    let warning = run(&["validate", "deep/warning.yml"], dir.path(), "");
    assert_eq!(warning.status.code(), Some(0), "a warning is not an error");
    let strict = run(&["validate", "--strict", "-f", "deep/warning.yml"], dir.path(), "");
    assert_eq!(strict.status.code(), Some(1));
    let missing = run(&["validate", "-f", "deep/broken.yaml", "-f", "missing.yaml"], dir.path(), "");
    assert_eq!(missing.status.code(), Some(2), "an unreadable file has precedence");
    assert!(text(&missing.stderr).contains("missing.yaml: cannot read: No such file"), "{}", text(&missing.stderr));
    assert!(text(&missing.stdout).contains("spec.http[0].timeout"), "the readable file is validated");
}

#[test]
fn unknown_field_is_an_error_with_a_suggestion() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(&["validate", "-f", "-"], dir.path(), UNKNOWN_FIELD);
    let reason = "unknown field, it is ignored; did you mean `mtls`?";
    assert_eq!(text(&output.stdout), format!("stdin:5:3: PeerAuthentication shop/all: spec.mtsl: {reason}\n"));
    assert_eq!(output.status.code(), Some(1));
    let json = run(&["validate", "-o", "json", "-"], dir.path(), UNKNOWN_FIELD);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let finding = &json["findings"][0];
    assert_eq!((&finding["severity"], &finding["applies"]), (&"error".into(), &true.into()));

    let no_near_name = UNKNOWN_FIELD.replace("mtsl", "colour");
    let output = run(&["validate", "-"], dir.path(), &no_near_name);
    assert!(text(&output.stdout).ends_with("spec.colour: unknown field, it is ignored\n"), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
    let top_level = UNKNOWN_FIELD.replace("spec:\n  mtsl: {mode: STRICT}", "spce: {}");
    let output = run(&["validate", "-"], dir.path(), &top_level);
    assert!(text(&output.stdout).contains("spce: unknown field"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("did you mean `spec`?"), "{}", text(&output.stdout));
    let mesh = run(&["validate", "-"], dir.path(), "trustDomian: a.example\nrootNamespace: istio-system\n");
    assert!(text(&mesh.stdout).contains("trustDomian: unknown field"), "{}", text(&mesh.stdout));
    assert_eq!(mesh.status.code(), Some(1));
}

/// Runs the command as a user that file permissions apply to: they do not apply to root.
fn run_unprivileged(arguments: &[&str], dir: &Path) -> Output {
    use std::os::unix::process::CommandExt as _;
    let binary = dir.join("sluicectl");
    // `cp` writes the copy. A child process of another test would inherit the file if this process had it open for writing,
    // and the copy could not be executed then (ETXTBSY).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sluicectl")).arg(&binary).status().expect("run cp");
    assert!(copied.success(), "copy the binary");
    let mut command = Command::new(&binary);
    command.args(arguments).current_dir(dir);
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if is_root {
        command.uid(65534).gid(65534);
    }
    command.output().expect("run sluicectl")
}

#[test]
fn readable_files_beside_an_unreadable_directory_are_validated() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config");
    for (name, mode) in [("a-no-access", 0o000), ("b-list-only", 0o444), ("c", 0o755)] {
        std::fs::create_dir_all(config.join(name)).expect("a directory");
        std::fs::write(config.join(name).join("routes.yaml"), INVALID_TIMEOUT).expect("a file");
        std::fs::create_dir(config.join(name).join("below")).expect("a directory");
        std::fs::set_permissions(config.join(name), std::fs::Permissions::from_mode(mode)).expect("permissions");
    }
    std::fs::write(config.join("valid.yaml"), VALID).expect("a file");
    for open in [dir.path(), &config] {
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    }
    let output = run_unprivileged(&["validate", "config"], dir.path());
    for name in ["a-no-access", "b-list-only"] {
        std::fs::set_permissions(config.join(name), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    }
    let (findings, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(findings.starts_with("config/c/routes.yaml:10:5: ") && findings.lines().count() == 1, "{findings}");
    assert!(errors.starts_with("2 files, 2 objects: 1 error, 0 warnings"), "{errors}");
    for line in [
        "sluicectl: config/a-no-access: cannot list: Permission denied",
        "sluicectl: config/b-list-only/routes.yaml: cannot read: Permission denied",
        "sluicectl: config/b-list-only/below: cannot list: Permission denied",
    ] {
        assert!(errors.contains(line), "{errors}");
    }
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn standard_input_is_read_and_json_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        run(&["validate", "-f", "-", "-o", "json"], dir.path(), &format!("{VALID}---\n{INVALID_TIMEOUT}---\na: [\n"));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["files"], &json["objects"], &json["skipped"]), (&1.into(), &2.into(), &1.into()));
    let expected = serde_json::json!({
        "file": "stdin", "line": 14, "column": 5, "kind": "VirtualService", "namespace": "shop", "name": "routes",
        "field": "spec.http[0].timeout", "message": "a duration must be at least 1ms, found 100µs", "severity": "error", "applies": true,
    });
    assert_eq!(json["findings"][0], expected);
    assert_eq!((&json["findings"][1]["line"], &json["findings"][1]["applies"]), (&22.into(), &false.into()));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(run(&["validate", "-"], dir.path(), VALID).status.code(), Some(0));
}

#[test]
fn installations_are_validated_as_by_install() {
    let dir = tempfile::tempdir().expect("a directory");
    let operator =
        "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nmetadata: {name: mesh}\nspec:\n  profile: demo\n";
    let valid = run(&["validate", "-"], dir.path(), operator);
    assert_eq!((text(&valid.stdout), valid.status.code()), ("", Some(0)), "{}", text(&valid.stderr));
    assert!(text(&valid.stderr).starts_with("1 file, 1 object: "), "{}", text(&valid.stderr));
    for (field, line) in [
        ("  meshconfig: {}", "stdin:6:3: IstioOperator mesh: spec.meshconfig: this field is not known"),
        (
            "  values: {pilot: {x: 1}}",
            "IstioOperator mesh: spec.values: chart sluice: pilot.x: this value is not known",
        ),
    ] {
        let refused = run(&["v", "-"], dir.path(), &format!("{operator}{field}\n"));
        assert!(text(&refused.stdout).contains(line), "{}", text(&refused.stdout));
        assert_eq!(refused.status.code(), Some(1));
    }
}

#[test]
fn ports_without_a_protocol_and_workloads_without_labels_are_warnings() {
    let dir = tempfile::tempdir().expect("a directory");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\nspec:\n  ports:\n  - {name: http, port: 80}\n  \
                   - {name: web, port: 81}\n  - {port: 82}\n  - {name: dns, port: 53, protocol: UDP}\n  - {name: a, port: 83, appProtocol: http2}\n";
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: cart, namespace: shop}\nspec:\n  template:\n    metadata:\n      labels: {app: cart}\n";
    let output = run(&["validate", "-"], dir.path(), &format!("{service}---\n{deployment}"));
    let expected = [
        "stdin:7:5: warning: Service shop/cart: spec.ports[1]: name \"web\" does not begin with a protocol",
        "stdin:8:5: warning: Service shop/cart: spec.ports[2]: the port has neither appProtocol nor a name",
        "stdin:18:7: warning: Deployment shop/cart: spec.template.metadata.labels: none of the labels service.istio.io/canonical-revision",
    ];
    let findings = text(&output.stdout);
    assert_eq!((findings.lines().count(), output.status.code()), (expected.len(), Some(0)), "{findings}");
    for (line, expected) in findings.lines().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(run(&["validate", "--strict", "-"], dir.path(), service).status.code(), Some(1));
}

#[test]
fn mesh_configs_are_validated() {
    let dir = tempfile::tempdir().expect("a directory");
    let config_map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: \
                      |-\n    defaultConfig:\n      statusPort: 0\n";
    let output = run(&["validate", "-f", "-"], dir.path(), config_map);
    let path = "ConfigMap istio-system/istio: data.mesh.defaultConfig.statusPort: expected a port from 1 to 65535";
    assert_eq!(text(&output.stdout), format!("stdin:7:7: {path}\n"));
    let output = run(&["validate", "-f", "-"], dir.path(), "connectTimeout: 2h\n");
    assert_eq!(text(&output.stdout), "stdin:1:1: connectTimeout: a duration must be at most 1h, found 7200s\n");
}

#[test]
fn help_and_version_are_printed() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(run(&["validate"], dir.path(), "").status.code(), Some(2));
    assert_eq!(run(&["validate", "--no-such-flag"], dir.path(), "").status.code(), Some(2));
    let help = run(&["validate", "--help"], dir.path(), "");
    assert!(text(&help.stdout).contains("helm template") && text(&help.stdout).contains("[default: table]"));
    assert!(text(&help.stdout).contains("2  invalid command line"), "{}", text(&help.stdout));
    assert_eq!(help.status.code(), Some(0));
    let version = format!("client version: {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&run(&["version", "--remote=false"], dir.path(), "").stdout), version);
    let completion = run(&["completion", "bash"], dir.path(), "");
    assert!(text(&completion.stdout).contains("proxy-status"), "{}", text(&completion.stderr));
}
