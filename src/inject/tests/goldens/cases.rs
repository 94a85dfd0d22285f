//! Reads and compares cases.

#![allow(clippy::print_stdout, reason = "the score is the output of the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sluice_inject::{
    Admission, AdmissionReview, ClusterView, InjectContext, Injector, InjectorSettings, supports_native_sidecars,
};
use sluice_model::{Object, ProxyConfigResource};
use sluice_parse::yaml::{Limits, parse_value};

/// Where golden messages continue with the words of a library.
const LIBRARY_WORDS: [&str; 8] = [
    "strconv.",
    "netip.",
    "template: inject",
    "json:",
    "invalid character",
    "\u{2026}",
    "interface name",
    "quantities must match",
];
/// Texts that are JSON: annotations, and variables of containers.
const JSON_TEXTS: [&str; 6] = [
    "sidecar.istio.io/status",
    "proxy.istio.io/overrides",
    "PROXY_CONFIG",
    "ISTIO_META_POD_PORTS",
    "ISTIO_KUBE_APP_PROBERS",
    "ISTIO_PROMETHEUS_ANNOTATIONS",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn yaml(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(parse_value(&text, &Limits::default()).expect("a YAML document"))
}

/// The configuration that cases are laid over.
pub(crate) struct Reference {
    config: Value,
    values: Value,
    mesh: Value,
    /// Whether a volume without a source is equal to an empty directory, which is its default.
    has_defaults: bool,
}

impl Reference {
    /// The configuration of an Istio installation. Where it is absent, that is printed.
    pub(crate) fn find() -> Option<Self> {
        let found = Self::read();
        if found.is_none() {
            println!("skipped: SLUICE_INJECT_REFERENCE does not name a directory with the configuration of Istio");
        }
        found
    }

    fn read() -> Option<Self> {
        let named = std::env::var_os("SLUICE_INJECT_REFERENCE").map(PathBuf::from);
        let directory = named.unwrap_or_else(|| root().join("../shared/parity/inject/reference-config"));
        let read = |name: &str| yaml(&directory.join(name));
        Some(Self {
            config: read("config.yaml")?,
            values: read("values.yaml")?,
            mesh: read("mesh.yaml")?,
            has_defaults: false,
        })
    }

    /// The default templates and values of the chart.
    pub(crate) fn own() -> Self {
        let chart = root().join("manifests/charts/sluice");
        let read = |name: &str| yaml(&chart.join(name)).expect("the default configuration");
        let mesh = json!({
            "rootNamespace": "istio-system",
            "trustDomain": "cluster.local",
            "defaultConfig": {"discoveryAddress": "istiod.istio-system.svc:15012"},
        });
        // The chart sets the namespace of the release.
        let mut values = read("values.yaml")["defaults"].take();
        values["global"]["istioNamespace"] = "istio-system".into();
        Self { config: read("files/injection.yaml"), values, mesh, has_defaults: true }
    }
}

/// A recorded request with its golden answer.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) json: Value,
}

impl Case {
    /// All cases, sorted by name.
    pub(crate) fn all() -> Vec<Self> {
        let directory = root().join("tests/cases/inject/cases");
        let files = std::fs::read_dir(directory).expect("the cases");
        let mut cases: Vec<Self> = files
            .map(|file| {
                let path = file.expect("a directory entry").path();
                let text = std::fs::read_to_string(&path).expect("read a case");
                let json = serde_json::from_str(&text).expect("a case is JSON");
                Self { name: path.file_stem().expect("a name").to_string_lossy().into_owned(), json }
            })
            .collect();
        cases.sort_by(|left, right| left.name.cmp(&right.name));
        cases
    }

    pub(crate) fn review(&self) -> &Value {
        &self.json["review"]
    }

    pub(crate) fn revision(&self) -> &str {
        self.json["revision"].as_str().unwrap_or("default")
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let variables = self.json["environment"].as_object().into_iter().flatten();
        variables.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    }

