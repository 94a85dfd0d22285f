//! Services with many endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use prost::Message;
use sluice_model::{Kind, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, SegmentKey, Text, label};
use sluice_proto::envoy::config::core::v3::address::Address;
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use sluice_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;

use super::cases::state;
use super::{TestGraph, sidecar};
use crate::{AmbientOptions, GraphOptions, MultiClusterOptions};

const NAME: &str = "outbound|80||large.app.svc.cluster.local";
/// Endpoints of a slice.
const SLICE: usize = 50;

fn service(fields: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: large, namespace: app}}\n\
         spec: {{clusterIP: 10.0.0.1, selector: {{app: large}}, ports: [{{name: http, port: 80}}]{fields}}}\n"
    )
}

fn address(number: usize) -> String {
    format!("10.1.{}.{}", number / 200, number % 200)
}

/// A slice of these endpoints; `not_ready` are not ready. Endpoints are on three nodes in turns.
fn slice(number: usize, endpoints: impl Iterator<Item = usize>, not_ready: &BTreeSet<usize>) -> String {
    let mut text = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: large-{number}, namespace: app, labels: {{kubernetes.io/service-name: large}}}}\n\
         ports: [{{name: http, port: 8080}}]\nendpoints:\n"
    );
    for endpoint in endpoints {
        let ready = !not_ready.contains(&endpoint);
        text += &format!(
            "- {{addresses: [{}], conditions: {{ready: {ready}, serving: {ready}, terminating: false}}, \
             targetRef: {{kind: Pod, name: large-{endpoint}, namespace: app}}}}\n",
            address(endpoint)
        );
    }
    text
}

fn pods(numbers: Range<usize>) -> String {
    let pod = |number: usize| {
        format!(
            "---\napiVersion: v1\nkind: Pod\n\
             metadata: {{name: large-{number}, namespace: app, labels: {{app: large, version: v{}}}}}\n\
             spec: {{nodeName: n{}, serviceAccountName: large}}\n\
             status: {{phase: Running, podIP: {}, conditions: [{{type: Ready, status: 'True'}}]}}\n",
            number % 2,
            number % 3,
            address(number)
        )
    };
    numbers.map(pod).collect()
}

fn nodes() -> String {
    let node = |number| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n{number}\n  labels: {{topology.kubernetes.io/region: r, \
             topology.kubernetes.io/zone: z{}}}\n",
            number % 2
        )
    };
    (0..3).map(node).collect()
}

/// A mesh with one Service with this number of endpoints, and a client.
fn large_mesh(endpoints: usize, fields: &str) -> TestGraph {
    large_mesh_with(GraphOptions::default(), endpoints, &service(fields))
}

/// As [`large_mesh`], with these options and this Service.
fn large_mesh_with(options: GraphOptions, endpoints: usize, service: &str) -> TestGraph {
    let slices = (0..endpoints.div_ceil(SLICE))
        .map(|number| slice(number, number * SLICE..endpoints.min((number + 1) * SLICE), &BTreeSet::new()));
    let text: String = service.to_owned() + &nodes() + &pods(0..endpoints) + &slices.collect::<String>();
    let mut mesh = TestGraph::with(options, &text);
    mesh.connect(client("one", 0));
    mesh.changed();
    mesh
}

/// Options with hosts of ServiceImports.
fn with_imports() -> GraphOptions {
    let multi_cluster = Some(MultiClusterOptions { imported_hosts: true, cluster_local: false });
    GraphOptions { multi_cluster, ..GraphOptions::default() }
}

const IMPORT: &str = "---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: large, namespace: app}
spec: {type: ClusterSetIP, ips: [10.0.1.1], ports: [{port: 80}]}
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {name: large, namespace: app}
";

/// A ServiceEntry of another namespace with the host of the Service.
const ENTRY: &str = "---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: large, namespace: other}
spec:
  hosts: [large.app.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.2.0.1}]
";

/// A ServiceEntry that selects the workloads of the Service, with two addresses: each workload has two endpoints.
const SELECTING_ENTRY: &str = "---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: selecting, namespace: app}
spec:
  hosts: [selecting.example]
  addresses: [10.0.2.1, 10.0.2.2]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: large}}
