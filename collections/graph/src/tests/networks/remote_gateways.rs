//! Gateways of remote clusters: what leads into their networks, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use sluice_model::label::GATEWAY_NAME;
use sluice_model::{Kind as ObjectKind, NetworkGateway, ObjectKey, Proxy, ProxyType, TunnelSwitches};
use sluice_proto::istio::workload::gateway_address::Destination;

use super::super::{TestGraph, sidecar};
use super::{CORAL_HTTP, FAR, FAR_CORAL, FAR_ENDPOINTS, NEAR_ENDPOINTS, WAYPOINT, endpoints, two_networks, waypoint};
use crate::{AmbientOptions, GatewayApiOptions, GraphOptions, RejectKey};

/// The Gateway of the remote cluster in `FAR`.
fn east_west() -> &'static str {
    FAR.rsplit("---").next().expect("a document")
}

/// A Gateway with the address that it requests, and listeners for both forms of tunnels.
const REQUESTED: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: requested, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec:
  gatewayClassName: istio
  addresses: [{type: IPAddress, value: 198.51.100.7}]
  listeners:
  - {name: mesh, port: 15008, protocol: HBONE, tls: {mode: Terminate, options: {gateway.istio.io/tls-terminate-mode: ISTIO_MUTUAL}}}
  - {name: mtls, port: 15443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: web, port: 8080, protocol: HTTP}
";

/// A Service of the remote cluster only, which uses a waypoint there.
const KELP: &str = "
apiVersion: v1
kind: Service
metadata: {name: kelp, namespace: reef, labels: {scope: all, istio.io/use-waypoint: kelp-wp}}
spec: {clusterIP: 10.8.0.7, selector: {app: kelp}, ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: kelp-wp, namespace: reef}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: kelp-wp.reef.svc.cluster.local}]}
";

impl TestGraph {
    fn delete_in(&self, cluster: &str, kind: ObjectKind, namespace: &str, name: &str) {
        let key = ObjectKey::new(cluster, namespace, name);
        self.engine.transaction(|tx| self.handles.inputs.delete(tx, kind, key, sluice_engine::Origin::default()));
    }

    /// The gateways of networks that Envoys use: cluster, network, address, ports for mutual TLS and for HBONE.
    fn network_gateways(&self) -> Vec<String> {
        let dump = self.engine.dump("network_gateways").expect("a collection");
        let all = dump.typed::<(), Vec<NetworkGateway>>().flat_map(|(_, all)| all.clone()).collect::<Vec<_>>();
        let shown = all.iter().map(|gateway| {
            let NetworkGateway { cluster, network, address, port, hbone_port } = gateway;
            format!("{cluster} {network} {address} {port} {hbone_port}")
        });
        shown.collect()
    }

    /// Every record of every collection, by the name of the collection.
    fn everything(&self) -> BTreeMap<String, BTreeSet<String>> {
        let records = |name: &str| {
            let dump = self.engine.dump(name).expect("a collection");
            dump.records().map(|(key, value)| format!("{key} {value}")).collect()
        };
        self.engine.graph().iter().map(|info| (info.name.clone(), records(&info.name))).collect()
    }
}

/// The names of the collections that differ.
fn different(a: &BTreeMap<String, BTreeSet<String>>, b: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    a.iter().filter(|(name, records)| b.get(*name) != Some(*records)).map(|(name, _)| name.clone()).collect()
}

/// The changes of what node proxies are sent, which is published as an address and as a workload.
fn both(changes: &[(char, &str, String)]) -> Vec<String> {
    let of = |kind: &str| {
        let lines = changes.iter().map(|(sign, part, name)| format!("{sign}{kind}/{part} base {name}"));
        lines.collect::<Vec<_>>()
    };
    [of("addresses"), of("workloads")].concat()
}

