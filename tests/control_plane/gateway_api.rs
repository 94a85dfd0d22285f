//! GatewayClasses, statuses of the Gateway API and Services of InferencePools, which are written to the API server (G01, G05, G09).

use std::sync::Arc;

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GatewayApiOptions, GraphOptions, build};
use sluice_model::gateway_api::{EXPERIMENTAL_GROUP, GROUP, INFERENCE_GROUP};
use sluice_parse::KINDS;
use sluice_sources::kube::PartWriter;
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use sluice_testkit::wait::until;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kube_suite::gateway_objects::{gateway_objects, route};
use crate::kube_suite::source::{cluster, options, source, start_sink};

/// Reads a cluster, and writes its GatewayClasses and statuses of the Gateway API until the guard is dropped.
pub(crate) fn write_gateway_api(reader: kube::Client, writer: kube::Client) -> DropGuard {
    let gateway_api = GatewayApiOptions { inference: true, experimental: true, ..GatewayApiOptions::default() };
    let graph = GraphOptions { cluster: "c".into(), gateway_api, ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &graph));
    let sink = start_sink(&engine, &handles, &cluster(), "istio-system");
    let stop = CancellationToken::new();
    tokio::spawn(source(reader, options()).run(Arc::new(sink), stop.clone()));
    let statuses = PartWriter::new(writer.clone(), engine.feed(), handles.status_updates.clone());
    tokio::spawn(statuses.run(stop.clone()));
    let services = PartWriter::new(writer.clone(), engine.feed(), handles.shadow_services.clone());
    tokio::spawn(services.run(stop.clone()));
    let classes = PartWriter::new(writer, engine.feed(), handles.missing_gateway_classes.clone());
    tokio::spawn(classes.run(stop.clone()));
    stop.drop_guard()
}

/// The GatewayClass of that name once its status is written.
pub(crate) async fn accepted_class(server: &ApiServer, name: &str) -> Value {
    until(&format!("{name} is accepted"), || {
        let class = server.get(GROUP, "gatewayclasses", "", name)?;
        (class["status"]["conditions"][0]["status"] == "True").then_some(class)
    })
    .await
}

/// Waits until the statuses of objects of all kinds are written.
pub(crate) async fn write_all_statuses(server: &ApiServer) {
    accepted_class(server, "istio").await;
    for object in gateway_objects() {
        server.apply(object);
    }
    for (resource, name) in [("gateways", "door"), ("listenersets", "more")] {
        until(resource, || {
            let object = server.get(GROUP, resource, "edge", name)?;
            object["status"]["conditions"].is_array().then_some(())
        })
        .await;
    }
    until("the policy", || {
        let object = server.get(GROUP, "backendtlspolicies", "edge", "tls")?;
        object["status"]["ancestors"][0]["conditions"].is_array().then_some(())
    })
    .await;
    for resource in ["grpcroutes", "httproutes", "tcproutes", "tlsroutes", "udproutes"] {
        until(resource, || {
            let object = server.get(GROUP, resource, "edge", "route")?;
            object["status"]["parents"][0]["conditions"].is_array().then_some(())
        })
        .await;
    }
    for (object, resource) in [(backend(), "xbackends"), (backend_policy(), "xbackendtrafficpolicies")] {
        server.apply(object);
        until(resource, || {
            let object = server.get(EXPERIMENTAL_GROUP, resource, "edge", "backend")?;
            object["status"]["ancestors"][0]["conditions"].is_array().then_some(())
        })
        .await;
    }
    server.apply(pool());
    server.apply(pool_route());
    until("the status of the pool", || {
        let object = server.get(INFERENCE_GROUP, "inferencepools", "edge", "llm")?;
        object["status"]["parents"][0]["conditions"].is_array().then_some(())
    })
    .await;
    until("the Service of the pool", || server.get("", "services", "edge", POOL_SERVICE)).await;
}

/// Name of the Service of [`pool`].
const POOL_SERVICE: &str = "llm-ip-487b9104";

/// Has the status that its type is not supported.
fn backend() -> Value {
    json!({
        "apiVersion": format!("{EXPERIMENTAL_GROUP}/v1alpha1"), "kind": "XBackend",
        "metadata": {"namespace": "edge", "name": "backend"}, "spec": {"type": "Cloud", "port": {"port": 443}},
    })
}

/// Has the status that its target does not exist.
fn backend_policy() -> Value {
    json!({
        "apiVersion": format!("{EXPERIMENTAL_GROUP}/v1alpha1"), "kind": "XBackendTrafficPolicy",
        "metadata": {"namespace": "edge", "name": "backend"},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "none"}]},
    })
}

