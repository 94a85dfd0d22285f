//! The agent and the plugin on a node of network namespaces, with a real API server and a stand-in for ztunnel.
//!
//! ```text
//! peer 10.200.2.2 ── 10.200.2.1 node 10.200.1.1 ── 10.200.1.2 pod
//! ```

#[path = "node/network.rs"]
mod network;
#[path = "node/node_agent.rs"]
mod node_agent;
#[path = "node/supervision.rs"]
mod supervision;

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use network::{Network, OUTSIDE, OpenConnection, POD, PodListener};
use node_agent::{NodeAgent, start_cluster};
use serde_json::json;
use sluice_redirection::ambient::{NodeSettings, PodSettings};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_redirection::values::Included;
use sluice_redirection::{ambient, sidecar};
use sluice_testkit::wait::{until, until_async};
use sluice_testkit::zds::{ZdsClient, ZdsMessage};

/// The text of a listener in the pod on port 8080, which stands for the application.
const APPLICATION: &str = "application";

#[test]
fn rules_of_an_ambient_pod_redirect_and_are_removed() -> Result<()> {
    let Some(network) = Network::new("a")? else { return Ok(()) };
    let _app = network.listen(&network.pod, 8080, APPLICATION)?;
    let _inbound = network.listen(&network.pod, 15006, "inbound")?;
    let _outbound = network.listen(&network.pod, 15001, "outbound")?;
    let _tunnel = network.listen(&network.pod, 15008, "tunnel")?;
    let _peer = network.listen(&network.peer, 9000, "peer")?;
    let _resolver = network.listen(&network.peer, 53, "resolver")?;
    let _dns = network.listen(&network.pod, 15053, "dns")?;
    let (node, pod) = (NodeSettings::default(), PodSettings::default());
    // A second call replaces the rules.
    for _ in 0..2 {
        network.pod.run(|| ambient::enrol(&node, &pod))??;
    }
    assert_eq!(network.call(&network.peer, POD, 8080)?, "inbound");
    assert_eq!(network.call(&network.peer, POD, 15008)?, "tunnel");
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "outbound");
    assert_eq!(network.call(&network.pod, OUTSIDE, 53)?, "dns");
    assert_eq!(network.call(&network.pod, "127.0.0.1", 8080)?, APPLICATION, "the loopback is not redirected");
    assert_eq!(network.call(&network.pod, POD, 8080)?, APPLICATION, "a pod calls itself");
    assert_eq!(network.call_marked(OUTSIDE, 9000)?, "peer", "ztunnel's own connections are not redirected");
    let bypassing = PodSettings { bypass_inbound: true, dns_capture: Some(false), ..PodSettings::default() };
    network.pod.run(|| ambient::enrol(&node, &bypassing))??;
    assert_eq!(network.call(&network.peer, POD, 8080)?, APPLICATION);
    assert_eq!(network.call(&network.pod, OUTSIDE, 53)?, "outbound");
    network.pod.run(|| ambient::enrol(&node, &pod))??;
    for _ in 0..2 {
        network.pod.run(|| ambient::drain(&node, &pod))??;
    }
    assert_eq!(network.call(&network.peer, POD, 8080)?, APPLICATION, "new connections are not redirected");
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "peer");
    assert_eq!(network.call(&network.peer, POD, 15008)?, "tunnel", "ztunnel still accepts tunnels");
    for _ in 0..2 {
        network.pod.run(ambient::withdraw)??;
    }
    assert_eq!(network.call(&network.peer, POD, 8080)?, APPLICATION);
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "peer");
    assert_eq!(network.state(&network.pod_name)?, network.initial, "nothing is left in the namespace");
    Ok(())
}

