//! VHDS: the virtual hosts that each client is sent, and when.

use sluice_model::ResourceType;
use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use sluice_xds_protocol::{StreamError, XdsProtocol};

use ResourceType::{Cluster, Route, VirtualHost};
use XdsProtocol::{Delta, Sotw};

use super::client::{ScriptedClient, message};
use super::fixture::SessionFixture;

#[test]
fn virtual_hosts_are_subscribed_by_their_route_table() {
    let mesh = SessionFixture::new();
    let put = |name: &str, content: &str| mesh.set(VirtualHost, "base", name, &message(name, content));
    for name in ["80/a", "80/b", "8080/a", "9000/c"] {
        put(name, "1");
    }
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(VirtualHost, &["80"]);
    assert_eq!(client.settled(), ["VHDS +80/a +80/b"]);
    put("80/b", "2");
    put("8080/a", "2");
    put("80/z", "1");
    mesh.delete(VirtualHost, "base", "80/a");
    mesh.commit();
    assert_eq!(client.settled(), ["VHDS +80/b +80/z -80/a"]);
    client.change(VirtualHost, &["8080", "7"], &[]);
    assert_eq!(client.settled(), ["VHDS +8080/a -7"], "a table without virtual hosts is reported as removed");
    put("7/x", "1");
    mesh.commit();
    assert_eq!(client.settled(), ["VHDS +7/x"]);
    client.change(VirtualHost, &["80/b"], &[]);
    assert_eq!(client.settled(), ["VHDS +80/b"], "a single virtual host, as a client requests it on demand");
    client.change(VirtualHost, &["80/absent"], &[]);
    assert_eq!(client.settled(), ["VHDS -80/absent"]);
    client.change(VirtualHost, &[], &["8080"]);
    put("8080/a", "3");
    mesh.commit();
    assert_eq!(client.settled(), [""; 0]);
}

#[test]
fn virtual_hosts_held_by_the_client_are_not_sent_again() {
    let mesh = SessionFixture::new();
    let put = |name: &str, content: &str| mesh.set(VirtualHost, "base", name, &message(name, content));
    for name in ["80/a", "80/b", "80/c"] {
        put(name, "1");
    }
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(VirtualHost, &["80"]);
    client.settled();
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["VHDS"], "an empty response confirms the subscription");
    put("80/b", "2");
    mesh.delete(VirtualHost, "base", "80/c");
    mesh.commit();
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["VHDS +80/b -80/c"]);
}

#[test]
fn a_wildcard_client_gets_the_virtual_hosts_of_a_table_again_after_it_acknowledges_the_table() {
    let mesh = SessionFixture::new();
    let put = |kind, name: &str, content: &str| mesh.set(kind, "base", name, &message(name, content));
    for name in ["80", "81", "82"] {
        put(Route, name, "1");
    }
    for name in ["80/a", "80/b", "81/c"] {
        put(VirtualHost, name, "1");
    }
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Route, &["80"]);
    assert_eq!(client.settled(), ["RDS +80"]);
    client.want_all(VirtualHost);
    assert_eq!(client.settled(), ["VHDS +80/a +80/b +81/c"], "the client requested them after it received the table");

    client.change(Route, &["81"], &[]);
    let table = client.receive().expect("the table");
    assert_eq!(table.text(), "RDS +81");
    assert!(client.receive().is_none(), "the client would discard virtual hosts that arrive before the table");
    assert_eq!(client.settled(), ["VHDS +81/c"]);
    client.change(Route, &["82"], &[]);
    assert_eq!(client.settled(), ["RDS +82", "VHDS -82/"], "a table without virtual hosts is reported as removed");
    client.change(Route, &["80"], &[]);
    assert_eq!(
        client.settled(),
        ["RDS +80", "VHDS +80/a +80/b"],
        "a repeated subscription means that the client holds nothing"
    );

    put(Route, "80", "2");
    put(VirtualHost, "80/b", "2");
    put(VirtualHost, "83/new", "1");
    mesh.delete(VirtualHost, "base", "80/a");
    mesh.commit();
    assert_eq!(
        client.settled(),
        ["RDS +80", "VHDS +80/b +83/new -80/a"],
        "it holds the table, so it keeps the virtual hosts"
    );
    client.change(Route, &["83"], &[]);
    assert_eq!(client.settled(), ["RDS -83"]);
    put(Route, "83", "1");
    mesh.commit();
    assert_eq!(client.settled(), ["RDS +83", "VHDS +83/new"], "a table that is added later");

    // Virtual hosts are sent after a rejected response too, because Envoy may have accepted some of its tables.
    client.change(Route, &["81"], &[]);
    client.receive().expect("the table");
    client.answer(Some("no"));
    assert_eq!(client.settled(), ["VHDS +81/c"]);
}

#[test]
fn on_demand_an_unknown_host_is_answered_as_absent() {
    let mesh = SessionFixture::new();
    let put = |name: &str, content: &str| mesh.set(VirtualHost, "base", name, &message(name, content));
    put("80/a", "1");
    put("80/b", "1");
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(VirtualHost);
    assert_eq!(client.settled(), ["VHDS +80/a +80/b"]);
    client.ask(VirtualHost, &["80/absent"]);
    assert_eq!(client.settled(), ["VHDS ?80/absent"], "a resource without a message");
    client.ask(VirtualHost, &["80/b", "80/else"]);
    assert_eq!(client.settled(), ["VHDS +80/b ?80/else"]);
    put("80/c", "1");
    mesh.delete(VirtualHost, "base", "80/b");
    mesh.commit();
    assert_eq!(client.settled(), ["VHDS +80/c -80/b"], "the wildcard subscription continues");

    // The pending requests of a client that does not read responses are limited.
    let flood = |from: u32| {
        let names = (from..from + 6_000).map(|n| format!("80/{n}")).collect();
        let type_url = VirtualHost.type_url().into();
        DeltaDiscoveryRequest { type_url, resource_names_subscribe: names, ..DeltaDiscoveryRequest::default() }
    };
    let mut unread_client = ScriptedClient::connect(&mesh, Delta);
    unread_client.want_all(VirtualHost);
    unread_client.settle();
    unread_client.delta(flood(0)).expect("many");
    assert!(matches!(unread_client.delta(flood(6_000)), Err(StreamError::Exhausted(_))));

    // A reconnecting client lists the names it requested on demand, and the versions it holds.
    client.wants.insert(VirtualHost, Some(["80/absent", "80/c"].map(str::to_owned).into()));
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["VHDS +80/c ?80/absent"]);
    put("80/d", "1");
    mesh.commit();
    assert_eq!(client.settled(), ["VHDS +80/d"]);
}

#[test]
fn virtual_hosts_are_separate_resources_over_delta_only() {
    for (protocol, is_vhds) in [(Sotw, false), (Delta, true)] {
        let mesh = SessionFixture::new();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        let connected = mesh.proxies.1.lock().unwrap().clone();
        assert_eq!(connected, [is_vhds], "{protocol:?}");
    }
}
