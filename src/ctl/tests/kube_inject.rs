//! Runs `sluicectl kube-inject` with files: its input, output and exit codes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_documents};
use tempfile::TempDir;

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata:
      labels: {app: cart}
    spec:
      containers:
      - {name: app, image: cart}
";
const SERVICE: &str = "\
# The Service stays as it is written.
apiVersion: v1
kind: Service
metadata: {name: cart,   namespace: shop}
";

fn sluicectl(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
    command.args(arguments).env("KUBECONFIG", "/nowhere/kubeconfig").output().expect("sluicectl runs")
}

/// A directory with the configuration that an installation has, as its ConfigMaps contain it.
struct Installed {
    directory: TempDir,
}

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let printed = sluicectl(&[
            "manifest",
            "generate",
            "--set",
            "profile=minimal",
            "--set",
            "components.base.enabled=false",
            "-o",
            "json",
        ]);
        let list: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
        let text_of = |name: &str, key: &str| {
            let items = list["items"].as_array().expect("items").iter();
            let mut maps = items.filter(|item| item["kind"] == "ConfigMap" && item["metadata"]["name"] == name);
            maps.next().expect(name)["data"][key].as_str().expect(key).to_owned()
        };
        let installed = Self { directory };
        installed.write("config.yaml", &text_of("istio-sidecar-injector", "config"));
        installed.write("values.json", &text_of("istio-sidecar-injector", "values"));
        installed.write("mesh.yaml", &text_of("istio", "mesh"));
        installed
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(Path::new(&path), text).expect("written");
        path
    }

    fn inject(&self, objects: &str, further: &[&str]) -> Output {
        let file = self.write("objects.yaml", objects);
        let files = ["config.yaml", "values.json", "mesh.yaml"].map(|name| self.path(name));
        let [config, values, mesh] = &files;
        let arguments = ["kube-inject", "-f", &file, "--injectConfigFile", config, "--valuesFile", values];
        sluicectl(&[&arguments[..], &["--meshConfigFile", mesh], further].concat())
    }
}

fn documents(output: &Output) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert!(text.ends_with("---\n"), "{text}");
    let documents = parse_documents(&text, &Limits::default()).into_iter();
    documents.map(|document| document.expect("YAML").value).collect()
}

/// Names of all containers of a pod template.
fn containers(template: &Value) -> Vec<String> {
    let of = |list: &str| template["spec"][list].as_array().cloned().unwrap_or_default();
    let all = of("initContainers").into_iter().chain(of("containers"));
    all.map(|container| container["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn pod_templates_are_injected_and_other_documents_stay() {
    let installed = Installed::new();
    let output = installed.inject(&format!("{SERVICE}---\n{DEPLOYMENT}"), &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let objects = documents(&output);
    assert!(text.starts_with(SERVICE), "{text}");
    assert_eq!(objects.len(), 2);
    let template = &objects[1]["spec"]["template"];
    assert_eq!(containers(template), ["istio-init", "app", "istio-proxy"]);
    let metadata = &template["metadata"];
    assert!(metadata["annotations"]["sidecar.istio.io/status"].is_string(), "{metadata}");
    for field in ["generateName", "ownerReferences", "namespace", "name"] {
        assert_eq!(metadata[field], Value::Null, "a template has no {field}");
    }
    let proxy = &template["spec"]["containers"][1];
    let workload = proxy["env"].as_array().expect("variables").iter().find(|it| it["name"] == "ISTIO_META_OWNER");
    let owner = workload.expect("the owner")["value"].as_str();
    assert_eq!(owner, Some("kubernetes://apis/apps/v1/namespaces/shop/deployments/cart"));

    // The result may be injected again.
    let again = documents(&installed.inject(&text, &[]));
    assert_eq!(again, objects);
    let native = documents(&installed.inject(DEPLOYMENT, &["--nativeSidecars"]));
    assert_eq!(containers(&native[0]["spec"]["template"]), ["istio-init", "istio-proxy", "app"]);
}

#[test]
fn items_of_lists_are_injected() {
    let pod = "{metadata: {name: a, namespace: shop}, spec: {containers: [{name: app, image: a}]}}";
    let job = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: b}, spec: {jobTemplate: {spec: {template: \
               {spec: {containers: [{name: app, image: b}]}}}}}}";
    let text = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {job}\n- {{apiVersion: v1, kind: PodList, items: [{pod}]}}\n- {{apiVersion: v1, kind: Secret}}\n"
    );
    let list = &documents(&Installed::new().inject(&text, &[]))[0];
    let cron_job = &list["items"][0]["spec"]["jobTemplate"]["spec"]["template"];
    assert!(containers(cron_job).contains(&"istio-proxy".to_owned()), "{cron_job}");
    let pod = &list["items"][1]["items"][0];
    assert!(containers(pod).contains(&"istio-proxy".to_owned()), "{pod}");
    assert_eq!((&pod["kind"], &pod["metadata"]["namespace"]), (&"Pod".into(), &"shop".into()));
    assert_eq!(list["items"][2]["kind"], "Secret");
}