#[test]
fn a_gateway_of_a_remote_cluster_touches_what_stands_for_its_network() {
    let mut mesh = two_networks();
    let gateway = |network: &str, address: &str| format!("NetworkGateway/{network}/{address}/0");
    let horizon = |address: &str| FAR_CORAL.replace("203.0.113.1", address);
    let (old, new) = ("203.0.113.1", "203.0.113.7");
    mesh.delete_in("c2", ObjectKind::KubernetesGateway, "istio-system", "east-west");
    let removed = [('-', "gateways", gateway("far", old)), ('-', "split-horizon", horizon(old))];
    assert_eq!(mesh.changed(), both(&removed));
    mesh.write_in("c2", &east_west().replace(old, new), false);
    let added = [('+', "gateways", gateway("far", new)), ('+', "split-horizon", horizon(new))];
    assert_eq!(mesh.changed(), both(&added));
    // What does not lead into the network touches nothing.
    let other = east_west().replace(old, new).replace("name: mesh,", "name: other,");
    mesh.write_in("c2", &other, false);
    mesh.write_in("c2", &REQUESTED.replace("  addresses: [{type: IPAddress, value: 198.51.100.7}]\n", ""), false);
    assert_eq!(mesh.changed(), [""; 0]);
    // It leads into another network.
    mesh.write_in("c2", &other.replace("network: far", "network: deep"), false);
    let mut moved = both(&[
        ('+', "gateways", gateway("deep", new)),
        ('-', "gateways", gateway("far", new)),
        ('-', "split-horizon", horizon(new)),
    ]);
    moved.sort();
    assert_eq!(mesh.changed(), moved);
}

#[test]
fn gateways_of_a_remote_cluster_are_no_configuration() {
    let gateway_api = GatewayApiOptions {
        waypoints: true,
        east_west: true,
        agentgateway: true,
        experimental: true,
        ..GatewayApiOptions::default()
    };
    let ambient = AmbientOptions {
        tunnels: TunnelSwitches { multi_network: true, ..TunnelSwitches::default() },
        ..AmbientOptions::default()
    };
    let start = || {
        let options =
            GraphOptions { gateway_api: gateway_api.clone(), ambient: Some(ambient), ..GraphOptions::default() };
        let mesh = TestGraph::with(options, "{apiVersion: v1, kind: Namespace, metadata: {name: edge}}");
        mesh.write_in("c2", "{apiVersion: v1, kind: Namespace, metadata: {name: edge}}", false);
        let labels = [(GATEWAY_NAME, "door")];
        mesh.connect(Proxy { proxy_type: ProxyType::Router, ..sidecar("edge", "door-1", "10.1.0.7", &labels) });
        mesh
    };
    let gateway = |class: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: door, namespace: edge, uid: u1}}
spec:
  gatewayClassName: {class}
  infrastructure: {{parametersRef: {{group: '', kind: ConfigMap, name: params}}}}
  listeners:
  - {{name: http, port: 80, protocol: HTTP}}
  - {{name: https, port: 443, protocol: HTTPS, tls: {{certificateRefs: [{{name: cert}}]}}}}
"
        )
    };
    for class in ["istio", "istio-waypoint", "istio-east-west", "istio-remote", "istio-agentgateway"] {
        let mesh = start();
        let before = mesh.everything();
        mesh.write_in("c2", &gateway(class), false);
        let read = [
            "ambient_gateways/known",
            "network_gateways/known-gateways",
            "raw_kubernetes_gateways",
            "raw_remote_gateways",
            "remote_gateways",
        ];
        assert_eq!(different(&mesh.everything(), &before), read, "{class}");
        // In the config cluster it is configuration.
        let mesh = start();
        mesh.apply(&gateway(class));
        assert!(different(&mesh.everything(), &before).iter().any(|name| name.contains("status")), "{class}");
    }
}

