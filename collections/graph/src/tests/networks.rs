//! Ambient mode in several networks: what clients of one network know of another.

mod remote_gateways;
mod senders;

use std::collections::BTreeMap;

use prost::Message as _;
use sluice_model::label::{GATEWAY_MANAGED, GATEWAY_NAME, MANAGED_BY_EAST_WEST_CONTROLLER};
use sluice_model::{
    Kind as ObjectKind, Layer, ObjectKey, Proxy, ProxyType, Resource, ResourceKey, ResourceType, TunnelSwitches,
};
use sluice_proto::envoy::config::cluster::v3::Cluster;
use sluice_proto::envoy::config::core::v3::address::Address as Kind;
use sluice_proto::envoy::config::core::v3::envoy_internal_address::AddressNameSpecifier;
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use sluice_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::gateway_address::Destination;
use sluice_proto::istio::workload::{Address, Service, Workload};

use super::{TestGraph, sidecar};
use crate::{AmbientOptions, GraphOptions};

const NEAR: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'serviceScopeConfigs: [{scope: GLOBAL, servicesSelector: {matchLabels: {scope: all}}}]'}
---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: near}}
---
apiVersion: v1
kind: Namespace
metadata: {name: reef}
---
apiVersion: v1
kind: Service
metadata: {name: coral, namespace: reef, labels: {scope: all}}
spec: {clusterIP: 10.0.0.1, selector: {app: coral}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: crab, namespace: reef}
spec: {clusterIP: 10.0.0.2, selector: {app: coral}, ports: [{name: http, port: 81}]}
---
apiVersion: v1
kind: Pod
metadata: {name: coral-1, namespace: reef, labels: {app: coral}}
spec: {containers: []}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
";

const FAR: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: far}}
---
apiVersion: v1
kind: Namespace
metadata: {name: reef}
---
apiVersion: v1
kind: Service
metadata: {name: coral, namespace: reef, labels: {scope: all}}
spec: {clusterIP: 10.8.0.1, selector: {app: coral}, ports: [{name: http, port: 80, targetPort: 9090}]}
---
apiVersion: v1
kind: Service
metadata: {name: whelk, namespace: reef}
spec: {clusterIP: 10.8.0.2, selector: {app: coral}, ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: east-west, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec:
  gatewayClassName: istio-east-west
  listeners: [{name: mesh, port: 15008, protocol: HBONE, tls: {mode: Terminate, options: {gateway.istio.io/tls-terminate-mode: ISTIO_MUTUAL}}}]
status: {addresses: [{type: IPAddress, value: 203.0.113.1}]}
";

fn far_pod(name: &str, ip: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: reef, labels: {{app: coral}}}}
spec: {{serviceAccountName: diver, containers: []}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: 'True'}}]}}
"
    )
}

/// A waypoint of `coral`.
const WAYPOINT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: reef}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.reef.svc.cluster.local}]}
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: reef, labels: {gateway.istio.io/managed: istio.io-mesh-controller}}
spec:
  clusterIP: 10.0.0.9
  selector: {gateway.networking.k8s.io/gateway-name: wp}
  ports: [{name: mesh, port: 15008}]
---
apiVersion: v1
kind: Service
metadata: {name: coral, namespace: reef, labels: {scope: all, istio.io/use-waypoint: wp}}
spec: {clusterIP: 10.0.0.1, selector: {app: coral}, ports: [{name: http, port: 80, targetPort: 8080}]}
";

/// The Service of the east-west gateway of `c2`, and the endpoints of `coral` there.
const FAR_ENDPOINTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: east-west, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec: {type: LoadBalancer, externalIPs: [203.0.113.1], ports: [{name: mesh, port: 15008}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: coral-x, namespace: reef, labels: {kubernetes.io/service-name: coral}}
addressType: IPv4
ports: [{name: http, port: 9090}]
endpoints: [{addresses: [10.9.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: coral-8, namespace: reef}}]
";

/// The endpoint of `coral` in the cluster `Kubernetes`.
const NEAR_ENDPOINTS: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: coral-y, namespace: reef, labels: {kubernetes.io/service-name: coral}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}}]
";

