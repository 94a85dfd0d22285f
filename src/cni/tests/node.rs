//! The agent and the plugin on a node of network namespaces, with a real API server and a stand-in for ztunnel.
//!
//! ```text
//! peer 10.200.2.2 ── 10.200.2.1 node 10.200.1.1 ── 10.200.1.2 pod
//! ```

#[path = "node/network.rs"]
mod network;
#[path = "node/node_agent.rs"]
mod node_agent;
#[path = "node/ztunnel.rs"]
mod ztunnel;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use network::{Network, OUTSIDE, POD};
use node_agent::{NodeAgent, start_cluster};
use serde_json::json;
use sluice_redirection::ambient::{NodeSettings, PodSettings};
use sluice_redirection::values::Included;
use sluice_redirection::{ambient, sidecar};
use sluice_testkit::wait::until_async;
use ztunnel::{Received, Ztunnel};

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
    for _ in 0..2 {
        network.pod.run(ambient::withdraw)??;
    }
    assert_eq!(network.call(&network.peer, POD, 8080)?, APPLICATION);
    assert_eq!(network.call(&network.pod, OUTSIDE, 9000)?, "peer");
    assert_eq!(network.state(&network.pod_name)?, network.initial, "nothing is left in the namespace");
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
    let _inbound = network.listen(&network.pod, 15006, "ztunnel")?;
    let agent = NodeAgent::start(&cluster, &network).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let uid = agent.run_pod("web", json!({}), &[]).await?;

    // Traffic from another pod, until the end of the test. Each connection has to be answered by the application or by
    // ztunnel.
    let failed = Arc::new(AtomicUsize::new(0));
    let (traffic, failures) = (Arc::clone(&network), Arc::clone(&failed));
    let load = tokio::spawn(async move {
        loop {
            let network = Arc::clone(&traffic);
            let answer = tokio::task::spawn_blocking(move || network.call(&network.peer, POD, 8080)).await;
            if !answer.is_ok_and(|answer| answer.is_ok()) {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    });

    let ztunnel = Ztunnel::connect(&agent.ztunnel_socket()).await?;
    ensure!(ztunnel.next()? == Received::SnapshotSent, "an empty snapshot");
    ztunnel.acknowledge("")?;
    agent.label_namespace("ambient").await?;
    let added = ztunnel.next()?;
    let Received::Add { uid: added, name, namespace: Some(namespace) } = added else {
        anyhow::bail!("not an added workload: {added:?}")
    };
    ensure!((added.as_str(), name.as_str()) == (uid.as_str(), "shop/web/default"), "{added} {name}");
    ensure!(namespace.id() == network.pod.id(), "the namespace of the pod");
    ensure!(agent.redirection("web").await?.is_none(), "the annotation precedes the acknowledgement");
    // ztunnel listens in the namespace that it got.
    let _outbound = network.listen(&namespace, 15001, "outbound")?;
    ztunnel.acknowledge("")?;
    until_async("the pod is annotated", async || {
        (agent.redirection("web").await.ok()?.as_deref() == Some("enabled")).then_some(())
    })
    .await;
    ensure!(network.call(&network.peer, POD, 8080)? == "ztunnel", "inbound traffic is redirected");
    ensure!(network.call(&network.node, POD, 8080)? == APPLICATION, "probes of the node are not redirected");
    ensure!(network.call(&network.pod, OUTSIDE, 9000)? == "outbound", "outbound traffic is redirected");
    ensure!(failed.load(Ordering::Relaxed) == 0, "no connection fails while the pod is enrolled");

    // Another ztunnel receives the pod in its snapshot.
    let second = Ztunnel::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(second.next()?, Received::Add { namespace: Some(_), .. }), "a snapshot with the pod");
    second.acknowledge("")?;
    ensure!(second.next()? == Received::SnapshotSent, "the end of the snapshot");
    second.acknowledge("")?;
    ztunnel.close();

    agent.label_namespace("none").await?;
    ensure!(second.next()? == Received::Del(uid.clone()), "the pod is withdrawn");
    second.acknowledge("")?;
    until_async("the annotation is removed", async || agent.redirection("web").await.ok()?.is_none().then_some(()))
        .await;
    ensure!(network.call(&network.peer, POD, 8080)? == APPLICATION, "traffic is no longer redirected");
    ensure!(network.state(&network.pod_name)? == network.initial, "nothing is left in the namespace");
    load.abort();
    // A connection to ztunnel that is open when the pod is withdrawn breaks.
    let failed = failed.load(Ordering::Relaxed);
    ensure!(failed <= 1, "{failed} connections fail");
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

    let ztunnel = Ztunnel::connect(&agent.ztunnel_socket()).await?;
    ensure!(matches!(ztunnel.next()?, Received::Add { .. }), "the pending pod is in the snapshot");
    ztunnel.acknowledge("")?;
    ensure!(ztunnel.next()? == Received::SnapshotSent, "the end of the snapshot");
    ztunnel.acknowledge("")?;
    let answers = tokio::task::spawn_blocking(move || {
        let received = ztunnel.next();
        ztunnel.acknowledge("").map(|()| (ztunnel, received))
    });
    let (succeeded, result) = agent.run_plugin(&entry, "web", &network.pod_name)?;
    ensure!(succeeded && result["ips"][0]["address"] == "10.200.1.2/24", "{result}");
    let (ztunnel, received) = answers.await??;
    let received = received?;
    ensure!(matches!(&received, Received::Add { uid: added, .. } if *added == uid), "{received:?}");
    ensure!(agent.redirection("web").await?.as_deref() == Some("enabled"), "the annotation");

    // The pod is deleted.
    cluster.delete("v1", "Pod", "shop", "web").await?;
    ensure!(ztunnel.next()? == Received::Del(uid), "the pod is withdrawn");
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
