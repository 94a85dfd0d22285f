//! The rules of the xDS protocol (X06 to X09, X11).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ResourceType::{Cluster, Endpoint, ExtensionConfig, Listener, NameTable, ProxyConfig, Route};
use XdsProtocol::{Delta, Sotw};
use prost::Message as _;
use sluice_auth::{Caller, Viewer};
use sluice_model::{Resource, ResourceType, Template, TemplatePart};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use sluice_xds::{AckCounts, AckWatch, AwaitedChange, StatusReader};
use sluice_xds_protocol::{ACK_TIMEOUT, HEALTH_TYPE, StreamError, SyncState, XdsProtocol};

use super::client::{ScriptedClient, message, sotw};
use super::fixture::{SIDECAR, SessionFixture, layer};

const BOTH: [XdsProtocol; 2] = [Sotw, Delta];

fn three_clusters() -> SessionFixture {
    let mesh = SessionFixture::new();
    for name in ["a", "b", "c"] {
        mesh.cluster("base", name, "1");
        mesh.set(Endpoint, "base", name, &message(name, "1"));
    }
    mesh.commit();
    mesh
}

#[test]
fn a_change_is_sent_once_and_an_acknowledgement_is_not_answered() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        assert_eq!(client.settled(), ["CDS +a +b +c"]);
        mesh.cluster("base", "b", "2");
        mesh.commit();
        let expect = if protocol == Delta { "CDS +b" } else { "CDS +a +b +c" };
        assert_eq!(client.settled(), [expect]);
        // The same content again.
        mesh.cluster("base", "b", "2");
        mesh.commit();
        // A change that is reverted before the stream is polled.
        mesh.cluster("base", "b", "3");
        mesh.commit();
        mesh.cluster("base", "b", "2");
        mesh.commit();
        assert_eq!(client.settled(), [""; 0]);
    }
}

#[test]
fn only_subscribed_names_are_sent() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want(Endpoint, &["a", "b"]);
        assert_eq!(client.settled(), ["EDS +a +b"]);
        client.change(Endpoint, &["c"], &[]);
        assert_eq!(client.settled(), ["EDS +c"], "added names are answered with the added resources");
        client.change(Endpoint, &[], &["a"]);
        mesh.set(Endpoint, "base", "a", &message("a", "2"));
        mesh.set(Endpoint, "base", "b", &message("b", "2"));
        mesh.commit();
        assert_eq!(client.settled(), ["EDS +b"]);
        client.change(Endpoint, &[], &["b", "c"]);
        mesh.set(Endpoint, "base", "b", &message("b", "3"));
        mesh.commit();
        assert_eq!(client.settled(), [""; 0], "the client is subscribed to nothing");
    }
}

#[test]
fn changes_of_an_unsubscribed_type_are_sent_after_it_is_subscribed_again() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Sotw);
    client.want_all(Cluster);
    client.want(Endpoint, &["a"]);
    assert_eq!(client.settled(), ["CDS +a +b +c", "EDS +a"]);
    client.change(Endpoint, &[], &["a"]);
    assert_eq!(client.settled(), [""; 0]);
    mesh.set(Endpoint, "base", "a", &message("a", "2"));
    mesh.commit();
    // Only this change wakes the stream.
    mesh.cluster("base", "b", "2");
    mesh.commit();
    assert_eq!(client.settled(), ["CDS +a +b +c"]);
    client.change(Endpoint, &["a"], &[]);
    assert_eq!(client.settled(), ["EDS +a"]);
    assert_eq!(client.holds[&Endpoint]["a"].1, mesh.current(SIDECAR, Endpoint)["a"]);
}

