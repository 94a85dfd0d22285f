//! The secrets that a real server sends to each caller. No page or log contains a private key (P17, X20).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::parity::run::TRUSTED_LOOPBACK;
use sluice_testkit::server::{Options, Sluiced, get};

const STREAM_TIMEOUT: Duration = Duration::from_secs(20);

/// A certificate and its key, PEM.
fn pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["shop.example.com".to_owned()]).expect("a host");
    (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
}

fn secret(namespace: &str, name: &str, data: Value) -> String {
    let metadata = json!({"name": name, "namespace": namespace});
    format!("{}\n---\n", json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))
}

/// The configuration of extension `edge/pull`, which has a pull secret.
const MODULE: &str = "extensions.istio.io/trafficextension/edge.pull~istio-translated-wasmplugin";

/// A server with Secrets `edge/shop`, `edge/other` and `bank/server`, and an extension with a pull secret.
struct SecretServer {
    server: Sluiced,
    directory: tempfile::TempDir,
    /// Lines of the keys' PEM that no output may contain.
    hidden: BTreeSet<String>,
}

impl SecretServer {
    /// A server that trusts the loopback to forward identities.
    async fn open(ip: IpAddr) -> Result<Self> {
        Self::open_with(ip, true).await
    }

    async fn open_with(ip: IpAddr, trusts_loopback: bool) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("config"))?;
        let mut hidden = BTreeSet::new();
        let mut text = String::new();
        for (namespace, name) in [("edge", "shop"), ("edge", "other"), ("bank", "vault")] {
            let (certificate, key) = pair();
            hidden.extend(key.lines().filter(|line| !line.starts_with('-')).map(str::to_owned));
            text += &secret(namespace, name, json!({"tls.crt": certificate, "tls.key": key, "ca.crt": certificate}));
        }
        let (_, key) = pair();
        hidden.extend(key.lines().filter(|line| !line.starts_with('-')).map(str::to_owned));
        let metadata = json!({"name": "pull", "namespace": "edge"});
        let pull = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": key},
        });
        let plugin = json!({
            "apiVersion": "extensions.istio.io/v1alpha1", "kind": "WasmPlugin", "metadata": metadata,
            "spec": {"url": "oci://registry.test/module", "imagePullSecret": "pull"},
        });
        text += &format!("{pull}\n---\n{plugin}\n---\n");
        std::fs::write(directory.path().join("config/secrets.yaml"), text)?;
        let log = Some(directory.path().join("log"));
        let mut options = Options { ip, log, ..Options::new(&directory.path().join("config")) };
        if trusts_loopback {
            options.env.push(TRUSTED_LOOPBACK.map(str::to_owned).into());
        }
        Ok(Self { server: Sluiced::start(&options).await?, directory, hidden })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Waits for a line of the log with all of these.
    async fn logged(&self, parts: &[&str]) -> Result<()> {
        let deadline = Instant::now() + STREAM_TIMEOUT;
        while !self.log().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            ensure!(Instant::now() < deadline, "no line with {parts:?} in\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Opens a stream of a router that subscribes to secrets.
    async fn subscribe(&self, caller: &Caller<'_>, protocol: Protocol, names: &[&str]) -> Result<AdsStream> {
        let id = format!("router~10.0.0.1~{}.edge~edge.svc.cluster.local", caller.pod);
        let metadata =
            json!({"NAMESPACE": caller.namespace, "SERVICE_ACCOUNT": caller.account, "CLUSTER_ID": "Kubernetes"});
        let mut identity = Identity::of_node(&json!({"id": id, "metadata": metadata}))?;
        identity.forwarded = caller.forwarded.map(str::to_owned);
        let mut stream = AdsStream::open(connect(self.server.grpc).await?, protocol, identity)?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        stream.subscribe(Kind::Sds.type_url(), &names, BTreeMap::new())?;
        Ok(stream)
    }
}

/// The node that subscribes, and the identity that is forwarded for it.
#[derive(Clone, Copy)]
struct Caller<'a> {
    pod: &'a str,
    namespace: &'a str,
    account: &'a str,
    forwarded: Option<&'a str>,
}

const EDGE: &str = "By=spiffe://cluster.local/ns/istio-system/sa/istiod;URI=spiffe://cluster.local/ns/edge/sa/gateway";
const AUTHENTICATED: Caller<'_> = Caller { pod: "known", namespace: "edge", account: "gateway", forwarded: Some(EDGE) };

