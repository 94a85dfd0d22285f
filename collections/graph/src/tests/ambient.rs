//! Ambient mode: the addresses and policies that a change touches.

use sluice_model::Kind;

use super::{TestGraph, sidecar};
use crate::{AmbientOptions, GraphOptions};

const REEF: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Namespace
metadata: {name: reef}
---
apiVersion: v1
kind: Service
metadata: {name: coral, namespace: reef}
spec: {clusterIP: 10.0.0.1, selector: {app: coral}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: crab, namespace: reef}
spec: {clusterIP: 10.0.0.2, selector: {app: crab}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: manual, namespace: reef}
spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tide, namespace: reef}
spec:
  hosts: [tide.example.org]
  addresses: [240.0.0.1]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 198.51.100.1}, {address: 198.51.100.2}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: reef, labels: {app: coral}}
spec: {address: 192.0.2.1}
";

fn pod(name: &str, app: &str, ip: &str, ready: bool) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: reef, labels: {{app: {app}}}}}
spec: {{nodeName: n1, containers: [{{ports: [{{name: http, containerPort: 8080}}]}}]}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: '{}'}}]}}
",
        if ready { "True" } else { "False" }
    )
}

fn slice(service: &str, ready: bool) -> String {
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-x, namespace: reef, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints:
- {{addresses: [10.1.0.1], conditions: {{ready: {ready}}}, targetRef: {{kind: Pod, name: coral-1, namespace: reef}}}}
- {{addresses: [10.1.0.2], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: coral-2, namespace: reef}}}}
"
    )
}

/// Two pods of `coral`, one of `crab`, and a Service whose slice names the pods of `coral`.
fn test_mesh() -> TestGraph {
    let mut text = REEF.to_owned();
    for (name, app, ip) in
        [("coral-1", "coral", "10.1.0.1"), ("coral-2", "coral", "10.1.0.2"), ("crab-1", "crab", "10.1.0.3")]
    {
        text += &pod(name, app, ip, true);
    }
    text += &slice("coral", true);
    text += &slice("manual", true);
    let options = GraphOptions { ambient: Some(AmbientOptions::default()), ..GraphOptions::default() };
    let mut mesh = TestGraph::with(options, &text);
    mesh.changed();
    mesh
}

/// The changed resources of node proxies, without the second form of workloads.
fn changed(mesh: &mut TestGraph) -> Vec<String> {
    let mut lines = mesh.changed();
    lines.retain(|line| line.contains("addresses/"));
    lines
}

#[test]
fn a_pod_becoming_unready_touches_its_address_only() {
    let mut mesh = test_mesh();
    mesh.apply(&(pod("coral-1", "coral", "10.1.0.1", false) + &slice("coral", false) + &slice("manual", false)));
    assert_eq!(changed(&mut mesh), ["~addresses/pods base Kubernetes//Pod/reef/coral-1"]);
    mesh.delete(Kind::Pod, "reef", "crab-1");
    assert_eq!(changed(&mut mesh), ["-addresses/pods base Kubernetes//Pod/reef/crab-1"]);
}

#[test]
fn a_service_touches_itself_and_the_ports_of_its_workloads() {
    let mut mesh = test_mesh();
    mesh.apply("{apiVersion: v1, kind: Service, metadata: {name: coral, namespace: reef}, spec: {clusterIP: 10.0.0.9, selector: {app: coral}, ports: [{name: http, port: 80}]}}");
    assert_eq!(changed(&mut mesh), ["~addresses/services base reef/coral.reef.svc.cluster.local"]);
    mesh.apply("{apiVersion: v1, kind: Service, metadata: {name: coral, namespace: reef}, spec: {clusterIP: 10.0.0.9, selector: {app: coral}, ports: [{name: http, port: 81}]}}");
    assert_eq!(
        changed(&mut mesh),
        [
            "~addresses/entries base Kubernetes/networking.istio.io/WorkloadEntry/reef/vm",
            "~addresses/pods base Kubernetes//Pod/reef/coral-1",
            "~addresses/pods base Kubernetes//Pod/reef/coral-2",
            "~addresses/services base reef/coral.reef.svc.cluster.local",
        ]
    );
    mesh.apply("{apiVersion: v1, kind: Service, metadata: {name: manual, namespace: reef}, spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 90, targetPort: 1}]}}");
    assert_eq!(
        changed(&mut mesh),
        [
            "~addresses/pods base Kubernetes//Pod/reef/coral-1",
            "~addresses/pods base Kubernetes//Pod/reef/coral-2",
            "~addresses/services base reef/manual.reef.svc.cluster.local",
        ]
    );
}

