//! Addresses of ambient mode: all of them, or those that a node proxy subscribes to on demand (X26).

use prost::Message as _;
use sluice_model::ResourceType::{Address, Workload};
use sluice_proto::istio::workload::{self, NetworkAddress, PortList, address::Type};
use sluice_xds_protocol::XdsProtocol::{Delta, Sotw};

use super::client::{ReceivedResponse, ScriptedClient};
use super::fixture::{NODE, SessionFixture};

const WEB: &str = "shop/web.shop.svc.cluster.local";

fn set_workload(mesh: &SessionFixture, name: &str, ip: [u8; 4], node: &str, services: &[&str]) {
    let workload = workload::Workload {
        uid: name.to_owned(),
        addresses: vec![ip.to_vec()],
        node: node.to_owned(),
        services: services.iter().map(|name| ((*name).to_owned(), PortList::default())).collect(),
        ..workload::Workload::default()
    };
    mesh.set(Workload, "base", name, &workload.encode_to_vec());
    let address = workload::Address { r#type: Some(Type::Workload(workload)) };
    mesh.set(Address, "base", name, &address.encode_to_vec());
}

fn set_service(mesh: &SessionFixture, name: &str, ip: [u8; 4]) {
    let service = workload::Service {
        hostname: name.to_owned(),
        addresses: vec![NetworkAddress { network: String::new(), address: ip.to_vec(), length: None }],
        ..workload::Service::default()
    };
    let address = workload::Address { r#type: Some(Type::Service(service)) };
    mesh.set(Address, "base", name, &address.encode_to_vec());
}

/// A service of two pods, a pod on the node `far`, and a pod on the client's own node.
fn shop() -> SessionFixture {
    let mesh = SessionFixture::new();
    set_service(&mesh, WEB, [10, 9, 0, 1]);
    set_workload(&mesh, "web-1", [10, 1, 0, 1], "far", &[WEB]);
    set_workload(&mesh, "web-2", [10, 1, 0, 2], "far", &[WEB]);
    set_workload(&mesh, "db-1", [10, 1, 0, 3], "far", &[]);
    mesh.commit();
    mesh
}

fn subscribed_client(mesh: &SessionFixture, names: &[&str]) -> ScriptedClient {
    let mut client = ScriptedClient::connect(mesh, Delta);
    client.want(Address, names);
    client
}

#[test]
fn an_address_is_answered_with_its_workload() {
    let mesh = shop();
    let mut client = subscribed_client(&mesh, &["/10.1.0.3"]);
    let responses = client.settle();
    assert_eq!(responses.iter().map(ReceivedResponse::text).collect::<Vec<_>>(), ["WDS +db-1"]);
    assert_eq!(responses[0].aliases["db-1"], ["/10.1.0.3"]);
    client.change(Address, &["/10.1.0.9"], &[]);
    assert_eq!(client.settled(), ["WDS -/10.1.0.9"], "no workload has the address");
    // A workload gets the address, and the other workload changes.
    set_workload(&mesh, "new", [10, 1, 0, 9], "far", &[]);
    set_workload(&mesh, "db-1", [10, 1, 0, 3], "elsewhere", &[]);
    mesh.commit();
    assert_eq!(client.settled(), ["WDS +db-1 +new"]);
    mesh.delete(Address, "base", "db-1");
    set_workload(&mesh, "web-1", [10, 1, 0, 1], "elsewhere", &[WEB]);
    mesh.commit();
    assert_eq!(client.settled(), ["WDS -db-1"], "the client is not subscribed to the other workload");
}

#[test]
fn service_is_sent_with_its_workloads_by_name_and_by_address() {
    for name in [WEB, "/10.9.0.1"] {
        let mesh = shop();
        let mut client = subscribed_client(&mesh, &[name]);
        assert_eq!(client.settled(), [format!("WDS +{WEB} +web-1 +web-2")], "by {name}");
        set_workload(&mesh, "web-3", [10, 1, 0, 4], "far", &[WEB]);
        mesh.commit();
        assert_eq!(client.settled(), ["WDS +web-3"], "by {name}");
        // The workload leaves the service. Clients that hold its old state are sent the new one.
        set_workload(&mesh, "web-2", [10, 1, 0, 2], "far", &[]);
        mesh.commit();
        assert_eq!(client.settled(), ["WDS +web-2"], "by {name}");
    }
}

#[test]
fn address_that_was_absent_is_sent_with_the_workloads_of_its_service() {
    let mesh = SessionFixture::new();
    set_workload(&mesh, "web-1", [10, 1, 0, 1], "far", &[]);
    mesh.commit();
    let mut client = subscribed_client(&mesh, &["/10.9.0.1"]);
    assert_eq!(client.settled(), ["WDS -/10.9.0.1"]);
    // A Service selects pods that exist: all change in one epoch.
    set_service(&mesh, WEB, [10, 9, 0, 1]);
    set_workload(&mesh, "web-1", [10, 1, 0, 1], "far", &[WEB]);
    mesh.commit();
    assert_eq!(client.settled(), [format!("WDS +{WEB} +web-1")]);
}

#[test]
fn workloads_of_the_own_node_are_sent_unrequested() {
    let mesh = shop();
    set_workload(&mesh, "near-1", [10, 1, 0, 5], NODE, &[]);
    mesh.commit();
    let mut client = subscribed_client(&mesh, &["/10.1.0.3"]);
    assert_eq!(client.settled(), ["WDS +db-1 +near-1"]);
    set_workload(&mesh, "near-2", [10, 1, 0, 6], NODE, &[]);
    mesh.commit();
    assert_eq!(client.settled(), ["WDS +near-2"]);
}

#[test]
fn a_repeated_subscription_is_answered_again() {
    let mesh = shop();
    let mut client = subscribed_client(&mesh, &["/10.1.0.3"]);
    client.settle();
    client.change(Address, &["/10.1.0.3"], &[]);
    assert_eq!(client.settled(), ["WDS +db-1"]);
}

#[test]
fn a_reconnecting_node_proxy_is_sent_only_changes() {
    let mesh = shop();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(Address);
    let responses = client.settle().remove(0);
    assert_eq!(responses.text(), format!("WDS +db-1 +{WEB} +web-1 +web-2"));
    assert!(responses.aliases["db-1"].is_empty(), "a wildcard subscription gets no aliases");
    set_workload(&mesh, "web-1", [10, 1, 0, 1], "elsewhere", &[WEB]);
    mesh.delete(Address, "base", "db-1");
    mesh.commit();
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["WDS +web-1 -db-1"]);
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["WDS"], "it already holds every resource");

    let mut on_demand = subscribed_client(&mesh, &["/10.1.0.2"]);
    assert_eq!(on_demand.settled(), ["WDS +web-2"]);
    let mut on_demand = on_demand.reconnect(&mesh);
    assert_eq!(on_demand.settled(), ["WDS"]);
}

#[test]
fn state_of_the_world_has_every_address() {
    let mesh = shop();
    let mut client = ScriptedClient::connect(&mesh, Sotw);
    client.want_all(Workload);
    let all = client.settled();
    assert_eq!(all.len(), 1);
    mesh.delete(Workload, "base", "db-1");
    mesh.commit();
    assert_eq!(client.settled().len(), 1);
    assert_eq!(mesh.current(super::fixture::SIDECAR, Workload).len(), 2);
}