#[test]
fn an_absent_name_is_answered_and_sent_when_it_appears() {
    for (protocol, nothing, removed) in [(Sotw, "EDS", None), (Delta, "EDS -x", Some("EDS -x"))] {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want(Endpoint, &["x"]);
        assert_eq!(client.settled(), [nothing]);
        mesh.set(Endpoint, "base", "x", &message("x", "1"));
        mesh.commit();
        assert_eq!(client.settled(), ["EDS +x"]);
        mesh.delete(Endpoint, "base", "x");
        mesh.commit();
        assert_eq!(client.settled(), removed.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_rejected_response_is_recorded_and_not_repeated_until_its_content_changes() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        client.settle();
        mesh.cluster("base", "a", "bad");
        mesh.commit();
        assert_eq!(client.received().len(), 1);
        client.answer(Some("no such cluster"));
        assert_eq!(client.received(), [""; 0]);
        let status = mesh.status.streams().remove(0).types.remove(&Cluster).expect("subscribed");
        assert_eq!(status.state(), SyncState::Error);
        assert_eq!(status.error.expect("kept").1, "no such cluster");
        let frontier = mesh.status.frontier(Cluster, "a");
        assert_eq!((frontier.interested, frontier.sent, frontier.acked), (1, 1, 0));
        assert_eq!(frontier.rejected[SIDECAR], "no such cluster");
        // Earlier acknowledgements remain.
        assert_eq!(mesh.status.frontier(Cluster, "b").acked, 1);
        mesh.commit();
        assert_eq!(client.received(), [""; 0], "an epoch without a change sends nothing");
        mesh.cluster("base", "a", "good");
        mesh.commit();
        assert_eq!(client.settled().len(), 1);
        assert_eq!(mesh.status.streams()[0].types[&Cluster].state(), SyncState::Synced);
        assert_eq!(mesh.status.frontier(Cluster, "a").acked, 1);
    }
}

#[test]
fn changes_merge_while_a_response_is_unanswered() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        assert_eq!(client.received().len(), 1);
        for content in ["2", "3", "4", "5"] {
            mesh.cluster("base", "a", content);
            mesh.cluster("base", "b", content);
            mesh.commit();
            assert_eq!(client.received(), [""; 0]);
        }
        mesh.cluster("base", "b", "1");
        mesh.commit();
        client.answer(None);
        let expect = if protocol == Delta { "CDS +a" } else { "CDS +a +b +c" };
        assert_eq!(client.received(), [expect], "b has again the content that the client holds");
        client.settle();
        assert_eq!(client.holds[&Cluster].len(), 3);
    }
}

#[test]
fn a_response_without_acknowledgement_blocks_its_type_only_until_the_timeout() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        assert_eq!(client.received().len(), 1);
        mesh.cluster("base", "a", "2");
        mesh.commit();
        client.now += ACK_TIMEOUT - Duration::from_millis(1);
        assert_eq!(client.received().len(), 0);
        client.now += Duration::from_millis(1);
        assert_eq!(client.received().len(), 1);
    }
}

#[test]
fn a_stale_nonce_is_ignored() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        let old = client.receive().expect("the first response");
        client.settle();
        mesh.cluster("base", "a", "2");
        mesh.commit();
        client.received();
        client.answer_to(&old, None);
        assert_eq!(client.received(), [""; 0]);
        assert_eq!(mesh.status.streams()[0].types[&Cluster].state(), SyncState::Stale);
        client.settle();
        assert_eq!(mesh.status.streams()[0].types[&Cluster].state(), SyncState::Synced);
    }
}

#[test]
fn a_request_without_a_nonce_restarts_a_state_of_the_world_subscription() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Sotw);
    client.want_all(Cluster);
    client.settle();
    client.want_all(Cluster);
    assert_eq!(client.settled(), ["CDS +a +b +c"]);
    // A request with the nonce of another stream is answered like a first request.
    let type_url = Listener.type_url().to_owned();
    client
        .sotw(DiscoveryRequest { type_url, response_nonce: "00-7".into(), ..DiscoveryRequest::default() })
        .expect("the request is accepted");
    assert_eq!(client.settled(), ["LDS"]);
}

#[test]
fn an_empty_list_ends_the_subscription_of_types_subscribed_by_name() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Sotw);
    client.want(Endpoint, &["a"]);
    client.settle();
    client.want(Endpoint, &[]);
    mesh.set(Endpoint, "base", "a", &message("a", "2"));
    mesh.commit();
    assert_eq!(client.settled(), [""; 0]);
    assert!(mesh.status.streams()[0].types.is_empty());
}

