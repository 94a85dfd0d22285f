use bytes::Bytes;
use sluice_model::{
    ClusterMatch, Labels, ListenerMatch, PatchValue, Protocol, ServicePort, TargetRef, VersionMatch, VirtualHostMatch,
};

use super::*;

fn patch(apply_to: ApplyTo, operation: PatchOperation, object: ObjectMatch) -> EnvoyPatch {
    EnvoyPatch {
        apply_to,
        context: PatchContext::Any,
        version: VersionMatch::Any,
        metadata: Labels::new(),
        object,
        operation,
        value: PatchValue(Bytes::from_static(&[0; 10])),
    }
}

#[test]
fn values_are_repeated_unless_the_patch_names_a_resource() {
    use ApplyTo::{Cluster, ExtensionConfig, HttpFilter, HttpRoute, NetworkFilter, RouteConfiguration, VirtualHost};
    use PatchOperation::{Add, InsertFirst, Merge};
    use PatchedParts::{Clusters, HttpListeners, Named, Routes};
    let cluster = |service: &str| {
        ObjectMatch::Cluster(ClusterMatch { service: service.into(), port: 80, ..ClusterMatch::default() })
    };
    let table = |name: &str, domain: &str| {
        ObjectMatch::RouteTable(RouteTableMatch {
            name: name.into(),
            virtual_host: Some(VirtualHostMatch { domain: domain.into(), ..VirtualHostMatch::default() }),
            ..RouteTableMatch::default()
        })
    };
    let listener =
        |name: &str, port| ObjectMatch::Listener(ListenerMatch { name: name.into(), port, ..ListenerMatch::default() });
    for (apply_to, operation, object, repeated, parts) in [
        (Cluster, Merge, ObjectMatch::Any, true, Clusters),
        (Cluster, Merge, cluster(""), true, Clusters),
        (Cluster, Merge, cluster("a.b"), false, Named),
        (Cluster, Add, ObjectMatch::Any, false, Named),
        (HttpFilter, InsertFirst, listener("", 0), true, HttpListeners),
        // Each service of TCP has a listener of its own with that port.
        (HttpFilter, InsertFirst, listener("", 80), false, HttpListeners),
        (NetworkFilter, InsertFirst, listener("", 80), false, Clusters),
        (NetworkFilter, InsertFirst, listener("10.0.0.1_80", 80), false, Named),
        (RouteConfiguration, Merge, table("", ""), true, HttpListeners),
        (RouteConfiguration, Merge, table("80", ""), false, Named),
        (VirtualHost, Merge, table("80", ""), true, Routes),
        (VirtualHost, Add, table("80", ""), false, Named),
        (HttpRoute, Merge, table("80", ""), true, Routes),
        (HttpRoute, Merge, table("80", "a.b"), false, Named),
        (ExtensionConfig, Add, ObjectMatch::Any, false, Named),
    ] {
        let patch = patch(apply_to, operation, object);
        assert_eq!(is_repeated(&patch), repeated, "{patch:?}");
        assert_eq!(PatchedParts::of(&patch, &Attachment::default(), false), parts, "{patch:?}");
    }
}

#[test]
fn inbound_patches_match_the_parts_of_a_workload_and_at_waypoints_those_of_all_services() {
    let inbound = EnvoyPatch {
        context: PatchContext::SidecarInbound,
        ..patch(ApplyTo::HttpFilter, PatchOperation::InsertFirst, ObjectMatch::Any)
    };
    let of_waypoint = Attachment { targets: vec![TargetRef::default()], ..Attachment::default() };
    for (attachment, ambient, parts) in [
        (Attachment::default(), true, PatchedParts::Named),
        (of_waypoint.clone(), false, PatchedParts::Named),
        (of_waypoint, true, PatchedParts::Clusters),
    ] {
        assert_eq!(PatchedParts::of(&inbound, &attachment, ambient), parts, "{attachment:?}");
    }
}

#[test]
fn numbers_are_rounded_up_by_at_most_a_quarter() {
    assert_eq!([0, 1, 7, 8, 9, 10_000, 20_481].map(rounded_up), [0, 1, 7, 8, 10, 10_240, 24_576]);
    for number in 1..5000 {
        let rounded = rounded_up(number);
        assert!(rounded >= number && rounded * 4 <= number * 5, "{number}: {rounded}");
    }
}

#[test]
fn sums_do_not_depend_on_the_order_of_changes() {
    let service = |ports: &[(u16, Protocol)]| Service {
        ports: (ports.iter())
            .map(|(port, protocol)| ServicePort {
                port: *port,
                name: "".into(),
                protocol: *protocol,
                target_port: "".into(),
            })
            .collect(),
        ..Service::default()
    };
    let key = |host: &str| ServiceKey { namespace: "ns".into(), host: host.into() };
    let both = service(&[(80, Protocol::Http), (9000, Protocol::Unsupported), (5432, Protocol::Tcp)]);
    let http = service(&[(80, Protocol::Http), (80, Protocol::Http2)]);
    let mut sum = ServiceSum::default();
    assert_eq!(sum.settle(), [((), None)]);
    sum.change(&key("a"), None, Some(&http));
    sum.change(&key("b"), None, Some(&both));
    assert_eq!(sum.settle(), [((), Some(PartsOfServices { ports: 5, http_listeners: 2 }))]);
    sum.change(&key("a"), Some(&http), Some(&both));
    sum.change(&key("b"), Some(&both), None);
    assert_eq!(sum.settle(), [((), Some(PartsOfServices { ports: 3, http_listeners: 2 }))]);
    sum.change(&key("a"), Some(&both), None);
    assert_eq!(sum.settle(), [((), None)]);
}