fn pool() -> Value {
    json!({
        "apiVersion": format!("{INFERENCE_GROUP}/v1"), "kind": "InferencePool",
        "metadata": {"namespace": "edge", "name": "llm", "uid": "u1"},
        "spec": {
            "selector": {"matchLabels": {"app": "llm"}}, "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    })
}

/// A route to [`pool`].
fn pool_route() -> Value {
    let mut object = route("HTTPRoute", "http");
    object["metadata"]["name"] = json!("chat");
    object["spec"]["rules"][0]["backendRefs"] =
        json!([{"group": INFERENCE_GROUP, "kind": "InferencePool", "name": "llm"}]);
    object
}

fn define_all(server: &ApiServer) {
    for info in KINDS.iter().filter(|info| info.is_gateway_api()) {
        let (group, versions) = (info.group, info.versions.to_vec());
        server.define(ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_keep_the_entries_of_other_controllers_and_are_written_again_after_failures() {
    let server = ApiServer::start().await.expect("a server");
    define_all(&server);
    let other = json!({
        "parentRef": {"name": "theirs"}, "controllerName": "example.org/other",
        "conditions": [{"type": "Accepted", "status": "True", "reason": "Theirs", "message": "m",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let mut object = route("HTTPRoute", "http");
    object["status"] = json!({"parents": [other]});
    server.apply(object);
    server.forbid("httproutes/status", true);
    let client = || server.client().expect("a client");
    let _writing = write_gateway_api(client(), client());
    let parents = || server.get(GROUP, "httproutes", "edge", "route").map(|it| it["status"]["parents"].clone());
    for object in gateway_objects().into_iter().filter(|object| object["kind"] != "HTTPRoute") {
        server.apply(object);
    }
    let attached = |count: u32| {
        let gateway = server.get(GROUP, "gateways", "edge", "door")?;
        let listeners = gateway["status"]["listeners"].as_array()?;
        (listeners[0]["attachedRoutes"] == count).then_some(gateway.clone())
    };
    let gateway = until("both routes are attached", || attached(2)).await;
    assert_eq!(gateway["status"]["conditions"][1]["reason"], "AddressNotUsable", "{gateway}");
    server.forbid("httproutes/status", false);
    let written =
        until("the status is written", || parents().filter(|it| it.as_array().is_some_and(|it| it.len() == 2)));
    let written = written.await;
    assert_eq!(written[0], other);
    assert_eq!(written[1]["parentRef"]["sectionName"], "http");
    let resolved = |parents: &Value| {
        let conditions = parents[1]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "ResolvedRefs").unwrap_or_default()
    };
    assert_eq!(resolved(&written)["message"], "backend(cart.edge.svc.cluster.local) not found");
    server.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "edge", "name": "cart"},
        "spec": {"ports": [{"port": 80}]},
    }));
    let found = until("the backend is found", || parents().filter(|it| resolved(it)["status"] == "True")).await;
    assert_eq!(found[0], other);
    assert_eq!(found[1]["conditions"][0], written[1]["conditions"][0], "a condition that stays keeps its time");
    // A route that is deleted is no longer counted.
    server.delete("grpcroutes", "edge", "route");
    until("one route is attached", || attached(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_of_an_inference_pool_is_applied_and_created_again() {
    let server = ApiServer::start().await.expect("a server");
    define_all(&server);
    for object in gateway_objects() {
        server.apply(object);
    }
    server.apply(pool());
    server.apply(pool_route());
    let client = || server.client().expect("a client");
    let _writing = write_gateway_api(client(), client());
    let service = || server.get("", "services", "edge", POOL_SERVICE);
    let written = until("the Service is written", service).await;
    let owner = &written["metadata"]["ownerReferences"][0];
    assert_eq!((owner["kind"].as_str(), owner["uid"].as_str()), (Some("InferencePool"), Some("u1")), "{written}");
    assert_eq!(written["metadata"]["labels"]["istio.io/inferencepool-extension-failure-mode"], "FailClose");
    let port = json!({"name": "http-0", "protocol": "TCP", "port": 54321, "targetPort": 8000, "appProtocol": "http"});
    assert_eq!(written["spec"]["ports"], json!([port]));
    assert_eq!((&written["spec"]["clusterIP"], &written["spec"]["selector"]), (&json!("None"), &json!({"app": "llm"})));
    until("the watch has reported it", || {
        let route = server.get(GROUP, "httproutes", "edge", "chat")?;
        let is_resolved = |it: &Value| it["type"] == "ResolvedRefs" && it["status"] == "True";
        route["status"]["parents"][0]["conditions"].as_array()?.iter().any(is_resolved).then_some(())
    })
    .await;
    server.delete("services", "edge", POOL_SERVICE);
    let again = until("it is created again", service).await;
    assert_eq!(again["spec"], written["spec"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_classes_are_created_where_the_kind_is_served() {
    let server = ApiServer::start().await.expect("a server");
    let client = || server.client().expect("a client");
    let _writing = write_gateway_api(client(), client());
    until("the definitions are read", || (server.count("watch", "customresourcedefinitions") > 0).then_some(())).await;
    assert_eq!(server.count("create", "gatewayclasses"), 0);
    let kind = ResourceKind { group: GROUP, versions: vec!["v1"], name: "GatewayClass", plural: "gatewayclasses" };
    server.define(kind, true);
    let class = accepted_class(&server, "istio").await;
    let spec =
        json!({"controllerName": "istio.io/gateway-controller", "description": "The default Istio GatewayClass"});
    assert_eq!(class["spec"], spec);
    let condition = &class["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Accepted"), &json!("Accepted")));
    assert_eq!(condition["message"], "Handled by Istio controller");
    assert!(condition["lastTransitionTime"].as_str().is_some_and(|time| time.ends_with('Z')), "{condition}");
    accepted_class(&server, "istio-remote").await;
    // A class that is deleted is created again; one that a user changes keeps its spec.
    server.delete("gatewayclasses", "", "istio-remote");
    accepted_class(&server, "istio-remote").await;
    let mut changed = class.clone();
    changed["spec"]["description"] = json!("of a user");
    server.apply(changed);
    server.delete("gatewayclasses", "", "istio-remote");
    accepted_class(&server, "istio-remote").await;
    let class = accepted_class(&server, "istio").await;
    assert_eq!(class["spec"]["description"], "of a user");
}