#[test]
fn a_gateway_declares_its_network_with_the_addresses_that_it_requests() {
    let of = |cluster: &str, text: &str| {
        let mesh = two_networks();
        mesh.write_in(cluster, text, false);
        mesh.network_gateways()
    };
    let both = |cluster: &str| [format!("{cluster} far 198.51.100.7 15443 15008")];
    assert_eq!(of("c2", REQUESTED), both("c2"));
    assert_eq!(of("Kubernetes", REQUESTED), both("Kubernetes"));
    // Such a Gateway stands for one elsewhere, as the mesh of its own cluster reaches it.
    let remote = REQUESTED.replace("gatewayClassName: istio", "gatewayClassName: istio-remote");
    assert_eq!(of("Kubernetes", &remote), both("Kubernetes"));
    assert_eq!(of("c2", &remote), [""; 0]);
    assert_eq!(of("c2", &REQUESTED.replace("topology.istio.io/network: far", "a: b")), [""; 0]);
    assert_eq!(
        of("c2", &REQUESTED.replace("type: IPAddress, value: 198.51.100.7", "type: example.com/own, value: a")),
        [""; 0]
    );
    // Ports of mutual TLS are found by number, label or option. A port of HBONE takes none.
    assert_eq!(of("c2", &REQUESTED.replace("15443", "16443")), ["c2 far 198.51.100.7 0 15008"]);
    let labelled = REQUESTED
        .replace("15443", "16443")
        .replace("network: far", "network: far, networking.istio.io/gatewayPort: '16443'");
    assert_eq!(of("c2", &labelled), ["c2 far 198.51.100.7 16443 15008"]);
    let option = "port: 16443, protocol: TLS, tls: {mode: Passthrough, options: {gateway.istio.io/listener-protocol: auto-passthrough}}";
    let two =
        REQUESTED.replace("  - {name: web, port: 8080, protocol: HTTP}", &format!("  - {{name: more, {option}}}"));
    assert_eq!(of("c2", &two), ["c2 far 198.51.100.7 15443 15008", "c2 far 198.51.100.7 16443 0"]);

    // Without the switch there are none, nor in a namespace that is not read.
    let gateway_api = GatewayApiOptions { remote: false, ..GatewayApiOptions::default() };
    let mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, "");
    mesh.write_in("c2", REQUESTED, false);
    assert_eq!(mesh.network_gateways(), [""; 0]);
    let mesh = two_networks();
    mesh.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'discoverySelectors: [{matchLabels: {is: read}}]'}}");
    mesh.write_in("c2", REQUESTED, false);
    assert_eq!(mesh.network_gateways(), [""; 0]);
}