#[test]
fn grpc_client_without_names_is_sent_nothing() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect_grpc(&mesh, protocol);
        client.want(Cluster, &[]);
        assert_eq!(client.settled(), ["CDS"]);
        client.change(Cluster, &["a", "b"], &[]);
        assert_eq!(client.settled(), ["CDS +a +b"]);
        mesh.cluster("base", "c", "2");
        mesh.commit();
        assert_eq!(client.settled(), [""; 0]);
        client.change(Cluster, &[], &["a", "b"]);
        mesh.cluster("base", "a", "2");
        mesh.commit();
        let expect: &[&str] = if protocol == Sotw { &["CDS"] } else { &[] };
        assert_eq!(client.settled(), expect, "an empty list is not the wildcard");
    }
}

#[test]
fn grpc_client_is_told_that_a_cluster_has_no_endpoints() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect_grpc(&mesh, protocol);
        client.want(Endpoint, &["a", "x"]);
        assert_eq!(client.settled(), ["EDS +a +x"]);
        mesh.set(Endpoint, "base", "x", &message("x", "1"));
        mesh.commit();
        assert_eq!(client.settled(), ["EDS +x"]);
        mesh.delete(Endpoint, "base", "a");
        mesh.commit();
        assert_eq!(client.settled(), ["EDS +a"], "an empty assignment, and no removal");
        client.change(Endpoint, &["y"], &[]);
        assert_eq!(client.settled(), ["EDS +y"]);
    }
}

/// pilot-agent does not acknowledge a response without resources.
#[test]
fn agents_are_answered_when_resources_exist() {
    for protocol in BOTH {
        for kind in [NameTable, ProxyConfig] {
            let mesh = three_clusters();
            let mut client = ScriptedClient::connect(&mesh, protocol);
            let state = || mesh.status.streams()[0].types[&kind].state();
            client.want_all(kind);
            assert_eq!(client.settled(), [""; 0], "{kind:?}");
            assert_eq!(state(), SyncState::NotSent);
            mesh.set(kind, "base", "a", &message("a", "1"));
            mesh.commit();
            assert_eq!(client.settled().len(), 1, "{kind:?}");
            assert_eq!(state(), SyncState::Synced);
            mesh.delete(kind, "base", "a");
            mesh.commit();
            assert_eq!(client.settled(), [""; 0], "{kind:?}");
            mesh.set(kind, "base", "a", &message("a", "1"));
            mesh.commit();
            assert_eq!(client.settled().len(), 1, "{kind:?}");
            assert_eq!(state(), SyncState::Synced);
        }
    }
}

#[test]
fn a_client_that_reports_held_versions_is_sent_only_the_rest() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(Cluster);
    client.want(Endpoint, &["a", "b", "c"]);
    client.settle();
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["CDS", "EDS"], "nothing has changed, so the responses are empty");
    mesh.cluster("base", "a", "2");
    mesh.cluster("base", "d", "1");
    mesh.delete(Cluster, "base", "c");
    mesh.set(Endpoint, "base", "b", &message("b", "2"));
    mesh.delete(Endpoint, "base", "c");
    mesh.commit();
    let mut client = client.reconnect(&mesh);
    // The endpoints of the changed cluster are sent again: the cluster warms again.
    assert_eq!(client.settled(), ["CDS +a +d -c", "EDS +b -c"]);
    assert_eq!(client.holds[&Cluster].keys().collect::<Vec<_>>(), ["a", "b", "d"]);
}

#[test]
fn endpoints_are_sent_again_to_a_client_that_disconnected_while_clusters_were_warming() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(Cluster);
    client.want(Endpoint, &["a", "b", "c"]);
    client.settle();
    mesh.cluster("base", "a", "2");
    mesh.commit();
    assert_eq!(client.receive().expect("clusters").text(), "CDS +a");
    // The endpoints of the warming cluster are lost with the stream. The client holds the clusters, and does not request
    // endpoints that it already holds.
    let mut client = client.reconnect(&mesh);
    assert_eq!(client.settled(), ["CDS", "EDS +a +b +c"]);
    assert_eq!(client.reconnect(&mesh).settled(), ["CDS", "EDS"]);
}

