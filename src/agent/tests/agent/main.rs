//! The agent with a real upstream Envoy, against the test's control plane and certificate authority.

mod control_plane;
mod sluiced;
mod test_pod;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, IDENTITY, TOKEN};
use test_pod::{TestPod, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const NODE: &str = "sidecar~127.0.0.1~tea-1.shop~shop.svc.cluster.local";

/// From the start to a proxy that serves with its certificate, through all changes, to termination.
#[tokio::test]
async fn proxy_is_configured_certified_renewed_and_drained() -> Result<()> {
    let mut control_plane = ControlPlane::secure().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.variables.extend([
        ("SECRET_TTL", "4s".to_owned()),
        ("ISTIO_META_DNS_CAPTURE", "true".to_owned()),
        ("PROXY_CONFIG_XDS_AGENT", "true".to_owned()),
    ]);
    pod.start()?;
    pod.ready().await?;

    // The stream is authenticated by the token, and the agent subscribes to the name table after Envoy's first request.
    let stream = control_plane.streams().into_iter().next().context("a stream")?;
    assert_eq!(stream.authorization.as_deref(), Some(format!("Bearer {TOKEN}").as_str()));
    assert_eq!(stream.cluster.as_deref(), Some("cluster-1"));
    assert!(stream.delta);
    assert_eq!(stream.node, NODE);
    let names = until("the name table is subscribed to", async || {
        let stream = control_plane.streams().into_iter().next()?;
        stream.types.iter().position(|name| name.ends_with("NameTable")).map(|at| (at, stream.types))
    });
    let (at, types) = names.await?;
    assert!(types[..at].iter().any(|name| name.ends_with("Listener")), "{types:?}");
    assert!(pod.status("/debug/ndsz").await?.1.contains("10.1.2.3"));
    until("the ProxyConfig is subscribed to", async || {
        control_plane.streams().first()?.types.iter().any(|name| name.ends_with("ProxyConfig")).then_some(())
    })
    .await?;

    // Envoy serves with the authority's certificate, and with a renewed one before the first expires.
    let first = pod.certificate().await?;
    assert!(first.uris == [IDENTITY], "{:?}", first.uris);
    let renewed = until("a renewed certificate", async || {
        let now = pod.certificate().await.ok()?;
        (now.serial != first.serial).then_some(now)
    });
    let renewed = renewed.await?;
    assert_eq!(renewed.uris, first.uris);
    ensure!(control_plane.requests().iter().all(|csr| csr.contains("BEGIN CERTIFICATE REQUEST")));

    // While the authority is unavailable, the certificate stays; afterwards it is renewed.
    control_plane.authority_available.store(false, SeqCst);
    let rejected = control_plane.rejected_requests.load(SeqCst);
    until("the agent retries", async || (control_plane.rejected_requests.load(SeqCst) >= rejected + 2).then_some(()))
        .await?;
    let kept = pod.certificate().await?;
    control_plane.authority_available.store(true, SeqCst);
    until("a new certificate", async || (pod.certificate().await.ok()?.serial != kept.serial).then_some(())).await?;

    // A broken stream is replaced, and Envoy keeps its configuration.
    let before = control_plane.streams().len();
    control_plane.break_streams();
    until("another stream", async || (control_plane.streams().len() > before).then_some(())).await?;
    pod.certificate().await?;

    // One response holds the metrics of the agent and of Envoy.
    let (_, metrics) = pod.status("/stats/prometheus").await?;
    assert!(metrics.contains("istio_agent_num_outgoing_requests_total"), "{metrics}");
    assert!(metrics.contains("envoy_server_live"), "{metrics}");

    // On termination clients receive a request to disconnect, and the agent exits with 0.
    let mut client = pod.client().await?;
    assert_eq!(client.get().await?, None);
    pod.signal("TERM").await?;
    until("clients are asked to disconnect", async || client.get().await.ok()?.filter(|value| value == "close"))
        .await?;
    assert_eq!(pod.exit_code().await?, Some(0));
    assert!(pod.certificate().await.is_err(), "Envoy is terminated too");

    pod.assert_no_secrets()
}

/// The control plane accepts all versions and groups.
#[tokio::test]
async fn compliance_policy_limits_tls_to_control_plane_and_authority() -> Result<()> {
    use rustls::NamedGroup::{X25519MLKEM768, secp256r1};
    use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
    for (policy, version, group) in
        [("fips-140-2", TLSv1_2, secp256r1), ("fips-140-3", TLSv1_3, secp256r1), ("pqc", TLSv1_3, X25519MLKEM768)]
    {
        let control_plane = ControlPlane::secure().await?;
        let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
        pod.variables.insert("COMPLIANCE_POLICY", policy.to_owned());
        pod.start()?;
        pod.ready().await?;
        pod.certificate().await?;
        let handshakes = control_plane.handshakes();
        ensure!(handshakes.len() >= 2, "{policy}: one for the authority, one for configuration: {handshakes:?}");
        ensure!(handshakes.iter().all(|it| *it == (Some(version), Some(group))), "{policy}: {handshakes:?}");
    }
    Ok(())
}

/// Configured explicitly: no TLS, no authority, state-of-the-world.
#[tokio::test]
async fn plaintext_has_no_token_and_quitquitquit_skips_draining() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.variables.extend([("ISTIO_DELTA_XDS", "false".to_owned())]);
    pod.proxy_config["terminationDrainDuration"] = "600s".into();
    pod.start()?;
    pod.ready().await?;
    let stream = control_plane.streams().into_iter().next().context("a stream")?;
    assert_eq!((stream.authorization, stream.delta, stream.node.as_str()), (None, false, NODE));
    assert!(control_plane.requests().is_empty());
    let mut client = pod.plain_client(control_plane.upstream().listener).await?;
    client.get().await?;
    let (status, _) = pod.status("/quitquitquit").await?;
    assert_eq!(status, 405, "only by POST");
    pod.post("/quitquitquit").await?;
    assert_eq!(pod.exit_code().await?, Some(0));
    pod.assert_no_secrets()
}

