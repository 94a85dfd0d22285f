//! The agent's program with a real upstream Envoy, against a control plane and an authority of the test.

mod control_plane;
mod machine;
mod sluiced;

use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, IDENTITY, TOKEN};
use machine::{Machine, until};

const NODE: &str = "sidecar~127.0.0.1~tea-1.shop~shop.svc.cluster.local";

/// From nothing to a proxy that serves with its certificate, through every change, to its end.
#[tokio::test]
async fn a_proxy_is_configured_certified_renewed_and_drained() -> Result<()> {
    let mut control_plane = ControlPlane::secure().await?;
    let mut machine = Machine::new("sidecar", control_plane.upstream())?;
    machine.variables.extend([("SECRET_TTL", "4s".to_owned()), ("ISTIO_META_DNS_CAPTURE", "true".to_owned())]);
    machine.start()?;
    machine.ready().await?;

    // It said who it is, with its token, and asked for names after Envoy had begun.
    let stream = control_plane.streams().into_iter().next().context("a stream")?;
    assert_eq!(stream.authorization.as_deref(), Some(format!("Bearer {TOKEN}").as_str()));
    assert_eq!(stream.cluster.as_deref(), Some("cluster-1"));
    assert!(stream.delta);
    assert_eq!(stream.node, NODE);
    let names = until("names are asked for", async || {
        let stream = control_plane.streams().into_iter().next()?;
        stream.types.iter().position(|name| name.ends_with("NameTable")).map(|at| (at, stream.types))
    });
    let (at, types) = names.await?;
    assert!(types[..at].iter().any(|name| name.ends_with("Listener")), "{types:?}");
    assert!(machine.status("/debug/ndsz").await?.1.contains("10.1.2.3"));

    // Envoy serves with the certificate of the authority, and with another before that one ends.
    let first = machine.certificate().await?;
    assert!(first.uris == [IDENTITY], "{:?}", first.uris);
    let renewed = until("another certificate", async || {
        let now = machine.certificate().await.ok()?;
        (now.serial != first.serial).then_some(now)
    });
    let renewed = renewed.await?;
    assert_eq!(renewed.uris, first.uris);
    ensure!(control_plane.requests().iter().all(|csr| csr.contains("BEGIN CERTIFICATE REQUEST")));

    // Without the authority, what there is stays; when it is back, there is a new one.
    control_plane.authority_works.store(false, SeqCst);
    let refused = control_plane.refused.load(SeqCst);
    until("the agent goes on asking", async || (control_plane.refused.load(SeqCst) >= refused + 2).then_some(()))
        .await?;
    let kept = machine.certificate().await?;
    control_plane.authority_works.store(true, SeqCst);
    until("a new certificate", async || (machine.certificate().await.ok()?.serial != kept.serial).then_some(()))
        .await?;

    // A stream that breaks is made again, and Envoy keeps what it has.
    let before = control_plane.streams().len();
    control_plane.break_streams();
    until("another stream", async || (control_plane.streams().len() > before).then_some(())).await?;
    machine.certificate().await?;

    // Metrics of all are in one answer.
    let (_, metrics) = machine.status("/stats/prometheus").await?;
    assert!(metrics.contains("istio_agent_num_outgoing_requests_total"), "{metrics}");
    assert!(metrics.contains("envoy_server_live"), "{metrics}");

    // At the end clients are told to go, and the program ends as asked.
    let mut client = machine.client().await?;
    assert_eq!(client.get().await?, None);
    machine.signal("TERM").await?;
    until("clients are told", async || client.get().await.ok()?.filter(|value| value == "close")).await?;
    assert_eq!(machine.end().await?, Some(0));
    assert!(machine.certificate().await.is_err(), "Envoy has ended too");

    machine.assert_no_secrets()
}

