//! Debug pages over xDS (O09), as `istioctl` requests them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use prost::Message;
use serde_json::Value;
use sluice_proto::envoy::service::discovery::v3::DiscoveryRequest;
use sluice_proto::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, Update};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::mesh::{CART, IdentityFixture};
use super::node;

const PAGE: &str = "istio.io/debug";
const SYNC: &str = "istio.io/debug/syncz";
const DUMP: &str = "istio.io/debug/config_dump";

/// Connects as a service account, by its certificate.
async fn connect(mesh: &IdentityFixture, subject: &str) -> Channel {
    let (key, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    let chain = CertificateRequest::with_token(&csr, &mesh.token(subject)).send(&channel).await.expect("issued");
    mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await
}

/// Opens a stream with one request.
fn open_with_request(
    channel: &Channel,
    protocol: Protocol,
    of: (&str, &str),
    type_url: &str,
    names: &[&str],
) -> Result<AdsStream> {
    let mut stream = AdsStream::open(channel.clone(), protocol, node(of.0, of.1))?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    stream.subscribe(type_url, &names, BTreeMap::new())?;
    Ok(stream)
}

async fn answer(stream: &mut AdsStream) -> Result<Update> {
    stream.next().await?.context("an answer")
}

fn code(result: Result<Update>) -> Option<Code> {
    result.err().map(|error| error.downcast_ref::<Status>().map_or(Code::Unknown, Status::code))
}

/// A proxy of the shop that has its clusters, in a namespace of its own.
async fn proxy(mesh: &IdentityFixture) -> Result<AdsStream> {
    let channel = connect(mesh, CART).await;
    let mut stream = open_with_request(&channel, Protocol::Delta, ("shop", "cart"), Kind::Cds.type_url(), &[])?;
    let update = answer(&mut stream).await?;
    stream.ack(&update)?;
    Ok(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_sync_state_of_proxies() -> Result<()> {
    let mesh = IdentityFixture::start(&[]).await;
    let _proxy = proxy(&mesh).await?;
    let channel = connect(&mesh, "system:serviceaccount:istio-system:operator").await;
    let operator = ("istio-system", "operator");
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = open_with_request(&channel, protocol, operator, SYNC, &[])?;
        let update = answer(&mut stream).await?;
        ensure!(
            update.type_url == SYNC && update.resources.len() == 1,
            "one proxy, without the caller itself: {update:?}"
        );
        let any = &update.resources[0].2;
        ensure!(any.type_url == "type.googleapis.com/envoy.service.status.v3.ClientConfig", "{}", any.type_url);
        let client = ClientConfig::decode(any.value.as_slice())?;
        ensure!(client.node.as_ref().is_some_and(|node| node.id == "pod-1.shop"), "{client:?}");
        let clusters = client.generic_xds_configs.iter().find(|config| config.type_url == Kind::Cds.type_url());
        let state = clusters.context("clusters")?.config_status();
        ensure!(matches!(state, ConfigStatus::Synced | ConfigStatus::Stale), "{state:?}");

        // An acknowledgement is not answered, and the stream continues.
        stream.ack(&update)?;
        stream.subscribe(PAGE, &["config_dump?proxyID=pod-1.shop".to_owned()], BTreeMap::new())?;
        let update = answer(&mut stream).await?;
        let [(_, _, any)] = update.resources.as_slice() else { anyhow::bail!("{update:?}") };
        ensure!((update.type_url.as_str(), any.type_url.as_str()) == (PAGE, PAGE), "{update:?}");
        let dump: Value = serde_json::from_slice(&any.value)?;
        ensure!(dump["configs"][1]["dynamicActiveClusters"].as_array().is_some_and(|list| !list.is_empty()), "{dump}");

        let mut stream = open_with_request(&channel, protocol, operator, DUMP, &["pod-1.shop"])?;
        let types: Vec<String> =
            answer(&mut stream).await?.resources.into_iter().map(|(_, _, any)| any.type_url).collect();
        ensure!(types.contains(&"type.googleapis.com/envoy.admin.v3.ClustersConfigDump".to_owned()), "{types:?}");
    }
    let (_, connected) = mesh.server.get("/debug/connections").await?;
    ensure!(!connected.contains("operator"), "a caller that requests only debug pages is not a proxy: {connected}");
    Ok(())
}

/// The first request of istioctl has a nonce, although there was no response, and a node of its own library.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_istioctl_are_answered() -> Result<()> {
    let mesh = IdentityFixture::start(&[]).await;
    let _proxy = proxy(&mesh).await?;
    let channel = connect(&mesh, "system:serviceaccount:istio-system:default").await;
    let ask = async |type_url: &str, names: &[&str]| -> Result<Update> {
        let node = serde_json::json!({
            "id": "sidecar~192.0.2.1~test-1.default~default.svc.cluster.local",
            "metadata": {
                "GENERATOR": "event", "ISTIO_VERSION": "65536.65536.65536", "NAMESPACE": "istio-system",
                "SERVICE_ACCOUNT": "default",
            },
        });
        let node = Identity::of_node(&node)?;
        let mut stream = AdsStream::open(channel.clone(), Protocol::Sotw, node.clone())?;
        stream.send_sotw(DiscoveryRequest {
            node: node.node,
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            response_nonce: "2026-01-01 00:00:00 +0000 UTC".to_owned(),
            ..DiscoveryRequest::default()
        })?;
        let update = answer(&mut stream).await?;
        ensure!(update.type_url == type_url && !update.nonce.is_empty() && !update.version.is_empty(), "{update:?}");
        Ok(update)
    };
    let text = |update: &Update| String::from_utf8_lossy(&update.resources[0].2.value).into_owned();

    let sync = ask(SYNC, &[]).await?;
    ensure!(sync.resources.len() == 1, "one proxy: {sync:?}");
    let identifier: Value = serde_json::from_str(&sync.control_plane)?;
    ensure!(identifier["Component"] == "istiod" && identifier["Info"]["version"].is_string(), "{identifier}");
    ensure!(identifier["ID"].is_string(), "{identifier}");
    ensure!(!ask(DUMP, &["pod-1.shop"]).await?.resources.is_empty());
    ensure!(ask(DUMP, &[]).await?.resources.is_empty(), "no proxy is named");
    ensure!(ask("istio.io/debug/nosuch", &[]).await?.resources.is_empty(), "no such type");
    let unknown = ask(PAGE, &["nosuch"]).await?;
    ensure!(text(&unknown) == "404 page not found\n", "istioctl then requests the list: {}", text(&unknown));
    let list: Vec<String> = serde_json::from_str(&text(&ask(PAGE, &["list"]).await?))?;
    ensure!(list.iter().any(|page| page == "syncz"), "{list:?}");
    let absent = ask(PAGE, &["config_dump?proxyID=nosuch.shop"]).await?;
    ensure!(text(&absent).starts_with("Proxy not connected to this Pilot instance"), "{}", text(&absent));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_callers_see_only_proxies_of_their_namespace() -> Result<()> {
    let mesh = IdentityFixture::start(&[]).await;
    let _proxy = proxy(&mesh).await?;
    let shop = connect(&mesh, "system:serviceaccount:shop:till").await;
    let bank = connect(&mesh, "system:serviceaccount:bank:vault").await;
    let page = "config_dump?proxyID=pod-1.shop";
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let text = async |channel: &Channel, of| -> Result<String> {
            let update = answer(&mut open_with_request(channel, protocol, of, PAGE, &[page])?).await?;
            Ok(String::from_utf8(update.resources[0].2.value.clone())?)
        };
        ensure!(text(&shop, ("shop", "till")).await?.contains("dynamicActiveClusters"));
        let hidden = text(&bank, ("bank", "vault")).await?;
        ensure!(hidden.contains("not connected") && !hidden.contains("luster"), "{hidden}");
        for (type_url, names) in [(SYNC, &[][..]), (DUMP, &["pod-1.shop"])] {
            let update = answer(&mut open_with_request(&bank, protocol, ("bank", "vault"), type_url, names)?).await?;
            ensure!(update.resources.is_empty(), "{update:?}");
        }
        for (page, expect) in [
            ("syncz", Code::PermissionDenied),
            ("registryz", Code::PermissionDenied),
            ("../metrics", Code::PermissionDenied),
            ("config_dump?proxyID=\u{1}", Code::InvalidArgument),
        ] {
            let refused = answer(&mut open_with_request(&shop, protocol, ("shop", "till"), PAGE, &[page])?).await;
            ensure!(code(refused) == Some(expect), "{page}");
        }
        let two = answer(&mut open_with_request(&shop, protocol, ("shop", "till"), PAGE, &["edsz", "ndsz"])?).await;
        ensure!(code(two) == Some(Code::InvalidArgument));
        // A caller whose node claims a namespace that is not its own.
        let impersonation = answer(&mut open_with_request(&bank, protocol, ("shop", "vault"), PAGE, &[page])?).await;
        ensure!(code(impersonation) == Some(Code::PermissionDenied));
        // The plaintext port authenticates no caller.
        let plain = sluice_testkit::ads::connect(mesh.server.grpc).await?;
        for type_url in [PAGE, SYNC, DUMP] {
            let unknown =
                answer(&mut open_with_request(&plain, protocol, ("istio-system", "operator"), type_url, &[page])?)
                    .await;
            ensure!(code(unknown) == Some(Code::Unauthenticated), "{type_url}");
        }
    }
    let refused = mesh.metrics().await["sluice_xds_refused{reason=\"debug\"}"];
    ensure!((refused - 16.0).abs() < 0.1, "each rejection is counted once: {refused}");
    let lines = mesh.logged("rejected a request for a debug page");
    ensure!(lines.len() == 16 && lines[0].contains("spiffe://cluster.local/ns/shop/sa/till"), "{lines:#?}");
    Ok(())
}
