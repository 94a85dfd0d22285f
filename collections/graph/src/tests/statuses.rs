//! The statuses of the cases in `tests/statuses` are those that the reference wrote (G05).

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sluice_model::{Kind, ObjectKey};
use sluice_parse::{identify, parse_object, yaml};

use super::TestGraph;
use crate::{AmbientOptions, ConditionUpdate, GatewayApiOptions, GraphOptions, StatusKey};

/// Kinds whose statuses are written.
const COMPARED: [Kind; 12] = [
    Kind::AuthorizationPolicy,
    Kind::BackendTLSPolicy,
    Kind::GRPCRoute,
    Kind::GatewayClass,
    Kind::HTTPRoute,
    Kind::InferencePool,
    Kind::KubernetesGateway,
    Kind::ListenerSet,
    Kind::TCPRoute,
    Kind::TLSRoute,
    Kind::XBackend,
    Kind::XBackendTrafficPolicy,
];

/// Kinds of which only conditions are written.
const WITH_CONDITIONS: [Kind; 3] = [Kind::Service, Kind::ServiceEntry, Kind::WorkloadEntry];

/// Objects whose status differs, each with the reason.
const DIFFERENCES: [(&str, &str); 3] = [
    (
        "gateway-api/07-listenerset KubernetesGateway plat/shared",
        "the reference wrote the address before its deployment controller changed the Service, and keeps it",
    ),
    ("own/11-ambient-waypoints AuthorizationPolicy app/audit", ONE_UNSUPPORTED_POLICY),
    ("own/23-ambient-waypoints-ready AuthorizationPolicy app/custom", ONE_UNSUPPORTED_POLICY),
];
const ONE_UNSUPPORTED_POLICY: &str =
    "policies that ztunnel does not support have one key in the reference, which writes the status of one of them";

struct StatusCase {
    name: String,
    input: Vec<Value>,
    expected: BTreeMap<StatusKey, Value>,
    env: BTreeMap<String, String>,
}

fn documents(path: &Path) -> Vec<Value> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let parsed = yaml::parse_documents(&text, &yaml::Limits::default());
    parsed.into_iter().map(|document| document.expect("YAML").value).collect()
}

fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

fn key(object: &Value) -> Option<StatusKey> {
    let found = identify(&"Kubernetes".into(), object).ok()?;
    Some(StatusKey { kind: found.info.kind, object: found.key })
}