#[test]
fn envoys_send_to_the_address_that_a_gateway_of_a_remote_cluster_requests() {
    let mesh = two_networks();
    mesh.apply(&format!("{WAYPOINT}---{NEAR_ENDPOINTS}"));
    // The endpoint without the Service of the gateway.
    mesh.write_in("c2", FAR_ENDPOINTS.split("---").nth(1).expect("a document"), false);
    mesh.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
    let tunnels = |mesh: &TestGraph| {
        let all = endpoints(mesh, CORAL_HTTP).into_iter();
        all.filter(|(listener, ..)| listener == "inner_connect_originate").map(|(_, id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(tunnels(&mesh), [""; 0]);
    mesh.write_in("c2", REQUESTED, false);
    assert_eq!(tunnels(&mesh), ["198.51.100.7:15008"]);
    mesh.write_in("c2", &REQUESTED.replace("198.51.100.7", "198.51.100.8"), false);
    assert_eq!(tunnels(&mesh), ["198.51.100.8:15008"]);
    mesh.delete_in("c2", ObjectKind::KubernetesGateway, "istio-system", "requested");
    assert_eq!(tunnels(&mesh), [""; 0]);
}

#[test]
fn a_service_of_a_remote_cluster_has_its_waypoint_there() {
    let mut mesh = two_networks();
    mesh.write_in("c2", KELP, false);
    let name = "reef/kelp.reef.svc.cluster.local";
    let used = |mesh: &TestGraph| match mesh.service(name).waypoint.and_then(|waypoint| waypoint.destination) {
        Some(Destination::Hostname(host)) => host.hostname,
        other => format!("{other:?}"),
    };
    assert_eq!(used(&mesh), "kelp-wp.reef.svc.cluster.local");
    mesh.changed();
    mesh.delete_in("c2", ObjectKind::KubernetesGateway, "reef", "kelp-wp");
    assert_eq!(mesh.changed(), [format!("~addresses/services base {name}")]);
    assert_eq!(used(&mesh), "None");
    // A waypoint of the config cluster is not one of the remote cluster.
    mesh.apply(KELP.rsplit("---").next().expect("a document"));
    assert_eq!(used(&mesh), "None");
}

#[test]
fn a_malformed_gateway_of_a_remote_cluster_is_a_finding() {
    let mesh = two_networks();
    let findings = |mesh: &TestGraph| {
        let object = ObjectKey::new("c2", "istio-system", "requested");
        let key = RejectKey { kind: ObjectKind::KubernetesGateway, object };
        let rejects = mesh.get(&mesh.handles.rejects, &key).unwrap_or_default();
        rejects.iter().map(|reject| reject.field_path.to_string()).collect::<Vec<_>>()
    };
    mesh.write_in("c2", REQUESTED, false);
    assert_eq!((findings(&mesh), mesh.network_gateways().len()), (Vec::new(), 1));
    for (part, replacement, path) in [
        ("gatewayClassName: istio", "gatewayClassName: ''", "spec.gatewayClassName"),
        ("198.51.100.7", "no-address", "spec.addresses[0].value"),
        ("port: 15008", "port: 99999", "spec.listeners[0].port"),
        ("listeners:", "listeners: {a: b}\n  more:", "spec.listeners"),
    ] {
        mesh.write_in("c2", &REQUESTED.replace(part, replacement), true);
        assert!(findings(&mesh).iter().any(|found| found == path), "{path}: {:?}", findings(&mesh));
        assert!(mesh.network_gateways().iter().all(|gateway| !gateway.ends_with(" 15443 15008")), "{path}");
    }
    mesh.write_in("c2", REQUESTED, false);
    assert_eq!((findings(&mesh), mesh.network_gateways().len()), (Vec::new(), 1));
    mesh.delete_in("c2", ObjectKind::KubernetesGateway, "istio-system", "requested");
    assert_eq!((findings(&mesh), mesh.network_gateways().len()), (Vec::new(), 0));
}

#[test]
fn changes_of_gateways_of_a_remote_cluster_give_the_state_of_a_new_start() {
    let changed = two_networks();
    changed.apply(&format!("{WAYPOINT}---{NEAR_ENDPOINTS}"));
    changed.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
    changed.write_in("c2", FAR_ENDPOINTS, false);
    changed.write_in("c2", REQUESTED, false);
    changed.delete_in("c2", ObjectKind::KubernetesGateway, "istio-system", "east-west");
    changed.write_in("c2", KELP, false);
    changed.write_in("c2", &REQUESTED.replace("198.51.100.7", "no-address"), true);
    changed.write_in("c2", &format!("{}---{}", east_west().replace("203.0.113.1", "203.0.113.9"), REQUESTED), false);
    changed.delete_in("c2", ObjectKind::KubernetesGateway, "reef", "kelp-wp");

    let fresh = two_networks();
    let gateways = format!("{REQUESTED}---{}", east_west().replace("203.0.113.1", "203.0.113.9"));
    fresh.write_in(
        "c2",
        &format!("{gateways}---{FAR_ENDPOINTS}---{}", KELP.split("---").next().expect("a document")),
        false,
    );
    fresh.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
    fresh.apply(&format!("{NEAR_ENDPOINTS}---{WAYPOINT}"));
    assert_eq!(different(&changed.everything(), &fresh.everything()), [""; 0]);
}