#[test]
fn endpoints_are_sent_again_for_changed_clusters() {
    for protocol in BOTH {
        let mesh = SessionFixture::new();
        let names: Vec<String> = (0..1200).map(|number| format!("c{number:04}")).collect();
        let change = |names: &[String], content: &str| {
            names.iter().for_each(|name| mesh.cluster("base", name, content));
            mesh.commit();
        };
        names.iter().for_each(|name| mesh.set(Endpoint, "base", name, &message(name, "1")));
        change(&names, "1");
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        client.want(Endpoint, &names.iter().map(String::as_str).collect::<Vec<_>>());
        client.settle();
        let counts = |client: &mut ScriptedClient| {
            let responses = client.settle();
            responses.iter().map(|response| (response.kind(), response.names().len())).collect::<Vec<_>>()
        };
        let clusters = |changed| if protocol == Delta { changed } else { 1200 };
        change(&names[..500], "2");
        assert_eq!(counts(&mut client), [(Cluster, clusters(500)), (Endpoint, 500)]);
        change(&names[100..], "3");
        assert_eq!(counts(&mut client), [(Cluster, clusters(1100)), (Endpoint, 1200)]);
        assert_eq!(client.holds[&Cluster].len(), 1200);
        change(&names[..1], "4");
        assert_eq!(counts(&mut client), [(Cluster, clusters(1)), (Endpoint, 1)], "one cluster, as before");
    }
}

#[test]
fn names_subscribed_again_are_sent_again() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Endpoint, &["a", "b"]);
    client.settle();
    client.change(Endpoint, &["a"], &[]);
    assert_eq!(client.settled(), ["EDS +a"], "the client may have forgotten it");
}

#[test]
fn resource_subscribed_after_a_change_is_awaited_until_it_is_acknowledged() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want(Endpoint, &["a"]);
        client.settle();
        for name in ["a", "b"] {
            mesh.set(Endpoint, "base", name, &message(name, "2"));
        }
        mesh.commit();
        let changed = BTreeMap::from([((Endpoint, layer("base")), BTreeSet::from(["b".into()]))]);
        let mut watch = AckWatch::new(mesh.status.clone(), AwaitedChange::Resources(changed));
        let mut acked = || {
            let counts = watch.poll();
            (counts.concerned, counts.acked)
        };
        let frontier = || mesh.status.frontier(Endpoint, "b");
        assert_eq!(client.settled(), ["EDS +a"], "the snapshot that was sent has the change of the other resource too");
        assert_eq!(acked(), (0, 0), "{protocol:?}: it is not subscribed to");
        client.change(Endpoint, &["b"], &[]);
        assert_eq!((acked(), frontier().sent), ((1, 0), 0), "{protocol:?}: it is not sent");
        assert_eq!(client.received(), ["EDS +b"]);
        assert_eq!((acked(), frontier().sent), ((1, 0), 1), "{protocol:?}: it is sent and not acknowledged");
        client.answer(None);
        assert_eq!((acked(), frontier().acked), ((1, 1), 1), "{protocol:?}");
    }
}

#[test]
fn change_without_a_response_is_awaited_until_the_stream_has_seen_it() {
    let mesh = SessionFixture::new();
    mesh.set(ExtensionConfig, "base", "x", &message("x", "1"));
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(ExtensionConfig, &["x"]);
    assert_eq!(client.settled(), ["ECDS +x"]);
    mesh.delete(ExtensionConfig, "base", "x");
    mesh.commit();
    let changed = BTreeMap::from([((ExtensionConfig, layer("base")), BTreeSet::from(["x".into()]))]);
    let mut watch = AckWatch::new(mesh.status.clone(), AwaitedChange::Resources(changed));
    for _ in 0..2 {
        assert_eq!(watch.poll(), AckCounts { concerned: 1, acked: 0 });
        assert_eq!(watch.lagging().len(), 1);
    }
    assert_eq!(client.received(), [""; 0], "removals of this type are not sent");
    assert_eq!(watch.poll_unless(|| true), None);
    assert_eq!(watch.lagging().len(), 1, "the poll before counts");
    assert_eq!(watch.poll(), AckCounts { concerned: 1, acked: 1 });
    assert!(watch.lagging().is_empty());
}

