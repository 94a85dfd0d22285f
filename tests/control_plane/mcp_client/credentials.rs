//! TLS with the certificates of a Secret (`credentialName`), which is read for each connection.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_testkit::api_server::ApiServer;
use sluice_testkit::ports::free_ports;
use sluice_testkit::server::get;
use tokio::process::Child;

use super::changes::RandomObjects;
use super::{MutualCertificate, restartable_upstream, secure_address, spawn_server};
use crate::identity::mesh::{IdentityFixture, until};

/// Name of the Secret.
const NAME: &str = "source";
/// Suffix of the name of a Secret with roots only.
const ROOTS_SUFFIX: &str = "-cacert";
/// How a private key begins in PEM.
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// A server that reads a source with the Secret, and the Secrets from a Kubernetes API.
struct SecretReader {
    api: ApiServer,
    upstream: IdentityFixture,
    http: SocketAddr,
    directory: tempfile::TempDir,
    _process: Child,
}

impl SecretReader {
    /// Starts both servers. There is no Secret, so this one is not ready.
    async fn start() -> Result<Self> {
        let upstream = restartable_upstream().await?;
        write_sidecar(&upstream, "first")?;
        let api = ApiServer::start().await?;
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        api.write_kubeconfig(&kubeconfig)?;
        let tls = json!({"mode": "MUTUAL", "credentialName": NAME, "sni": "istiod.istio-system.svc"});
        let sources = json!([{"address": secure_address(&upstream)?, "tlsSettings": tls}]);
        let [port] = free_ports()?;
        let http = SocketAddr::from(([127, 0, 0, 1], port));
        let source = format!("--kubeconfig={}", kubeconfig.display());
        let process = spawn_server(directory.path(), &sources, http, &source)?;
        Ok(Self { api, upstream, http, directory, _process: process })
    }

    /// Writes a Secret of the namespace of the control plane.
    fn apply(&self, name: &str, data: &[(&str, &str)]) {
        let data: Value = data.iter().map(|(key, text)| ((*key).to_owned(), json!(STANDARD.encode(text)))).collect();
        let metadata = json!({"name": name, "namespace": "istio-system"});
        self.api.apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}));
    }

    async fn page(&self, path: &str) -> Option<String> {
        let (status, text) = get(self.http, path).await.ok()?;
        (status == 200).then_some(text)
    }

    /// The state of the source.
    async fn source(&self) -> Option<Value> {
        let sources: Value = serde_json::from_str(&self.page("/debug/config_sources").await?).ok()?;
        sources.get(0).cloned()
    }

    /// Waits until the source is connected and has this number of objects, and no finding.
    async fn connected(&self, objects: usize) {
        until("the source is connected", async || {
            let source = self.source().await?;
            let rejects = self.page("/debug/rejects").await?;
            let is_read = source["status"] == "connected" && source["objects"] == objects;
            (is_read && !rejects.contains("its last objects apply")).then_some(())
        })
        .await;
    }

    /// Starts the server of the source again, and waits until the connection fails with this reason, while the objects stay.
    async fn fails_to_connect_again(&self, objects: usize, reason: &str) -> Result<()> {
        self.upstream.server.kill().await?;
        self.upstream.server.start_again().await?;
        self.fails(reason).await;
        let source = self.source().await.context("the page")?;
        ensure!(source["status"] == "disconnected" && source["objects"] == objects, "{source}");
        Ok(())
    }

    /// Waits until the source is a finding with this reason.
    async fn fails(&self, reason: &str) {
        until(reason, async || self.page("/debug/rejects").await?.contains(reason).then_some(())).await;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

fn write_sidecar(upstream: &IdentityFixture, name: &str) -> Result<()> {
    let spec = json!({"egress": [{"hosts": ["./*"]}]});
    RandomObjects::new(&upstream.objects(), 1).write("networking.istio.io/v1", "Sidecar", name, &spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_the_credential_name_is_read_for_each_connection() -> Result<()> {
    let reader = SecretReader::start().await?;
    let upstream = &reader.upstream;
    let missing = "credentialName: Secret istio-system/source does not exist or has no certificates";
    until("the log has the reason", async || reader.log().contains(missing).then_some(())).await;
    ensure!(reader.page("/ready").await.is_none(), "proxies are not served before the source is read");

    // Without a certificate, and with roots in the other Secret.
    let first = MutualCertificate::of(upstream).await?;
    reader.apply(NAME, &[("ca.crt", &first.root)]);
    let incomplete = "credentialName: the Secret has no certificate";
    until("the log has the other reason", async || reader.log().contains(incomplete).then_some(())).await;
    let write_pair = |certificate: &MutualCertificate| {
        reader.apply(NAME, &[("tls.crt", &certificate.chain), ("tls.key", &certificate.key)]);
    };
    write_pair(&first);
    reader.apply(&format!("{NAME}{ROOTS_SUFFIX}"), &[("ca.crt", &first.root)]);
    until("it is ready", async || reader.page("/ready").await.map(drop)).await;
    reader.connected(1).await;

    // The authority of the server is replaced: the roots and the certificate of the Secret no longer fit.
    upstream.server.kill().await?;
    std::fs::remove_dir_all(upstream.authority()).context("remove the authority")?;
    upstream.server.start_again().await?;
    reader.fails("invalid peer certificate").await;
    let second = MutualCertificate::of(upstream).await?;
    ensure!(second.root != first.root, "the authority is another one");
    reader.apply(&format!("{NAME}{ROOTS_SUFFIX}"), &[("ca.crt", &second.root)]);
    // The server is verified, and rejects the certificate of the other authority.
    let is_rejected = async || {
        let failure = reader.source().await?["failure"].as_str()?.to_owned();
        (!failure.contains("TLS handshake")).then_some(())
    };
    until("the server rejects the certificate", is_rejected).await;
    write_pair(&second);
    reader.connected(1).await;
    write_sidecar(upstream, "second")?;
    reader.connected(2).await;

    // A Secret that is deleted is missed by the next connection only.
    reader.api.delete("secrets", "istio-system", NAME);
    write_sidecar(upstream, "third")?;
    reader.connected(3).await;
    reader.fails_to_connect_again(3, missing).await?;
    ensure!(reader.page("/ready").await.is_some(), "proxies are served with the last objects");
    reader.apply(NAME, &[("tls.crt", &second.chain), ("tls.key", &second.key), ("ca.crt", &second.root)]);
    reader.connected(3).await;
    ensure!(!reader.log().contains(PRIVATE_KEY));
    Ok(())
}