";

/// A WorkloadEntry that the Service selects.
fn workload_entry(number: usize, version: &str) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: vm-{number}, namespace: app}}\n\
         spec: {{address: 10.3.{}.{}, labels: {{app: large, version: {version}}}, locality: r/z{}, weight: {}}}\n",
        number / 200,
        number % 200,
        number % 2,
        number % 3
    )
}

/// The waypoint of the namespace.
const WAYPOINT: &str = "---
apiVersion: v1
kind: Namespace
metadata: {name: app, labels: {istio.io/use-waypoint: wp}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: app}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
status:
  addresses: [{type: Hostname, value: wp.app.svc.cluster.local}]
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: app, labels: {gateway.istio.io/managed: istio.io-mesh-controller}}
spec:
  clusterIP: 10.0.0.9
  selector: {gateway.networking.k8s.io/gateway-name: wp}
  ports: [{name: mesh, port: 15008}]
";

fn waypoint() -> Proxy {
    Proxy { proxy_type: ProxyType::Waypoint, ..sidecar("app", "wp", "10.9.9.9", &[(label::GATEWAY_NAME, "wp")]) }
}

fn ambient() -> GraphOptions {
    GraphOptions { ambient: Some(AmbientOptions::default()), ..GraphOptions::default() }
}

fn client(name: &str, node: usize) -> Proxy {
    Proxy { node_name: format!("n{node}").as_str().into(), ..sidecar("app", name, &format!("10.9.0.{node}"), &[]) }
}