const FAR_CORAL: &str = "far/SplitHorizonWorkload/istio-system/east-west/203.0.113.1/reef/coral.reef.svc.cluster.local";

/// The cluster `Kubernetes` in the network `near`, and `c2` in the network `far`.
fn two_networks() -> TestGraph {
    networks_with(TunnelSwitches { multi_network: true, ..TunnelSwitches::default() })
}

fn networks_with(tunnels: TunnelSwitches) -> TestGraph {
    let ambient = AmbientOptions { tunnels, ..AmbientOptions::default() };
    let mut mesh = TestGraph::with(GraphOptions { ambient: Some(ambient), ..GraphOptions::default() }, "");
    mesh.apply(NEAR);
    mesh.write_in("c2", &format!("{FAR}---{}", far_pod("coral-8", "10.9.0.1")), false);
    mesh.changed();
    mesh
}

fn addresses(mesh: &mut TestGraph) -> Vec<String> {
    let mut lines = mesh.changed();
    lines.retain(|line| line.contains("addresses/"));
    lines
}

impl TestGraph {
    fn address(&self, name: &str) -> Option<Type> {
        let key = ResourceKey { resource_type: ResourceType::Address, layer: Layer::default(), name: name.into() };
        let found = self.handles.resources.iter().find_map(|of| self.get(of, &key))?;
        let Resource::Encoded(bytes) = found else { panic!("{name} has slots") };
        Address::decode(bytes).expect("an address").r#type
    }

    fn workload(&self, uid: &str) -> Option<Workload> {
        match self.address(uid)? {
            Type::Workload(workload) => Some(workload),
            Type::Service(_) => panic!("{uid} is a service"),
        }
    }

    fn service(&self, name: &str) -> Service {
        match self.address(name) {
            Some(Type::Service(service)) => service,
            found => panic!("no service {name}: {found:?}"),
        }
    }
}

#[test]
fn workloads_of_another_network_are_its_gateway_once_for_each_global_service() {
    let mesh = two_networks();
    let workload = mesh.workload(FAR_CORAL).expect("the gateway as a workload");
    assert_eq!((workload.network.as_str(), workload.cluster_id.as_str()), ("far", "c2"));
    assert_eq!((workload.name.as_str(), workload.namespace.as_str()), (FAR_CORAL, "reef"));
    assert!(workload.addresses.is_empty());
    assert_eq!(workload.capacity.expect("a capacity").value, 1);
    let gateway = workload.network_gateway.expect("a gateway");
    assert_eq!(gateway.hbone_mtls_port, 15008);
    let Some(Destination::Address(address)) = gateway.destination else { panic!("no address") };
    assert_eq!((address.network.as_str(), address.address.as_slice()), ("far", [203, 0, 113, 1].as_slice()));
    // The ports are those of the service in the config cluster.
    let ports = &workload.services["reef/coral.reef.svc.cluster.local"].ports;
    assert_eq!((ports[0].service_port, ports[0].target_port), (80, 8080));
    // The pod itself, and Services that are not global, are not known.
    assert!(mesh.address("c2//Pod/reef/coral-8").is_none());
    assert!(mesh.address("reef/whelk.reef.svc.cluster.local").is_none());
    assert!(mesh.workload("Kubernetes//Pod/reef/coral-1").is_some_and(|pod| pod.network == "near"));
    // The gateway itself is a workload with the identity that clients verify.
    let gateway = mesh.workload("NetworkGateway/far/203.0.113.1/0").expect("the gateway");
    assert_eq!((gateway.namespace.as_str(), gateway.service_account.as_str()), ("istio-system", "east-west"));
}

#[test]
fn a_global_service_has_the_addresses_of_all_networks_and_the_identities_behind_their_gateways() {
    let mesh = two_networks();
    let coral = mesh.service("reef/coral.reef.svc.cluster.local");
    let addresses: Vec<_> = coral.addresses.iter().map(|at| (at.network.as_str(), at.address.as_slice())).collect();
    assert_eq!(addresses, [("far", [10, 8, 0, 1].as_slice()), ("near", [10, 0, 0, 1].as_slice())]);
    assert_eq!(coral.subject_alt_names, ["spiffe://cluster.local/ns/reef/sa/diver"]);
    assert!(coral.canonical);
    let crab = mesh.service("reef/crab.reef.svc.cluster.local");
    assert_eq!((crab.addresses.len(), crab.subject_alt_names.len()), (1, 0));
}

