//! Runs the subcommands that install without a cluster: their input, output and exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const FILE: &str = "\
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: minimal
  components: {base: {enabled: false}}
  meshConfig: {accessLogFile: /dev/stdout}
";

fn sluicectl(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
    command.args(arguments).env("KUBECONFIG", "/nowhere/kubeconfig").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start sluicectl");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("write its input");
    child.wait_with_output().expect("its output")
}

#[track_caller]
fn fails(arguments: &[&str], input: &str, code: i32, expected: &str) {
    let output = sluicectl(arguments, input);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(errors.contains(expected), "{errors}");
    assert!(output.stdout.is_empty(), "nothing is printed");
}

#[test]
fn manifests_are_printed_as_yaml_and_json() {
    let yaml = sluicectl(&["manifest", "generate", "-f", "-", "--set", "values.pilot.replicaCount=3"], FILE);
    assert!(yaml.status.success(), "{}", String::from_utf8_lossy(&yaml.stderr));
    let yaml = String::from_utf8(yaml.stdout).expect("UTF-8");
    assert!(yaml.starts_with("---\napiVersion: ") && yaml.contains("\nkind: Deployment\n"), "{yaml}");
    assert!(yaml.contains("\n    accessLogFile: /dev/stdout\n"), "the mesh config is a text of several lines: {yaml}");

    let json = sluicectl(&["manifest", "generate", "-f", "-", "-o", "json"], FILE);
    let list: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let items = list["items"].as_array().expect("items");
    assert_eq!(items.len(), yaml.matches("---\napiVersion: ").count());
    assert!(items.iter().all(|item| item["metadata"]["labels"]["operator.istio.io/managed"].is_null()));
}

#[test]
fn installation_is_translated_into_releases_of_helm() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("new/helm");
    let gateways =
        "components: {base: {enabled: false}, pilot: {k8s: {replicaCount: 2}}, ingressGateways: [{namespace: edge}]}";
    let file = FILE.replace("components: {base: {enabled: false}}", gateways);
    let translate = |file: &str| {
        let arguments = ["manifest", "translate", "-f", "-", "-o", output.to_str().expect("UTF-8")];
        let done = sluicectl(&arguments, file);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let entries = std::fs::read_dir(&output).expect("a directory").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect::<std::collections::BTreeSet<_>>()
    };
    let common = [
        "README.md",
        "install-istio-ingressgateway.edge.sh",
        "install-istiod.istio-system.sh",
        "istio-ingressgateway.edge-values.yaml",
        "istiod.istio-system-values.yaml",
    ];
    let differing = ["diff-istiod.istio-system-helm.yaml", "diff-istiod.istio-system-sluicectl.yaml"];
    let expected = common.iter().chain(&differing).map(|name| (*name).to_owned()).collect();
    assert_eq!(translate(&file), expected);
    let read = |name: &str| std::fs::read_to_string(output.join(name)).expect(name);
    assert!(read("istiod.istio-system-values.yaml").contains("\n  accessLogFile: /dev/stdout\n"));
    assert!(read("README.md").contains("will be lost: `diff diff-istiod.istio-system-sluicectl.yaml"));
    let checked = Command::new("bash").arg("-n").arg(output.join(common[2])).status().expect("run bash");
    assert!(checked.success(), "{}", read(common[2]));
    // What no longer differs is removed.
    let expected = common.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(translate(&file.replace("replicaCount: 2", "")), expected);
}

#[test]
fn invalid_input_is_refused_with_file_and_path() {
    let generate = ["manifest", "generate", "-f", "-"];
    fails(&generate, "kind: Pod", 2, "stdin: kind \"Pod\" of null is not IstioOperator");
    fails(&generate, &FILE.replace("meshConfig", "meshconfig"), 2, "spec.meshconfig: this field is not known");
    fails(
        &[&generate[..], &["--set", "values.pilot.x=1"]].concat(),
        FILE,
        2,
        "chart sluice: pilot.x: this value is not known",
    );
    fails(&["manifest", "generate", "-f", "/nowhere/mesh.yaml"], "", 2, "/nowhere/mesh.yaml: cannot read");
    fails(&["manifest", "generate", "-d", "/nowhere"], "", 2, "/nowhere/base: No such file");
    fails(&[&generate[..], &["--kube-version", "1.20"]].concat(), FILE, 2, "Kubernetes v1.20 does not meet >=1.25.0-0");
}

#[test]
fn command_lines_are_checked() {
    fails(&["install", "--readiness-timeout", "5"], "", 2, "a number with the unit ms, s, m or h is expected");
    fails(&["uninstall"], "", 2, "--revision <REVISION>");
    fails(&["uninstall", "--purge", "--revision", "a"], "", 2, "cannot be used with");
    fails(&["manifest"], "", 2, "generate");
    fails(&["manifest", "translate", "-f", "-", "-o", "/dev/null/x"], FILE, 2, "/dev/null/x: ");
}

#[test]
fn unusable_kubeconfig_is_named() {
    let install = ["install", "-f", "-", "-y"];
    fails(&[&install[..], &["-c", "/nowhere/config"]].concat(), FILE, 2, "/nowhere/config: ");
    fails(&[&install[..], &["--context", "none"]].concat(), FILE, 2, "kubeconfig: ");
}
