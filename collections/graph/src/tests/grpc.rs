//! gRPC clients and servers without an Envoy: the resources that exist for them, and those that a change touches.

use sluice_model::{Kind, Proxy};

use super::{TestGraph, sidecar};

const RAIL: &str = "
apiVersion: v1
kind: Service
metadata: {name: signal, namespace: rail}
spec: {clusterIP: 10.0.0.1, selector: {app: signal}, ports: [{name: grpc, port: 70, targetPort: 7070}]}
---
apiVersion: v1
kind: Service
metadata: {name: depot, namespace: yard}
spec: {clusterIP: 10.0.0.2, selector: {app: depot}, ports: [{name: grpc, port: 70, targetPort: 7070}]}
---
apiVersion: v1
kind: Pod
metadata: {name: signal-1, namespace: rail, labels: {app: signal}}
spec: {serviceAccountName: signal}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
";

const SIGNAL: &str = "signal.rail.svc.cluster.local";

/// An object of a kind of Istio in the namespace `rail`.
fn object(group: &str, kind: &str, spec: &str) -> String {
    format!("{{apiVersion: {group}.istio.io/v1, kind: {kind}, metadata: {{name: o, namespace: rail}}, spec: {spec}}}")
}

/// The server `signal`, which is a client as well.
fn server() -> Proxy {
    Proxy { grpc: true, ..sidecar("rail", "signal-1", "10.1.0.1", &[("app", "signal")]) }
}

/// A mesh with a connected gRPC server; nothing is pending.
fn test_mesh() -> TestGraph {
    let mut mesh = TestGraph::new(RAIL);
    mesh.connect(server());
    mesh.changed();
    mesh
}

impl TestGraph {
    /// The changed resources since the last call, as `collection name` lines. Each resource has to be one for gRPC.
    fn grpc_changes(&mut self) -> Vec<String> {
        let lines = self.changed().into_iter().filter_map(|line| {
            let (collection, key) = line.split_once(' ')?;
            let (layer, name) = key.split_once(' ')?;
            // The agent of a gRPC client may ask for its name table.
            if collection.contains("name_tables") {
                return None;
            }
            assert!(collection.contains("/grpc") || collection.ends_with("endpoint_assignments"), "{line}");
            let view = layer.split_once(':').map_or(String::new(), |(kind, _)| format!(" {kind}"));
            Some(format!("{collection}{view} {name}"))
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    }
}

#[test]
fn resources_exist_while_a_grpc_client_is_connected() {
    let mut mesh = TestGraph::new(RAIL);
    mesh.changed();
    let key = mesh.connect(Proxy { ips: Vec::new(), ..server() });
    let expected: Vec<String> = [
        "clusters/grpc outbound|70||depot.yard.svc.cluster.local",
        "clusters/grpc outbound|70||signal.rail.svc.cluster.local",
        "endpoint_assignments outbound|70||depot.yard.svc.cluster.local",
        "endpoint_assignments outbound|70||signal.rail.svc.cluster.local",
        "listeners/grpc-clients depot.yard.svc.cluster.local:70",
        "listeners/grpc-clients namespace depot.yard.svc:70",
        "listeners/grpc-clients namespace depot.yard:70",
        "listeners/grpc-clients namespace depot:70",
        "listeners/grpc-clients namespace signal.rail.svc:70",
        "listeners/grpc-clients namespace signal.rail:70",
        "listeners/grpc-clients namespace signal:70",
        "listeners/grpc-clients signal.rail.svc.cluster.local:70",
        "listeners/grpc-inbound workload xds.istio.io/grpc/lds/inbound/0.0.0.0:7070",
        "listeners/grpc-inbound workload xds.istio.io/grpc/lds/inbound/127.0.0.1:7070",
        "listeners/grpc-inbound workload xds.istio.io/grpc/lds/inbound/[::1]:7070",
        "listeners/grpc-inbound workload xds.istio.io/grpc/lds/inbound/[::]:7070",
        "listeners/grpc-inbound workload xds.istio.io/grpc/lds/inbound/localhost:7070",
        "routes/grpc namespace outbound|70||depot.yard.svc.cluster.local",
        "routes/grpc namespace outbound|70||signal.rail.svc.cluster.local",
        "routes/grpc outbound|70||depot.yard.svc.cluster.local",
        "routes/grpc outbound|70||signal.rail.svc.cluster.local",
    ]
    .map(str::to_owned)
    .to_vec();
    let signed = |sign: char| expected.iter().map(|line| format!("{sign}{line}")).collect::<Vec<_>>();
    assert_eq!(mesh.grpc_changes(), signed('+'));
    mesh.engine.transaction(|tx| tx.delete(&mesh.handles.inputs.proxies, key));
    assert_eq!(mesh.grpc_changes(), signed('-'));
}

#[test]
fn a_rule_touches_the_clusters_of_its_service() {
    let mut mesh = test_mesh();
    mesh.apply(&object("networking", "DestinationRule", &format!("{{host: {SIGNAL}, subsets: [{{name: v1}}]}}")));
    assert_eq!(
        mesh.grpc_changes(),
        [format!("+clusters/grpc outbound|70|v1|{SIGNAL}"), format!("+endpoint_assignments outbound|70|v1|{SIGNAL}"),]
    );
    let limit = "trafficPolicy: {connectionPool: {http: {http2MaxRequests: 5}}}";
    let spec = format!("{{host: {SIGNAL}, {limit}, subsets: [{{name: v1}}]}}");
    mesh.apply(&object("networking", "DestinationRule", &spec));
    assert_eq!(
        mesh.grpc_changes(),
        [format!("~clusters/grpc outbound|70|v1|{SIGNAL}"), format!("~clusters/grpc outbound|70||{SIGNAL}")]
    );
}

#[test]
fn a_short_name_takes_precedence_over_a_host_that_is_the_same() {
    let entry = |namespace: &str, spec: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: same, namespace: {namespace}}}, \
             spec: {{hosts: [signal], resolution: DNS, ports: [{{name: grpc, number: 70, protocol: GRPC}}], {spec}}}}}"
        )
    };
    let mut mesh = test_mesh();
    let in_rail = |mesh: &mut TestGraph| {
        let mut lines = mesh.grpc_changes();
        lines.retain(|line| line.ends_with("namespace signal:70"));
        lines
    };
    mesh.apply(&entry("yard", "exportTo: ['*']"));
    mesh.apply(&entry("rail", "exportTo: ['.'], addresses: [10.0.0.9]"));
    assert_eq!(in_rail(&mut mesh), Vec::<String>::new());
    mesh.delete(Kind::Service, "rail", "signal");
    assert_eq!(in_rail(&mut mesh), ["~listeners/grpc-clients namespace signal:70"]);
}