#[test]
fn open_connections_continue_while_a_pod_is_enrolled_and_drained() -> Result<()> {
    let Some(network) = Network::new("c")? else { return Ok(()) };
    let app = PodListener::new(&network.pod, 8080)?;
    let inbound = PodListener::new(&network.pod, 15006)?;
    let outbound = PodListener::new(&network.pod, 15001)?;
    let server = PodListener::new(&network.peer, 9000)?;
    let (node, pod) = (NodeSettings::default(), PodSettings::default());
    let mut open = vec![app.connect(&network.peer, POD, 8080)?, server.connect(&network.pod, OUTSIDE, 9000)?];
    let all_continue = |when: &str, open: &mut [OpenConnection]| {
        open.iter_mut().enumerate().try_for_each(|(index, it)| it.exchange().with_context(|| format!("{index} {when}")))
    };
    all_continue("before the pod is enrolled", &mut open)?;
    network.pod.run(|| ambient::enrol(&node, &pod))??;
    all_continue("after the pod is enrolled", &mut open)?;
    open.push(inbound.connect(&network.peer, POD, 8080)?);
    open.push(outbound.connect(&network.pod, OUTSIDE, 9000)?);
    network.pod.run(|| ambient::drain(&node, &pod))??;
    all_continue("while the pod is drained", &mut open)?;
    app.connect(&network.peer, POD, 8080)?.exchange()?;
    server.connect(&network.pod, OUTSIDE, 9000)?.exchange()?;
    network.pod.run(ambient::withdraw)??;
    open.truncate(2);
    all_continue("after the pod is withdrawn", &mut open)
}

#[test]
fn connections_that_are_tracked_already_do_not_pass_the_redirection() -> Result<()> {
    let Some(network) = Network::new("t")? else { return Ok(()) };
    let _app = network.listen(&network.pod, 8080, APPLICATION)?;
    let _inbound = network.listen(&network.pod, 15006, "inbound")?;
    let (node, pod) = (NodeSettings::default(), PodSettings::default());
    let ruleset = ambient::rules(&node, &pod).to_string();
    let without_drop: String =
        ruleset.lines().filter(|line| !line.ends_with("drop")).fold(String::new(), |all, line| all + line + "\n");
    ensure!(without_drop.len() < ruleset.len(), "{ruleset}");
    network.load(&network.pod_name, &without_drop)?;
    assert_eq!(network.call(&network.node, POD, 8080)?, "inbound");
    assert_eq!(network.call_after_stray_packet(40001, 8080)?, APPLICATION, "the kernel tracks the connection");
    network.pod.run(|| ambient::enrol(&node, &pod))??;
    assert_eq!(network.call(&network.node, POD, 8080)?, "inbound");
    ensure!(network.call_after_stray_packet(40002, 8080).is_err(), "the connection is not redirected");
    Ok(())
}