/// Connections of another address that never send a request are closed, and probes are answered meanwhile.
#[tokio::test]
async fn silent_connections_stop_no_probe() -> Result<()> {
    const CONNECTIONS: usize = 300;
    /// Permitted for one address.
    const LIMIT: usize = 250;
    let control_plane = ControlPlane::plaintext().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.start()?;
    pod.ready().await?;
    let memory = pod.watch_agent_memory()?;
    let mut silent = Vec::new();
    for port in pod.agent_ports() {
        for number in 0..CONNECTIONS {
            let mut socket = TestPod::connect_from([127, 0, 0, 2], port).await?;
            if number % 2 == 0 {
                // The server may have closed the connection already.
                let _ = socket.write_all(b"GET /healthz/ready HTTP/1.1\r\nx-a: ").await;
            }
            silent.push(socket);
        }
    }
    ensure!(pod.status("/healthz/ready").await?.0 == 200, "another address is served");
    ensure!(pod.debug("GET", "/debug/syncz").await?.0 != 0, "another address is served");
    for mut socket in silent {
        let read = async { while let Ok(1..) = socket.read(&mut [0; 64]).await {} };
        tokio::time::timeout(Duration::from_secs(60), read).await.context("a silent connection stays open")?;
    }
    let (_, metrics) = pod.status("/stats/prometheus").await?;
    for reason in ["address", "first_request"] {
        let line = metrics.lines().find(|line| {
            line.starts_with("istio_agent_sluice_closed_connections") && line.contains(&format!("reason=\"{reason}\""))
        });
        let count: usize = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).context(reason)?;
        ensure!(count >= CONNECTIONS - LIMIT, "{reason}: {count}");
    }
    memory.check_growth("silent connections")
}

/// Certificates in files are served, and replaced when the files change.
#[tokio::test]
async fn certificate_files_are_followed() -> Result<()> {
    let control_plane = ControlPlane::plaintext_with_certificates().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.variables.insert("FILE_MOUNTED_CERTS", "true".to_owned());
    pod.put("etc/certs/root-cert.pem", &control_plane.upstream().root)?;
    let put = |pod: &TestPod| {
        let (chain, key) = control_plane.pair()?;
        pod.put("etc/certs/cert-chain.pem", &chain)?;
        pod.put("etc/certs/key.pem", &key)
    };
    put(&pod)?;
    pod.start()?;
    pod.ready().await?;
    let first = until("a certificate", async || pod.certificate().await.ok()).await?;
    put(&pod)?;
    until("the second certificate", async || (pod.certificate().await.ok()?.serial != first.serial).then_some(()))
        .await?;
    ensure!(control_plane.requests().is_empty(), "the authority received no request");
    pod.assert_no_secrets()
}

