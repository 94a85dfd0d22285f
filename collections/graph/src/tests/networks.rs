//! Ambient mode in several networks: what clients of one network know of another.

use prost::Message as _;
use sluice_model::{Kind, Layer, ObjectKey, Resource, ResourceKey, ResourceType};
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::gateway_address::Destination;
use sluice_proto::istio::workload::{Address, Service, Workload};

use super::TestGraph;
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

const FAR_CORAL: &str = "far/SplitHorizonWorkload/istio-system/east-west/203.0.113.1/reef/coral.reef.svc.cluster.local";

/// The cluster `Kubernetes` in the network `near`, and `c2` in the network `far`.
fn two_networks() -> TestGraph {
    let ambient = AmbientOptions { multi_network: true, ..AmbientOptions::default() };
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
    delete(Kind::Pod, "reef", "coral-9");
    delete(Kind::Pod, "reef", "coral-8");
    let service = "~addresses/services base reef/coral.reef.svc.cluster.local".to_owned();
    assert_eq!(addresses(&mut mesh), [format!("-addresses/split-horizon base {FAR_CORAL}"), service.clone()]);
    mesh.write_in("c2", &far_pod("coral-9", "10.9.0.2"), false);
    addresses(&mut mesh);
    // A Service that is no longer global is local to its cluster.
    mesh.write_in("c2", "{apiVersion: v1, kind: Service, metadata: {name: coral, namespace: reef}, spec: {clusterIP: 10.8.0.1, selector: {app: coral}, ports: [{port: 80}]}}", false);
    assert_eq!(addresses(&mut mesh), [format!("-addresses/split-horizon base {FAR_CORAL}"), service]);
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
