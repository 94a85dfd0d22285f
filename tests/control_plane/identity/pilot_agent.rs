//! The conversation of Istio's pilot-agent with the control plane: certificates, Envoy's requests that it forwards, and the
//! requests that it adds (X05).
//!
//! After Envoy's first request for listeners, pilot-agent subscribes to the name table and to the ProxyConfig of the mesh, and
//! reports the health of the workload, on Envoy's stream. It answers these responses itself, without a version. It rejects
//! extensions whose Wasm module it cannot fetch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use sluice_proto::google::rpc::Status;
use sluice_proto::json::encode_any;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, Update, follow};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::transport::Channel;

use super::mesh::{CART, IdentityFixture, until, uris};

const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 10.1.0.1
  selector: {app: cart}
  ports: [{name: http, port: 80}]
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: crab, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  url: http://modules.example.test/crab.wasm
  phase: AUTHN
";

/// The node that pilot-agent writes into Envoy's bootstrap.
fn envoy_node() -> Result<Identity> {
    Identity::of_node(&json!({
        "id": "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local",
        "cluster": "cart.shop",
        "metadata": {
            "NAME": "cart-1", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "cart", "CLUSTER_ID": "Kubernetes",
            "ISTIO_VERSION": "1.30.0", "INSTANCE_IPS": "10.0.0.1", "DNS_CAPTURE": "true",
            "LABELS": {"app": "cart", "security.istio.io/tlsMode": "istio"},
            "PROXY_CONFIG": {"discoveryAddress": "istiod.istio-system.svc:15012", "statusPort": 15020},
        },
    }))
}

/// The call metadata of pilot-agent; `XDS_HEADER_X_TEAM` and `CA_HEADER_X_TEAM` add headers.
fn headers(token: &str) -> [(&'static str, String); 3] {
    [
        ("authorization", format!("Bearer {token}")),
        ("clusterid", "Kubernetes".to_owned()),
        ("x-team", "shop".to_owned()),
    ]
}

/// pilot-agent between Envoy and the control plane.
struct PilotAgent {
    stream: AdsStream,
    protocol: Protocol,
}

impl PilotAgent {
    fn connect(channel: Channel, protocol: Protocol, token: &str) -> Result<Self> {
        Ok(Self { stream: AdsStream::open_with_headers(channel, protocol, envoy_node()?, headers(token))?, protocol })
    }

    /// A request of pilot-agent itself: without a node, and without a version.
    fn send(&self, type_url: &str, nonce: &str, error: Option<&str>) -> Result<()> {
        let error_detail = error.map(|text| Status { code: 13, message: text.to_owned(), details: Vec::new() });
        let (type_url, response_nonce) = (type_url.to_owned(), nonce.to_owned());
        match self.protocol {
            Protocol::Sotw => self.stream.send_sotw(DiscoveryRequest {
                type_url,
                response_nonce,
                error_detail,
                ..DiscoveryRequest::default()
            }),
            Protocol::Delta => self.stream.send_delta(DeltaDiscoveryRequest {
                type_url,
                response_nonce,
                error_detail,
                ..DeltaDiscoveryRequest::default()
            }),
        }
    }

    /// Envoy subscribes.
    fn subscribe(&mut self, kind: Kind, names: &BTreeSet<String>) -> Result<()> {
        self.stream.subscribe(kind.type_url(), &names.iter().cloned().collect::<Vec<_>>(), BTreeMap::new())
    }

    /// The next responses, one of each of these types, in any order.
    async fn responses(&mut self, types: &[&str]) -> Result<BTreeMap<String, Update>> {
        let mut found = BTreeMap::new();
        while found.len() < types.len() {
            let update = self.stream.next_within(Duration::from_secs(10)).await?;
            let update = update.with_context(|| format!("{:?} of {types:?}", found.keys()))?;
            ensure!(types.contains(&update.type_url.as_str()), "{} is not expected", update.type_url);
            found.insert(update.type_url.clone(), update);
        }
        Ok(found)
    }
}

/// Names of this kind to which the resources of a response refer.
fn referred(kind: Kind, update: &Update) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, _, any) in &update.resources {
        follow::names(kind, &encode_any(&any.type_url, &any.value), &mut names);
    }
    names
}

/// Requests certificates as pilot-agent does: by its token, and by its certificate when it renews it. Returns the connection
/// with the certificate.
async fn certify(mesh: &IdentityFixture, token: &str) -> Result<Channel> {
    let (key, csr) = signing_request()?;
    let request = |csr: String| CertificateRequest {
        csr,
        seconds: 86_400,
        headers: headers(token).into(),
        metadata: vec![("CertSigner", String::new())],
    };
    let chain = request(csr).send(&mesh.connect(&ClientTls::default()).await).await?;
    // pilot-agent refuses a chain without a root.
    ensure!(chain.len() > 1 && uris(&chain[0]) == ["spiffe://cluster.local/ns/shop/sa/cart"], "{chain:?}");
    let channel = mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await;
    let (_, csr) = signing_request()?;
    let renewed = request(csr).send(&channel).await?;
    ensure!(uris(&renewed[0]) == uris(&chain[0]));
    Ok(channel)
}

/// The state of a type in `/debug/syncz`.
async fn sync_state(mesh: &IdentityFixture, type_url: &str) -> Option<Value> {
    let rows: Value = serde_json::from_str(&mesh.server.get("/debug/syncz").await.ok()?.1).ok()?;
    rows[0]["resources"].get(type_url).cloned()
}