#[test]
fn a_change_in_another_network_touches_what_stands_for_it() {
    let mut mesh = two_networks();
    mesh.write_in("c2", &far_pod("coral-9", "10.9.0.2"), false);
    assert_eq!(addresses(&mut mesh), [format!("~addresses/split-horizon base {FAR_CORAL}")]);
    assert_eq!(mesh.workload(FAR_CORAL).and_then(|workload| workload.capacity).expect("a capacity").value, 2);
    let delete = |kind, namespace: &str, name: &str| {
        let key = ObjectKey::new("c2", namespace, name);
        mesh.engine.transaction(|tx| mesh.handles.inputs.delete(tx, kind, key, sluice_engine::Origin::default()));
    };
    delete(ObjectKind::Pod, "reef", "coral-9");
    delete(ObjectKind::Pod, "reef", "coral-8");
    let service = "~addresses/services base reef/coral.reef.svc.cluster.local".to_owned();
    assert_eq!(addresses(&mut mesh), [format!("-addresses/split-horizon base {FAR_CORAL}"), service.clone()]);
    mesh.write_in("c2", &far_pod("coral-9", "10.9.0.2"), false);
    addresses(&mut mesh);
    // A Service that is no longer global is local to its cluster.
    mesh.write_in("c2", "{apiVersion: v1, kind: Service, metadata: {name: coral, namespace: reef}, spec: {clusterIP: 10.8.0.1, selector: {app: coral}, ports: [{port: 80}]}}", false);
    assert_eq!(addresses(&mut mesh), [format!("-addresses/split-horizon base {FAR_CORAL}"), service]);
}