#[test]
fn rules_of_a_sidecar_redirect_and_are_removed() -> Result<()> {
    let Some(network) = Network::new("s")? else { return Ok(()) };
    let _app = network.listen(&network.pod, 8080, APPLICATION)?;
    let _excluded = network.listen(&network.pod, 15020, "status")?;
    let _inbound = network.listen(&network.pod, 15006, "inbound")?;
    let _outbound = network.listen(&network.pod, 15001, "outbound")?;
    let _peer = network.listen(&network.peer, 9000, "peer")?;
    let _other = network.listen(&network.peer, 9001, "other")?;
    let mut settings = sidecar::Settings {
        inbound_ports: Included::All,
        inbound_ports_excluded: vec![15020.into()],
        outbound_ranges: Included::All,
        outbound_ports_excluded: vec![9001.into()],
        ..sidecar::Settings::default()
    };
    for _ in 0..2 {
        network.pod.run(|| sidecar::redirect(&settings))??;
    }
    assert_eq!(network.call(&network.peer, POD, 8080)?, "inbound");
    assert_eq!(network.call(&network.peer, POD, 15020)?, "status");
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "outbound");
    assert_eq!(network.call(&network.pod, OUTSIDE, 9001)?, "other");
    assert_eq!(network.call_as(1337, OUTSIDE, 9000)?, "peer", "the proxy's own connections are not redirected");
    assert_eq!(network.call_as(1337, POD, 8080)?, "inbound", "the proxy calls its own application");
    settings.outbound_ranges = Included::Only(vec!["10.99.0.0/16".parse()?]);
    network.pod.run(|| sidecar::redirect(&settings))??;
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "peer", "only included ranges are redirected");
    settings.interception = sidecar::Interception::Tproxy;
    network.pod.run(|| sidecar::redirect(&settings))??;
    // A socket without IP_TRANSPARENT receives nothing: the packet is not delivered to the application either.
    assert!(network.call(&network.peer, POD, 8080).is_err());
    network.pod.run(|| sidecar::remove(&settings))??;
    assert_eq!(network.call(&network.peer, POD, 8080)?, APPLICATION);
    assert_eq!(network.state(&network.pod_name)?, network.initial, "nothing is left in the namespace");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn labelled_pod_is_enrolled_and_withdrawn_under_traffic() -> Result<()> {
    let Some(network) = Network::new("e")?.map(Arc::new) else { return Ok(()) };
    let Some(cluster) = start_cluster().await? else { return Ok(()) };
    let _app = network.listen(&network.pod, 8080, APPLICATION)?;
    let agent = NodeAgent::start(&cluster, &network).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let uid = agent.run_pod("web", json!({}), &[]).await?;

    // Traffic from another pod, until the end of the test. Each connection has to be answered by the application or by
    // ztunnel.
    let failed = Arc::new(Mutex::new(Vec::new()));
    let (traffic, failures) = (Arc::clone(&network), Arc::clone(&failed));
    let load = tokio::spawn(async move {
        loop {
            let network = Arc::clone(&traffic);
            let answer = tokio::task::spawn_blocking(move || network.call(&network.peer, POD, 8080)).await;
            if let Err(error) = answer.map_err(anyhow::Error::from).flatten() {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
            }
        }
    });

    let failures = || failed.lock().unwrap_or_else(PoisonError::into_inner).clone();

    let ztunnel = ZdsClient::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::SnapshotSent), "an empty snapshot");
    ztunnel.acknowledge("")?;
    agent.label_namespace("ambient").await?;
    let added = ztunnel.receive().await?;
    let ZdsMessage::Add { uid: added, name, namespace: Some(namespace) } = added else {
        anyhow::bail!("not an added workload: {added:?}")
    };
    let namespace = NetworkNamespace::open(&PathBuf::from(format!("/proc/self/fd/{}", namespace.as_raw_fd())))?;
    ensure!((added.as_str(), name.as_str()) == (uid.as_str(), "shop/web/default"), "{added} {name}");
    ensure!(namespace.id() == network.pod.id(), "the namespace of the pod");
    ensure!(agent.redirection("web").await?.is_none(), "the annotation precedes the acknowledgement");
    ensure!(network.state(&network.pod_name)? == network.initial, "ztunnel does not listen yet");
    // ztunnel listens in the namespace that it got.
    let _inbound = network.listen(&namespace, 15006, "ztunnel")?;
    let _outbound = network.listen(&namespace, 15001, "outbound")?;
    ztunnel.acknowledge("")?;
    until_async("the pod is annotated", async || {
        (agent.redirection("web").await.ok()?.as_deref() == Some("enabled")).then_some(())
    })
    .await;
    ensure!(network.call(&network.peer, POD, 8080)? == "ztunnel", "inbound traffic is redirected");
    ensure!(network.call(&network.node, POD, 8080)? == APPLICATION, "probes of the node are not redirected");
    ensure!(network.call(&network.pod, OUTSIDE, 9000)? == "outbound", "outbound traffic is redirected");
    ensure!(failures() == [""; 0], "connections fail while the pod is enrolled: {:?}", failures());

    // Another ztunnel receives the pod in its snapshot.
    let second = ZdsClient::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(second.receive().await?, ZdsMessage::Add { namespace: Some(_), .. }), "a snapshot with the pod");
    second.acknowledge("")?;
    ensure!(matches!(second.receive().await?, ZdsMessage::SnapshotSent), "the end of the snapshot");
    second.acknowledge("")?;
    drop(ztunnel);

    agent.label_namespace("none").await?;
    ensure!(matches!(second.receive().await?, ZdsMessage::Del(deleted) if deleted == uid), "the pod is withdrawn");
    ensure!(agent.redirection("web").await?.as_deref() == Some("pending"), "clients know before ztunnel ends");
    ensure!(network.call(&network.peer, POD, 8080)? == APPLICATION, "traffic is no longer redirected");
    ensure!(network.state(&network.pod_name)? == network.initial, "nothing is left in the namespace");
    second.acknowledge("")?;
    until_async("the annotation is removed", async || agent.redirection("web").await.ok()?.is_none().then_some(()))
        .await;
    load.abort();
    ensure!(failures() == [""; 0], "connections fail while the pod is withdrawn: {:?}", failures());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn running_pod_is_not_redirected_until_ztunnel_acknowledges() -> Result<()> {
    let Some(network) = Network::new("w")? else { return Ok(()) };
    let Some(cluster) = start_cluster().await? else { return Ok(()) };
    let agent = NodeAgent::start(&cluster, &network).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let uid = agent.run_pod("web", json!({}), &[]).await?;
    let is_as_before = async || -> Result<()> {
        ensure!(network.state(&network.pod_name)? == network.initial, "there are rules in the namespace");
        let redirection = agent.redirection("web").await?;
        ensure!(redirection.is_none(), "the annotation is {redirection:?}");
        Ok(())
    };
    let logged = async |text: &str| {
        until_async(text, async || agent.log().ok().filter(|log| log.contains(text)).map(drop)).await;
    };

    // No ztunnel is connected.
    agent.label_namespace("ambient").await?;
    logged("no ztunnel is connected").await;
    is_as_before().await?;
    agent.label_namespace("none").await?;
    logged("withdrawn from the ambient mesh").await;
    let ztunnel = ZdsClient::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::SnapshotSent), "the pod is not in the snapshot");
    ztunnel.acknowledge("")?;

    // ztunnel cannot serve the pod at first.
    agent.label_namespace("ambient").await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::Add { uid: added, .. } if added == uid), "the pod is added");
    ztunnel.acknowledge("no certificate")?;
    ensure!(
        matches!(ztunnel.receive().await?, ZdsMessage::Add { uid: added, .. } if added == uid),
        "the pod is added again"
    );
    is_as_before().await?;
    ztunnel.acknowledge("")?;
    until_async("the pod is annotated", async || {
        (agent.redirection("web").await.ok()?.as_deref() == Some("enabled")).then_some(())
    })
    .await;
    ensure!(network.state(&network.pod_name)? != network.initial, "the pod is redirected");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_passes_ambient_pods_to_the_agent_and_redirects_sidecars() -> Result<()> {
    let Some(network) = Network::new("p")?.map(Arc::new) else { return Ok(()) };
    let Some(cluster) = start_cluster().await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({"istio.io/dataplane-mode": "ambient"})).await?;
    let agent = NodeAgent::start(&cluster, &network).await?;
    let chain = agent.chain()?;
    let entry = chain["plugins"].as_array().and_then(|plugins| plugins.last()).context("an entry")?.clone();
    ensure!(entry["type"] == "istio-cni", "{chain}");

    // Without ztunnel, the pod does not start.
    let uid = agent.create_pod("web", json!({}), &[]).await?;
    let (succeeded, result) = agent.run_plugin(&entry, "web", &network.pod_name)?;
    ensure!(
        !succeeded && result["msg"].as_str().is_some_and(|text| text.contains("no ztunnel is connected")),
        "{result}"
    );
    ensure!(agent.redirection("web").await?.as_deref() == Some("pending"), "the annotation");

    let ztunnel = ZdsClient::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::Add { .. }), "the pending pod is in the snapshot");
    ztunnel.acknowledge("")?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::SnapshotSent), "the end of the snapshot");
    ztunnel.acknowledge("")?;
    let answers = tokio::spawn(async move {
        let received = ztunnel.receive().await;
        ztunnel.acknowledge("").map(|()| (ztunnel, received))
    });
    let (succeeded, result) = agent.run_plugin(&entry, "web", &network.pod_name)?;
    ensure!(succeeded && result["ips"][0]["address"] == "10.200.1.2/24", "{result}");
    let (ztunnel, received) = answers.await??;
    let received = received?;
    ensure!(matches!(&received, ZdsMessage::Add { uid: added, .. } if *added == uid), "{received:?}");
    ensure!(agent.redirection("web").await?.as_deref() == Some("enabled"), "the annotation");

    // The pod is deleted.
    cluster.delete("v1", "Pod", "shop", "web").await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::Del(deleted) if deleted == uid), "the pod is withdrawn");
    ztunnel.acknowledge("")?;
    network.pod.run(ambient::withdraw)??;

    // A pod with a sidecar is redirected by the plugin itself.
    let sidecar = json!({"sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeInboundPorts": "8081"});
    agent.create_pod("injected", sidecar, &["istio-proxy"]).await?;
    let _app = network.listen(&network.pod, 8081, APPLICATION)?;
    let _inbound = network.listen(&network.pod, 15006, "inbound")?;
    let (succeeded, result) = agent.run_plugin(&entry, "injected", &network.pod_name)?;
    ensure!(succeeded, "{result}");
    ensure!(network.call(&network.peer, POD, 8080)? == "inbound", "inbound traffic is redirected");
    ensure!(network.call(&network.peer, POD, 8081)? == APPLICATION, "an excluded port");

    // An invalid annotation fails the pod and is named.
    let invalid = json!({"sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "SOME"});
    agent.create_pod("invalid", invalid, &["istio-proxy"]).await?;
    let (succeeded, result) = agent.run_plugin(&entry, "invalid", &network.pod_name)?;
    ensure!(!succeeded && result["msg"].as_str().is_some_and(|text| text.contains("interceptionMode")), "{result}");

    let chain = agent.stop_and_read_chain().await?;
    ensure!(!chain.to_string().contains("istio-cni"), "the entry is removed: {chain}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_replaces_one_of_the_same_name_is_withdrawn_too() -> Result<()> {
    let Some(network) = Network::new("r")?.map(Arc::new) else { return Ok(()) };
    let Some(cluster) = start_cluster().await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({"istio.io/dataplane-mode": "ambient"})).await?;
    let agent = NodeAgent::start(&cluster, &network).await?;
    let chain = agent.chain()?;
    let entry = chain["plugins"].as_array().and_then(|plugins| plugins.last()).context("an entry")?.clone();
    let ztunnel = ZdsClient::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::SnapshotSent), "an empty snapshot");
    ztunnel.acknowledge("")?;
    let first = agent.create_pod("web", json!({}), &[]).await?;
    let answers = tokio::spawn(async move {
        let received = ztunnel.receive().await;
        ztunnel.acknowledge("").map(|()| (ztunnel, received))
    });
    let (succeeded, result) = agent.run_plugin(&entry, "web", &network.pod_name)?;
    ensure!(succeeded, "{result}");
    let (ztunnel, received) = answers.await??;
    let received = received?;
    ensure!(matches!(&received, ZdsMessage::Add { uid, .. } if *uid == first), "{received:?}");

    // ztunnel has not removed the first pod yet when the second one starts.
    cluster.delete("v1", "Pod", "shop", "web").await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::Del(uid) if uid == first), "the first pod is withdrawn");
    network.pod.run(ambient::withdraw)??;
    let second = agent.create_pod("web", json!({}), &[]).await?;
    ensure!(second != first, "the first pod still exists");
    let answers = tokio::spawn({
        let network = Arc::clone(&network);
        async move {
            let state = || network.state(&network.pod_name).ok();
            until("the second pod is redirected", || state().filter(|state| *state != network.initial)).await;
            ztunnel.acknowledge("")?;
            let received = ztunnel.receive().await;
            ztunnel.acknowledge("no certificate").map(|()| (ztunnel, received))
        }
    });
    let (succeeded, result) = agent.run_plugin(&entry, "web", &network.pod_name)?;
    ensure!(!succeeded, "{result}");
    let (ztunnel, received) = answers.await??;
    let received = received?;
    ensure!(matches!(&received, ZdsMessage::Add { uid, .. } if *uid == second), "{received:?}");

    cluster.delete("v1", "Pod", "shop", "web").await?;
    ensure!(matches!(ztunnel.receive().await?, ZdsMessage::Del(uid) if uid == second), "the second pod is withdrawn");
    ztunnel.acknowledge("")
}
