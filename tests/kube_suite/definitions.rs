//! Kinds are read while their CRD is installed. No other test uses the CRD that is removed here.

use serde_json::{Value, json};
use sluice_model::Kind;
use sluice_testkit::kube_api::KubeApi;

use super::source::RunningSource;

const KIND: &str = "DestinationRule";

fn destination_rule(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "networking.istio.io/v1", "kind": KIND,
           "metadata": {"name": name, "namespace": namespace}, "spec": {"host": "a"}})
}

async fn kinds_follow_their_definition(api: KubeApi) {
    let n = &*api.namespace("n").await;
    let running = RunningSource::start(api).await;
    running.sink.synced().await;
    let api = &running.server;
    let requests = api.count("list", "destinationrules") + api.count("watch", "destinationrules");
    assert_eq!(requests, 0, "a kind that is not defined is not listed");
    let lists = api.lists("customresourcedefinitions");
    for _ in 0..2 {
        api.define(KIND).await;
        api.apply(destination_rule(n, "v")).await;
        running.sink.has(Kind::DestinationRule, n, &["v"]).await;
        api.apply(destination_rule(n, "w")).await;
        running.sink.has(Kind::DestinationRule, n, &["v", "w"]).await;
        api.undefine(KIND).await;
        api.disconnect();
        running.sink.has(Kind::DestinationRule, n, &[]).await;
    }
    assert_eq!(api.lists("customresourcedefinitions"), lists, "a watch of metadata reports each definition");
}

with_api_server!(kinds_follow_their_custom_resource_definition, shared);
async fn kinds_follow_their_custom_resource_definition(api: KubeApi) {
    kinds_follow_their_definition(api).await;
}

with_api_server!(kinds_follow_their_definition_with_lists_in_pages, own_without_streaming_lists);
async fn kinds_follow_their_definition_with_lists_in_pages(api: KubeApi) {
    kinds_follow_their_definition(api).await;
}