fn waypoint(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Proxy {
    let proxy = sidecar(namespace, name, "10.1.0.9", labels);
    Proxy { proxy_type: ProxyType::Waypoint, network: "near".into(), ..proxy }
}

impl TestGraph {
    /// The resource with a name, in any layer.
    fn found<M: prost::Message + Default>(&self, resource_type: ResourceType, name: &str) -> Option<M> {
        let now = self.engine.snapshot();
        let mut all = self.handles.resources.iter().flat_map(|of| now.iter(of));
        let (_, found) = all.find(|(key, _)| key.resource_type == resource_type && *key.name == *name)?;
        match found {
            Resource::Encoded(bytes) => Some(M::decode(bytes.clone()).expect("a message")),
            found => panic!("{name} has slots: {found:?}"),
        }
    }
}

/// The internal listener, the id, and the destination in the two tunnels of each endpoint.
fn endpoints(mesh: &TestGraph, cluster: &str) -> Vec<(String, String, String)> {
    let assignment: ClusterLoadAssignment = mesh.found(ResourceType::Endpoint, cluster).expect(cluster);
    let all = assignment.endpoints.iter().flat_map(|place| &place.lb_endpoints);
    let shown = all.map(|endpoint| {
        let Some(HostIdentifier::Endpoint(host)) = &endpoint.host_identifier else { panic!("no endpoint") };
        let address = host.address.as_ref().and_then(|address| address.address.as_ref());
        let Some(Kind::EnvoyInternalAddress(address)) = address else {
            return (String::new(), format!("{address:?}"), String::new());
        };
        let Some(AddressNameSpecifier::ServerListenerName(listener)) = &address.address_name_specifier else {
            panic!("no listener")
        };
        let metadata = format!("{:?}", endpoint.metadata);
        let target = metadata.split("hbone_target_address").nth(1).and_then(|rest| rest.split('"').nth(2));
        (listener.clone(), address.endpoint_id.clone(), target.unwrap_or_default().to_owned())
    });
    shown.collect()
}

const CORAL_HTTP: &str = "inbound-vip|80|http|coral.reef.svc.cluster.local";
const CORAL_TCP: &str = "inbound-vip|80|tcp|coral.reef.svc.cluster.local";

#[test]
fn a_waypoint_reaches_another_network_by_two_tunnels() {
    let through = |local_waypoints| {
        let mesh = networks_with(TunnelSwitches { multi_network: true, local_waypoints, ..TunnelSwitches::default() });
        mesh.apply(WAYPOINT);
        mesh.write_in("c2", FAR_ENDPOINTS, false);
        mesh.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
        let has_tunnel = mesh.found::<Cluster>(ResourceType::Cluster, "inner_connect_originate").is_some();
        (endpoints(&mesh, CORAL_HTTP), has_tunnel)
    };
    let target = "coral.reef.svc.cluster.local:80".to_owned();
    let tunnel = ("inner_connect_originate".to_owned(), "203.0.113.1:15008".to_owned(), target);
    assert_eq!(through(false), (vec![tunnel], true));
    assert_eq!(through(true), (Vec::new(), false));
}

#[test]
fn a_waypoint_sends_to_its_own_cluster_only_unless_the_service_is_global() {
    let mesh = two_networks();
    mesh.apply(&WAYPOINT.replace("scope: all, ", ""));
    mesh.apply(NEAR_ENDPOINTS);
    mesh.write_in("c2", FAR_ENDPOINTS, false);
    mesh.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
    let local = endpoints(&mesh, CORAL_HTTP);
    assert!(local.len() == 1 && local[0].1.contains("10.1.0.1"), "{local:?}");
    mesh.apply(WAYPOINT);
    assert_eq!(endpoints(&mesh, CORAL_HTTP).len(), 2);
}

#[test]
fn an_east_west_gateway_forwards_to_global_services_and_their_waypoints() {
    let mesh = two_networks();
    mesh.apply(WAYPOINT);
    mesh.apply(NEAR_ENDPOINTS);
    mesh.write_in("c2", FAR_ENDPOINTS, false);
    mesh.connect(waypoint("istio-system", "east-west-1", &[(GATEWAY_MANAGED, MANAGED_BY_EAST_WEST_CONTROLLER)]));
    // Neither the Service `crab` nor an endpoint of another network.
    for name in ["forward_inner_connect", "encap", "main_internal", "BlackHoleCluster", CORAL_TCP] {
        assert!(mesh.found::<Cluster>(ResourceType::Cluster, name).is_some(), "{name}");
    }
    let crab = "inbound-vip|81|tcp|crab.reef.svc.cluster.local";
    for name in [CORAL_HTTP, crab, "connect_originate", "inner_connect_originate"] {
        assert!(mesh.found::<Cluster>(ResourceType::Cluster, name).is_none(), "{name}");
    }
    assert_eq!(endpoints(&mesh, CORAL_TCP).len(), 1);
    assert!(mesh.template("forward_inner_connect").contains("forward_inner_connect"));
    assert!(mesh.template("connect_terminate").contains("%REQ(x-istio-source)%"));
    let main = mesh.template("main_internal");
    let waypoint = "inbound-vip|15008|tcp|wp.reef.svc.cluster.local";
    for part in
        [CORAL_TCP, waypoint, "coral.reef.svc.cluster.local:80", "io.istio.source", "io.istio.connect_authority"]
    {
        assert!(main.contains(part), "{part}");
    }
    for part in ["direct-tcp", CORAL_HTTP, "crab"] {
        assert!(!main.contains(part), "{part}");
    }
}

#[test]
fn resources_of_waypoints_and_east_west_gateways_are_those_of_a_new_start() {
    let tunnels = TunnelSwitches { multi_network: true, baggage: true, ..TunnelSwitches::default() };
    let gateway = || waypoint("istio-system", "east-west-1", &[(GATEWAY_MANAGED, MANAGED_BY_EAST_WEST_CONTROLLER)]);
    let replica = || waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]);
    let all = |mesh: &TestGraph| -> BTreeMap<String, String> {
        let now = mesh.engine.snapshot();
        let all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        all.map(|(key, resource)| (format!("{key:?}"), format!("{resource:?}"))).collect()
    };
    let changed = networks_with(tunnels);
    changed.connect(gateway());
    changed.connect(replica());
    changed.apply(NEAR_ENDPOINTS);
    changed.apply(&WAYPOINT.replace("scope: all, ", ""));
    changed.write_in("c2", FAR_ENDPOINTS, false);
    let local = all(&changed);
    changed.apply(WAYPOINT);
    changed.delete(ObjectKind::Service, "reef", "wp");
    changed.apply(WAYPOINT);
    let fresh = networks_with(tunnels);
    fresh.write_in("c2", FAR_ENDPOINTS, false);
    fresh.apply(WAYPOINT);
    fresh.apply(NEAR_ENDPOINTS);
    fresh.connect(replica());
    fresh.connect(gateway());
    let global = all(&changed);
    assert_ne!(global, local);
    assert_eq!(global, all(&fresh));
    changed.apply(&WAYPOINT.replace("scope: all, ", ""));
    assert_eq!(all(&changed), local);
}

