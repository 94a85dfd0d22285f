//! Addresses of Services of type LoadBalancer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::sync::Mutex;

use super::{TestNode, key, text, unless_gone};
use crate::pods::balancer::Balancer;

/// The last byte of the last address.
const LAST_HOST: u8 = 200;

/// The load balancers of a node, by UID of their Service.
pub(super) struct LoadBalancers {
    network: Ipv4Addr,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<String, LoadBalancer>,
    /// The last byte of the address that was given last. The listeners of a removed load balancer close a moment later.
    last: u8,
}

struct LoadBalancer {
    address: Ipv4Addr,
    ports: BTreeMap<u16, Balancer>,
}

impl LoadBalancers {
    /// Their addresses are those of a network with 8 bits for hosts.
    pub(super) fn new(network: Ipv4Addr) -> Self {
        Self { network, state: Mutex::default() }
    }

    /// Follows the Services of the cluster, and writes the address of each to its status.
    pub(super) async fn follow(&self, node: &TestNode<'_>) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut services = node.list("/api/v1/services").await?;
        services.retain(|service| service["spec"]["type"] == "LoadBalancer");
        let uids: BTreeSet<&str> = services.iter().filter_map(|service| service["metadata"]["uid"].as_str()).collect();
        state.running.retain(|uid, _| uids.contains(uid.as_str()));
        for service in &services {
            let (namespace, name) = key(service)?;
            let uid = text(&service["metadata"]["uid"])?;
            if !state.running.contains_key(uid) {
                let address = self.choose(&mut state)?;
                state.running.insert(uid.to_owned(), LoadBalancer { address, ports: BTreeMap::new() });
            }
            let balancer = state.running.get_mut(uid).context("the load balancer was added")?;
            let ports: BTreeSet<u16> = service["spec"]["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|port| port["protocol"] == "TCP")
                .filter_map(|port| port["port"].as_u64()?.try_into().ok())
                .collect();
            balancer.ports.retain(|port, _| ports.contains(port));
            for port in ports {
                if !balancer.ports.contains_key(&port) {
                    let address = SocketAddr::new(balancer.address.into(), port);
                    balancer.ports.insert(port, Balancer::start(address).await?);
                }
                balancer.ports[&port].set_targets(node.endpoints((namespace, name), port).await?);
            }
            let status = json!({"ingress": [{"ip": balancer.address, "ipMode": "VIP"}]});
            if service["status"]["loadBalancer"] != status {
                let status = json!({"loadBalancer": status});
                unless_gone(node.cluster.write_status("v1", "Service", (namespace, name), status).await)?;
            }
        }
        Ok(())
    }

    /// A free address.
    fn choose(&self, state: &mut State) -> Result<Ipv4Addr> {
        let [a, b, c, _] = self.network.octets();
        let hosts = (state.last + 1..=LAST_HOST).chain(1..=state.last);
        let is_free = |host: &u8| state.running.values().all(|it| it.address != Ipv4Addr::new(a, b, c, *host));
        let mut hosts = hosts.filter(is_free);
        let host = hosts.next().context("there is a free address")?;
        drop(hosts);
        state.last = host;
        Ok(Ipv4Addr::new(a, b, c, host))
    }
}
