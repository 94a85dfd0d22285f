//! Uses of the rights to write workloads and statuses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, StatusKey, build};
use sluice_model::{
    Identity, Ingress, KubernetesService, ObjectKey, ObjectMeta, Proxy, Reconciliation, WorkloadEntry, label,
};
use sluice_parse::KINDS;
use sluice_sources::kube::{
    CleanupOptions, EntryCleaner, PartWriter, RegistrationMetrics, RegistrationOptions, WorkloadRegistrar,
    WorkloadStream,
};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::wait::until;
use tokio_util::sync::CancellationToken;

use crate::kube_suite::source::{cluster, options, source, start_sink};

/// Registers a workload of a group, writes its health, and removes it.
pub(crate) async fn register_workload(server: &ApiServer) {
    server.apply(json!({
        "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup",
        "metadata": {"namespace": "shop", "name": "vms", "uid": "1"}, "spec": {"template": {}},
    }));
    let client = || server.client().expect("a client");
    let options = RegistrationOptions {
        controller: "istiod-1".into(),
        registers: true,
        reports_health: true,
        checks_identity: true,
    };
    let metrics = RegistrationMetrics::default();
    let (registrar, handle) = WorkloadRegistrar::new(client(), options.clone(), metrics.clone());
    let stop = CancellationToken::new();
    let registering = tokio::spawn(registrar.run(stop.clone()));
    let proxy = Arc::new(Proxy {
        namespace: "shop".into(),
        ips: vec!["10.9.8.7".into()],
        identity: Some(Identity::new("td", "shop", "vm")),
        metadata: [("AUTO_REGISTER_GROUP".into(), "\"vms\"".into())].into_iter().collect(),
        ..Proxy::default()
    });
    let refuse = Arc::new(|reason: String| panic!("{reason}"));
    assert!(handle.concerns(&proxy) && !handle.concerns(&Proxy::default()));
    handle.connected(WorkloadStream { id: 1, proxy: proxy.clone(), connected_at: SystemTime::now(), refuse });
    handle.reported(proxy.clone(), 1, Err("refused".to_owned()));
    let entry = || server.get("networking.istio.io", "workloadentries", "shop", "vms-10.9.8.7");
    let entry = async |what: &str, is_met: &dyn Fn(&Value) -> bool| until(what, || entry().filter(is_met)).await;
    entry("its health", &|it| it["status"]["conditions"][0]["message"] == "refused").await;
    handle.disconnected(proxy, 1);
    let gone = |it: &Value| it["metadata"]["annotations"]["istio.io/disconnectedAt"].is_string();
    let object = entry("its end", &gone).await;
    stop.cancel();
    registering.await.expect("no panic");
    let (engine, handles) = Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let annotations = annotations.map(|(name, value)| (name.into(), value.as_str().unwrap_or_default().into()));
    let meta = ObjectMeta { annotations: annotations.collect(), ..ObjectMeta::default() };
    let key = ObjectKey::new("c", "shop", "vms-10.9.8.7");
    handles.inputs.workload_entries.set(key, WorkloadEntry { meta, ..WorkloadEntry::default() });
    let cleanup = CleanupOptions { grace_period: Duration::ZERO, max_connection_age: None };
    let entries = handles.workload_entries.clone();
    let cleaner = EntryCleaner::new(("c".into(), client()), options, cleanup, engine.feed(), entries, metrics);
    let stop = CancellationToken::new();
    let cleaning = tokio::spawn(cleaner.run(stop.clone()));
    let object = || server.get("networking.istio.io", "workloadentries", "shop", "vms-10.9.8.7");
    until("it is removed", || object().is_none().then_some(())).await;
    stop.cancel();
    cleaning.await.expect("no panic");
}

/// Writes the addresses of the ingress gateway into the status of an Ingress.
pub(crate) async fn write_ingress_status(server: &ApiServer) {
    server.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {}, "status": {"loadBalancer": {}},
    }));
    let (engine, handles) = Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
    engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
    let objects = &handles.inputs;
    let annotations = [("kubernetes.io/ingress.class".into(), "istio".into())].into_iter().collect();
    let meta = ObjectMeta { namespace: "shop".into(), name: "web".into(), annotations, ..ObjectMeta::default() };
    objects.ingresses.set(ObjectKey::new("Kubernetes", "shop", "web"), Ingress { meta, ..Ingress::default() });
    let service = KubernetesService {
        external_ips: vec!["192.0.2.7".into()],
        load_balancer: vec!["lb.example".into(), "192.0.2.6".into()],
        ..KubernetesService::default()
    };
    objects.kubernetes_services.set(ObjectKey::new("Kubernetes", "istio-system", "istio-ingressgateway"), service);
    let client = server.client().expect("a client");
    let writer = PartWriter::new(client, engine.feed(), handles.ingress_status_updates.clone());
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(stop.clone()));
    let written = json!([{"ip": "192.0.2.6"}, {"ip": "192.0.2.7"}, {"hostname": "lb.example"}]);
    until("it is written", || {
        let object = server.get("networking.k8s.io", "ingresses", "shop", "web")?;
        (object["status"]["loadBalancer"]["ingress"] == written).then_some(())
    })
    .await;
    stop.cancel();
    writing.await.expect("no panic");
}

/// Writes the condition `Reconciled` of an object of each of Istio's kinds.
pub(crate) async fn write_reconciled_conditions(server: &ApiServer, client: kube::Client) {
    let graph = GraphOptions { cluster: "c".into(), ..GraphOptions::default() };
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &graph));
    let sink = start_sink(&engine, &handles, &cluster(), "istio-system");
    let stop = CancellationToken::new();
    let reading = tokio::spawn(source(client, options()).run(Arc::new(sink), stop.clone()));
    let writer = PartWriter::new(server.client().expect("a client"), engine.feed(), handles.condition_updates.clone());
    let writing = tokio::spawn(writer.run(stop.clone()));
    let kinds: Vec<_> = KINDS.iter().filter(|info| info.is_istio()).collect();
    for info in &kinds {
        server.apply(json!({
            "apiVersion": info.api_version(), "kind": info.name,
            "metadata": {
                "namespace": "shop", "name": "asks", "generation": 2, "annotations": {label::RECONCILED_CONDITION: "true"},
            },
            "spec": {},
        }));
        let key = StatusKey { kind: info.kind, object: ObjectKey::new("c", "shop", "asks") };
        handles.inputs.reconciliations.set(key, Reconciliation { generation: 2, ..Reconciliation::default() });
    }
    for info in kinds {
        until(info.plural, || {
            let object = server.get(info.group, info.plural, "shop", "asks")?;
            let condition = object["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == "Reconciled")?;
            let is_written = condition["lastTransitionTime"].is_string() && condition["observedGeneration"] == 2;
            is_written.then_some(())
        })
        .await;
    }
    stop.cancel();
    reading.await.expect("no panic");
    writing.await.expect("no panic");
}