impl StatusCase {
    fn all() -> Vec<Self> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let families = directories(&tests.join("statuses"));
        families.iter().flat_map(|family| directories(family)).map(|directory| Self::read(&tests, &directory)).collect()
    }

    fn read(tests: &Path, directory: &Path) -> Self {
        let name = directory.strip_prefix(tests.join("statuses")).expect("a case").to_owned();
        let sources = [directory.to_owned(), tests.join("cluster/cases").join(&name), tests.join("cases").join(&name)];
        let find = |file: &str| sources.iter().map(|of| of.join(file)).find(|path| path.exists());
        let source = find("input.yaml").expect("an input");
        let mut input = documents(&source);
        for object in &mut input {
            if key(object).is_some_and(|key| COMPARED.contains(&key.kind)) {
                object.as_object_mut().map(|fields| fields.remove("status"));
                object["metadata"]["generation"] = 1.into();
            }
        }
        input.extend(documents(&directory.join("cluster.yaml")));
        let env = find("env.json").map(|path| std::fs::read(path).expect("an environment"));
        let env = env.map(|bytes| serde_json::from_slice(&bytes).expect("JSON")).unwrap_or_default();
        let expected = documents(&directory.join("statuses.yaml"));
        let expected = expected.iter().filter_map(|object| Some((key(object)?, object["status"].clone()))).collect();
        Self { name: name.display().to_string(), input, expected, env }
    }

    fn options(&self) -> GraphOptions {
        let flag = |name: &str, default: bool| self.env.get(name).map_or(default, |value| value == "true");
        let ambient = flag("PILOT_ENABLE_AMBIENT", false);
        let gateway_api = GatewayApiOptions {
            waypoints: ambient,
            east_west: ambient && flag("AMBIENT_ENABLE_MULTI_NETWORK", false),
            experimental: flag("PILOT_ENABLE_ALPHA_GATEWAY_API", false),
            inference: flag("ENABLE_GATEWAY_API_INFERENCE_EXTENSION", false),
            writes_statuses: flag("PILOT_ENABLE_GATEWAY_API_STATUS", true),
            ..GatewayApiOptions::default()
        };
        let writes_conditions = flag("AMBIENT_ENABLE_STATUS", true);
        let ambient = ambient.then(AmbientOptions::default);
        GraphOptions { ambient, writes_conditions, gateway_api, ..GraphOptions::default() }
    }

    /// The differences, and the number of compared objects.
    fn compare(&self) -> (Vec<String>, usize) {
        let mesh = TestGraph::with(self.options(), "");
        let revision = |object: &Value| {
            let label = object.pointer("/metadata/labels/istio.io~1rev").and_then(Value::as_str);
            label.is_none_or(|label| label == "default")
        };
        mesh.engine.transaction(|tx| {
            for object in self.input.iter().filter(|object| revision(object)) {
                if let Ok(parsed) = parse_object(&"Kubernetes".into(), "cluster.local", object) {
                    mesh.handles.inputs.apply(tx, parsed, sluice_engine::Origin::default());
                }
            }
        });
        mesh.engine.flush();
        let keys: Vec<StatusKey> = self.input.iter().filter_map(key).collect();
        let compared: Vec<&StatusKey> = keys.iter().filter(|key| COMPARED.contains(&key.kind)).collect();
        let conditioned = keys.iter().filter(|key| WITH_CONDITIONS.contains(&key.kind));
        let conditions = |key: &StatusKey| {
            let update = mesh.get(&mesh.handles.condition_updates, key);
            let list = |update: &ConditionUpdate| serde_json::from_str::<Value>(&update.wanted).expect("JSON");
            update.map_or(Value::Null, |update| json!({"conditions": list(&update)}))
        };
        let status = |key: &StatusKey| {
            if key.kind == Kind::AuthorizationPolicy {
                return conditions(key);
            }
            let update = mesh.get(&mesh.handles.status_updates, key);
            update.map_or(Value::Null, |update| serde_json::from_str(&update.wanted).expect("JSON"))
        };
        let is_policy = |key: &&&StatusKey| key.kind == Kind::AuthorizationPolicy;
        let mut found: Vec<(&StatusKey, Value)> =
            compared.iter().filter(|key| !is_policy(key)).map(|key| (*key, status(key))).collect();
        // Policies and services depend on the addresses of waypoints, which are in their statuses.
        let gateways = found.iter().filter(|(key, status)| key.kind == Kind::KubernetesGateway && !status.is_null());
        let of = |wanted: &StatusKey| self.input.iter().find(|object| key(object).as_ref() == Some(wanted));
        let written = gateways.filter_map(|(key, status)| {
            let mut object = of(key)?.clone();
            object["status"] = status.clone();
            Some(object)
        });
        let written: Vec<Value> = written.collect();
        mesh.engine.transaction(|tx| {
            for object in &written {
                let parsed = parse_object(&"Kubernetes".into(), "cluster.local", object).expect("a Gateway");
                mesh.handles.inputs.apply(tx, parsed, sluice_engine::Origin::default());
            }
        });
        mesh.engine.flush();
        found.extend(compared.iter().filter(is_policy).map(|key| (*key, status(key))));
        found.extend(conditioned.map(|key| (key, conditions(key))));
        let mut differences = Vec::new();
        for (key, actual) in &found {
            let expected = self.expected.get(key).cloned().unwrap_or_default();
            let (actual, expected) = (comparable(actual), comparable(&expected));
            if actual != expected {
                let ObjectKey { namespace, name, .. } = &key.object;
                let title = format!("{} {} {namespace}/{name}", self.name, key.kind);
                differences.push(format!("{title}\n  ours:      {actual}\n  reference: {expected}"));
            }
        }
        (differences, found.len())
    }
}

/// A status in a form in which the order of its parts that means nothing is always the same.
fn comparable(status: &Value) -> Value {
    match status {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let value = match (name.as_str(), value) {
                    ("message", Value::String(text)) => {
                        let mut parts: Vec<&str> = text.split("; ").collect();
                        parts.sort_unstable();
                        json!(parts)
                    }
                    ("addresses", value) => value.clone(),
                    (_, value) => comparable(value),
                };
                (name.clone(), value)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(comparable).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}

#[test]
fn statuses_are_those_of_the_reference() {
    let (mut differences, mut compared) = (Vec::new(), 0);
    for case in StatusCase::all() {
        let (of_case, count) = case.compare();
        differences.extend(of_case);
        compared += count;
    }
    let is_known = |difference: &str| DIFFERENCES.iter().any(|(title, _)| difference.lines().next() == Some(title));
    let (known, unknown): (Vec<_>, Vec<_>) = differences.into_iter().partition(|difference| is_known(difference));
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert_eq!(known.len(), DIFFERENCES.len(), "a known difference is gone");
    assert_eq!((compared - known.len(), compared), (361, 364), "equal statuses");
}

#[test]
fn experimental_kinds_have_statuses() {
    let gateway_api = GatewayApiOptions { experimental: true, ..GatewayApiOptions::default() };
    let mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, "");
    mesh.apply(
        "
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: [outside.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: bank, namespace: shop}
spec:
  parentRefs: [{name: door, namespace: edge}]
  rules: [{backendRefs: [{group: gateway.networking.x-k8s.io, kind: XBackend, name: bank, port: 443}]}]
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: bank, namespace: shop, generation: 3}
spec:
  type: ExternalHostname
  externalHostname: {hostname: bank.example}
  port: {port: 443}
  tls: {mode: ServerOnly, validation: {hostname: bank.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: roots}]}}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: budget, namespace: shop}