#[test]
fn a_service_entry_touches_its_hosts_and_addresses() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tide, namespace: reef}
spec:
  hosts: [tide.example.org]
  addresses: [240.0.0.1]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 198.51.100.1}, {address: 198.51.100.3}]
",
    );
    let address =
        |ip: &str| format!("addresses/addresses base Kubernetes/networking.istio.io/ServiceEntry/reef/tide/{ip}");
    assert_eq!(changed(&mut mesh), [format!("+{}", address("198.51.100.3")), format!("-{}", address("198.51.100.2"))]);
}

#[test]
fn a_policy_touches_itself_and_the_workloads_it_selects() {
    let mut mesh = test_mesh();
    let policy = |more: &str| {
        format!(
            "{{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {{name: p, namespace: reef}}, spec: {{{more}}}}}"
        )
    };
    mesh.apply(&policy("action: DENY, rules: [{from: [{source: {namespaces: [x]}}]}]"));
    assert_eq!(changed(&mut mesh), ["+addresses/policies base reef/p"]);
    mesh.apply(&policy(
        "selector: {matchLabels: {app: crab}}, action: DENY, rules: [{from: [{source: {namespaces: [x]}}]}]",
    ));
    assert_eq!(
        changed(&mut mesh),
        ["~addresses/pods base Kubernetes//Pod/reef/crab-1", "~addresses/policies base reef/p"]
    );
    mesh.apply(&policy(
        "selector: {matchLabels: {app: crab}}, action: DENY, rules: [{from: [{source: {namespaces: [y]}}]}]",
    ));
    assert_eq!(changed(&mut mesh), ["~addresses/policies base reef/p"]);
}

#[test]
fn a_peer_authentication_touches_the_workloads_it_selects() {
    let mut mesh = test_mesh();
    let peers = |more: &str| {
        format!(
            "{{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {{name: p, namespace: reef}}, spec: {{{more}}}}}"
        )
    };
    mesh.apply(&peers("selector: {matchLabels: {app: crab}}, mtls: {mode: STRICT}"));
    let strict = "addresses/policies base istio-system/istio_converted_static_strict";
    let crab = "~addresses/pods base Kubernetes//Pod/reef/crab-1";
    assert_eq!(changed(&mut mesh), [format!("+{strict}"), crab.to_owned()]);
    mesh.apply(&peers(
        "selector: {matchLabels: {app: crab}}, mtls: {mode: STRICT}, portLevelMtls: {'9': {mode: DISABLE}}",
    ));
    let ports = "addresses/policies base reef/converted_peer_authentication_p";
    assert_eq!(changed(&mut mesh), [format!("+{ports}"), crab.to_owned()]);
    mesh.delete(Kind::PeerAuthentication, "reef", "p");
    assert_eq!(changed(&mut mesh), [format!("-{strict}"), format!("-{ports}"), crab.to_owned()]);
}

fn waypoint(name: &str, labels: &str, address: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: reef, labels: {{{labels}}}}}
spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}
status: {{addresses: [{{type: Hostname, value: {address}}}]}}
"
    )
}

fn used_by(kind: &str, name: &str, waypoint: &str, more: &str) -> String {
    let spec = if more.is_empty() { String::new() } else { format!("spec: {{{more}}}") };
    format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, {waypoint}}}\n{spec}\n")
}

#[test]
fn a_waypoint_touches_what_it_is_bound_to() {
    let mut mesh = test_mesh();
    let crab = "clusterIP: 10.0.0.2, selector: {app: crab}, ports: [{port: 80}]";
    let bound = "namespace: reef, labels: {istio.io/use-waypoint: wp}";
    // A waypoint that does not exist yet has no effect.
    mesh.apply(&used_by("Service", "crab", bound, crab));
    assert!(changed(&mut mesh).is_empty());
    mesh.apply(&waypoint("wp", "", "wp.reef.svc.cluster.local"));
    let of_crab = "~addresses/services base reef/crab.reef.svc.cluster.local";
    assert_eq!(changed(&mut mesh), [of_crab]);
    // The waypoint now accepts only workloads: the service is no longer bound to it, and no workload uses it.
    mesh.apply(&waypoint("wp", "istio.io/waypoint-for: workload", "wp.reef.svc.cluster.local"));
    assert_eq!(changed(&mut mesh), [of_crab]);
    mesh.apply(&(pod("crab-1", "crab, istio.io/use-waypoint: wp", "10.1.0.3", true)));
    assert_eq!(changed(&mut mesh), ["~addresses/pods base Kubernetes//Pod/reef/crab-1"]);
    mesh.apply(&waypoint("wp", "istio.io/waypoint-for: all", "moved.reef.svc.cluster.local"));
    assert_eq!(changed(&mut mesh), ["~addresses/pods base Kubernetes//Pod/reef/crab-1", of_crab]);
    // Now all services of the namespace use a waypoint, except those with their own label.
    mesh.apply(&waypoint("wide", "", "wide.reef.svc.cluster.local"));
    assert!(changed(&mut mesh).is_empty());
    mesh.apply(&used_by("Namespace", "reef", "labels: {istio.io/use-waypoint: wide}", ""));
    assert_eq!(
        changed(&mut mesh),
        [
            "~addresses/services base reef/coral.reef.svc.cluster.local",
            "~addresses/services base reef/manual.reef.svc.cluster.local",
            "~addresses/services base reef/tide.example.org",
        ]
    );
    mesh.delete(Kind::KubernetesGateway, "reef", "wp");
    assert_eq!(changed(&mut mesh), ["~addresses/pods base Kubernetes//Pod/reef/crab-1", of_crab]);
}