    /// The answer to the recorded request.
    fn admission(&self, reference: &Reference) -> Admission {
        self.answer(&self.injector(reference), self.review().clone())
    }

    /// The injector with the configuration of the case.
    pub(crate) fn injector(&self, reference: &Reference) -> Injector {
        let environment = self.environment();
        let settings = InjectorSettings {
            revision: self.revision().to_owned(),
            compliance_policy: environment.get("COMPLIANCE_POLICY").cloned().unwrap_or_default(),
            environment,
            openshift: false,
        };
        let overlaid = |base: &Value, key: &str| {
            let mut value = base.clone();
            lay_over(&mut value, &self.json[key]);
            value
        };
        let config = overlaid(&reference.config, "config").to_string();
        let values = overlaid(&reference.values, "values").to_string();
        Injector::new(&config, &values, &[overlaid(&reference.mesh, "mesh")], settings).expect("a valid configuration")
    }

    /// The answer to a request.
    pub(crate) fn answer(&self, injector: &Injector, review: Value) -> Admission {
        let review = AdmissionReview::from_json(review).expect("a review");
        self.with_context(|context| injector.inject(&review, context))
    }

    /// Calls `decide` with the context of the recorded request.
    pub(crate) fn with_context<T>(&self, decide: impl FnOnce(&InjectContext<'_>) -> T) -> T {
        let proxy_configs = self.proxy_configs();
        decide(&InjectContext {
            path: self.json["path"].as_str().unwrap_or("/inject"),
            proxy_configs: &proxy_configs.iter().collect::<Vec<_>>(),
            clusters: self,
        })
    }

    fn objects(&self) -> impl Iterator<Item = &Value> {
        self.json["objects"].as_array().into_iter().flatten()
    }

    fn proxy_configs(&self) -> Vec<ProxyConfigResource> {
        let parsed = self.objects().filter_map(|object| {
            match sluice_parse::parse_object(&"Kubernetes".into(), "cluster.local", object).ok()?.object? {
                Object::ProxyConfig(resource) => Some(resource),
                _ => None,
            }
        });
        parsed.collect()
    }

    /// The first difference, `None` if the answer is equal.
    fn difference(&self, reference: &Reference) -> Option<String> {
        let golden = &self.json["golden"];
        let golden = golden.get("ifCalled").unwrap_or(golden);
        let is_pod = golden["kind"].as_str() == Some("Pod");
        match self.admission(reference) {
            Admission::Unchanged if is_pod => Some("not injected, expected a patch".to_owned()),
            Admission::Unchanged => (golden["allowed"] != json!(true)).then(|| "allowed, expected a denial".to_owned()),
            Admission::Denied(message) => {
                let expected = golden["message"].as_str().unwrap_or("no denial");
                let cut = LIBRARY_WORDS.iter().filter_map(|words| expected.find(words)).min();
                let expected = &expected[..cut.unwrap_or(expected.len())];
                (!message.starts_with(expected)).then(|| format!("denied: {message:?}, expected {expected:?}"))
            }
            Admission::Patched(_) if !is_pod => Some("patched, expected none".to_owned()),
            Admission::Patched(patch) => {
                let mut pod = self.review()["request"]["object"].clone();
                if let Err(error) = json_patch::patch(&mut pod, &patch) {
                    return Some(format!("the patch does not apply: {error}"));
                }
                let comparable = |pod: &Value| comparable(pod, reference.has_defaults);
                difference("", &comparable(&pod), &comparable(golden))
            }
        }
    }
}

impl ClusterView for Case {
    fn has_native_sidecars(&self, cluster: &str, node: Option<&str>) -> bool {
        match self.json["environment"]["ENABLE_NATIVE_SIDECARS"].as_str() {
            Some("true") => return true,
            Some("false") => return false,
            _ => {}
        }
        let nodes: Vec<&Value> = self.objects().filter(|object| object["kind"] == "Node").collect();
        let supports = |node: &Value| {
            supports_native_sidecars(node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default())
        };
        let named = node.and_then(|name| nodes.iter().find(|node| node["metadata"]["name"].as_str() == Some(name)));
        cluster == "Kubernetes" && named.map_or_else(|| nodes.iter().all(|node| supports(node)), |node| supports(node))
    }

