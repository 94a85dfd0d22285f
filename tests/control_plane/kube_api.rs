//! The API servers of the tests in `tests/kube_suite`: fake ones, which start at once, so that each test has its own.

use sluice_testkit::api_server::ApiServer;
use sluice_testkit::kube_api::KubeApi;

async fn start(streams_lists: bool) -> Option<KubeApi> {
    let server = ApiServer::start().await.expect("a server");
    if streams_lists {
        server.stream_lists();
    }
    Some(KubeApi::fake(server).await.expect("a proxy"))
}

pub(crate) async fn shared() -> Option<KubeApi> {
    start(true).await
}

pub(crate) async fn remote() -> Option<KubeApi> {
    start(true).await
}

pub(crate) async fn own() -> Option<KubeApi> {
    start(true).await
}

pub(crate) async fn own_remote() -> Option<KubeApi> {
    start(true).await
}

pub(crate) async fn own_without_streaming_lists() -> Option<KubeApi> {
    start(false).await
}
