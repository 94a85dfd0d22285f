//! Clusters on demand (ODCDS): the clusters that each client is sent, and when.

use sluice_model::ResourceType::Cluster;
use sluice_xds_protocol::XdsProtocol::Delta;

use super::client::ScriptedClient;
use super::fixture::{SIDECAR, SessionFixture};

const ON_DEMAND: &str = "on-demand:base";

#[test]
fn cluster_on_demand_is_sent_when_the_client_names_it() {
    let mesh = SessionFixture::new();
    mesh.scope(SIDECAR, &["base", ON_DEMAND]);
    mesh.cluster("base", "always", "1");
    for name in ["a", "b"] {
        mesh.cluster(ON_DEMAND, name, "1");
    }
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Cluster, &["*"]);
    assert_eq!(client.settled(), ["CDS +always"]);
    client.change(Cluster, &["a"], &[]);
    assert_eq!(client.settled(), ["CDS +a"]);
    client.change(Cluster, &["absent"], &[]);
    assert_eq!(client.settled(), ["CDS -absent"], "a request may wait for the answer");
    // Only the clusters that it has named are kept up to date.
    mesh.cluster(ON_DEMAND, "a", "2");
    mesh.cluster(ON_DEMAND, "b", "2");
    mesh.cluster(ON_DEMAND, "absent", "1");
    mesh.commit();
    assert_eq!(client.settled(), ["CDS +a +absent"]);
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["CDS"], "an empty response confirms the subscription");
    mesh.delete(Cluster, ON_DEMAND, "a");
    mesh.commit();
    assert_eq!(client.settled(), ["CDS -a"]);
}

#[test]
fn cluster_that_becomes_required_is_sent_and_one_that_is_no_longer_is_removed() {
    let mesh = SessionFixture::new();
    mesh.scope(SIDECAR, &["base", ON_DEMAND]);
    for name in ["a", "b"] {
        mesh.cluster(ON_DEMAND, name, "1");
    }
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Cluster, &["*"]);
    assert_eq!(client.settled(), ["CDS"]);
    client.change(Cluster, &["b"], &[]);
    assert_eq!(client.settled(), ["CDS +b"]);
    let exchange = |from: &str, to: &str| {
        for name in ["a", "b"] {
            mesh.delete(Cluster, from, name);
            mesh.cluster(to, name, "1");
        }
        mesh.commit();
    };
    exchange(ON_DEMAND, "base");
    assert_eq!(client.settled(), ["CDS +a"], "the client has named `b`, which has not changed");
    exchange("base", ON_DEMAND);
    assert_eq!(client.settled(), ["CDS -a"]);
}