#[test]
fn a_virtual_service_touches_the_route_tables_of_its_hosts() {
    let mut mesh = test_mesh();
    let spec = format!("{{hosts: [{SIGNAL}], http: [{{timeout: 3s, route: [{{destination: {{host: {SIGNAL}}}}}]}}]}}");
    mesh.apply(&object("networking", "VirtualService", &spec));
    // Clients in the namespace of the service have a table with its short names.
    let tables =
        [format!("~routes/grpc namespace outbound|70||{SIGNAL}"), format!("~routes/grpc outbound|70||{SIGNAL}")];
    assert_eq!(mesh.grpc_changes(), tables);
    mesh.delete(Kind::VirtualService, "rail", "o");
    assert_eq!(mesh.grpc_changes(), tables);
}

#[test]
fn policies_touch_the_listeners_of_the_servers_they_select() {
    let deny = |app: &str| {
        let spec = format!("{{selector: {{matchLabels: {{app: {app}}}}}, action: DENY, rules: [{{}}]}}");
        object("security", "AuthorizationPolicy", &spec)
    };
    let mode = |mode: &str| {
        let spec = format!("{{selector: {{matchLabels: {{app: signal}}}}, mtls: {{mode: {mode}}}}}");
        object("security", "PeerAuthentication", &spec)
    };
    let mut mesh = test_mesh();
    // From the first selector on, the label is a part of the workload.
    mesh.apply(&mode("PERMISSIVE"));
    mesh.changed();
    let mut listeners = |text: &str| {
        mesh.apply(text);
        let changed = mesh.grpc_changes();
        assert!(changed.iter().all(|line| line.starts_with("~listeners/grpc-inbound workload ")), "{changed:?}");
        changed.len()
    };
    let servers = 6; // At five addresses of every pod, and at its own.
    assert_eq!(listeners(&deny("signal")), servers);
    assert_eq!(listeners(&deny("other")), servers, "the policy does not select the server any more");
    assert_eq!(listeners(&mode("STRICT")), servers);
}