spec:
  targetRefs:
  - {group: '', kind: Service, name: cart}
  - {group: networking.istio.io, kind: ServiceEntry, name: outside}
  - {group: '', kind: Service, name: cart}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: missing, namespace: shop}
spec: {targetRefs: [{group: '', kind: Service, name: none}]}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: secret, namespace: shop}
spec: {targetRefs: [{group: '', kind: Secret, name: cart}, {group: apps, kind: Deployment, name: cart}]}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: ignored, namespace: shop, annotations: {istio.io/ignore-policy-attachment: 'true'}}
spec: {targetRefs: [{group: '', kind: Service, name: cart}]}
",
    );
    mesh.write(
        "
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: mutual, namespace: shop}
spec:
  type: ExternalHostname
  externalHostname: {hostname: bank.example}
  port: {port: 443}
  tls: {mode: ClientAndServer}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: other, namespace: shop}
spec: {type: Cloud, port: {port: 443}}
",
        true,
    );
    // `TYPE STATUS REASON MESSAGE` of each condition, by the reference of the ancestor.
    let conditions = |mesh: &TestGraph, kind: Kind, name: &str| -> Vec<String> {
        let key = StatusKey { kind, object: ObjectKey::new("Kubernetes", "shop", name) };
        mesh.engine.flush();
        let update = mesh.get(&mesh.handles.status_updates, &key).expect("a status");
        let status: Value = serde_json::from_str(&update.wanted).expect("JSON");
        let mut lines = Vec::new();
        for ancestor in status["ancestors"].as_array().expect("ancestors") {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let reference = &ancestor["ancestorRef"];
            for condition in ancestor["conditions"].as_array().expect("conditions") {
                let [kind, status, reason, message] =
                    ["type", "status", "reason", "message"].map(|field| text(&condition[field]));
                let (of, name) = (text(&reference["kind"]), text(&reference["name"]));
                lines.push(format!(
                    "{of} {name} {}: {kind} {status} {reason} {message}",
                    text(&ancestor["controllerName"])
                ));
            }
        }
        lines
    };
    let mesh_controller = "istio.io/mesh-controller";
    let not_found = "Certificate reference not found: reference shop/roots (of kind ConfigMap) not found";
    let invalid = "Certificate reference invalid: reference shop/roots (of kind ConfigMap) not found";
    let unusable = |of: &str| {
        [
            format!("{of}: Accepted False NoValidCACertificate {invalid}"),
            format!("{of}: ResolvedRefs False InvalidCACertificateRef {not_found}"),
        ]
    };
    let [of_mesh, of_gateway] =
        [format!("XBackend bank {mesh_controller}"), "Gateway door istio.io/gateway-controller".to_owned()];
    let expected = [unusable(&of_mesh), unusable(&of_gateway)].concat();
    assert_eq!(conditions(&mesh, Kind::XBackend, "bank"), expected);
    let first = |kind: Kind, name: &str| conditions(&mesh, kind, name).remove(0);
    assert!(first(Kind::XBackend, "mutual").contains("Accepted False Invalid unsupported ClientAndServer TLS mode"));
    assert!(first(Kind::XBackend, "other").ends_with("Accepted False Invalid unsupported backend type: Cloud"));
    let policy = |name: &str| conditions(&mesh, Kind::XBackendTrafficPolicy, name);
    let problem = "Accepted False TargetNotFound targetRefs invalid: unsupported reference kind: ServiceEntry";
    let expected = [
        format!("Service cart {mesh_controller}: Accepted True Accepted Configuration is valid"),
        format!("ServiceEntry outside {mesh_controller}: {problem}"),
        format!("Service cart {mesh_controller}: {problem}"),
    ];
    assert_eq!(policy("budget"), expected);
    assert!(policy("missing")[0].ends_with("targetRefs invalid: reference shop/none (of kind Service) not found"));
    assert!(policy("secret")[0].ends_with("targetRefs invalid: unsupported reference kind: Secret"));
    assert!(policy("secret")[1].ends_with("targetRefs invalid: unsupported kind Deployment"));
    assert!(policy("ignored")[0].contains("Accepted False IgnoredByIstio Ignored by Istio due to annotation"));

    let pem = "-----BEGIN CERTIFICATE-----\\nMAMCAQA=\\n-----END CERTIFICATE-----\\n";
    mesh.apply(&format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{namespace: shop, name: roots}}, data: {{ca.crt: \"{pem}\"}}}}"
    ));
    let all = conditions(&mesh, Kind::XBackend, "bank");
    assert!(all.len() == 4 && all.iter().all(|line| line.ends_with("Configuration is valid")), "{all:?}");
    mesh.delete(Kind::HTTPRoute, "shop", "bank");
    assert_eq!(conditions(&mesh, Kind::XBackend, "bank").len(), 2, "no Gateway has a route to it");
}