#[test]
fn a_sidecar_sends_and_reads_baggage() {
    let baggage = |baggage| {
        let ambient = AmbientOptions {
            tunnels: TunnelSwitches { baggage, ..TunnelSwitches::default() },
            ..AmbientOptions::default()
        };
        let options = GraphOptions { ambient: Some(ambient), sends_hbone: true, ..GraphOptions::default() };
        let mesh = TestGraph::with(options, NEAR);
        mesh.connect(sidecar("reef", "client", "10.1.0.8", &[]));
        let cluster: Cluster =
            mesh.found(ResourceType::Cluster, "outbound|80||coral.reef.svc.cluster.local").expect("a cluster");
        let reads = cluster.filters.iter().any(|filter| filter.name == "upstream_hbone_peer_metadata");
        let passed = String::from_utf8_lossy(&cluster.encode_to_vec()).contains("istio.peer_metadata");
        let sends = mesh.template("connect_originate").contains("%FILTER_STATE(io.istio.baggage:PLAIN)%");
        [reads, passed, sends]
    };
    assert_eq!(baggage(true), [true; 3]);
    assert_eq!(baggage(false), [false; 3]);
}

#[test]
fn a_waypoint_sends_and_reads_baggage() {
    let baggage = |baggage| {
        let mesh = networks_with(TunnelSwitches { baggage, ..TunnelSwitches::default() });
        mesh.apply(WAYPOINT);
        mesh.connect(waypoint("reef", "wp-1", &[(GATEWAY_NAME, "wp")]));
        let cluster: Cluster = mesh.found(ResourceType::Cluster, CORAL_HTTP).expect("a cluster");
        let reads = cluster.filters.iter().any(|filter| filter.name == "upstream_hbone_peer_metadata");
        let sends = |listener| mesh.template(listener).contains("%FILTER_STATE(io.istio.baggage:PLAIN)%");
        [reads, sends("connect_originate"), sends("inner_connect_originate"), sends("outer_connect_originate")]
    };
    assert_eq!(baggage(true), [true, true, true, false]);
    assert_eq!(baggage(false), [false; 4]);
}

impl TestGraph {
    /// The text of a listener, without what it is made of.
    fn template(&self, name: &str) -> String {
        let now = self.engine.snapshot();
        let mut all = self.handles.resources.iter().flat_map(|of| now.iter(of));
        let found = all.find(|(key, _)| key.resource_type == ResourceType::Listener && *key.name == *name);
        let (_, found) = found.expect(name);
        let bytes = found.bytes(&sluice_model::SlotValues::default()).expect("a listener");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[test]
fn one_network_knows_its_own_cluster_only() {
    let options = GraphOptions { ambient: Some(AmbientOptions::default()), ..GraphOptions::default() };
    let mesh = TestGraph::with(options, "");
    mesh.apply(NEAR);
    mesh.write_in("c2", &format!("{FAR}---{}", far_pod("coral-8", "10.9.0.1")), false);
    assert!(mesh.address(FAR_CORAL).is_none());
    assert!(mesh.address("NetworkGateway/far/203.0.113.1/0").is_none());
    assert_eq!(mesh.service("reef/coral.reef.svc.cluster.local").addresses.len(), 1);
}