/// The names of the secrets in the next response.
async fn names(stream: &mut AdsStream) -> Result<Vec<String>> {
    let update = stream.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
    ensure!(update.type_url == Kind::Sds.type_url(), "received {}", update.type_url);
    let mut names = Vec::new();
    for (_, _, any) in &update.resources {
        let message = sluice_proto::json::encode_any(&any.type_url, &any.value);
        names.push(message["name"].as_str().context("a name")?.to_owned());
    }
    names.sort();
    stream.ack(&update)?;
    Ok(names)
}

/// Checks that the next response has no secrets.
async fn expect_no_secrets(stream: &mut AdsStream) -> Result<()> {
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    let update = stream.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
    ensure!(update.type_url == Kind::Cds.type_url(), "received {}", update.type_url);
    stream.ack(&update)
}

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_proxy_gets_only_its_own_secrets() -> Result<()> {
    let server = SecretServer::open(LOOPBACK).await?;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let subscribed =
            ["kubernetes://shop", "kubernetes://edge/shop-cacert", "kubernetes://absent", "kubernetes://bank/vault"];
        let mut known = server.subscribe(&AUTHENTICATED, protocol, &subscribed).await?;
        assert_eq!(names(&mut known).await?, ["kubernetes://edge/shop-cacert", "kubernetes://shop"], "{protocol:?}");
    }
    server.logged(&["known.edge", "kubernetes://absent", "does not exist"]).await?;

    let rejected = [
        ("other", AUTHENTICATED.forwarded, "kubernetes://bank/vault", "is in another namespace"),
        ("other-roots", AUTHENTICATED.forwarded, "kubernetes://bank/vault-cacert", "is in another namespace"),
        ("reference", AUTHENTICATED.forwarded, "kubernetes-gateway://bank/vault", "no Gateway may refer to it"),
        ("unauthenticated", None, "kubernetes://shop", "identity is not verified"),
        ("garbled", Some("URI=\"spiffe://cluster.local/ns/edge/sa/gateway"), "kubernetes://shop", "is malformed"),
    ];
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        for (pod, forwarded, name, why) in rejected {
            let pod = format!("{pod}-{protocol:?}");
            let mut stream =
                server.subscribe(&Caller { pod: &pod, forwarded, ..AUTHENTICATED }, protocol, &[name]).await?;
            server.logged(&[&format!("~{pod}.edge"), why]).await?;
            expect_no_secrets(&mut stream).await.with_context(|| format!("{pod} receives no secret"))?;
        }
        for (pod, namespace, account) in [("bank", "bank", "gateway"), ("account", "edge", "admin")] {
            let claims = Caller { pod, namespace, account, ..AUTHENTICATED };
            let refused = server.subscribe(&claims, protocol, &["kubernetes://vault"]).await?.next().await;
            let refused = format!("{:#}", refused.expect_err("the caller has another identity"));
            assert!(
                refused.contains(&format!("authorization failed: namespace and service account {namespace}/{account}"))
            );
            server
                .logged(&[&format!("~{pod}.edge"), "refused a stream", "spiffe://cluster.local/ns/edge/sa/gateway"])
                .await?;
        }
    }
    let (_, metrics) = get(server.server.monitoring, "/metrics").await?;
    assert!(metrics.contains("sluice_xds_refused{reason=\"identity\"} 4"), "{metrics}");
    assert!(metrics.contains("pilot_sds_certificate_errors_total 14"), "{metrics}");
    Ok(())
}

