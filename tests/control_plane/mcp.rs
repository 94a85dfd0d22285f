//! Configuration for other control planes over xDS (C09).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use prost::Message;
use sluice_proto::istio::mcp::v1alpha1::Resource;
use sluice_proto::istio::networking::v1alpha3::ServiceEntry;
use sluice_testkit::ads::{AdsStream, Identity, Protocol, Update};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::identity::mesh::IdentityFixture;

const ROUTES: &str = "networking.istio.io/v1/VirtualService";
const ENTRIES: &str = "networking.istio.io/v1/ServiceEntry";
const MESH: &str = "core/v1alpha1/MeshConfig";

/// The node of another control plane in a namespace.
fn node(namespace: &str) -> Identity {
    let node = serde_json::json!({
        "id": format!("sidecar~10.0.0.1~istiod-1.{namespace}~{namespace}.svc.cluster.local"),
        "metadata": {"GENERATOR": "api", "NAMESPACE": namespace, "SERVICE_ACCOUNT": "istiod"},
    });
    Identity::of_node(&node).expect("a node")
}

/// Connects as the service account `istiod` of a namespace, by its certificate.
async fn connect(mesh: &IdentityFixture, namespace: &str) -> Channel {
    let (key, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    let token = mesh.token(&format!("system:serviceaccount:{namespace}:istiod"));
    let chain = CertificateRequest::with_token(&csr, &token).send(&channel).await.expect("issued");
    mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await
}

/// Opens a stream that subscribes to a type.
fn subscribed(channel: &Channel, protocol: Protocol, namespace: &str, type_url: &str) -> Result<AdsStream> {
    let mut stream = AdsStream::open(channel.clone(), protocol, node(namespace))?;
    stream.subscribe(type_url, &[], BTreeMap::new())?;
    Ok(stream)
}

/// The next response, acknowledged.
async fn answer(stream: &mut AdsStream) -> Result<Update> {
    let update = stream.next().await?.context("a response")?;
    stream.ack(&update)?;
    Ok(update)
}

/// The resources of a response.
fn resources(update: &Update) -> Result<Vec<Resource>> {
    update.resources.iter().map(|(_, _, any)| Ok(Resource::decode(any.value.as_slice())?)).collect()
}

/// The names of the resources of a response.
fn names(update: &Update) -> Result<BTreeSet<String>> {
    Ok(resources(update)?.into_iter().filter_map(|resource| Some(resource.metadata?.name)).collect())
}

async fn refusal(channel: &Channel, protocol: Protocol, namespace: &str, type_url: &str) -> Result<Code> {
    match answer(&mut subscribed(channel, protocol, namespace, type_url)?).await {
        Ok(update) => anyhow::bail!("it is served: {update:?}"),
        Err(error) => Ok(error.downcast_ref::<Status>().map_or(Code::Unknown, Status::code)),
    }
}

fn write_route(mesh: &IdentityFixture, name: &str) -> Result<()> {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop, labels: {{team: fruit}}}}\n\
         spec: {{hosts: [{name}], http: [{{timeout: 1500ms, route: [{{destination: {{host: cart}}}}]}}]}}\n"
    );
    Ok(std::fs::write(mesh.objects().join(format!("{name}.yaml")), text)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_of_the_root_namespace_reads_configuration_and_its_changes() -> Result<()> {
    let mesh = IdentityFixture::start(&[]).await;
    let channel = connect(&mesh, "istio-system").await;
    let mut sotw = subscribed(&channel, Protocol::Sotw, "istio-system", ROUTES)?;
    let mut delta = subscribed(&channel, Protocol::Delta, "istio-system", ROUTES)?;
    ensure!(answer(&mut sotw).await?.resources.is_empty(), "an empty list is answered");
    ensure!(answer(&mut delta).await?.resources.is_empty(), "an empty list is answered");

    for (count, name) in ["a", "b"].into_iter().enumerate() {
        write_route(&mesh, name)?;
        ensure!(names(&answer(&mut sotw).await?)?.len() == count + 1, "all objects");
        let changed = answer(&mut delta).await?;
        ensure!(names(&changed)? == [format!("shop/{name}")].into(), "what differs: {changed:?}");
        let metadata = resources(&changed)?.remove(0).metadata.context("metadata")?;
        ensure!(metadata.labels.get("team").is_some_and(|team| team == "fruit"), "{metadata:?}");
    }
    std::fs::remove_file(mesh.objects().join("a.yaml"))?;
    ensure!(names(&answer(&mut sotw).await?)? == ["shop/b".to_owned()].into());
    let removed = answer(&mut delta).await?;
    ensure!((removed.removed.as_slice(), removed.resources.len()) == (&["shop/a".to_owned()][..], 0), "{removed:?}");

    // The Service is a ServiceEntry, and the mesh config has no name.
    sotw.subscribe(ENTRIES, &[], BTreeMap::new())?;
    let entries = resources(&answer(&mut sotw).await?)?;
    let entry = entries.first().context("a ServiceEntry")?;
    ensure!(entry.metadata.as_ref().is_some_and(|metadata| metadata.name == "shop/synthetic-cart"), "{entries:?}");
    let entry = ServiceEntry::decode(entry.body.as_ref().context("a body")?.value.as_slice())?;
    ensure!(entry.hosts == ["cart.shop.svc.cluster.local"] && entry.addresses == ["10.1.0.1"], "{entry:?}");
    delta.subscribe(MESH, &[], BTreeMap::new())?;
    let config = answer(&mut delta).await?;
    ensure!(config.resources.len() == 1 && config.resources[0].0.is_empty(), "{config:?}");
    ensure!(config.resources[0].2.type_url.ends_with("istio.mesh.v1alpha1.MeshConfig"), "{config:?}");
    let (_, connected) = mesh.server.get("/debug/connections").await?;
    ensure!(!connected.contains("istiod-1"), "a caller that requests only configuration is not a proxy: {connected}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_other_namespaces_and_anonymous_ones_read_no_configuration() -> Result<()> {
    let mesh = IdentityFixture::start(&[]).await;
    let shop = connect(&mesh, "shop").await;
    let plain = sluice_testkit::ads::connect(mesh.server.grpc).await?;
    for protocol in Protocol::ALL {
        for type_url in [ROUTES, ENTRIES, MESH, "example.com/v1/Unknown"] {
            ensure!(refusal(&shop, protocol, "shop", type_url).await? == Code::PermissionDenied, "{type_url}");
            let anonymous = refusal(&plain, protocol, "istio-system", type_url).await?;
            ensure!(anonymous == Code::Unauthenticated, "{type_url}");
            // A caller whose node claims the root namespace.
            let impersonation = refusal(&shop, protocol, "istio-system", type_url).await?;
            ensure!(impersonation == Code::PermissionDenied, "{type_url}");
        }
    }
    let lines = mesh.logged("rejected a request for configuration");
    ensure!(lines.len() == 16 && lines[0].contains("spiffe://cluster.local/ns/shop/sa/istiod"), "{lines:#?}");
    let refused = mesh.metrics().await["sluice_xds_refused{reason=\"configuration\"}"];
    ensure!((refused - 16.0).abs() < 0.1, "each rejection is counted once: {refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_is_not_checked_if_the_variable_is_false() -> Result<()> {
    let mesh = IdentityFixture::start_with(&[], &[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]).await;
    write_route(&mesh, "a")?;
    let plain = sluice_testkit::ads::connect(mesh.server.grpc).await?;
    let mut stream = subscribed(&plain, Protocol::Sotw, "shop", ROUTES)?;
    while names(&answer(&mut stream).await?)? != ["shop/a".to_owned()].into() {}
    Ok(())
}