async fn converse(protocol: Protocol) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("objects.yaml");
    std::fs::write(&file, OBJECTS)?;
    // The agent subscribes to the mesh's ProxyConfig for the roots of other authorities.
    let other = IdentityFixture::start(&[]).await;
    let mesh_config = tempfile::NamedTempFile::new()?;
    std::fs::write(mesh_config.path(), json!({"caCertificates": [{"pem": other.root()}]}).to_string())?;
    let arguments = [
        format!("--configDir={}", directory.path().display()),
        format!("--meshConfig={}", mesh_config.path().display()),
    ];
    let arguments = arguments.each_ref().map(String::as_str);
    let mesh = IdentityFixture::start_with(&arguments, &[("ISTIO_MULTIROOT_MESH", "true")]).await;
    let token = mesh.token(CART);
    certify(&mesh, &token).await?;
    // The xDS connection has no client certificate.
    let mut agent = PilotAgent::connect(mesh.connect(&ClientTls::default()).await, protocol, &token)?;

    agent.subscribe(Kind::Cds, &BTreeSet::new())?;
    let clusters = agent.responses(&[Kind::Cds.type_url()]).await?.remove(Kind::Cds.type_url()).context("clusters")?;
    agent.stream.ack(&clusters)?;
    agent.subscribe(Kind::Eds, &referred(Kind::Eds, &clusters))?;
    agent.subscribe(Kind::Lds, &BTreeSet::new())?;
    // Requests that pilot-agent adds behind the first one for listeners.
    for type_url in [Kind::Nds.type_url(), PROXY_CONFIG, HEALTH] {
        agent.send(type_url, "", None)?;
    }
    let expected = [Kind::Eds.type_url(), Kind::Lds.type_url(), Kind::Nds.type_url(), PROXY_CONFIG];
    let responses = agent.responses(&expected).await?;
    for envoy in [Kind::Eds, Kind::Lds] {
        agent.stream.ack(&responses[envoy.type_url()])?;
    }
    for own in [Kind::Nds.type_url(), PROXY_CONFIG] {
        let update = &responses[own];
        // pilot-agent reads the first resource.
        ensure!(update.resources.len() == 1, "{update:?}");
        agent.send(own, &update.nonce, None)?;
    }
    let names = encode_any(Kind::Nds.type_url(), &responses[Kind::Nds.type_url()].resources[0].2.value);
    ensure!(names["table"]["cart.shop.svc.cluster.local"]["ips"][0] == "10.1.0.1", "{names}");
    let config = encode_any(PROXY_CONFIG, &responses[PROXY_CONFIG].resources[0].2.value);
    let roots = config["caCertificatesPem"].to_string();
    ensure!(roots.contains(json!(other.root().trim()).to_string().trim_matches('"')), "{config}");

    // Envoy requests routes and the extension. Its module cannot be fetched: pilot-agent rejects it.
    let listeners = &responses[Kind::Lds.type_url()];
    let (routes, extensions) = (referred(Kind::Rds, listeners), referred(Kind::Ecds, listeners));
    ensure!(extensions.len() == 1 && !routes.is_empty(), "{routes:?} {extensions:?}");
    agent.subscribe(Kind::Ecds, &extensions)?;
    let mut responses = agent.responses(&[Kind::Ecds.type_url()]).await?;
    let extension = responses.remove(Kind::Ecds.type_url()).context("the extension")?;
    agent.send(&extension.type_url, &extension.nonce, Some("cannot fetch the module"))?;
    agent.subscribe(Kind::Rds, &routes)?;
    let responses = agent.responses(&[Kind::Rds.type_url()]).await?;
    agent.stream.ack(&responses[Kind::Rds.type_url()])?;
    until("the rejection is visible", async || {
        let state = sync_state(&mesh, Kind::Ecds.type_url()).await?;
        state.to_string().contains("cannot fetch the module").then_some(())
    })
    .await;

    // The workload becomes unhealthy. That is not a rejection, and changes still arrive on the stream.
    agent.send(HEALTH, "", Some("unhealthy"))?;
    let more = OBJECTS.replace("port: 80}]", "port: 80}, {name: grpc, port: 81}]");
    std::fs::write(&file, more)?;
    let mut found = false;
    while !found {
        let update = agent.stream.next_within(Duration::from_secs(10)).await?.context("the change arrives")?;
        ensure!(update.type_url != HEALTH);
        found = update.type_url == Kind::Cds.type_url();
        match update.type_url.as_str() {
            PROXY_CONFIG => agent.send(PROXY_CONFIG, &update.nonce, None)?,
            _ => agent.stream.ack(&update)?,
        }
    }
    let metrics = mesh.metrics().await;
    ensure!(metrics["pilot_total_xds_rejects{type=\"ecds\"}"] >= 1.0);
    ensure!(metrics.keys().filter(|name| name.starts_with("pilot_total_xds_rejects")).count() == 1, "{metrics:?}");
    ensure!(metrics["pilot_xds{version=\"1.30.0\"}"] >= 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pilot_agent_is_served_in_state_of_the_world() -> Result<()> {
    converse(Protocol::Sotw).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pilot_agent_is_served_in_delta() -> Result<()> {
    converse(Protocol::Delta).await
}
