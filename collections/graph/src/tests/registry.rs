use sluice_model::{ExportTo, Health, Kind, Labels, Proxy, ServiceKey, TlsMode};

use super::{TestGraph, sidecar};

const WEB: &str = "
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: app}
spec:
  clusterIP: 10.0.0.1
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: http}
  - {name: tcp-raw, port: 90, targetPort: 9000}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: app, labels: {app: web, security.istio.io/tlsMode: istio}}
spec:
  nodeName: n1
  serviceAccountName: web
  containers: [{ports: [{name: http, containerPort: 8080}]}]
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-a, namespace: app, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp-raw, port: 9000}]
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: web-1, namespace: app}}
- {addresses: [10.1.0.2], conditions: {ready: false, serving: false, terminating: false}, targetRef: {kind: Pod, name: web-2, namespace: app}}
";

fn web() -> ServiceKey {
    ServiceKey { namespace: "app".into(), host: "web.app.svc.cluster.local".into() }
}

#[test]
fn endpoints_join_slices_pods_and_nodes() {
    let mesh = TestGraph::new(WEB);
    let endpoints = mesh.get(&mesh.handles.endpoints, &web()).expect("endpoints");
    // The second address is ignored until its pod exists.
    let shown: Vec<_> = endpoints.iter().map(|e| (e.addresses[0].as_str(), e.port, e.port_name.as_str())).collect();
    assert_eq!(shown, [("10.1.0.1", 8080, "http"), ("10.1.0.1", 9000, "tcp-raw")]);
    let endpoint = &endpoints[0];
    assert_eq!(endpoint.service_account, *"spiffe://cluster.local/ns/app/sa/web");
    assert_eq!((endpoint.locality.region.as_str(), endpoint.locality.zone.as_str()), ("r1", "z1"));
    assert_eq!((endpoint.tls_mode, endpoint.health), (TlsMode::Istio, Health::Healthy));
    assert_eq!(endpoint.labels.get("topology.istio.io/cluster").map(|text| text.as_str()), Some("Kubernetes"));
}

#[test]
fn a_pod_change_touches_its_service_only() {
    let mut mesh = TestGraph::new(WEB);
    mesh.apply("apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: app}\nspec: {clusterIP: 10.0.0.2, ports: [{port: 80}]}\n");
    mesh.changed();
    mesh.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: app, labels: {app: web}}
spec: {nodeName: n1}
status: {phase: Running, podIP: 10.1.0.2}
",
    );
    assert_eq!(mesh.changed(), ["~endpoints app/web.app.svc.cluster.local"]);
    let endpoints = mesh.get(&mesh.handles.endpoints, &web()).expect("endpoints");
    assert_eq!(endpoints.last().map(|e| (e.health, e.addresses[0].as_str())), Some((Health::Unhealthy, "10.1.0.2")));
    // Writing an equal object again changes nothing.
    mesh.apply(WEB);
    assert_eq!(mesh.changed(), Vec::<String>::new());
}

#[test]
fn a_proxy_is_part_of_the_services_that_select_its_pod() {
    let mesh = TestGraph::new(WEB);
    let known = mesh.connect(sidecar("app", "web-1", "10.1.0.1", &[]));
    let targets = mesh.get(&mesh.handles.service_targets, &known).expect("targets");
    let shown: Vec<_> = targets.iter().map(|t| (t.port.port, t.target_port)).collect();
    assert_eq!(shown, [(80, 8080), (90, 9000)]);
    // Until its pod exists, the labels and ports of the proxy's metadata apply.
    let mut early = sidecar("app", "web-9", "10.1.0.9", &[("app", "web")]);
    early.pod_ports = vec![("http".into(), 7070, "TCP".into())];
    let early = mesh.connect(early);
    let targets = mesh.get(&mesh.handles.service_targets, &early).expect("targets");
    assert_eq!(targets.iter().map(|t| t.target_port).collect::<Vec<_>>(), [7070, 9000]);
}

#[test]
fn deleting_everything_leaves_nothing() {
    let mesh = TestGraph::new(WEB);
    for (kind, namespace, name) in [
        (Kind::Service, "app", "web"),
        (Kind::Pod, "app", "web-1"),
        (Kind::EndpointSlice, "app", "web-a"),
        (Kind::Node, "", "n1"),
    ] {
        mesh.delete(kind, namespace, name);
    }
    let snapshot = mesh.engine.snapshot();
    assert_eq!(snapshot.len(&mesh.handles.services) + snapshot.len(&mesh.handles.endpoints), 0);
    assert!(mesh.handles.resources.iter().all(|resources| snapshot.is_empty(resources)));
}

#[test]
fn a_service_entry_selects_pods_and_workload_entries() {
    let mesh = TestGraph::new(WEB);
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: app}
spec: {address: 192.0.2.7, labels: {app: web}, ports: {http: 7000}, serviceAccount: vm, locality: r2/z2}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: both, namespace: app}
spec:
  hosts: [both.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: web}}
