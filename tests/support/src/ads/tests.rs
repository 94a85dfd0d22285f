//! The client against a server that replays recorded resources: every recorded resource must arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use serde_json::Value;
use sluice_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use sluice_proto::google::protobuf::Any;
use sluice_proto::json::decode_any;
use tonic::{Request, Response, Status, Streaming};

use super::{Identity, Kind, Limits, Protocol, connect, dump};
use crate::canonical::name_of;
use crate::parity::case::{Case, root};
use crate::parity::compare::compare;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Recorded resources by type URL and name.
#[derive(Clone, Default)]
struct Replay(Arc<BTreeMap<String, BTreeMap<String, Any>>>);

impl Replay {
    fn new(golden: &BTreeMap<Kind, Option<Vec<Value>>>) -> Self {
        let mut out: BTreeMap<String, BTreeMap<String, Any>> = BTreeMap::new();
        for (kind, resources) in golden {
            for resource in resources.iter().flatten() {
                let (type_url, value) = decode_any(resource).expect("a golden").message;
                let by_name = out.entry(kind.type_url().to_owned()).or_default();
                by_name.insert(name_of(resource), Any { type_url, value });
            }
        }
        Self(Arc::new(out))
    }

    fn answer(&self, type_url: &str, names: &BTreeSet<String>) -> Vec<(String, Any)> {
        let all = self.0.get(type_url).into_iter().flatten();
        all.filter(|(n, _)| names.is_empty() || names.contains(*n)).map(|(n, any)| (n.clone(), any.clone())).collect()
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Replay {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let replay = self.clone();
        let mut subscribed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let answers = request.into_inner().filter_map(move |request| {
            let answer = request.ok().and_then(|request| {
                let names: BTreeSet<String> = request.resource_names.into_iter().collect();
                // An acknowledgement repeats the subscription.
                if subscribed.insert(request.type_url.clone(), names.clone()).is_some_and(|before| before == names) {
                    return None;
                }
                let resources = replay.answer(&request.type_url, &names).into_iter().map(|(_, any)| any).collect();
                let type_url = request.type_url;
                Some(Ok(DiscoveryResponse { type_url, resources, nonce: "n".into(), ..DiscoveryResponse::default() }))
            });
            async move { answer }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let replay = self.clone();
        let answers = request.into_inner().filter_map(move |request| {
            let answer = request.ok().filter(|request| request.response_nonce.is_empty()).map(|request| {
                let names: BTreeSet<String> = request.resource_names_subscribe.into_iter().collect();
                let found = replay.answer(&request.type_url, &names);
                let known: BTreeSet<&String> = found.iter().map(|(name, _)| name).collect();
                let removed_resources = names.iter().filter(|name| !known.contains(name)).cloned().collect();
                let resources = found.clone().into_iter();
                let resources = resources
                    .map(|(name, any)| Resource { name, resource: Some(any), ..Resource::default() })
                    .collect();
                let type_url = request.type_url;
                Ok(DeltaDiscoveryResponse {
                    type_url,
                    resources,
                    removed_resources,
                    nonce: "n".into(),
                    ..DeltaDiscoveryResponse::default()
                })
            });
            async move { answer }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn serve(replay: Replay) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let service = AggregatedDiscoveryServiceServer::new(replay).max_encoding_message_size(usize::MAX);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

#[tokio::test]
async fn every_recorded_resource_arrives_in_both_protocols() {
    for name in ["virtualservice/01-user-header-canary", "sds/01-generic-and-tls", "grpc/01-client-vs-dr"] {
        let case = Case::read(&root().join(name)).expect("read the case");
        for proxy in &case.proxies {
            let golden = case.golden(&proxy.name).expect("read the golden");
            let address = serve(Replay::new(&golden)).await;
            for protocol in Protocol::ALL {
                let identity = Identity::of_node(&proxy.node).expect("a node");
                let channel = connect(address).await.expect("connect");
                let limits = Limits { give_up: std::time::Duration::from_millis(400), ..Limits::default() };
                let actual =
                    dump(channel, protocol, identity, &proxy.kinds(), &proxy.names, limits).await.expect("a dump");
                assert!(actual.keys().eq(golden.keys()), "{name}: {:?}", actual.keys());
                for (kind, expected) in &golden {
                    let result = compare(expected.as_deref(), actual[kind].as_deref(), 5);
                    assert_eq!(result.equal, result.total(), "{name} {protocol} {}: {result:?}", kind.name());
                    assert_eq!(result.note, None, "{name} {protocol} {}", kind.name());
                }
            }
        }
    }
}