#[test]
fn a_wildcard_subscription_can_be_removed() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Cluster, &["a"]);
    assert_eq!(client.settled(), ["CDS +a"]);
    let subscribe = |add: &[&str], remove: &[&str]| DeltaDiscoveryRequest {
        type_url: Cluster.type_url().into(),
        resource_names_subscribe: add.iter().map(|name| (*name).to_owned()).collect(),
        resource_names_unsubscribe: remove.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    client.delta(subscribe(&["*"], &[])).expect("the request is accepted");
    assert_eq!(client.settled(), ["CDS +a +b +c"]);
    client.delta(subscribe(&[], &["*"])).expect("the request is accepted");
    mesh.cluster("base", "b", "2");
    mesh.commit();
    assert_eq!(client.settled(), [""; 0]);
    mesh.cluster("base", "a", "2");
    mesh.commit();
    assert_eq!(client.settled(), ["CDS +a"]);
    // A request with both subscribes to no resource.
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.delta(subscribe(&["*"], &["*"])).expect("the request is accepted");
    assert_eq!(client.settled(), ["CDS"]);
}

#[test]
fn responses_come_in_the_order_of_the_types() {
    for protocol in BOTH {
        let mesh = three_clusters();
        mesh.set(Listener, "base", "l", &message("l", "1"));
        mesh.set(Route, "base", "r", &message("r", "1"));
        mesh.commit();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want(Route, &["r"]);
        client.want_all(Listener);
        client.want(Endpoint, &["a"]);
        client.want_all(Cluster);
        assert_eq!(client.received(), ["CDS +a +b +c", "EDS +a", "LDS +l", "RDS +r"]);
        client.settle();
        mesh.set(Route, "base", "r", &message("r", "2"));
        mesh.set(Listener, "base", "l", &message("l", "2"));
        mesh.cluster("base", "a", "2");
        mesh.commit();
        let clusters = if protocol == Delta { "CDS +a" } else { "CDS +a +b +c" };
        // The endpoints of `a` have not changed, but the changed cluster warms until it receives them.
        assert_eq!(client.received(), [clusters, "EDS +a", "LDS +l", "RDS +r"]);
    }
}

#[test]
fn a_cluster_is_removed_after_the_route_that_referred_to_it() {
    for protocol in BOTH {
        let mesh = three_clusters();
        mesh.set(Route, "base", "r", &message("r", "to a"));
        mesh.commit();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        client.want(Route, &["r"]);
        client.settle();
        mesh.delete(Cluster, "base", "a");
        mesh.cluster("base", "d", "1");
        mesh.set(Route, "base", "r", &message("r", "to d"));
        mesh.commit();
        let (add, remove) = if protocol == Delta { ("CDS +d", "CDS -a") } else { ("CDS +b +c +d +a", "CDS +b +c +d") };
        assert_eq!(client.received(), [add, "RDS +r"], "not before the route is acknowledged");
        while client.answer(None) {}
        assert_eq!(client.received(), [remove]);
        // No route changes, so the cluster is removed at once.
        client.settle();
        mesh.delete(Cluster, "base", "b");
        mesh.commit();
        let expect = if protocol == Delta { "CDS -b" } else { "CDS +c +d" };
        assert_eq!(client.received(), [expect]);
    }
}

#[test]
fn routes_wait_for_clusters_that_cannot_be_sent_yet_but_endpoints_do_not() {
    for protocol in BOTH {
        let mesh = three_clusters();
        mesh.set(Route, "base", "r", &message("r", "1"));
        mesh.commit();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        client.want(Endpoint, &["a"]);
        client.want(Route, &["r"]);
        client.settle();
        mesh.cluster("base", "x", "1");
        mesh.commit();
        assert_eq!(client.received().len(), 1);
        mesh.cluster("base", "y", "1");
        mesh.set(Route, "base", "r", &message("r", "to y"));
        mesh.set(Endpoint, "base", "a", &message("a", "2"));
        mesh.commit();
        // Envoy may delay the acknowledgement until it has these endpoints.
        assert_eq!(client.received(), ["EDS +a"]);
        client.answer(None);
        let rest = client.received();
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert!(rest[0].starts_with("CDS") && rest[0].contains("+y") && rest[1] == "RDS +r", "{rest:?}");
    }
}

