//! The ClusterTrustBundle of the mesh. No other test writes it.

use std::time::Duration;

use serde_json::json;
use sluice_authority::{TrustBundle, TrustBundleWriter};
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::wait::until_async;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::authority::{now, root};

with_api_server!(the_roots_are_in_a_cluster_trust_bundle, shared);
async fn the_roots_are_in_a_cluster_trust_bundle(api: KubeApi) {
    let [one, two] = ["one", "two"].map(|name| root(name, Duration::from_secs(86400), now()).roots);
    let bundle = |roots: &str| TrustBundle { roots: roots.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(bundle(&one));
    let stop = CancellationToken::new();
    let writing = tokio::spawn(TrustBundleWriter::new(super::client(&api).await, receiver).run(stop.clone()));
    let stored =
        async || api.get("certificates.k8s.io/v1", "ClusterTrustBundle", "", "istio.io:istiod-ca:root-cert").await;
    let object = until_async("it is written", async || stored().await).await;
    assert_eq!(object["spec"], json!({"signerName": "istio.io/istiod-ca", "trustBundle": one}));
    sender.send_replace(bundle(&two));
    until_async("it has the new roots", async || (stored().await?["spec"]["trustBundle"] == two).then_some(())).await;
    // Equal roots are not written again.
    let written = api.count("update", "clustertrustbundles");
    let reads = api.count("get", "clustertrustbundles");
    sender.send_replace(bundle(&two));
    let count = || api.count("get", "clustertrustbundles");
    until_async("it reads again", async || (count() > reads).then_some(())).await;
    assert_eq!(api.count("update", "clustertrustbundles"), written);
    stop.cancel();
    writing.await.expect("no panic");
}
