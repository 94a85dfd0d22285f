//! Compares what proxies hold with what a fresh server sends to them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::client::SimulatedProxy;
use crate::fleet::Fleet;
use crate::measured_mesh::MeasuredMesh;
use crate::scan::Type;
use crate::server::{Server, ServerOptions};

/// States are compared when no message has arrived for this time, which is long for a machine that runs other tests too.
pub(crate) const QUIET: Duration = Duration::from_secs(3);

/// The outcome of a comparison.
pub(crate) struct StateComparison {
    /// Number of compared resources.
    pub(crate) compared: usize,
    /// The differences, one for each resource.
    pub(crate) differences: Vec<String>,
    /// Proxies that the fresh server did not configure in time.
    pub(crate) missed: usize,
}

/// Waits until all proxies are configured and receive nothing more, and ends their streams. Then a fresh server with
/// the same objects configures proxies that hold nothing. Returns the first proxies and the comparison.
pub(crate) async fn compare_with_fresh_server(
    mesh: &mut MeasuredMesh,
    server_options: &ServerOptions,
    timeout: Duration,
) -> Result<(Vec<SimulatedProxy>, StateComparison)> {
    mesh.fleet.configured(Instant::now(), timeout).await;
    mesh.fleet.settle(Instant::now(), QUIET, Instant::now() + timeout).await;
    let old = mesh.fleet.disconnect().await;
    let (fresh_server, _) = Server::start(server_options).await.context("start a fresh server")?;
    let mut fresh = Fleet::new(&mesh.objects.shape, mesh.group.clone(), fresh_server.address)?;
    let clients = fresh.fresh();
    fresh.connect(clients);
    let (_, missed) = fresh.configured(Instant::now(), timeout).await;
    fresh.settle(Instant::now(), QUIET, Instant::now() + timeout).await;
    let new = fresh.disconnect().await;
    let (compared, differences) = compare(&old, new);
    Ok((old, StateComparison { compared, differences, missed }))
}

/// The number of compared resources, and those that differ. Names that a proxy has subscribed to and that no resource
/// refers to any more are not compared: the proxy keeps them until it unsubscribes.
fn compare(old: &[SimulatedProxy], new: Vec<SimulatedProxy>) -> (usize, Vec<String>) {
    let new: BTreeMap<usize, SimulatedProxy> = new.into_iter().map(|client| (client.number, client)).collect();
    let (mut compared, mut differences) = (0, Vec::new());
    for client in old {
        let Some(fresh) = new.get(&client.number) else {
            differences.push(format!("proxy {} did not reconnect", client.number));
            continue;
        };
        for kind in Type::ALL {
            let (held, expected) = (client.held(kind).contents(), fresh.held(kind).contents());
            compared += expected.len();
            for (name, digest) in &expected {
                let content = held.get(name);
                if content != Some(digest) {
                    let problem = if content.is_some() { "differs" } else { "is missing" };
                    differences.push(format!("proxy {}: {kind:?} {name} {problem}", client.number));
                }
            }
            let extra = held.keys().filter(|name| kind.is_wildcard() && !expected.contains_key(*name));
            differences
                .extend(extra.map(|name| {
                    format!("proxy {}: {kind:?} {name} is not in the fresh server's state", client.number)
                }));
        }
    }
    (compared, differences)
}