#[test]
fn extension_configurations_are_never_removed() {
    let mesh = three_clusters();
    mesh.set(ExtensionConfig, "base", "wasm", &message("wasm", "1"));
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(ExtensionConfig, &["wasm"]);
    client.settle();
    mesh.delete(ExtensionConfig, "base", "wasm");
    mesh.commit();
    assert_eq!(client.settled(), [""; 0]);
}

#[test]
fn unknown_types_are_answered_with_nothing() {
    for protocol in BOTH {
        let mesh = three_clusters();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        let type_url = "type.googleapis.com/some.other.Type".to_owned();
        match protocol {
            Sotw => client.sotw(DiscoveryRequest { type_url: type_url.clone(), ..DiscoveryRequest::default() }),
            Delta => {
                client.delta(DeltaDiscoveryRequest { type_url: type_url.clone(), ..DeltaDiscoveryRequest::default() })
            }
        }
        .expect("the request is accepted");
        let response = client.receive().expect("an answer");
        assert_eq!((response.type_url.as_str(), response.resources.len()), (type_url.as_str(), 0));
        client.settle();
        client.want_all(Cluster);
        assert_eq!(client.settled(), ["CDS +a +b +c"]);
    }
}

#[test]
fn a_request_before_the_node_is_rejected() {
    let mesh = three_clusters();
    let request = |id: &str, type_url: &str| DiscoveryRequest {
        node: Some(Node { id: id.into(), ..Node::default() }),
        type_url: type_url.into(),
        ..DiscoveryRequest::default()
    };
    let open_with = |request: DiscoveryRequest| {
        let mut stream = mesh.server.open(Sotw, Caller::default()).expect("ready");
        stream.request(sotw(&request), std::time::Instant::now())
    };
    assert_eq!(open_with(DiscoveryRequest::default()), Err(StreamError::Invalid("missing node information".into())));
    assert_eq!(
        open_with(request("", Cluster.type_url())),
        Err(StreamError::Invalid("missing node information".into()))
    );
    assert!(matches!(open_with(request("nonsense", Cluster.type_url())), Err(StreamError::Invalid(_))));
    assert!(matches!(
        open_with(request(&format!("{SIDECAR}{}", "x".repeat(5000)), Cluster.type_url())),
        Err(StreamError::Invalid(_))
    ));
    // A health report may precede the node.
    assert_eq!(open_with(DiscoveryRequest { type_url: HEALTH_TYPE.into(), ..DiscoveryRequest::default() }), Ok(()));
    assert_eq!(open_with(request(SIDECAR, Cluster.type_url())), Ok(()));
}

#[test]
fn exceeded_limits_end_the_stream_and_not_the_server() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(Cluster);
    let long = DeltaDiscoveryRequest {
        type_url: Endpoint.type_url().into(),
        resource_names_subscribe: vec!["x".repeat(5000)],
        ..DeltaDiscoveryRequest::default()
    };
    assert!(matches!(client.delta(long), Err(StreamError::Invalid(_))));
    let type_url = |n: usize| DeltaDiscoveryRequest { type_url: format!("t{n}"), ..DeltaDiscoveryRequest::default() };
    let refused = (0..100).find_map(|n| client.delta(type_url(n)).err());
    assert!(matches!(refused, Some(StreamError::Invalid(_))));
}

