//! The rendered objects of the cases in `tests/statuses` are those that the reference applied (G04).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions, Origin};
use sluice_graph::{GatewayApiOptions, GraphOptions, build};
use sluice_inject::{GatewayContext, Injector, InjectorSettings};
use sluice_model::{ObjectKey, label};
use sluice_parse::{parse_object, yaml};

/// Volumes that the reference declares for waypoints and mounts nowhere.
const UNUSED_VOLUMES: [&str; 2] = ["go-proxy-envoy", "go-proxy-data"];

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    let parsed = yaml::parse_documents(&text, &yaml::Limits::default());
    parsed.into_iter().map(|document| document.expect("YAML").value).collect()
}

/// The injector with the default templates and values of the chart.
fn injector() -> Injector {
    let chart = tests().join("../manifests/charts/sluice");
    let read = |name: &str| documents(&chart.join(name)).remove(0);
    let mut values = read("values.yaml")["defaults"].take();
    values["global"]["istioNamespace"] = "istio-system".into();
    let config = read("files/injection.yaml").to_string();
    Injector::new(&config, &values.to_string(), &[], InjectorSettings::default()).expect("a configuration")
}

/// What is deployed for the objects of a case: the objects by kind, namespace and name.
fn deployed(case: &Path, name: &str) -> BTreeMap<String, Value> {
    let sources = [case.to_owned(), tests().join("cluster/cases").join(name), tests().join("cases").join(name)];
    let find = |file: &str| sources.iter().map(|of| of.join(file)).find(|path| path.exists());
    let mut input = documents(&find("input.yaml").expect("an input"));
    let env = find("env.json").map(|path| std::fs::read(path).expect("an environment"));
    let env: BTreeMap<String, String> = env.map(|it| serde_json::from_slice(&it).expect("JSON")).unwrap_or_default();
    let flag = |name: &str, default: bool| env.get(name).map_or(default, |value| value == "true");
    let ambient = flag("PILOT_ENABLE_AMBIENT", false);
    let gateway_api = GatewayApiOptions {
        waypoints: ambient,
        east_west: ambient && flag("AMBIENT_ENABLE_MULTI_NETWORK", false),
        deploys: flag("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", true),
        ..GatewayApiOptions::default()
    };
    let mut objects = rendered(&mut input, gateway_api);
    // Objects that exist and are not managed stay as they are.
    let is_unmanaged = |object: &&Value| object["metadata"]["labels"][label::GATEWAY_MANAGED].is_null();
    let kept: BTreeSet<String> = input.iter().filter(is_unmanaged).map(title).collect();
    objects.retain(|title_of, _| !kept.contains(title_of));
    objects
}

/// What is deployed for objects: the rendered objects by kind, namespace and name.
fn rendered(input: &mut [Value], gateway_api: GatewayApiOptions) -> BTreeMap<String, Value> {
    let options = GraphOptions { gateway_api, ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    for object in &mut *input {
        let unique = format!("UID-OF-{}-{}", text(object, "/kind"), text(object, "/metadata/name"));
        object["metadata"]["uid"] = unique.into();
    }
    engine.transaction(|tx| {
        for object in &*input {
            if let Ok(parsed) = parse_object(&"Kubernetes".into(), "cluster.local", object) {
                handles.inputs.apply(tx, parsed, Origin::default());
            }
        }
    });
    engine.flush();
    let injector = injector();
    let context =
        GatewayContext { proxy_configs: &[], cluster: "Kubernetes", kubernetes_version: 134, native_sidecars: true };
    let snapshot = engine.snapshot();
    let all = snapshot.iter(&handles.gateway_deployments);
    // Without valid parameters, nothing is deployed.
    let rendered =
        all.filter_map(|(_, deployment): (&ObjectKey, _)| injector.render_gateway(deployment, &context).ok());
    rendered.flatten().map(|object| (title(&object.object), object.object)).collect()
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn title(object: &Value) -> String {
    let part = |pointer: &str| text(object, pointer).to_owned();
    format!("{} {}/{}", part("/kind"), part("/metadata/namespace"), part("/metadata/name"))
}

/// An object in a form in which the order of named parts, and defaults that are left out, mean nothing.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: serde_json::Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), comparable(value))).collect();
            if fields.get("emptyDir").is_some_and(Value::is_null) {
                fields.insert("emptyDir".to_owned(), json!({}));
            }
            if fields.get("name").is_some_and(|name| name == "PROXY_CONFIG")
                && let Some(config) = fields.get("value").and_then(Value::as_str)
            {
                let config = serde_json::from_str(config).expect("JSON");
                fields.insert("value".to_owned(), config);
            }
            Value::Object(fields)
        }
        Value::Array(items) => {
            let is_unused = |item: &&Value| UNUSED_VOLUMES.contains(&text(item, "/name"));
            let mut items: Vec<Value> = items.iter().filter(|item| !is_unused(item)).map(comparable).collect();
            if items.iter().all(Value::is_object) {
                items.sort_by_key(Value::to_string);
            }
            Value::Array(items)
        }
        other => other.clone(),
    }
}