/// Towards a control plane that would speak anything.
#[tokio::test]
async fn a_policy_limits_tls_towards_control_plane_and_authority() -> Result<()> {
    use rustls::NamedGroup::{X25519MLKEM768, secp256r1};
    use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
    for (policy, version, group) in
        [("fips-140-2", TLSv1_2, secp256r1), ("fips-140-3", TLSv1_3, secp256r1), ("pqc", TLSv1_3, X25519MLKEM768)]
    {
        let control_plane = ControlPlane::secure().await?;
        let mut machine = Machine::new("sidecar", control_plane.upstream())?;
        machine.variables.insert("COMPLIANCE_POLICY", policy.to_owned());
        machine.start()?;
        machine.ready().await?;
        machine.certificate().await?;
        let agreed = control_plane.handshakes();
        ensure!(agreed.len() >= 2, "{policy}: one for the authority, one for configuration: {agreed:?}");
        ensure!(agreed.iter().all(|it| *it == (Some(version), Some(group))), "{policy}: {agreed:?}");
    }
    Ok(())
}

/// What was asked for explicitly: no TLS, no authority, state of the world.
#[tokio::test]
async fn plaintext_carries_no_token_and_an_end_can_be_at_once() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut machine = Machine::new("sidecar", control_plane.upstream())?;
    machine.variables.extend([("ISTIO_DELTA_XDS", "false".to_owned())]);
    machine.proxy_config["terminationDrainDuration"] = "600s".into();
    machine.start()?;
    machine.ready().await?;
    let stream = control_plane.streams().into_iter().next().context("a stream")?;
    assert_eq!((stream.authorization, stream.delta, stream.node.as_str()), (None, false, NODE));
    assert!(control_plane.requests().is_empty());
    let mut client = machine.plain_client(control_plane.upstream().listener).await?;
    client.get().await?;
    let (status, _) = machine.status("/quitquitquit").await?;
    assert_eq!(status, 405, "only by POST");
    machine.post("/quitquitquit").await?;
    assert_eq!(machine.end().await?, Some(0));
    machine.assert_no_secrets()
}

/// Certificates that others put into files are served, and each that takes their place.
#[tokio::test]
async fn certificates_in_files_are_followed() -> Result<()> {
    let control_plane = ControlPlane::plaintext_with_certificates().await?;
    let mut machine = Machine::new("sidecar", control_plane.upstream())?;
    machine.variables.insert("FILE_MOUNTED_CERTS", "true".to_owned());
    machine.put("etc/certs/root-cert.pem", &control_plane.upstream().root)?;
    let put = |machine: &Machine| {
        let (chain, key) = control_plane.pair()?;
        machine.put("etc/certs/cert-chain.pem", &chain)?;
        machine.put("etc/certs/key.pem", &key)
    };
    put(&machine)?;
    machine.start()?;
    machine.ready().await?;
    let first = until("a certificate", async || machine.certificate().await.ok()).await?;
    put(&machine)?;
    until("the other certificate", async || (machine.certificate().await.ok()?.serial != first.serial).then_some(()))
        .await?;
    ensure!(control_plane.requests().is_empty(), "no authority was asked");
    machine.assert_no_secrets()
}

/// The end waits for clients, as long as they stay.
#[tokio::test]
async fn the_end_can_wait_for_the_last_connection() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut machine = Machine::new("sidecar", control_plane.upstream())?;
    machine.variables.insert("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true".to_owned());
    machine.variables.insert("MINIMUM_DRAIN_DURATION", "0s".to_owned());
    machine.proxy_config["drainDuration"] = "600s".into();
    machine.start()?;
    machine.ready().await?;
    let client = machine.plain_client(control_plane.upstream().listener).await?;
    until("the connection is seen", async || machine.connections().await.ok().filter(|count| *count > 0)).await?;
    machine.signal("TERM").await?;
    until("it is waited for", async || machine.log().contains("connections are left").then_some(())).await?;
    drop(client);
    assert_eq!(machine.end().await?, Some(0));
    Ok(())
}

/// The agent does not start Envoy again: whoever started both sees how it ended.
#[tokio::test]
async fn the_program_ends_as_envoy_ended() -> Result<()> {
    let control_plane = ControlPlane::plaintext().await?;
    let mut machine = Machine::new("sidecar", control_plane.upstream())?;
    machine.proxy_config["binaryPath"] = machine.script("exit 7")?;
    machine.start()?;
    assert_eq!(machine.end().await?, Some(7));
    Ok(())
}
