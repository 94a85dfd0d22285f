//! What an agentgateway receives over xDS from a real server (X31).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_model::ResourceType;
use sluice_testkit::ads::{AdsStream, Identity, Protocol, Update, connect};
use sluice_testkit::parity::run::TRUSTED_LOOPBACK;
use sluice_testkit::server::{Options, Sluiced, get};

const STREAM_TIMEOUT: Duration = Duration::from_secs(20);
const RESOURCES: &str = ResourceType::Agentgateway.type_url();
const ADDRESSES: &str = ResourceType::Address.type_url();

const OBJECTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop},
 spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec:
  gatewayClassName: istio-agentgateway
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{name: door, namespace: edge, sectionName: http}]
  rules: [{backendRefs: [{name: cart, port: 80}]}]
";

/// A server with a Gateway of agentgateways, and the private key of its certificate as PEM.
async fn start(directory: &std::path::Path) -> Result<(Sluiced, String)> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(vec!["shop.example".to_owned()])?.self_signed(&key)?.pem();
    let key = key.serialize_pem();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": "edge"},
        "stringData": {"tls.crt": certificate, "tls.key": key},
    });
    std::fs::write(directory.join("objects.yaml"), format!("{secret}\n---\n{OBJECTS}"))?;
    let mut options = Options::new(directory);
    options.env.push(TRUSTED_LOOPBACK.map(str::to_owned).into());
    options.env.push(("PILOT_ENABLE_AGENTGATEWAY".to_owned(), "true".to_owned()));
    Ok((Sluiced::start(&options).await?, key))
}

/// A stream of an agentgateway of the Gateway `edge/door`, with the node that it sends itself.
async fn open(server: &Sluiced, protocol: Protocol, pod: &str, account: Option<&str>) -> Result<AdsStream> {
    let metadata = json!({
        "NAME": pod, "NAMESPACE": "edge", "INSTANCE_IPS": "10.0.0.9", "NODE_NAME": "n", "role": "edge~door",
    });
    let id = format!("agentgateway~10.0.0.9~{pod}.edge~edge.svc.cluster.local");
    let mut identity = Identity::of_node(&json!({"id": id, "metadata": metadata}))?;
    identity.forwarded = account.map(|account| {
        let uri = format!("spiffe://cluster.local/ns/edge/sa/{account}");
        format!("By=spiffe://cluster.local/ns/istio-system/sa/istiod;URI={uri}")
    });
    AdsStream::open(connect(server.grpc).await?, protocol, identity)
}

/// The next response of a type, which is acknowledged: its resources as JSON, by name.
async fn next(stream: &mut AdsStream, type_url: &str) -> Result<(BTreeMap<String, Value>, Update)> {
    let update = stream.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
    ensure!(update.type_url == type_url, "received {}", update.type_url);
    stream.ack(&update)?;
    let json = |any: &sluice_proto::google::protobuf::Any| sluice_proto::json::encode_any(&any.type_url, &any.value);
    let resources = update.resources.iter().map(|(name, _, any)| (name.clone(), json(any))).collect();
    Ok((resources, update))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agentgateway_receives_its_gateway_and_its_changes() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, _) = start(directory.path()).await?;
    let mut stream = open(&server, Protocol::Delta, "door-1", Some("door")).await?;
    stream.subscribe(ADDRESSES, &[], BTreeMap::new())?;
    let (addresses, _) = next(&mut stream, ADDRESSES).await?;
    ensure!(addresses.contains_key("shop/cart.shop.svc.cluster.local"), "{:?}", addresses.keys());
    stream.subscribe(RESOURCES, &[], BTreeMap::new())?;
    let (found, _) = next(&mut stream, RESOURCES).await?;
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let expected = [
        "bind/443/edge/door",
        "bind/80/edge/door",
        "listener/edge/door.http",
        "listener/edge/door.https",
        "route/shop/cart.0.0.http",
    ];
    assert_eq!(names, expected);
    let backend = &found["route/shop/cart.0.0.http"]["route"]["backends"][0]["backend"];
    assert_eq!(
        *backend,
        json!({"service": {"namespace": "shop", "hostname": "cart.shop.svc.cluster.local"}, "port": 80})
    );

    // A changed route is sent alone; a removed one is named.
    let text = std::fs::read_to_string(directory.path().join("objects.yaml"))?;
    let changed = text.replace("rules: [{backendRefs", "rules: [{timeouts: {request: 2s}, backendRefs");
    std::fs::write(directory.path().join("objects.yaml"), &changed)?;
    let (found, update) = next(&mut stream, RESOURCES).await?;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["route/shop/cart.0.0.http"]);
    assert_eq!(found["route/shop/cart.0.0.http"]["route"]["trafficPolicies"], json!([{"timeout": {"request": "2s"}}]));
    assert_eq!(update.removed, [""; 0]);
    std::fs::write(directory.path().join("objects.yaml"), changed.replace("sectionName: http", "sectionName: none"))?;
    let (found, update) = next(&mut stream, RESOURCES).await?;
    assert_eq!((found.len(), update.removed), (0, vec!["route/shop/cart.0.0.http".to_owned()]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_of_the_world_has_the_same_resources() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, _) = start(directory.path()).await?;
    let mut stream = open(&server, Protocol::Sotw, "door-1", Some("door")).await?;
    stream.subscribe(RESOURCES, &[], BTreeMap::new())?;
    let update = stream.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
    let sorts: Vec<String> = update
        .resources
        .iter()
        .filter_map(|(_, _, any)| {
            let message = sluice_proto::json::encode_any(&any.type_url, &any.value);
            message.as_object()?.keys().find(|key| *key != "@type").cloned()
        })
        .collect();
    let count = |sort: &str| sorts.iter().filter(|found| *found == sort).count();
    assert_eq!((count("bind"), count("listener"), count("route"), sorts.len()), (2, 2, 1, 5));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_proxies_of_the_gateway_receive_its_private_key() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, key) = start(directory.path()).await?;
    let mut received = BTreeMap::new();
    for (pod, account) in [("own", Some("door")), ("other", Some("other")), ("plain", None)] {
        let mut stream = open(&server, Protocol::Delta, pod, account).await?;
        stream.subscribe(RESOURCES, &[], BTreeMap::new())?;
        let update = stream.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
        let listener = update.resources.iter().find(|(name, ..)| name == "listener/edge/door.https");
        let (_, _, listener) = listener.context("the listener")?;
        received.insert(pod, listener.value.windows(key.len()).any(|part| part == key.as_bytes()));
        stream.ack(&update)?;
        if pod == "own" {
            // No page shows it.
            let lines: BTreeSet<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
            for page in ["config_dump", "collections", "syncz"] {
                let path = format!("/debug/{page}?proxyID=own.edge");
                let (_, text) = get(server.http, &path).await?;
                ensure!(lines.iter().all(|line| !text.contains(line)), "{path} shows the key");
            }
        }
    }
    assert_eq!(received, [("other", false), ("own", true), ("plain", false)].into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agentgateway_is_refused_unless_it_is_enabled() -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("objects.yaml"), OBJECTS)?;
    let server = Sluiced::start(&Options::new(directory.path())).await?;
    let mut stream = open(&server, Protocol::Delta, "door-1", None).await?;
    stream.subscribe(RESOURCES, &[], BTreeMap::new())?;
    let refused = stream.next_within(STREAM_TIMEOUT).await.expect_err("it is not enabled");
    ensure!(format!("{refused:#}").contains("PILOT_ENABLE_AGENTGATEWAY=true"), "{refused:#}");
    Ok(())
}