/// An address of this machine that is not of the loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent. Connecting only selects the local address.
    socket.connect(SocketAddr::from(([192, 0, 2, 1], 9))).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_certificates_are_trusted_from_trusted_peers_only() -> Result<()> {
    let Some(ip) = own_address() else {
        assert!(std::env::var_os("CI").is_none(), "this machine has no address outside of the loopback");
        eprintln!("SKIPPED: this machine has no address outside of the loopback");
        return Ok(());
    };
    let server = SecretServer::open(ip).await?;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let untrusted = Caller { pod: &format!("forger-{protocol:?}"), ..AUTHENTICATED };
        let mut stream = server.subscribe(&untrusted, protocol, &["kubernetes://shop"]).await?;
        server.logged(&[&format!("~{}.edge", untrusted.pod), "is accepted from trusted addresses only"]).await?;
        expect_no_secrets(&mut stream).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_certificates_from_the_loopback_are_not_trusted_by_default() -> Result<()> {
    let server = SecretServer::open_with(LOOPBACK, false).await?;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let untrusted = Caller { pod: &format!("forger-{protocol:?}"), ..AUTHENTICATED };
        let mut stream = server.subscribe(&untrusted, protocol, &["kubernetes://shop"]).await?;
        server.logged(&[&format!("~{}.edge", untrusted.pod), "is accepted from trusted addresses only"]).await?;
        expect_no_secrets(&mut stream).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_secret_is_sent_and_a_deleted_one_is_kept() -> Result<()> {
    let server = SecretServer::open(LOOPBACK).await?;
    let file = server.directory.path().join("config/more.yaml");
    let write = |text: &str| -> Result<()> {
        let staged: PathBuf = server.directory.path().join("staged");
        std::fs::write(&staged, text)?;
        Ok(std::fs::rename(&staged, &file)?)
    };
    let fresh = |name: &str| {
        let (certificate, key) = pair();
        secret("edge", name, json!({"cert": certificate, "key": key}))
    };
    write(&(fresh("a") + &fresh("b")))?;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let both = ["kubernetes://a", "kubernetes://b"];
        let (mut one, mut two) = (
            server.subscribe(&AUTHENTICATED, protocol, &both).await?,
            server.subscribe(&AUTHENTICATED, protocol, &["kubernetes://b"]).await?,
        );
        while names(&mut one).await?.len() < 2 {}
        assert_eq!(names(&mut two).await?, ["kubernetes://b"]);
        // A certificate without its key is unusable: nothing is sent, and each proxy keeps its secret.
        let (certificate, _) = pair();
        let b = fresh("b");
        write(&(secret("edge", "a", json!({"cert": certificate})) + &b))?;
        assert_eq!(
            names(&mut one).await?,
            ["kubernetes://b"],
            "{protocol:?}: only the changed secret among those that it subscribes to"
        );
        assert_eq!(names(&mut two).await?, ["kubernetes://b"]);
        write(&b)?;
        write(&(fresh("a") + &b))?;
        assert_eq!(names(&mut one).await?, ["kubernetes://a"], "{protocol:?}: it exists again");
        expect_no_secrets(&mut two).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_shows_a_private_key() -> Result<()> {
    let server = SecretServer::open(LOOPBACK).await?;
    let mut known =
        server.subscribe(&AUTHENTICATED, Protocol::Delta, &["kubernetes://shop", "kubernetes://shop-cacert"]).await?;
    assert_eq!(names(&mut known).await?.len(), 2);
    known.subscribe(Kind::Ecds.type_url(), &[MODULE.to_owned()], BTreeMap::new())?;
    let module = known.next_within(STREAM_TIMEOUT).await?.context("an answer")?;
    let (_, _, any) = module.resources.first().context("a module")?;
    let value = String::from_utf8_lossy(&any.value).into_owned();
    ensure!(value.contains("PRIVATE KEY") && server.hidden.iter().any(|line| value.contains(line)), "{value}");
    known.ack(&module)?;
    let (_, pages) = server.server.get("/debug/list").await?;
    let (_, collections) = server.server.get("/debug/collections").await?;
    let pages: Vec<String> = serde_json::from_str(&pages)?;
    let collections: Vec<Value> = serde_json::from_str(&collections)?;
    let names: Vec<&str> = collections.iter().filter_map(|collection| collection["name"].as_str()).collect();
    assert!(names.contains(&"raw_secrets") && names.contains(&"secrets/own"), "{names:?}");
    let mut paths: Vec<String> = pages.iter().map(|page| format!("/debug/{page}")).collect();
    paths.extend(names.iter().map(|name| format!("/debug/collections/{}", name.replace('/', "%2F"))));
    paths.push("/debug/config_dump?proxyID=known.edge".to_owned());
    let mut outputs = vec![("the log".to_owned(), server.log())];
    for path in paths {
        let (_, text) = server.server.get(&path).await?;
        outputs.push((path, text));
    }
    let (_, metrics) = get(server.server.monitoring, "/metrics").await?;
    outputs.push(("/metrics".to_owned(), metrics));
    for (place, text) in &outputs {
        for line in &server.hidden {
            assert!(!text.contains(line.as_str()), "{place} contains a private key");
        }
        assert!(
            !text.contains("PRIVATE KEY") && !text.contains("LS0tLS1CRUdJTiBQUklWQVRF"),
            "{place} contains a private key"
        );
    }
    let (_, dump) = outputs.iter().find(|(place, _)| place.contains("config_dump?")).context("the dump")?;
    assert!(dump.contains("kubernetes://shop") && dump.contains("[redacted]"), "{dump}");
    assert!(dump.contains("\"ISTIO_META_WASM_IMAGE_PULL_SECRET\":\"[redacted]\""), "{dump}");
    let (_, raw) = outputs.iter().find(|(place, _)| place.ends_with("/raw_secrets")).context("the collection")?;
    assert!(raw.contains("[redacted]") && raw.contains("vault"), "{raw}");
    Ok(())
}