",
    );
    let both = ServiceKey { namespace: "app".into(), host: "both.example".into() };
    let endpoints = mesh.get(&mesh.handles.endpoints, &both).expect("endpoints");
    let shown: Vec<_> = endpoints.iter().map(|e| (e.addresses[0].as_str(), e.port)).collect();
    // The pod has a container port named http.
    assert_eq!(shown, [("10.1.0.1", 8080), ("192.0.2.7", 7000)]);
    // The Service selects the WorkloadEntry as well: its http port by name, the other by number.
    let endpoints = mesh.get(&mesh.handles.endpoints, &web()).expect("endpoints");
    let vm: Vec<_> = endpoints.iter().filter(|e| e.addresses[0] == "192.0.2.7").map(|e| e.port).collect();
    assert_eq!(vm, [7000, 9000]);
}

fn mesh_map(mesh: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: istio, namespace: istio-system}}, data: {{mesh: '{mesh}'}}}}"
    )
}

#[test]
fn an_invalid_mesh_config_leaves_the_last_valid_one() {
    let mesh = TestGraph::new(&mesh_map("trustDomain: first"));
    let now = || mesh.get(&mesh.handles.mesh, &()).expect("mesh").trust_domain;
    assert_eq!(now(), *"first");
    mesh.write(&mesh_map("{trustDomain: second, connectTimeout: soon}"), true);
    assert_eq!(now(), *"first");
    assert_eq!(mesh.engine.snapshot().len(&mesh.handles.rejects), 1);
    mesh.apply(&mesh_map("trustDomain: third"));
    assert_eq!(now(), *"third");
    assert!(mesh.engine.snapshot().is_empty(&mesh.handles.rejects));
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(now(), *"cluster.local");
}

#[test]
fn objects_outside_discovery_selectors_have_no_effect() {
    let mesh = TestGraph::new(WEB);
    // The namespace of the control plane is one as others are.
    mesh.apply(&WEB.replace("namespace: app", "namespace: istio-system"));
    let proxy = mesh.connect(sidecar("app", "web-1", "10.1.0.1", &[]));
    let labelled = || mesh.get(&mesh.handles.proxies, &proxy).expect("a proxy").labels.contains_key("app");
    let system = ServiceKey { namespace: "istio-system".into(), host: "web.istio-system.svc.cluster.local".into() };
    let exists = || mesh.get(&mesh.handles.services, &web()).is_some();
    let exists_in_system = || mesh.get(&mesh.handles.services, &system).is_some();
    assert!(exists() && exists_in_system() && labelled());
    mesh.apply(&mesh_map("discoverySelectors: [{matchLabels: {mesh: here}}]"));
    assert!(!exists() && !exists_in_system());
    assert!(!labelled(), "its pod is not read");
    mesh.apply("{apiVersion: v1, kind: Namespace, metadata: {name: app, labels: {mesh: here}}}");
    assert!(exists() && !exists_in_system() && labelled());
    assert_eq!(mesh.get(&mesh.handles.endpoints, &web()).map(|endpoints| endpoints.len()), Some(2));
}

#[test]
fn endpoints_of_an_entry_that_selects_a_pod_and_a_workload_entry_have_the_health_of_each() {
    let mesh = outside();
    let chosen = ServiceKey { namespace: "app".into(), host: "chosen.example".into() };
    let endpoints = mesh.get(&mesh.handles.endpoints, &chosen).expect("endpoints");
    let mut found: Vec<_> = endpoints.iter().map(|it| (it.addresses[0].as_str(), it.health)).collect();
    found.sort_unstable();
    assert_eq!(found, [("10.1.0.1", Health::Healthy), ("192.0.2.7", Health::Unknown)]);
}

#[test]
fn a_relabelled_pod_is_found_by_its_new_labels() {
    let mesh = TestGraph::new(WEB);
    let proxy = mesh.connect(sidecar("app", "web-1", "10.1.0.1", &[]));
    mesh.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: app, labels: {app: other}}
spec: {nodeName: n1}
status: {phase: Running, podIP: 10.1.0.1}
",
    );
    assert_eq!(mesh.get(&mesh.handles.service_targets, &proxy).map(|targets| targets.len()), Some(0));
}

#[test]
fn labels_that_are_set_for_a_proxy_are_added_to_those_of_its_pod() {
    let mesh = TestGraph::new(WEB);
    let set = |name: &str, value: &str| (name.into(), value.into());
    let static_labels: Labels = [set("tier", "front"), set("app", "other")].into_iter().collect();
    let key = mesh.connect(Proxy { static_labels, ..sidecar("app", "web-1", "10.1.0.1", &[]) });
    let proxy = mesh.get(&mesh.handles.proxies, &key).expect("a proxy");
    let label = |name: &str| proxy.labels.get(name).map(|value| value.as_str());
    assert_eq!((label("tier"), label("app")), (Some("front"), Some("web")), "those of the pod take precedence");
}

/// A ServiceEntry with an address, one with a selector, a WorkloadEntry that it selects, and sidecars.
const OUTSIDE: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: listed, namespace: app}
spec:
  hosts: [listed.example]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 192.0.2.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: chosen, namespace: app}
spec:
  hosts: [chosen.example]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: app}
spec: {address: 192.0.2.7, labels: {app: web}, serviceAccount: vm}
";