#[test]
fn objects_are_those_of_the_reference() {
    let cases = tests().join("statuses");
    let (mut compared, mut differences) = (0, Vec::new());
    for family in std::fs::read_dir(&cases).expect("cases").map(|entry| entry.expect("an entry").path()) {
        let Ok(entries) = std::fs::read_dir(&family) else { continue };
        for case in entries.map(|entry| entry.expect("an entry").path()) {
            let recorded = case.join("deployed.yaml");
            if !recorded.exists() {
                continue;
            }
            let name = case.strip_prefix(&cases).expect("a case").display().to_string();
            let mut ours = deployed(&case, &name);
            for object in documents(&recorded) {
                compared += 1;
                let title = title(&object);
                let own = ours.remove(&title).as_ref().map(comparable);
                let expected = comparable(&object);
                if own.as_ref() != Some(&expected) {
                    let own = own.unwrap_or_default();
                    differences.push(format!("{name} {title}\n  ours:      {own}\n  reference: {expected}"));
                }
            }
            differences.extend(ours.keys().map(|title| format!("{name} {title}: the reference has none")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(compared, 67, "recorded objects");
}

#[test]
fn agentgateway_is_deployed_from_its_own_template() {
    let mut input = [json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {
            "name": "door", "namespace": "edge", "labels": {"topology.istio.io/network": "west"},
            "annotations": {"gateway.istio.io/service-account": "door-account"},
        },
        "spec": {
            "gatewayClassName": "istio-agentgateway",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    })];
    assert!(rendered(&mut input, GatewayApiOptions::default()).is_empty(), "not enabled");
    let enabled = GatewayApiOptions { agentgateway: true, ..GatewayApiOptions::default() };
    let objects = rendered(&mut input, enabled.clone());
    let names: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(names, ["Deployment edge/door", "Service edge/door", "ServiceAccount edge/door-account"]);
    let deployment = &objects["Deployment edge/door"];
    let managed = "istio.io-agentgateway-controller";
    assert_eq!(deployment["metadata"]["labels"][label::GATEWAY_MANAGED], managed);
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], json!({(label::GATEWAY_NAME): "door"}));
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
    assert_eq!(pod["spec"]["serviceAccountName"], "door-account");
    let container = &pod["spec"]["containers"][0];
    assert!(text(container, "/image").contains("/agentgateway:"), "{}", container["image"]);
    let variables: BTreeMap<&str, &str> = container["env"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|variable| (text(variable, "/name"), text(variable, "/value")))
        .collect();
    assert_eq!((variables["GATEWAY"], variables["NETWORK"], variables["CLUSTER_ID"]), ("door", "west", "Kubernetes"));
    let control_plane = "istiod.istio-system.svc:15012";
    assert_eq!((variables["XDS_ADDRESS"], variables["CA_ADDRESS"]), (control_plane, control_plane));
    let mounts: BTreeSet<&str> =
        container["volumeMounts"].as_array().into_iter().flatten().map(|mount| text(mount, "/name")).collect();
    let volumes: BTreeSet<&str> =
        pod["spec"]["volumes"].as_array().into_iter().flatten().map(|volume| text(volume, "/name")).collect();
    assert_eq!(mounts, volumes, "each volume is mounted");
    assert!(volumes.contains("xds-token") && volumes.contains("istio-token"), "{volumes:?}");
    let service = &objects["Service edge/door"]["spec"];
    assert_eq!((&service["type"], &service["ports"][1]["port"]), (&json!("LoadBalancer"), &json!(80)));

    input[0]["metadata"]["annotations"]["gateway.istio.io/agentgatewayImage"] = "registry.test/mine:1".into();
    let image =
        &rendered(&mut input, enabled)["Deployment edge/door"]["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, "registry.test/mine:1");
}

#[test]
fn agentgateway_is_deployed_as_a_waypoint() {
    let mut input = [json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "door", "namespace": "edge"},
        "spec": {
            "gatewayClassName": "istio-agentgateway-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    })];
    let enabled = GatewayApiOptions { agentgateway: true, waypoints: true, ..GatewayApiOptions::default() };
    let objects = rendered(&mut input, enabled);
    let deployment = &objects["Deployment edge/door"];
    let managed = "istio.io-agentgateway-waypoint-controller";
    assert_eq!(deployment["metadata"]["labels"][label::GATEWAY_MANAGED], managed);
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!((&labels[label::GATEWAY_MANAGED], &labels[label::DATAPLANE_MODE]), (&json!(managed), &json!("none")));
    let container = &pod["spec"]["containers"][0];
    assert!(text(container, "/image").contains("/agentgateway:"), "{}", container["image"]);
    let service = &objects["Service edge/door"]["spec"];
    assert_eq!((&service["type"], &service["ports"][1]["port"]), (&json!("ClusterIP"), &json!(15008)));
}