/// Termination waits for clients without a time limit.
#[tokio::test]
async fn termination_can_wait_for_the_last_connection() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.variables.insert("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true".to_owned());
    pod.variables.insert("MINIMUM_DRAIN_DURATION", "0s".to_owned());
    pod.proxy_config["drainDuration"] = "600s".into();
    pod.start()?;
    pod.ready().await?;
    let client = pod.plain_client(control_plane.upstream().listener).await?;
    until("the connection is counted", async || pod.connections().await.ok().filter(|count| *count > 0)).await?;
    pod.signal("TERM").await?;
    until("the agent waits for it", async || pod.log().contains("active connections").then_some(())).await?;
    drop(client);
    assert_eq!(pod.exit_code().await?, Some(0));
    Ok(())
}

/// The application is another container, with another user.
#[tokio::test]
async fn without_envoy_the_application_has_files_that_follow_the_certificate() -> Result<()> {
    let control_plane = ControlPlane::secure().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.proxy_config["binaryPath"] = "/nowhere/envoy".into();
    pod.variables.extend([
        ("DISABLE_ENVOY", "true".to_owned()),
        ("OUTPUT_CERTS", "certs".to_owned()),
        ("SECRET_TTL", "4s".to_owned()),
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1".to_owned()),
    ]);
    control_plane.authority_available.store(false, SeqCst);
    pod.start()?;
    until("the agent retries", async || (control_plane.rejected_requests.load(SeqCst) > 0).then_some(())).await?;
    ensure!(pod.status("/healthz/ready").await?.0 == 503, "there is no certificate");
    control_plane.authority_available.store(true, SeqCst);
    pod.ready_without_envoy().await?;

    let (bootstrap, mode) = pod.read("etc/istio/proxy/grpc-bootstrap.json")?;
    let bootstrap: serde_json::Value = serde_json::from_str(&bootstrap)?;
    ensure!(mode == 0o644 && bootstrap["node"]["id"] == NODE, "{mode:o} {bootstrap}");
    let provider = &bootstrap["certificate_providers"]["default"]["config"];
    let chain_file = provider["certificate_file"].as_str().context("a file")?;
    ensure!(pod.xds_socket_mode()? == 0o666);
    let (key, mode) = pod.read("certs/key.pem")?;
    ensure!(mode == 0o644 && key.contains("PRIVATE KEY"), "{mode:o}");
    ensure!(pod.read("certs/root-cert.pem")?.0.trim() == control_plane.upstream().root.trim());
    let (first, _) = pod.read(chain_file)?;
    until("a renewed certificate", async || (pod.read(chain_file).ok()?.0 != first).then_some(())).await?;
    ensure!(pod.read("certs/key.pem")?.0 != key, "the key is new as well");

    let (status, metrics) = pod.status("/stats/prometheus").await?;
    ensure!(status == 200 && !metrics.contains("scrape_failures"), "{metrics}");
    pod.post("/drain").await?;
    pod.signal("TERM").await?;
    assert_eq!(pod.exit_code().await?, Some(0));
    let log = pod.log();
    ensure!(log.contains("Envoy is disabled") && !log.contains("PRIVATE KEY") && !log.contains(TOKEN), "{log}");
    Ok(())
}

#[tokio::test]
async fn missing_envoy_is_named_by_its_setting() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.proxy_config["binaryPath"] = "/nowhere/envoy".into();
    pod.start()?;
    assert_eq!(pod.exit_code().await?, Some(1));
    let log = pod.log();
    ensure!(log.contains("ProxyConfig: binaryPath: start") && log.contains("/nowhere/envoy"), "{log}");
    Ok(())
}

/// The agent does not restart Envoy. It exits with Envoy's code, so that the container runtime sees it.
#[tokio::test]
async fn exit_code_is_that_of_envoy() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut pod = TestPod::new("sidecar", control_plane.upstream())?;
    pod.proxy_config["binaryPath"] = pod.script("exit 7")?;
    pod.start()?;
    assert_eq!(pod.exit_code().await?, Some(7));
    Ok(())
}