/// The assignment that a proxy gets: of the first layer that has it, as a whole or in segments.
fn assignment(mesh: &TestGraph, proxy: &ProxyKey, name: &str) -> Option<ClusterLoadAssignment> {
    let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
    let snapshot = mesh.engine.snapshot();
    let mut segments: BTreeMap<Text, Resource> = BTreeMap::new();
    for layer in scope.layers[&ResourceType::Endpoint].iter() {
        let rows = mesh.handles.segments.iter().flat_map(|of| snapshot.iter(of));
        let own = rows.filter(|(key, _)| key.resource_type == ResourceType::Endpoint && key.layer == *layer);
        for (key, found) in own.filter(|(key, _)| *key.name == *name) {
            segments.entry(key.segment.clone()).or_insert_with(|| found.clone());
        }
        let key = ResourceKey { resource_type: ResourceType::Endpoint, layer: layer.clone(), name: name.into() };
        match mesh.handles.resources.iter().find_map(|of| snapshot.get(of, &key)).as_deref() {
            None => {}
            Some(Resource::Encoded(bytes)) if !segments.contains_key("") => {
                return Some(ClusterLoadAssignment::decode(bytes.clone()).expect("an assignment"));
            }
            Some(_) => break,
        }
    }
    segments.get("").filter(|head| matches!(head, Resource::Encoded(_)))?;
    let bytes: Vec<u8> = segments
        .values()
        .flat_map(|segment| match segment {
            Resource::Encoded(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        })
        .collect();
    Some(ClusterLoadAssignment::decode(bytes.as_slice()).expect("an assignment"))
}

/// The addresses of each locality, with the weight of the locality.
fn addresses(assignment: &ClusterLoadAssignment) -> Vec<(Vec<String>, u32)> {
    let groups = assignment.endpoints.iter().map(|group| {
        let addresses = group.lb_endpoints.iter().map(|endpoint| match &endpoint.host_identifier {
            Some(HostIdentifier::Endpoint(endpoint)) => {
                match endpoint.address.as_ref().and_then(|it| it.address.as_ref()) {
                    Some(Address::SocketAddress(socket)) => socket.address.clone(),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?}"),
        });
        (addresses.collect(), group.load_balancing_weight.as_ref().map_or(0, |weight| weight.value))
    });
    groups.collect()
}

/// Records that the operators have processed.
fn processed(mesh: &TestGraph) -> u64 {
    mesh.engine.metrics().collections.iter().map(|collection| collection.records_in).sum()
}

/// Checks that a change takes the same work in meshes of two sizes.
fn assert_same_work(sizes: [usize; 2], work: impl Fn(usize) -> u64) {
    let work = sizes.map(work);
    // Chunks have different sizes.
    assert!(work[1] < work[0] * 2 && work[0] < work[1] * 2, "{work:?}");
}

/// The work for changes of ten endpoints.
fn work_for_endpoints(mesh: &TestGraph) -> u64 {
    let before = processed(mesh);
    for number in 100..110 {
        mesh.apply(&slice(2, 2 * SLICE..3 * SLICE, &BTreeSet::from([number])));
    }
    processed(mesh) - before
}

#[test]
fn an_endpoint_of_a_large_service_changes_one_segment() {
    let mut mesh = large_mesh(600, "");
    let key = ProxyKey(client("one", 0).id);
    let service = sluice_model::ServiceKey { namespace: "app".into(), host: "large.app.svc.cluster.local".into() };
    assert_eq!(mesh.get(&mesh.handles.endpoints, &service), None, "it has chunks");
    let before = assignment(&mesh, &key, NAME).expect("an assignment");
    let groups = addresses(&before);
    for (addresses, weight) in &groups {
        assert!(addresses.is_sorted());
        assert_eq!(addresses.len(), *weight as usize);
    }
    assert_eq!(groups.iter().map(|(_, weight)| weight).collect::<Vec<_>>(), [&400, &200], "two nodes are in one zone");

    mesh.apply(&slice(3, 3 * SLICE..4 * SLICE, &BTreeSet::from([160])));
    let changed = mesh.changed();
    assert_eq!(changed.len(), 1, "{changed:#?}");
    assert!(changed[0].starts_with(&format!("~endpoint_assignments/segments base {NAME} ")), "{changed:#?}");

    // The sizes and weights of the frame of its locality change too.
    mesh.apply(&slice(3, (3 * SLICE..4 * SLICE).filter(|number| *number != 161), &BTreeSet::from([160])));
    let changed = mesh.changed();
    let of = |collection: &str| changed.iter().filter(|line| line.contains(collection)).count();
    assert_eq!((of("endpoint_assignments/frames"), changed.len()), (2, 3), "{changed:#?}");
    let after = addresses(&assignment(&mesh, &key, NAME).expect("an assignment"));
    assert_eq!(after.iter().map(|(_, weight)| *weight).sum::<u32>(), 599);
    assert!(!after.iter().any(|(addresses, _)| addresses.contains(&address(161))));

    mesh.apply(&service_without_endpoints());
    mesh.delete(Kind::Service, "app", "large");
    assert_eq!(assignment(&mesh, &key, NAME), None);
}

fn service_without_endpoints() -> String {
    (0..600 / SLICE).map(|number| slice(number, 0..0, &BTreeSet::new())).collect()
}

#[test]
fn an_endpoint_of_the_import_of_a_large_service_changes_one_segment() {
    const HOST: &str = "large.app.svc.clusterset.local";
    let mut mesh = large_mesh_with(with_imports(), 600, &(service("") + IMPORT));
    let key = ProxyKey(client("one", 0).id);
    let imported = sluice_model::ServiceKey { namespace: "app".into(), host: HOST.into() };
    assert_eq!(mesh.get(&mesh.handles.endpoints, &imported), None, "it has chunks");
    let name = format!("outbound|80||{HOST}");
    let found = addresses(&assignment(&mesh, &key, &name).expect("an assignment"));
    assert_eq!(found.iter().map(|(addresses, _)| addresses.len()).sum::<usize>(), 600);
    mesh.apply(&slice(3, 3 * SLICE..4 * SLICE, &BTreeSet::from([160])));
    let changed = mesh.changed();
    let segments = |host: &str| {
        let begin = format!("~endpoint_assignments/segments base outbound|80||{host} ");
        changed.iter().filter(|line| line.starts_with(&begin)).count()
    };
    let own = segments("large.app.svc.cluster.local");
    assert_eq!((segments(HOST), own, changed.len()), (1, 1, 2), "{changed:#?}");
}

#[test]
fn the_import_of_a_service_with_node_local_traffic_has_the_endpoints_of_a_node() {
    let mesh = large_mesh_with(with_imports(), 6, &(service(", internalTrafficPolicy: Local") + IMPORT));
    let proxy = mesh.connect(client("on-1", 1));
    let name = "outbound|80||large.app.svc.clusterset.local";
    let found = addresses(&assignment(&mesh, &proxy, name).expect("an assignment"));
    assert_eq!(found.into_iter().flat_map(|(addresses, _)| addresses).collect::<Vec<_>>(), [address(1), address(4)]);
}

#[test]
fn work_for_an_endpoint_does_not_depend_on_their_number() {
    for others in ["", ENTRY] {
        assert_same_work([400, 1600], |endpoints| {
            let mesh = large_mesh_with(GraphOptions::default(), endpoints, &(service("") + others));
            for proxy in 0..20 {
                mesh.connect(client(&format!("client-{proxy}"), 0));
            }
            work_for_endpoints(&mesh)
        });
    }
}

#[test]
fn an_endpoint_of_a_large_service_changes_one_segment_at_its_waypoint() {
    const VIP: &str = "inbound-vip|80|http|large.app.svc.cluster.local";
    let mut mesh = large_mesh_with(ambient(), 600, &(service("") + WAYPOINT));
    let key = mesh.connect(waypoint());
    let served = |mesh: &TestGraph| {
        let found = addresses(&assignment(mesh, &key, VIP).expect("an assignment"));
        found.into_iter().flat_map(|(addresses, _)| addresses).collect::<BTreeSet<_>>()
    };
    assert_eq!(served(&mesh), (0..600).map(address).collect());
    mesh.changed();
    mesh.apply(&slice(3, 3 * SLICE..4 * SLICE, &BTreeSet::from([160])));
    let changed = mesh.changed();
    let segments = |name: &str| changed.iter().filter(|line| line.contains(&format!(" {name} "))).count();
    assert_eq!((segments(VIP), segments(NAME), changed.len()), (1, 1, 2), "{changed:#?}");
    mesh.apply(&slice(3, (3 * SLICE..4 * SLICE).filter(|number| *number != 161), &BTreeSet::new()));
    assert!(!served(&mesh).contains(&address(161)));

    // Endpoints on other nodes are not used.
    mesh.apply(&service(", internalTrafficPolicy: Local"));
    assert_eq!(served(&mesh), BTreeSet::new());
    mesh.apply(&service(""));
    assert_eq!(served(&mesh).len(), 599);
    mesh.delete(Kind::Namespace, "", "app");
    assert_eq!(assignment(&mesh, &key, VIP), None);
}

#[test]
fn work_for_an_endpoint_at_its_waypoint_does_not_depend_on_their_number() {
    assert_same_work([400, 1600], |endpoints| {
        let mesh = large_mesh_with(ambient(), endpoints, &(service("") + WAYPOINT));
        mesh.connect(waypoint());
        work_for_endpoints(&mesh)
    });
}

#[test]
fn work_for_a_selected_workload_does_not_depend_on_their_number() {
    let key = |host: &str| sluice_model::ServiceKey { namespace: "app".into(), host: host.into() };
    let service_key = key("large.app.svc.cluster.local");
    for (objects, large) in [
        (service(""), vec![service_key.clone()]),
        (SELECTING_ENTRY.to_owned(), vec![key("selecting.example")]),
        (service("") + SELECTING_ENTRY, vec![service_key, key("selecting.example")]),
    ] {
        assert_same_work([500, 2000], |workloads| {
            let entries: String = (0..workloads).map(|number| workload_entry(number, "v1")).collect();
            let mesh = large_mesh_with(GraphOptions::default(), 100, &(objects.clone() + &entries));
            for key in &large {
                assert_eq!(mesh.get(&mesh.handles.endpoints, key), None, "{key:?} has chunks");
            }
            for proxy in 0..20 {
                mesh.connect(client(&format!("client-{proxy}"), 0));
            }
            let before = processed(&mesh);
            for number in 100..110 {
                mesh.apply(&workload_entry(number, "v2"));
                mesh.delete(Kind::WorkloadEntry, "app", &format!("vm-{}", number + 20));
            }
            processed(&mesh) - before
        });
    }
}

#[test]
fn selected_workloads_are_endpoints_beside_those_of_slices() {
    let entries: String = (0..300).map(|number| workload_entry(number, "v1")).collect();
    let mut mesh = large_mesh_with(GraphOptions::default(), 300, &(service("") + SELECTING_ENTRY + &entries));
    let key = ProxyKey(client("one", 0).id);
    let sums = |mesh: &TestGraph, name: &str| {
        let groups = addresses(&assignment(mesh, &key, name).expect("an assignment"));
        groups.into_iter().fold((0, 0), |(number, weight), (addresses, of)| (number + addresses.len(), weight + of))
    };
    const SELECTING: &str = "outbound|80||selecting.example";
    // Weights are 0, which counts as 1, 1 and 2.
    assert_eq!(sums(&mesh, NAME), (600, 300 + 400));
    assert_eq!(sums(&mesh, SELECTING), (1200, 2 * 700), "it has two addresses, and selects pods too");

    mesh.apply(&workload_entry(7, "v2"));
    let changed = mesh.changed();
    let segments = |name: &str| {
        let begin = format!("~endpoint_assignments/segments base {name} ");
        changed.iter().filter(|line| line.starts_with(&begin)).count()
    };
    assert_eq!((segments(NAME), segments(SELECTING), changed.len()), (1, 1, 2), "{changed:#?}");
    mesh.delete(Kind::WorkloadEntry, "app", "vm-7");
    assert_eq!((sums(&mesh, NAME), sums(&mesh, SELECTING)), ((599, 699), (1198, 2 * 699)));
    // A workload has targets of its ServiceEntry whatever the number of endpoints.
    let own = mesh.connect(sidecar("app", "vm-8", "10.3.0.8", &[]));
    let targets = mesh.get(&mesh.handles.service_targets, &own).unwrap_or_default();
    assert!(targets.iter().any(|target| *target.service.host.0 == *"selecting.example"), "{targets:?}");
}

#[test]
fn a_service_entry_with_the_host_of_a_large_service_has_its_own_clients() {
    let private = service("").replace("app}", "app, annotations: {networking.istio.io/exportTo: .}}");
    for (service, is_private, node_local) in [
        (service(""), false, false),
        (private.clone(), true, false),
        (private.replacen("ports:", "internalTrafficPolicy: Local, ports:", 1), true, true),
    ] {
        // The ServiceEntry has a port more, and lacks one.
        let service = service.replace("port: 80}", "port: 80}, {name: http-other, port: 81}");
        let entry = ENTRY.replace("HTTP}", "HTTP}, {number: 82, name: http-more, protocol: HTTP}");
        let mut mesh = large_mesh_with(GraphOptions::default(), 600, &(service + &entry));
        let key = sluice_model::ServiceKey { namespace: "app".into(), host: "large.app.svc.cluster.local".into() };
        assert_eq!(mesh.get(&mesh.handles.endpoints, &key), None, "it has chunks");
        let own = ProxyKey(client("one", 0).id);
        let other = mesh.connect(sidecar("other", "two", "10.9.1.1", &[]));
        let far = mesh.connect(sidecar("far", "three", "10.9.1.2", &[]));
        let served = |mesh: &TestGraph, proxy: &ProxyKey, port: u16| {
            let name = format!("outbound|{port}||large.app.svc.cluster.local");
            assignment(mesh, proxy, &name)
                .map(|found| addresses(&found).into_iter().map(|(addresses, _)| addresses.len()).sum::<usize>())
        };
        let all = if node_local { 200 } else { 600 };
        let everywhere = (!is_private).then_some(600);
        let of = |mesh: &TestGraph, proxy: &ProxyKey| [80, 81, 82].map(|port| served(mesh, proxy, port));
        // Slices have the port of the name `http` only.
        let of_service = |addresses: Option<usize>| [addresses, addresses.map(|_| 0), None];
        let of_entry = [Some(1), None, Some(1)];
        assert_eq!(of(&mesh, &own), of_service(Some(all)));
        assert_eq!(of(&mesh, &other), of_entry);
        assert_eq!(of(&mesh, &far), if is_private { of_entry } else { of_service(everywhere) });

        mesh.changed();
        mesh.apply(&slice(3, 3 * SLICE..4 * SLICE, &BTreeSet::from([160])));
        let changed = mesh.changed();
        assert!(changed.iter().all(|line| line.starts_with("~endpoint_assignments/segments ")), "{changed:#?}");

        mesh.delete(Kind::ServiceEntry, "other", "large");
        for proxy in [&other, &far] {
            assert_eq!(of(&mesh, proxy), of_service(everywhere));
        }
        assert_eq!(of(&mesh, &own), of_service(Some(all)));
    }
}

#[test]
fn an_endpoint_of_node_local_traffic_concerns_its_node() {
    let mut mesh = large_mesh(60, ", internalTrafficPolicy: Local");
    let clients = [0, 1, 2].map(|node| mesh.connect(client(&format!("on-{node}"), node)));
    let idle = mesh.connect(client("idle", 7));
    for (node, proxy) in clients.iter().enumerate() {
        let found = addresses(&assignment(&mesh, proxy, NAME).expect("an assignment"));
        let expected: BTreeSet<String> = (0..60).filter(|number| number % 3 == node).map(address).collect();
        assert_eq!(found.iter().flat_map(|(addresses, _)| addresses.clone()).collect::<BTreeSet<_>>(), expected);
    }
    assert_eq!(addresses(&assignment(&mesh, &idle, NAME).expect("an assignment")), []);
    mesh.changed();
    mesh.apply(&slice(0, 0..SLICE, &BTreeSet::from([4])));
    let changed = mesh.changed();
    assert_eq!(changed.len(), 1, "{changed:#?}");
    let work = |mesh: &TestGraph, ready: usize| {
        let before = processed(mesh);
        mesh.apply(&slice(0, 0..SLICE, &BTreeSet::from([ready])));
        processed(mesh) - before
    };
    let few = work(&mesh, 7);
    for node in 10..90 {
        mesh.connect(client(&format!("far-{node}"), node));
    }
    let many = work(&mesh, 4);
    assert!(many <= few, "{few} records with few nodes, {many} with many");
}

#[test]
fn a_node_that_connects_costs_the_same_however_many_there_are() {
    let mesh = large_mesh(60, ", internalTrafficPolicy: Local");
    let connect = |nodes: Range<usize>| {
        let before = processed(&mesh);
        for node in nodes {
            mesh.connect(client(&format!("on-{node}"), node));
        }
        processed(&mesh) - before
    };
    connect(0..10);
    let (first, later) = (connect(10..60), connect(60..110));
    assert!(later <= first + first / 10, "{first} records, then {later}");
}

/// A reproducible sequence of numbers below `bound`.
fn random(state: &mut u64, bound: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 16).unwrap_or_default() % bound.max(1)
}

const RULES: [&str; 3] = [
    "subsets: [{name: v1, labels: {version: v1}}]",
    "trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5}}",
    "trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: '*', to: {'r/z0': 100}}]}}}",
];

#[test]
fn state_is_that_of_a_fresh_graph_whatever_the_number_of_endpoints() {
    const SLICES: usize = 7;
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let start = |texts: &BTreeMap<String, String>| {
        let mesh = TestGraph::with(ambient(), &texts.values().cloned().collect::<String>());
        for node in 0..3 {
            mesh.connect(client(&format!("on-{node}"), node));
        }
        mesh.connect(waypoint());
        mesh
    };
    let mut texts = BTreeMap::from([
        ("nodes".to_owned(), nodes()),
        ("pods".to_owned(), pods(0..SLICES * SLICE)),
        ("service".to_owned(), service("")),
        ("waypoint".to_owned(), WAYPOINT.to_owned()),
    ]);
    let mesh = start(&texts);
    // How often each service was in a list, and in chunks.
    let mut seen: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for round in 0..60 {
        let number = random(&mut seed, SLICES);
        let mut text = slice(
            number,
            // Addresses may be in several slices.
            (0..SLICES * SLICE)
                .filter(|at| at / SLICE == number || *at == 3)
                .filter(|_| random(&mut seed, 20) > 0)
                .collect::<Vec<_>>()
                .into_iter(),
            &BTreeSet::from([number * SLICE + random(&mut seed, SLICE)]),
        );
        if random(&mut seed, 6) == 0 {
            text = slice(number, 0..0, &BTreeSet::new());
        }
        texts.insert(format!("slice-{number}"), text.clone());
        mesh.apply(&text);
        match random(&mut seed, 18) {
            0 => {
                let text = service([", internalTrafficPolicy: Local", ""][random(&mut seed, 2)]);
                texts.insert("service".to_owned(), text.clone());
                mesh.apply(&text);
            }
            1 | 2 => {
                let rule = RULES[random(&mut seed, RULES.len())];
                let text = format!(
                    "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
                     metadata: {{name: large, namespace: app}}\nspec:\n  host: large.app.svc.cluster.local\n  {rule}\n"
                );
                texts.insert("rule".to_owned(), text.clone());
                mesh.apply(&text);
            }
            3 => {
                texts.remove("rule");
                mesh.delete(Kind::DestinationRule, "app", "large");
            }
            4 | 5 => {
                texts.insert("entry".to_owned(), ENTRY.to_owned());
                mesh.apply(ENTRY);
            }
            6 => {
                texts.remove("entry");
                mesh.delete(Kind::ServiceEntry, "other", "large");
            }
            7 | 15 | 16 => {
                // All workloads that the Service selects, or a part of them once.
                let few = SELECTING_ENTRY.replace("app: large", "app: large, version: v0").replace(", 10.0.2.2", "");
                let text = [SELECTING_ENTRY, &few][random(&mut seed, 2)].to_owned();
                texts.insert("selecting".to_owned(), text.clone());
                mesh.apply(&text);
            }
            8 => {
                texts.remove("selecting");
                mesh.delete(Kind::ServiceEntry, "app", "selecting");
            }
            9..12 => {
                let first = random(&mut seed, 8) * 20;
                for number in first..first + 40 {
                    let text = workload_entry(number, ["v0", "v1"][random(&mut seed, 2)]);
                    texts.insert(format!("vm-{number}"), text.clone());
                    mesh.apply(&text);
                }
            }
            12..15 => {
                let first = random(&mut seed, 6) * 20;
                for number in first..first + 100 {
                    if texts.remove(&format!("vm-{number}")).is_some() {
                        mesh.delete(Kind::WorkloadEntry, "app", &format!("vm-{number}"));
                    }
                }
            }
            _ => {}
        }
        if round % 3 == 2 {
            let fresh = start(&texts);
            let (expected, found) = (state(&fresh.engine, &fresh.handles), state(&mesh.engine, &mesh.handles));
            for host in ["large.app.svc.cluster.local", "selecting.example"] {
                let has = |collection: &str| {
                    expected.keys().any(|key| key.starts_with(&format!("{collection} ")) && key.contains(host))
                };
                for (collection, chunked) in [("endpoints", false), ("endpoint_chunks", true)] {
                    *seen.entry((host, chunked)).or_default() += usize::from(has(collection));
                }
            }
            for (key, value) in &expected {
                assert_eq!(Some(value), found.get(key), "round {round}: {key}");
            }
            let left: Vec<_> = found.keys().filter(|key| !expected.contains_key(*key)).collect();
            assert!(left.is_empty(), "round {round}: {left:?}");
            assert_eq!(mesh.engine.panics(), []);
        }
    }
    assert!(seen.values().all(|times| *times > 2), "{seen:?}");
}

#[test]
fn segment_names_are_unique() {
    let mesh = large_mesh(600, "");
    let snapshot = mesh.engine.snapshot();
    let rows = mesh.handles.segments.iter().flat_map(|of| snapshot.iter(of));
    let keys: Vec<&SegmentKey> =
        rows.map(|(key, _)| key).filter(|key| key.resource_type == ResourceType::Endpoint).collect();
    assert_eq!(keys.len(), keys.iter().collect::<BTreeSet<_>>().len());
    assert!(mesh.engine.metrics().collections.iter().all(|collection| collection.conflicts == 0));
}
