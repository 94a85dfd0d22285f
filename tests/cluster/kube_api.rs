//! The API servers of the tests in `tests/kube_suite`: real control planes. Most tests share one.

use anyhow::Result;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::kube_api::KubeApi;
use tokio::sync::OnceCell;

use crate::fixture::programs;

static SHARED: OnceCell<Cluster> = OnceCell::const_new();
static REMOTE: OnceCell<Cluster> = OnceCell::const_new();

async fn share(cell: &'static OnceCell<Cluster>) -> Result<Option<KubeApi>> {
    let Some(programs) = programs() else { return Ok(None) };
    let start = async || {
        let cluster = Cluster::start(&programs).await?;
        cluster.remove_directory_at_exit()?;
        anyhow::Ok(cluster)
    };
    let cluster = cell.get_or_try_init(start).await?;
    KubeApi::real(cluster.another_handle().await?).await.map(Some)
}

async fn start(api_server_arguments: &[&str]) -> Result<Option<KubeApi>> {
    let Some(programs) = programs() else { return Ok(None) };
    KubeApi::real(Cluster::start_with(&programs, api_server_arguments).await?).await.map(Some)
}

/// The control plane that tests share.
pub(crate) async fn shared() -> Option<KubeApi> {
    share(&SHARED).await.expect("a shared control plane")
}

/// Another one that tests share.
pub(crate) async fn remote() -> Option<KubeApi> {
    share(&REMOTE).await.expect("another shared control plane")
}

pub(crate) async fn own() -> Option<KubeApi> {
    start(&[]).await.expect("a control plane")
}

/// Another one of the test.
pub(crate) async fn own_remote() -> Option<KubeApi> {
    own().await
}

/// An API server that refuses streaming lists, as those before Kubernetes 1.34 do.
pub(crate) async fn own_without_streaming_lists() -> Option<KubeApi> {
    start(&["--feature-gates=WatchList=false"]).await.expect("a control plane without streaming lists")
}
