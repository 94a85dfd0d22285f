use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;

use futures::Stream;
use prost::Message as _;
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, Handles, RejectKey};
use sluice_model::{ConfigSource, ConfigSourceKind, Kind, ObjectKey, Secret};
use sluice_parse::kind_info;
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use sluice_proto::google::protobuf::Any;
use sluice_sources::Change;
use sluice_sources::configuration::{ConfigSourceStates, ConfigSourceStatus};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::kinds::{RESOURCE_MESSAGE, TYPE_URL_PREFIX};
use crate::resource::resource_of;

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A server that answers each type as `answers` says, in each stream.
#[derive(Clone, Default)]
struct FakeServer {
    /// The names of the Gateways; `None` does not answer their type.
    gateways: Arc<Mutex<Option<Vec<&'static str>>>>,
    requests: Arc<Mutex<Vec<DiscoveryRequest>>>,
    /// Ends the streams of the running server.
    stop: Arc<Mutex<CancellationToken>>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for FakeServer {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (server, mut requests) = (self.clone(), request.into_inner());
        let (sender, responses) = mpsc::unbounded_channel();
        let stop = self.stop.lock().expect("no panic").clone();
        tokio::spawn(async move {
            while let Some(Ok(Some(request))) = stop.run_until_cancelled(requests.message()).await {
                let is_ack = !request.response_nonce.is_empty();
                let type_url = request.type_url.clone();
                server.requests.lock().expect("no panic").push(request);
                let Some(resources) = server.resources(&type_url).filter(|_| !is_ack) else { continue };
                let nonce = format!("nonce of {type_url}");
                let response = DiscoveryResponse { type_url, resources, nonce, ..DiscoveryResponse::default() };
                let _ = sender.send(Ok(response));
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(responses))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("the client uses the state of the world"))
    }
}

impl FakeServer {
    fn resources(&self, type_url: &str) -> Option<Vec<Any>> {
        if type_url != "networking.istio.io/v1/Gateway" {
            return Some(Vec::new());
        }
        let gateway = |name: &&str| {
            let info = kind_info(Kind::Gateway).expect("a kind");
            let object = serde_json::json!({
                "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "shop", "name": name},
                "spec": {"selector": {"a": "b"}, "servers": [
                    {"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]},
            });
            let mut resource = resource_of(info, &ObjectKey::new("c", "shop", *name), &object).expect("valid");
            if name.is_empty() {
                resource.metadata.as_mut().expect("metadata").name = "no-namespace".to_owned();
            }
            Any { type_url: format!("{TYPE_URL_PREFIX}{RESOURCE_MESSAGE}"), value: resource.encode_to_vec() }
        };
        let gateways = self.gateways.lock().expect("no panic").clone()?;
        Some(gateways.iter().map(gateway).collect())
    }

    fn set(&self, gateways: Option<&[&'static str]>) {
        *self.gateways.lock().expect("no panic") = gateways.map(<[_]>::to_vec);
    }

    /// Serves until the token is cancelled, on the address of an earlier server or on a free one.
    async fn serve(&self, address: Option<SocketAddr>) -> (SocketAddr, CancellationToken) {
        let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = tokio::net::TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        *self.stop.lock().expect("no panic") = stop.clone();
        let serving = tonic::transport::Server::builder()
            .add_service(AggregatedDiscoveryServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = serving => {}
                () = stopped.cancelled() => {}
            }
        });
        (address, stop)
    }
}

/// The objects that the client has committed, and the kinds that it has reported as synced.
#[derive(Default)]
struct Committed {
    names: Mutex<BTreeSet<String>>,
    synced: Mutex<BTreeSet<Kind>>,
}

impl Sink for Committed {
    fn commit(&self, changes: Vec<Change>) {
        let mut names = self.names.lock().expect("no panic");
        for change in changes {
            match change.object {
                Some(_) => names.insert(change.key.name.to_string()),
                None => names.remove(change.key.name.as_str()),
            };
        }
    }

    fn synced(&self, _cluster: &Text, kinds: &[Kind]) {
        self.synced.lock().expect("no panic").extend(kinds);
    }
}

struct NoCredentials;

impl SourceCredentials for NoCredentials {
    fn secret<'a>(&'a self, _name: &'a str) -> futures::future::BoxFuture<'a, Result<Secret, String>> {
        Box::pin(std::future::ready(Err("there are no Secrets".to_owned())))
    }

    fn own(&self) -> Result<Secret, String> {
        Err("there is no authority".to_owned())
    }
}

/// A client of a server.
struct Client {
    committed: Arc<Committed>,
    states: ConfigSourceStates,
    engine: Engine,
    handles: Handles,
    stop: CancellationToken,
}

impl Client {
    fn start(server: SocketAddr) -> Self {
        let (engine, handles) =
            Engine::start(EngineOptions::default(), |builder| sluice_graph::build(builder, &GraphOptions::default()));
        let (committed, states, stop) =
            (Arc::new(Committed::default()), ConfigSourceStates::default(), CancellationToken::new());
        let address = Text::from(format!("xds://{server}"));
        let kind = ConfigSourceKind::Xds(server.to_string().into());
        let source = McpSource {
            server: server.to_string().into(),
            address: address.clone(),
            index: 0,
            tls: None,
            credentials: Arc::new(NoCredentials),
            policy: None,
            node: SourceNode {
                namespace: "istio-system".into(),
                pod: "istiod-1".into(),
                revision: "blue".into(),
                domain: "cluster.local".into(),
            },
            cluster: Cluster {
                id: "c".into(),
                domain: "cluster.local".into(),
                is_remote: false,
                reads_remote_gateways: false,
                ignored: BTreeSet::new(),
                revision: Text::default(),
                multi_cluster_api: sluice_model::MultiClusterApi::default(),
            },
            sink: committed.clone(),
            state: states.add(&ConfigSource { address, kind, tls: None }),
            findings: SourceFindings::new(handles.inputs.component_rejects.clone(), mesh_config()),
        };
        tokio::spawn(source.run(stop.clone()));
        Self { committed, states, engine, handles, stop }
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition(self) {
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", self.states.all(), self.findings());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn has(&self, names: &[&str]) -> bool {
        self.committed.names.lock().expect("no panic").iter().map(String::as_str).eq(names.iter().copied())
    }

    fn is_synced(&self) -> bool {
        self.committed.synced.lock().expect("no panic").len() == configuration_kinds().count()
    }

    fn is_connected(&self) -> bool {
        self.states.all()[0].status == ConfigSourceStatus::Connected
    }

    fn findings(&self) -> Vec<String> {
        let key = RejectKey { kind: Kind::ConfigMap, object: mesh_config() };
        let rejects = self.engine.snapshot().get(&self.handles.rejects, &key);
        rejects.iter().flat_map(|rejects| rejects.iter()).map(ToString::to_string).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn mesh_config() -> ObjectKey {
    ObjectKey::new("c", "istio-system", "istio")
}

#[tokio::test(flavor = "multi_thread")]
async fn source_is_synced_once_all_types_are_answered() {
    let server = FakeServer::default();
    let (address, _) = server.serve(None).await;
    let client = Client::start(address);
    client
        .until("the other types", |client| client.states.all()[0].waiting_for == ["networking.istio.io/v1/Gateway"])
        .await;
    assert!(!client.is_synced());
    let requests = server.requests.lock().expect("no panic").clone();
    let node = requests[0].node.clone().expect("the first request has the node");
    assert_eq!(node.id, "sidecar~127.0.0.1~istiod-1.istio-system~istio-system.svc.cluster.local");
    let metadata = node.metadata.expect("metadata").fields;
    for name in ["GENERATOR", "ISTIO_REVISION", "ISTIO_VERSION", "NAMESPACE"] {
        assert!(metadata.contains_key(name), "{name} is not in {metadata:?}");
    }
    assert!(requests[1..].iter().all(|request| request.node.is_none()));
    let acks: BTreeSet<String> =
        requests.iter().filter(|it| !it.response_nonce.is_empty()).map(|it| it.type_url.clone()).collect();
    assert!(acks.iter().all(|url| requests.iter().any(|it| it.response_nonce == format!("nonce of {url}"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn source_that_is_away_keeps_its_objects_until_it_has_answered_again() {
    let server = FakeServer::default();
    server.set(Some(&["a", "b"]));
    let (address, stop) = server.serve(None).await;
    let client = Client::start(address);
    client.until("all types", Client::is_synced).await;
    client.until("both objects", |client| client.has(&["a", "b"])).await;

    stop.cancel();
    client.until("the end of the stream", |client| !client.is_connected()).await;
    client.until("a finding", |client| client.findings().len() == 1).await;
    let finding = client.findings().remove(0);
    assert!(finding.contains("data.mesh.configSources[0].address: `xds://127.0.0.1:"), "{finding}");
    assert!(finding.contains("its last objects apply"), "{finding}");
    assert!(client.has(&["a", "b"]));

    // The server does not answer the type yet, so its objects stay.
    server.set(None);
    let (_, stop) = server.serve(Some(address)).await;
    client.until("a new stream", Client::is_connected).await;
    assert!(client.has(&["a", "b"]));
    stop.cancel();
    client.until("the end of the stream", |client| !client.is_connected()).await;

    server.set(Some(&["b", "c"]));
    server.serve(Some(address)).await;
    client.until("the objects of now", |client| client.has(&["b", "c"])).await;
    client.until("no finding", |client| client.findings().is_empty()).await;
    assert!(client.states.all()[0].failures >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_without_a_name_is_a_finding_until_it_is_gone() {
    let server = FakeServer::default();
    server.set(Some(&["a", ""]));
    let (address, stop) = server.serve(None).await;
    let client = Client::start(address);
    client.until("a finding", |client| client.findings().len() == 1 && client.has(&["a"])).await;
    let finding = client.findings().remove(0);
    let expected = "resource 1 of networking.istio.io/v1/Gateway: metadata.name: \"no-namespace\" is not of the form";
    assert!(finding.contains("data.mesh.configSources[0]: `xds://") && finding.contains(expected), "{finding}");
    stop.cancel();
    client.until("the end of the stream", |client| !client.is_connected()).await;
    server.set(Some(&["a"]));
    server.serve(Some(address)).await;
    client.until("no finding", |client| client.is_connected() && client.findings().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_source_is_a_finding_and_not_synced() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let client = Client::start(address);
    client.until("a finding", |client| client.findings().len() == 1).await;
    let finding = client.findings().remove(0);
    assert!(finding.contains("proxies are not served until it has been read: connect to 127.0.0.1:"), "{finding}");
    assert!(!client.is_synced());
}