#[test]
fn workloads_without_injection_are_named() {
    let disabled =
        DEPLOYMENT.replace("{app: cart}\n    spec", "{app: cart, sidecar.istio.io/inject: \"false\"}\n    spec");
    let host_network =
        DEPLOYMENT.replace("    spec:\n      containers", "    spec:\n      hostNetwork: true\n      containers");
    let output = Installed::new().inject(&format!("{disabled}---\n{host_network}"), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, format!("{disabled}---\n{host_network}---\n"));
    let expected = "\
===> Skipping injection because Deployment \"shop/cart\" has sidecar injection disabled
===> Skipping injection because Deployment \"shop/cart\" has host networking enabled
";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_template_alone_and_a_disabled_policy_inject() {
    let installed = Installed::new();
    let template = "metadata:\n  labels:\n    own: {{ .DeploymentMeta.Name }}\n";
    installed.write("config.yaml", template);
    let labels = |output: &Output| documents(output)[0]["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(labels(&installed.inject(DEPLOYMENT, &[]))["own"], "cart");
    let config = "policy: disabled\ntemplates:\n  sidecar: |\n    metadata: {labels: {own: \"x\"}}\n";
    installed.write("config.yaml", config);
    assert_eq!(labels(&installed.inject(DEPLOYMENT, &[]))["own"], "x");
}

#[test]
fn denied_pods_and_unreadable_input_print_nothing() {
    let installed = Installed::new();
    let out = installed.path("out.yaml");
    let fails = |output: &Output, code: i32, expected: &str| {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(expected) && output.stdout.is_empty(), "{errors}");
        assert!(!Path::new(&out).exists(), "{expected}");
    };
    let invalid = DEPLOYMENT.replace(
        "{app: cart}\n    spec",
        "{app: cart}\n      annotations: {status.sidecar.istio.io/port: nine}\n    spec",
    );
    let output = installed.inject(&format!("{DEPLOYMENT}---\n{invalid}"), &["-o", &out]);
    fails(&output, 1, "objects.yaml: line 13: Deployment \"shop/cart\": failed to run injection template");
    let empty = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a}\nspec: {}\n";
    fails(&installed.inject(empty, &["-o", &out]), 1, "spec.template.spec is required");
    fails(&installed.inject("a: [", &["-o", &out]), 2, "objects.yaml: line ");
    let arguments = ["kube-inject", "-f", "/nowhere/objects.yaml"];
    fails(&sluicectl(&arguments), 2, "--filename /nowhere/objects.yaml");
    let file = installed.path("objects.yaml");
    fails(&sluicectl(&["kube-inject", "-f", &file]), 3, "kubeconfig");
    installed.write("values.json", "[]");
    fails(&installed.inject(DEPLOYMENT, &[]), 2, "values: an object is expected");

    let installed = Installed::new();
    let out = installed.path("out.yaml");
    let printed = installed.inject(DEPLOYMENT, &[]);
    let written = installed.inject(DEPLOYMENT, &["-o", &out]);
    assert!(written.status.success() && written.stdout.is_empty());
    assert_eq!(std::fs::read(out).expect("written"), printed.stdout);
}