#[test]
fn a_gateway_to_a_network_is_a_workload_and_the_gateway_of_others() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: reef, labels: {app: coral}}
spec: {address: 192.0.2.1, network: far}
",
    );
    let vm = "~addresses/entries base Kubernetes/networking.istio.io/WorkloadEntry/reef/vm";
    assert_eq!(changed(&mut mesh), [vm]);
    mesh.apply(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: far, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec: {gatewayClassName: istio-remote, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 203.0.113.1}]}
",
    );
    assert_eq!(changed(&mut mesh), ["+addresses/gateways base NetworkGateway/far/203.0.113.1/15008", vm]);
}

#[test]
fn nothing_is_derived_without_ambient_mode() {
    let mut mesh = TestGraph::new(&(REEF.to_owned() + &pod("coral-1", "coral", "10.1.0.1", true)));
    assert!(changed(&mut mesh).is_empty());
    mesh.apply(&pod("coral-2", "coral", "10.1.0.2", true));
    assert!(changed(&mut mesh).is_empty());
}

/// The listeners among changed resources, with the sign of the change.
fn inbound_listeners(mesh: &mut TestGraph) -> Vec<String> {
    let lines = mesh.changed().into_iter().filter(|line| line.contains("listeners/inbound"));
    let mut names: Vec<String> =
        lines.map(|line| format!("{}{}", &line[..1], line.rsplit(' ').next().unwrap_or_default())).collect();
    names.sort();
    names
}

#[test]
fn replicas_that_receive_hbone_have_listeners_of_their_own() {
    let mut mesh = test_mesh();
    let replica = |name: &str, ip: &str, receives: &str| {
        let mut proxy = sidecar("reef", name, ip, &[("app", "shell")]);
        proxy.metadata = [("ENABLE_HBONE".into(), format!("\"{receives}\"").into())].into();
        proxy
    };
    let received = ["+connect_terminate", "+main_internal", "+virtualInbound"];
    mesh.connect(replica("shell-1", "10.9.0.1", "true"));
    assert_eq!(inbound_listeners(&mut mesh), received);
    mesh.connect(replica("shell-2", "10.9.0.2", "true"));
    assert_eq!(inbound_listeners(&mut mesh), received, "a tunnel leads to the addresses of one replica");
    mesh.connect(replica("shell-3", "10.9.0.3", "false"));
    assert_eq!(inbound_listeners(&mut mesh), ["+virtualInbound"]);
    mesh.connect(replica("shell-4", "10.9.0.4", "false"));
    assert_eq!(inbound_listeners(&mut mesh), [""; 0], "other replicas share them");
    mesh.connect(replica("shell-5", "unknown", "true"));
    assert_eq!(inbound_listeners(&mut mesh), ["+virtualInbound"], "no tunnel leads to any address");

    let options = AmbientOptions { deaf_sidecars: true, ..AmbientOptions::default() };
    let mut deaf = TestGraph::with(GraphOptions { ambient: Some(options), ..GraphOptions::default() }, REEF);
    deaf.connect(replica("shell-1", "10.9.0.1", "true"));
    assert_eq!(inbound_listeners(&mut deaf), ["+virtualInbound"]);

    mesh.apply(
        "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: one, namespace: reef}, \
         spec: {action: DENY, rules: [{from: [{source: {namespaces: [pond]}}]}]}}",
    );
    let touched = inbound_listeners(&mut mesh);
    let of = |name: &str| touched.iter().filter(|line| *line == name).count();
    assert_eq!((of("~main_internal"), of("~virtualInbound"), of("~connect_terminate")), (2, 4, 0), "{touched:?}");
}
