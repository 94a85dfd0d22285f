//! GatewayClasses and statuses of the Gateway API, which are written to the API server (G01, G05).

use std::sync::Arc;

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_model::gateway_api::GROUP;
use sluice_sources::kube::PartWriter;
use sluice_testkit::api_server::{ApiServer, ResourceKind};
use sluice_testkit::wait::until;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kube_suite::source::{cluster, options, source, start_sink};

/// Reads a cluster, and writes its GatewayClasses and statuses of the Gateway API until the guard is dropped.
pub(crate) fn write_gateway_api(reader: kube::Client, writer: kube::Client) -> DropGuard {
    let graph = GraphOptions { cluster: "c".into(), ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &graph));
    let sink = start_sink(&engine, &handles, &cluster(), "istio-system");
    let stop = CancellationToken::new();
    tokio::spawn(source(reader, options()).run(Arc::new(sink), stop.clone()));
    let statuses = PartWriter::new(writer.clone(), engine.feed(), handles.status_updates.clone());
    tokio::spawn(statuses.run(stop.clone()));
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