#[test]
fn proxies_stay_registered_for_a_time_after_their_last_stream() {
    let mesh = three_clusters();
    let connect = |version: &str| {
        let mut stream = mesh.server.open(Sotw, Caller::default()).expect("ready");
        let node = Node { id: SIDECAR.into(), cluster: version.into(), ..Node::default() };
        let request =
            DiscoveryRequest { node: Some(node), type_url: Cluster.type_url().into(), ..DiscoveryRequest::default() };
        stream.request(sotw(&request), std::time::Instant::now()).expect("the request is accepted");
        stream
    };
    let (first, again, other) = (connect("1"), connect("1"), connect("2"));
    drop(first);
    drop(other);
    drop(again);
    assert!(mesh.status.streams().is_empty());
    mesh.server.remove_expired_proxies(std::time::Instant::now() + std::time::Duration::from_secs(60));
    let log = std::mem::take(&mut *mesh.proxies.0.lock().unwrap());
    let log: Vec<_> = log.iter().map(|(key, version)| (key.as_str(), version.as_deref())).collect();
    let second = format!("{SIDECAR}#2");
    let expected = [(SIDECAR, Some("1")), (second.as_str(), Some("2")), (SIDECAR, None), (second.as_str(), None)];
    assert_eq!(log, expected, "streams with equal nodes are one proxy, a stream with another node is another proxy");
}

#[test]
fn no_proxy_is_served_before_the_store_is_ready_and_its_scope_is_known() {
    let mesh = SessionFixture::new();
    mesh.cluster("base", "a", "1");
    mesh.commit();
    let other = "router~10.0.0.2~gate.orchard~orchard.svc.cluster.local";
    let mut stream = mesh.server.open(Sotw, Caller::default()).expect("ready");
    let node = Some(Node { id: other.into(), ..Node::default() });
    let request = DiscoveryRequest { node, type_url: Cluster.type_url().into(), ..DiscoveryRequest::default() };
    stream.request(sotw(&request), std::time::Instant::now()).expect("the request is accepted");
    assert!(stream.poll(std::time::Instant::now()).is_none());
    mesh.scope(other, &["base"]);
    mesh.commit();
    assert_eq!(stream.poll(std::time::Instant::now()).expect("an answer").count(), 1);

    let store = std::sync::Arc::new(sluice_xds_protocol::Store::default());
    let server = sluice_xds::DiscoveryServer::new(store, mesh.proxies.clone(), sluice_xds::Metrics::default(), true);
    assert!(matches!(server.open(Delta, Caller::default()), Err(StreamError::Unavailable(_))));
    mesh.server.drain();
    assert!(matches!(mesh.server.open(Delta, Caller::default()), Err(StreamError::Unavailable(_))));
}

#[test]
fn layers_override_and_hide() {
    for protocol in BOTH {
        let mesh = three_clusters();
        mesh.scope(SIDECAR, &["own", "base"]);
        mesh.cluster("own", "a", "own");
        mesh.put(Cluster, "own", "b", Some(Resource::Hidden));
        mesh.commit();
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Cluster);
        assert_eq!(client.settled(), ["CDS +a +c"]);
        // A change of an overridden resource has no effect.
        mesh.cluster("base", "a", "2");
        mesh.cluster("base", "b", "2");
        mesh.commit();
        assert_eq!(client.settled(), [""; 0]);
        mesh.delete(Cluster, "own", "b");
        mesh.commit();
        assert_eq!(client.settled(), [if protocol == Delta { "CDS +b" } else { "CDS +a +b +c" }]);
        // Another scope with equal content is no change.
        mesh.scope(SIDECAR, &["none", "own", "base"]);
        mesh.commit();
        assert_eq!(client.settled(), [""; 0]);
        mesh.scope(SIDECAR, &["base"]);
        mesh.commit();
        assert_eq!(client.settled(), [if protocol == Delta { "CDS +a" } else { "CDS +a +b +c" }]);
    }
}

