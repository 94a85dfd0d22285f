//! Allocated addresses in the statuses of ServiceEntries. In a shared cluster, no other test has ServiceEntries.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{AddressPools, GraphOptions, build};
use sluice_sources::kube::PartWriter;
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::source::{cluster, options, source, start_sink};

/// Runs a mesh that reads a cluster and writes allocated addresses to it, until the guard is dropped.
pub(crate) fn allocate(reader: kube::Client, writer: kube::Client) -> DropGuard {
    let graph =
        GraphOptions { cluster: "c".into(), address_pools: Some(AddressPools::default()), ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &graph));
    let sink = start_sink(&engine, &handles, &cluster(), "istio-system");
    let stop = CancellationToken::new();
    tokio::spawn(source(reader, options()).run(Arc::new(sink), stop.clone()));
    let writer = PartWriter::new(writer, engine.feed(), handles.address_updates.clone());
    tokio::spawn(writer.run(stop.clone()));
    stop.drop_guard()
}

pub(crate) fn service_entry(namespace: &str, name: &str, labels: Value, status: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"hosts": [format!("{name}.example")], "resolution": "DNS",
                 "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
    });
    if let Some(status) = status {
        object["status"] = status;
    }
    object
}

async fn get(api: &KubeApi, namespace: &str, name: &str) -> Value {
    api.get("networking.istio.io/v1", "ServiceEntry", namespace, name).await.expect("it is there")
}

/// Waits until `status.addresses` of a ServiceEntry has that many addresses, and returns them.
async fn written(api: &KubeApi, namespace: &str, name: &str, count: usize) -> Vec<Value> {
    until_async(&format!("{name} has {count} addresses"), async || {
        let addresses = get(api, namespace, name).await["status"]["addresses"].as_array().cloned();
        addresses.filter(|addresses| addresses.len() == count)
    })
    .await
}

with_api_server!(allocated_addresses_are_written_to_statuses, shared);
async fn allocated_addresses_are_written_to_statuses(api: KubeApi) {
    let n = &*api.namespace("n").await;
    api.define("ServiceEntry").await;
    let apply = async |name: &str, labels: Value, status: Option<Value>| {
        api.apply(service_entry(n, name, labels, status)).await;
    };
    let condition = json!([{"type": "Reconciled", "status": "True", "reason": "r", "message": "m"}]);
    apply("fresh", json!({}), None).await;
    apply("reported", json!({}), Some(json!({"conditions": condition}))).await;
    apply("emptied", json!({}), Some(json!({"addresses": []}))).await;
    let own = json!([{"host": "settled.example", "value": "240.240.7.7"}]);
    apply("settled", json!({}), Some(json!({"addresses": own}))).await;
    let left = json!({"addresses": [{"host": "left.example", "value": "1.1.1.1"}]});
    apply("left", json!({"networking.istio.io/enable-autoallocate-ip": "false"}), Some(left)).await;
    let client = super::client(&api).await;
    let _allocating = allocate(client.clone(), client);
    let mut all = BTreeSet::new();
    for name in ["fresh", "reported", "emptied"] {
        let addresses = written(&api, n, name, 2).await;
        for address in &addresses {
            assert_eq!(address["host"], format!("{name}.example"));
            all.insert(address["value"].to_string());
        }
        assert!(addresses[0]["value"].as_str().is_some_and(|value| value.starts_with("240.240.")), "{addresses:?}");
    }
    assert_eq!(all.len(), 6, "{all:?}");
    written(&api, n, "left", 0).await;
    assert_eq!(Value::from(written(&api, n, "settled", 1).await), own);
    let object = get(&api, n, "reported").await;
    assert_eq!(object["status"]["conditions"], condition, "conditions of other writers are kept");
}
