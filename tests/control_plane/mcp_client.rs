//! Sources of configuration: other control planes over xDS, and directories (C08, C10).

mod changes;
mod credentials;
mod soak;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{self, Identity, Kind, Limits, Protocol};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::ports::free_ports;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use sluice_testkit::server::{Options, Sluiced};
use tokio::process::Child;

use crate::identity::mesh::{IdentityFixture, until};
use changes::RandomObjects;

/// Services of the cluster that reads configuration. The server of configuration has none, because they would be ServiceEntries.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 10.1.0.1
  selector: {app: cart}
  ports: [{name: http, port: 80}, {name: tcp, port: 9000}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
";

/// Collections that are compared: what is parsed from the objects, and all findings.
const COMPARED: [&str; 7] =
    ["virtual_services", "destination_rules", "gateways", "services", "workload_entries", "proxy_configs", "rejects"];

/// A server of configuration without Services.
async fn upstream(environment: &[(&str, &str)]) -> Result<IdentityFixture> {
    upstream_with(&[], environment).await
}

/// The same with fixed addresses, which no other process gets while the server does not run.
async fn restartable_upstream() -> Result<IdentityFixture> {
    let ports: [u16; 4] = free_ports()?;
    let flags = ["grpcAddr", "httpAddr", "monitoringAddr", "secureGRPCAddr"];
    let arguments: Vec<String> =
        flags.iter().zip(ports).map(|(flag, port)| format!("--{flag}=127.0.0.1:{port}")).collect();
    upstream_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &[]).await
}

async fn upstream_with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<IdentityFixture> {
    let upstream = IdentityFixture::start_with(arguments, environment).await;
    std::fs::remove_file(upstream.objects().join("objects.yaml"))?;
    until("the Service is deleted", async || {
        let (_, services) = upstream.server.get("/debug/collections/services").await.ok()?;
        (!services.contains("cart.shop")).then_some(())
    })
    .await;
    Ok(upstream)
}

/// A server that reads configuration, and its directory.
struct Downstream {
    server: Sluiced,
    directory: tempfile::TempDir,
}

impl Downstream {
    /// A server with Services in its own directory and these sources of configuration.
    async fn start(sources: &Value, environment: &[(&str, String)]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (objects, mesh) = (directory.path().join("objects"), directory.path().join("mesh.yaml"));
        std::fs::create_dir(&objects)?;
        std::fs::write(objects.join("services.yaml"), SERVICES)?;
        std::fs::write(&mesh, json!({"configSources": sources}).to_string())?;
        let options = Options {
            args: vec![format!("--meshConfig={}", mesh.display())],
            env: environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            log: Some(directory.path().join("log")),
            ..Options::new(&objects)
        };
        Ok(Self { server: Sluiced::start(&options).await?, directory })
    }

    fn objects(&self) -> PathBuf {
        self.directory.path().join("objects")
    }

    /// The state of the only source over xDS.
    async fn source(&self) -> Result<Value> {
        let (_, text) = self.server.get("/debug/config_sources").await?;
        let sources: Vec<Value> = serde_json::from_str(&text)?;
        sources.into_iter().find(|source| source["objects"].is_number()).context("a source over xDS")
    }
}

/// What a server has parsed and found, and what it sends to a sidecar and to a gateway.
async fn state(server: &Sluiced) -> Result<BTreeMap<String, Value>> {
    let mut state = BTreeMap::new();
    for name in COMPARED {
        let (status, text) = server.get(&format!("/debug/collections/{name}")).await?;
        ensure!(status == 200, "{name}: {text}");
        let dump: Value = serde_json::from_str(&text)?;
        state.insert(name.to_owned(), dump["records"].clone());
    }
    for (kind, labels) in [("sidecar", "cart"), ("router", "gateway")] {
        let node = json!({
            "id": format!("{kind}~10.0.0.1~{labels}-1.shop~shop.svc.cluster.local"),
            "metadata": {
                "NAME": format!("{labels}-1"), "NAMESPACE": "shop", "SERVICE_ACCOUNT": labels, "CLUSTER_ID": "Kubernetes",
                "LABELS": {"app": labels, "istio": "gateway"}, "ISTIO_VERSION": "1.30.0", "PROXY_CONFIG": {},
            },
        });
        let channel = ads::connect(server.grpc).await?;
        let kinds = [Kind::Cds, Kind::Eds, Kind::Lds, Kind::Rds];
        let (identity, names) = (Identity::of_node(&node)?, BTreeMap::new());
        let dump = ads::dump(channel, Protocol::Sotw, identity, &kinds, &names, Limits::default()).await?;
        for (of, resources) in dump {
            state.insert(format!("{} of {kind}", of.name()), json!(resources));
        }
    }
    Ok(state)
}

/// The certificate of the service account `istiod` of the root namespace, which may read configuration. All are PEM.
struct MutualCertificate {
    chain: String,
    key: String,
    /// The roots of the server.
    root: String,
}