#[test]
fn route_tables_are_assembled_from_segments() {
    use sluice_proto::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
    let host = |name: &str, domain: &str| {
        let host = VirtualHost { name: name.into(), domains: vec![domain.into()], ..VirtualHost::default() };
        Some(Resource::Encoded(host.encode_to_vec().into()))
    };
    let mesh = SessionFixture::new();
    mesh.scope(SIDECAR, &["own", "base"]);
    let own_part = RouteConfiguration { name: "80".into(), ..RouteConfiguration::default() };
    for name in 0..300 {
        let name = format!("h{name:03}");
        mesh.segment("base", "80", &name, host(&name, "base"));
    }
    mesh.segment("own", "80", "h100", host("h100", "own"));
    mesh.segment("own", "80", "h200", Some(Resource::Hidden));
    mesh.segment("own", "80", "h300", host("h300", "own"));
    mesh.commit();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want(Route, &["80"]);
    assert_eq!(client.settled(), ["RDS -80"], "without its own part, the table does not exist");
    mesh.segment("base", "80", "", Some(Resource::Encoded(own_part.encode_to_vec().into())));
    mesh.commit();
    assert_eq!(client.settled(), ["RDS +80"]);
    let table = |client: &ScriptedClient| {
        let (_, bytes) = &client.holds[&Route]["80"];
        let table = RouteConfiguration::decode(bytes.clone()).expect("a route table");
        assert_eq!(table.name, "80");
        table.virtual_hosts.into_iter().map(|host| (host.name, host.domains.concat())).collect::<Vec<_>>()
    };
    let expect: Vec<(String, String)> = (0..=300)
        .filter(|n| *n != 200)
        .map(|n| (format!("h{n:03}"), if n == 100 || n == 300 { "own".into() } else { "base".into() }))
        .collect();
    assert_eq!(table(&client), expect);
    // A change of an overridden segment has no effect. A change of an overriding one does.
    mesh.segment("base", "80", "h100", host("h100", "base, again"));
    mesh.segment("base", "80", "h200", None);
    mesh.commit();
    assert_eq!(client.settled(), [""; 0]);
    mesh.segment("own", "80", "h100", None);
    mesh.commit();
    assert_eq!(client.settled(), ["RDS +80"]);
    assert_eq!(table(&client)[100].1, "base, again");
}

#[test]
fn templates_are_filled_for_the_proxy() {
    let mesh = SessionFixture::new();
    let template = |before: &[u8]| {
        let before = TemplatePart::Bytes(before.to_vec().into());
        Some(Resource::Template(Template::new(vec![
            before,
            TemplatePart::Nested(vec![TemplatePart::Slot("who".into())]),
        ])))
    };
    // Field 1: the name; field 2: the proxy.
    mesh.put(Listener, "base", "l", template(b"\x0a\x01l\x12"));
    mesh.commit();
    for protocol in BOTH {
        let mut client = ScriptedClient::connect(&mesh, protocol);
        client.want_all(Listener);
        assert_eq!(client.settled(), ["LDS +l"]);
        assert!(client.holds[&Listener]["l"].1.ends_with(SIDECAR.as_bytes()));
        if protocol == Delta {
            assert_eq!(
                client.reconnect(&mesh).settled(),
                ["LDS"],
                "the version of a template does not depend on the filled slots"
            );
        }
    }
}

#[test]
fn a_config_dump_is_what_the_client_was_sent() {
    let mesh = three_clusters();
    let mut client = ScriptedClient::connect(&mesh, Delta);
    client.want_all(Cluster);
    client.want(Endpoint, &["a"]);
    client.settle();
    let status: &StatusReader = &mesh.status;
    for name in [SIDECAR, "web.orchard"] {
        let dump = status.config_dump(name, &Viewer::All).expect("connected");
        let names = |kind| dump[&kind].iter().map(|found| found.name.to_string()).collect::<Vec<_>>();
        assert_eq!((names(Cluster), names(Endpoint)), (vec!["a".into(), "b".into(), "c".into()], vec!["a".into()]));
    }
    assert!(status.config_dump("absent.nowhere", &Viewer::All).is_none());
    let syncz = serde_json::to_value(status.syncz(None)).expect("JSON");
    assert_eq!(syncz[0]["proxy"], "web.orchard");
    assert_eq!(syncz[0]["cluster_sent"], syncz[0]["cluster_acked"]);
    assert!(syncz[0]["resources"][Cluster.type_url()]["sent"].as_str().is_some_and(|nonce| !nonce.is_empty()));
    let adsz = serde_json::to_value(status.adsz()).expect("JSON");
    assert_eq!((&adsz["totalClients"], &adsz["clients"][0]["connectionId"]), (&1.into(), &"web.orchard-1".into()));
}