    fn namespace_annotations(&self, _: &str, _: &str) -> Option<BTreeMap<String, String>> {
        None
    }
}

/// Maps merge, everything else replaces, null deletes.
fn lay_over(base: &mut Value, overlay: &Value) {
    let Value::Object(fields) = overlay else { return };
    for (key, value) in fields {
        match (base.get_mut(key), value) {
            (_, Value::Null) => {
                base.as_object_mut().map(|base| base.remove(key));
            }
            (Some(known @ Value::Object(_)), Value::Object(_)) => lay_over(known, value),
            _ => base[key] = value.clone(),
        }
    }
}

/// The form in which pods are compared: texts that are JSON are parsed, empty metadata is left out.
fn comparable(pod: &Value, has_defaults: bool) -> Value {
    let mut pod = expanded(pod, "");
    let volumes = pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten().filter(|_| has_defaults) {
        if volume.as_object().is_some_and(|fields| fields.len() == 1) {
            volume["emptyDir"] = json!({});
        }
    }
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.retain(|key, value| key != "creationTimestamp" || !value.is_null());
    }
    pod
}

fn expanded(value: &Value, name: &str) -> Value {
    match value {
        Value::String(text) if JSON_TEXTS.contains(&name) => {
            serde_json::from_str(text).unwrap_or_else(|_| value.clone())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| expanded(item, "")).collect()),
        Value::Object(fields) => {
            let variable = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            let fields = fields.iter().map(|(key, value)| {
                let name = if key == "value" { variable } else { key };
                (key.clone(), expanded(value, name))
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// The path of the first difference, with both values.
fn difference(path: &str, actual: &Value, golden: &Value) -> Option<String> {
    match (actual, golden) {
        (Value::Object(actual), Value::Object(golden)) => {
            let keys = golden.keys().chain(actual.keys().filter(|key| !golden.contains_key(*key)));
            let value = |fields: &Map<String, Value>, key: &str| fields.get(key).cloned().unwrap_or_default();
            keys.into_iter()
                .find_map(|key| difference(&format!("{path}.{key}"), &value(actual, key), &value(golden, key)))
        }
        (Value::Array(actual), Value::Array(golden)) => {
            let names = |items: &[Value]| {
                items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
            };
            if names(actual) != names(golden) {
                return Some(format!("{path}: names {:?}, expected {:?}", names(actual), names(golden)));
            }
            let length = actual.len().max(golden.len());
            let value = |items: &[Value], index: usize| items.get(index).cloned().unwrap_or_default();
            (0..length).find_map(|index| {
                let (actual, golden) = (value(actual, index), value(golden, index));
                let name = golden["name"].as_str().map_or_else(|| index.to_string(), str::to_owned);
                difference(&format!("{path}[{name}]"), &actual, &golden)
            })
        }
        (actual, golden) => (actual != golden).then(|| format!("{path}: {actual}, expected {golden}")),
    }
}

/// Prints how many cases are equal, and the first difference of each other one. Returns the differences.
pub(crate) fn score(title: &str, cases: &[Case], reference: &Reference) -> Vec<(String, String)> {
    let only = std::env::var("CASE").ok();
    let cases: Vec<&Case> = cases.iter().filter(|case| only.as_ref().is_none_or(|only| case.name == *only)).collect();
    let differing: Vec<(String, String)> = cases
        .iter()
        .filter_map(|case| case.difference(reference).map(|difference| (case.name.clone(), difference)))
        .collect();
    for (name, difference) in &differing {
        println!("{name}: {difference}");
    }
    println!("{title}: {} of {} cases are equal", cases.len() - differing.len(), cases.len());
    differing
}