impl MutualCertificate {
    /// Requests it from the authority of the server.
    async fn of(upstream: &IdentityFixture) -> Result<Self> {
        let (key, csr) = signing_request()?;
        let channel = upstream.connect(&ClientTls::default()).await;
        let token = upstream.token("system:serviceaccount:istio-system:istiod");
        let chain = CertificateRequest::with_token(&csr, &token).send(&channel).await?.remove(0);
        Ok(Self { chain, key, root: upstream.root() })
    }
}

/// TLS settings with such a certificate in files.
async fn mutual(upstream: &IdentityFixture, directory: &Path) -> Result<Value> {
    let MutualCertificate { chain, key, root } = MutualCertificate::of(upstream).await?;
    let path = |name: &str| directory.join(name).display().to_string();
    for (name, text) in [("chain.pem", &chain), ("key.pem", &key), ("root.pem", &root)] {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(json!({
        "mode": "MUTUAL", "clientCertificate": path("chain.pem"), "privateKey": path("key.pem"),
        "caCertificates": path("root.pem"), "sni": "istiod.istio-system.svc",
    }))
}

fn secure_address(upstream: &IdentityFixture) -> Result<String> {
    Ok(format!("xds://{}", upstream.server.secure.context("the port is open")?))
}

#[tokio::test(flavor = "multi_thread")]
async fn source_that_is_away_keeps_its_objects_and_is_a_finding() -> Result<()> {
    let upstream = upstream(&[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]).await?;
    let mut objects = RandomObjects::new(&upstream.objects(), 7);
    objects.write(
        "networking.istio.io/v1",
        "Gateway",
        "kept",
        &json!({"selector": {"istio": "gateway"}, "servers": [
        {"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}),
    )?;
    let sources = json!([{"address": format!("xds://{}", upstream.server.grpc)}]);
    let downstream = Downstream::start(&sources, &[]).await?;
    let gateways = async || Some(downstream.server.get("/debug/collections/gateways").await.ok()?.1);
    until("the Gateway is read", async || gateways().await?.contains("kept").then_some(())).await;
    ensure!(downstream.source().await?["status"] == "connected");

    upstream.server.kill().await?;
    let rejects = async || downstream.server.get("/debug/rejects").await.ok().map(|(_, text)| text);
    let finding = "its last objects apply";
    until("the finding", async || rejects().await?.contains(finding).then_some(())).await;
    ensure!(rejects().await.context("the page")?.contains("data.mesh.configSources[0].address"));
    ensure!(gateways().await.context("the page")?.contains("kept"));
    ensure!(downstream.server.get("/ready").await?.0 == 200);
    let source = downstream.source().await?;
    ensure!(source["disconnectedSeconds"].is_number() && source["failure"].is_string(), "{source}");
    let (_, metrics) = downstream.server.get("/metrics").await?;
    ensure!(metrics.contains("sluice_config_source_objects{source=\"xds://"), "{metrics}");

    upstream.server.start_again().await?;
    until("the finding is retracted", async || (!rejects().await?.contains(finding)).then_some(())).await;
    std::fs::remove_file(upstream.objects().join("Gateway-kept.yaml"))?;
    until("the Gateway is deleted", async || (!gateways().await?.contains("kept")).then_some(())).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn server_is_authenticated_as_the_mode_says() -> Result<()> {
    let upstream = upstream(&[]).await?;
    RandomObjects::new(&upstream.objects(), 1).write(
        "networking.istio.io/v1",
        "Sidecar",
        "a",
        &json!({"egress": [{"hosts": ["./*"]}]}),
    )?;
    // Both have the same authority, so the server accepts the certificate of the other one.
    let directory = upstream.authority().display().to_string();
    let own = json!([{"address": secure_address(&upstream)?, "tlsSettings": {"mode": "ISTIO_MUTUAL"}}]);
    let environment = [("ROOT_CA_DIR", directory), ("SERVICE_ACCOUNT", "istiod".to_owned())];
    let downstream = Downstream::start(&own, &environment).await?;
    ensure!(downstream.source().await?["objects"] == 1, "{}", downstream.source().await?);
    drop(downstream);

    // The failures of other settings, while proxies are not served.
    let files = tempfile::tempdir()?;
    let mutual = mutual(&upstream, files.path()).await?;
    let with = |changes: Value| {
        let mut settings = mutual.clone();
        for (name, value) in changes.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        settings
    };
    let root = upstream.root();
    for (settings, failure) in [
        (with(json!({"sni": "other.example.com"})), "TLS handshake"),
        (with(json!({"subjectAltNames": ["other.example.com"]})), "none of the subjectAltNames other.example.com"),
        (with(json!({"clientCertificate": "/nowhere/chain.pem"})), "/nowhere/chain.pem"),
        (json!({"mode": "SIMPLE", "caCertificates": root, "sni": "istiod.istio-system.svc"}), "Unauthenticated"),
        (json!({"mode": "SIMPLE", "insecureSkipVerify": true}), "Unauthenticated"),
        (json!({"mode": "SIMPLE", "credentialName": "a"}), "without the Kubernetes API there are no Secrets"),
        (json!({"mode": "DISABLE"}), "cannot read configuration"),
    ] {
        let sources = json!([{"address": secure_address(&upstream)?, "tlsSettings": settings.clone()}]);
        let log = not_ready(&sources, failure).await.with_context(|| settings.to_string())?;
        ensure!(!log.contains("PRIVATE KEY"), "{log}");
    }
    let settings = with(json!({"subjectAltNames": ["istiod.istio-system.svc"]}));
    let sources = json!([{"address": secure_address(&upstream)?, "tlsSettings": settings}]);
    let downstream = Downstream::start(&sources, &[]).await?;
    ensure!(downstream.source().await?["objects"] == 1, "{}", downstream.source().await?);
    Ok(())
}

/// Starts a server that may not become ready. Its mesh config and its log are in the directory.
fn spawn_server(directory: &Path, sources: &Value, http: SocketAddr, objects: &str) -> Result<Child> {
    let mesh = directory.join("mesh.yaml");
    std::fs::write(&mesh, json!({"configSources": sources}).to_string())?;
    let file = std::fs::File::create(directory.join("log"))?;
    tokio::process::Command::new(workspace_binary("sluiced")?)
        .args(["discovery", "--secureGRPCAddr=", "--httpsAddr=", "--monitoringAddr="])
        .args(["--ctrlz_port=0", "--grpcAddr=127.0.0.1:0", objects])
        .arg(format!("--httpAddr={http}"))
        .arg(format!("--meshConfig={}", mesh.display()))
        .stdout(file.try_clone()?)
        .stderr(file)
        .kill_on_drop(true)
        .spawn()
        .context("start sluiced")
}

/// Starts a server that does not get ready, and waits for a failure in its log.
async fn not_ready(sources: &Value, failure: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let objects = format!("--configDir={}", directory.path().display());
    let _server = spawn_server(directory.path(), sources, SocketAddr::from(([127, 0, 0, 1], 0)), &objects)?;
    let text = until(failure, async || {
        let text = std::fs::read_to_string(directory.path().join("log")).ok()?;
        (text.contains("cannot read configuration") && text.contains(failure)).then_some(text)
    })
    .await;
    ensure!(!text.contains("listening name=grpc"), "proxies are served: {text}");
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn object_of_the_first_source_applies() -> Result<()> {
    let upstream = upstream(&[("ENABLE_XDS_API_GENERATOR_AUTH", "false")]).await?;
    let files = tempfile::tempdir()?;
    let port = |number: u32| {
        json!({"selector": {"istio": "gateway"}, "servers": [
            {"port": {"number": number, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]})
    };
    let write = |directory: &Path, number| {
        RandomObjects::new(directory, 1).write("networking.istio.io/v1", "Gateway", "a", &port(number))
    };
    write(files.path(), 1111)?;
    write(&upstream.objects(), 2222)?;
    let sources = json!([
        {"address": format!("fs://{}", files.path().display())},
        {"address": format!("xds://{}", upstream.server.grpc)},
        {"address": "k8s://"},
    ]);
    let downstream = Downstream::start(&sources, &[]).await?;
    write(&downstream.objects(), 3333)?;
    let gateway = async |number: &str| {
        let (_, text) = downstream.server.get("/debug/collections/gateways").await.ok()?;
        let others = ["1111", "2222", "3333"].iter().filter(|other| **other != number);
        (text.contains(number) && !others.into_iter().any(|other| text.contains(other))).then_some(())
    };
    until("the Gateway of the directory", async || gateway("1111").await).await;
    let (_, rejects) = downstream.server.get("/debug/rejects").await?;
    ensure!(rejects.contains(&format!("fs://{}", files.path().display())), "{rejects}");
    std::fs::remove_file(files.path().join("Gateway-a.yaml"))?;
    until("the Gateway of the server", async || gateway("2222").await).await;
    std::fs::remove_file(upstream.objects().join("Gateway-a.yaml"))?;
    until("the Gateway of the cluster", async || gateway("3333").await).await;
    write(files.path(), 1111)?;
    until("the Gateway of the directory", async || gateway("1111").await).await;

    // Another list takes effect after a restart.
    std::fs::write(downstream.directory.path().join("mesh.yaml"), json!({"configSources": []}).to_string())?;
    until("the finding", async || {
        let (_, rejects) = downstream.server.get("/debug/rejects").await.ok()?;
        rejects.contains("it takes effect when sluiced restarts").then_some(())
    })
    .await;
    ensure!(gateway("1111").await.is_some());
    Ok(())
}