fn outside() -> TestGraph {
    let mut mesh = TestGraph::new(WEB);
    mesh.apply(OUTSIDE);
    mesh.connect(sidecar("other", "client", "10.9.0.1", &[]));
    mesh.changed();
    mesh
}

#[test]
fn an_address_of_a_service_entry_touches_its_endpoints_alone() {
    let mut mesh = outside();
    mesh.apply(&OUTSIDE.replace("192.0.2.1}", "192.0.2.2}"));
    assert_eq!(
        mesh.changed(),
        ["~endpoint_assignments base outbound|80||listed.example", "~endpoints app/listed.example"]
    );
}

#[test]
fn an_address_of_a_service_entry_is_all_of_its_endpoints_once_more() {
    let mesh = TestGraph::new(
        &OUTSIDE.replace("hosts: [listed.example]", "hosts: [listed.example]\n  addresses: [10.7.0.1, 10.7.0.2]"),
    );
    let listed = ServiceKey { namespace: "app".into(), host: "listed.example".into() };
    let endpoints = mesh.get(&mesh.handles.endpoints, &listed).expect("endpoints");
    assert_eq!(endpoints.iter().map(|endpoint| endpoint.addresses[0].as_str()).collect::<Vec<_>>(), ["192.0.2.1"; 2]);
}

#[test]
fn a_workload_entry_touches_the_services_that_select_it() {
    let mut mesh = outside();
    // The services have no endpoint with its identity yet, so their clusters change too.
    mesh.apply(&OUTSIDE.replace("serviceAccount: vm", "serviceAccount: vm2"));
    let changed = mesh.changed();
    let selected = ["chosen.example", "web.app.svc.cluster.local"];
    assert!(
        !changed.is_empty() && changed.iter().all(|line| selected.iter().any(|it| line.ends_with(it))),
        "{changed:#?}"
    );
    // It has no port with the name of the Service's first target port.
    mesh.apply(&OUTSIDE.replace("serviceAccount: vm", "serviceAccount: vm2, weight: 3"));
    assert_eq!(
        mesh.changed(),
        [
            "~endpoint_assignments base outbound|80||chosen.example",
            "~endpoint_assignments base outbound|90||web.app.svc.cluster.local",
            "~endpoints app/chosen.example",
            "~endpoints app/web.app.svc.cluster.local",
        ]
    );
}

#[test]
fn a_pod_that_loses_its_label_leaves_what_selects_it() {
    let mut mesh = outside();
    let pod = WEB.split("---").find(|object| object.contains("kind: Pod")).expect("a pod");
    mesh.apply(&pod.replace("app: web, security", "app: none, security"));
    assert_eq!(
        mesh.changed(),
        [
            "~clusters/outbound base outbound|80||chosen.example",
            "~endpoint_assignments base outbound|80||chosen.example",
            "~endpoint_assignments base outbound|80||web.app.svc.cluster.local",
            "~endpoint_assignments base outbound|90||web.app.svc.cluster.local",
            "~endpoints app/chosen.example",
            "~endpoints app/web.app.svc.cluster.local",
        ]
    );
}

#[test]
fn the_locality_of_a_node_touches_the_endpoints_on_it() {
    let mut mesh = outside();
    mesh.apply("{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: r2}}}");
    assert_eq!(
        mesh.changed(),
        [
            "~endpoint_assignments base outbound|80||chosen.example",
            "~endpoint_assignments base outbound|80||web.app.svc.cluster.local",
            "~endpoint_assignments base outbound|90||web.app.svc.cluster.local",
            "~endpoints app/chosen.example",
            "~endpoints app/web.app.svc.cluster.local",
        ]
    );
    mesh.apply("{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/region: r2}}}");
    assert_eq!(mesh.changed(), Vec::<String>::new());
}

#[test]
fn the_first_matching_policy_limits_the_visibility_of_a_service_entry() {
    let policies = "{matchingRules: [{namespaceSelector: {matchLabels: {reach: mesh}}}], visibility: PUBLIC}, \
                    {matchingRules: [{namespaceSelector: {matchLabels: {a: x}}}, {namespaceSelector: {matchLabels: {b: x}}}], \
                    visibility: NONE}";
    let mesh = TestGraph::new(&mesh_map(&format!(
        "{{serviceEntryVisibility: {{applyToSidecars: true, defaultVisibility: NAMESPACE, policies: [{policies}]}}}}"
    )));
    for (namespace, labels) in [("wide", "reach: mesh"), ("half", "a: x"), ("shut", "a: x, b: x")] {
        mesh.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, labels: {{{labels}}}}}}}"
        ));
        mesh.apply(&OUTSIDE.replace("namespace: app", &format!("namespace: {namespace}")));
    }
    let export_to = |namespace: &str| {
        let key = ServiceKey { namespace: namespace.into(), host: "listed.example".into() };
        mesh.get(&mesh.handles.services, &key).expect("a service").export_to
    };
    assert_eq!(export_to("wide"), ExportTo::All);
    assert_eq!(export_to("half"), ExportTo::Namespaces(["half".into()].into()));
    assert_eq!(export_to("shut"), ExportTo::None);
}
