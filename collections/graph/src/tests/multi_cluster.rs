//! Multi-Cluster Services (S22).

use std::collections::BTreeSet;

use sluice_engine::Origin;
use sluice_model::gateway_api::GroupKind;
use sluice_model::{Kind, MultiClusterApi, ObjectKey, Service, ServiceKey, Text};
use sluice_parse::{parse_object, yaml};

use super::TestGraph;
use crate::{GraphOptions, MissingServiceExport, MultiClusterOptions, MultiClusterService, ServedKind};

const EAST: &str = "Kubernetes";
const WEST: &str = "west";

/// A Service with one endpoint in both clusters.
fn shop(options: Option<MultiClusterOptions>) -> TestGraph {
    let mesh = TestGraph::with(GraphOptions { multi_cluster: options, ..GraphOptions::default() }, "");
    for (cluster, ip) in [(EAST, "10.1.0.1"), (WEST, "10.2.0.1")] {
        apply(
            &mesh,
            cluster,
            &format!(
                "
apiVersion: v1
kind: Service
metadata: {{name: cart, namespace: shop}}
spec: {{clusterIP: 10.0.0.1, selector: {{app: cart}}, ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: cart-1, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]
"
            ),
        );
    }
    mesh
}

fn apply(mesh: &TestGraph, cluster: &str, text: &str) {
    mesh.engine.transaction(|tx| {
        for document in yaml::parse_documents(text, &yaml::Limits::default()) {
            let object = document.expect("yaml").value;
            let parsed = parse_object(&cluster.into(), "cluster.local", &object).expect("a known kind");
            mesh.handles.inputs.apply(tx, parsed, Origin::default());
        }
    });
}

fn delete(mesh: &TestGraph, cluster: &str, kind: Kind) {
    let key = ObjectKey::new(cluster, "shop", "cart");
    mesh.engine.transaction(|tx| mesh.handles.inputs.delete(tx, kind, key, Origin::default()));
}

fn export(mesh: &TestGraph, cluster: &str) {
    let object =
        "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceExport, metadata: {name: cart, namespace: shop}}";
    apply(mesh, cluster, object);
}

fn import(mesh: &TestGraph, cluster: &str, ips: &str) {
    let spec = format!("{{type: ClusterSetIP, ips: {ips}, ports: [{{port: 80}}]}}");
    let metadata = "{name: cart, namespace: shop}";
    let text = format!(
        "{{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceImport, metadata: {metadata}, spec: {spec}}}"
    );
    apply(mesh, cluster, &text);
}

fn key(domain: &str) -> ServiceKey {
    ServiceKey { namespace: "shop".into(), host: format!("cart.shop.svc.{domain}").as_str().into() }
}

fn service(mesh: &TestGraph, domain: &str) -> Option<Service> {
    mesh.get(&mesh.handles.services, &key(domain))
}

/// The clusters of the endpoints, and whether clients of other clusters may use them.
fn endpoints(mesh: &TestGraph, domain: &str) -> BTreeSet<(String, bool)> {
    let found = mesh.get(&mesh.handles.endpoints, &key(domain)).unwrap_or_default();
    found.iter().map(|endpoint| (endpoint.cluster.to_string(), !endpoint.cluster_local)).collect()
}

fn reach(east: bool, west: bool) -> BTreeSet<(String, bool)> {
    [(EAST.to_owned(), east), (WEST.to_owned(), west)].into()
}

#[test]
fn endpoints_of_a_cluster_without_an_export_are_for_its_own_clients() {
    let mesh = shop(Some(MultiClusterOptions::default()));
    assert_eq!(endpoints(&mesh, "cluster.local"), reach(false, false));
    export(&mesh, WEST);
    assert_eq!(endpoints(&mesh, "cluster.local"), reach(false, true));
    let declared = service(&mesh, "cluster.local").expect("the Service");
    assert_eq!((declared.cluster_local, declared.needs_export), (false, true));
    delete(&mesh, WEST, Kind::ServiceExport);
    assert_eq!(endpoints(&mesh, "cluster.local"), reach(false, false));
    import(&mesh, EAST, "[10.9.0.1]");
    assert_eq!(service(&mesh, "clusterset.local"), None, "there are no hosts of imports without their switch");
}

#[test]
fn exports_have_no_effect_without_service_discovery() {
    let mesh = shop(None);
    export(&mesh, WEST);
    import(&mesh, EAST, "[10.9.0.1]");
    assert_eq!(endpoints(&mesh, "cluster.local"), reach(true, true));
    assert!(service(&mesh, "cluster.local").is_some_and(|service| !service.needs_export));
    assert_eq!(service(&mesh, "clusterset.local"), None);
}

#[test]
fn import_declares_a_host_with_its_own_addresses() {
    let mesh = shop(Some(MultiClusterOptions { imported_hosts: true, cluster_local: false }));
    import(&mesh, EAST, "[10.9.0.2, 10.9.0.1]");
    let imported = service(&mesh, "clusterset.local").expect("the import");
    assert_eq!(imported.addresses_for(EAST), ["10.9.0.1", "10.9.0.2"].map(Text::from));
    assert_eq!((imported.name.as_str(), imported.ports[0].port), ("cart", 80));
    assert_eq!(endpoints(&mesh, "clusterset.local"), reach(false, false));
    export(&mesh, WEST);
    assert_eq!(endpoints(&mesh, "clusterset.local"), reach(false, true));

    // Another cluster imports it with other addresses.
    import(&mesh, WEST, "[10.9.1.1]");
    let imported = service(&mesh, "clusterset.local").expect("the import");
    assert_eq!(imported.addresses_for(WEST), ["10.9.1.1"].map(Text::from));
    assert_eq!(imported.addresses_for(EAST).len(), 2);

    // Ports are those of the Service, of any cluster.
    delete(&mesh, EAST, Kind::Service);
    assert!(service(&mesh, "clusterset.local").is_some(), "the Service exists in the other cluster");
    delete(&mesh, WEST, Kind::Service);
    assert_eq!(service(&mesh, "clusterset.local"), None);
}

#[test]
fn import_without_addresses_declares_no_host() {
    let mesh = shop(Some(MultiClusterOptions { imported_hosts: true, cluster_local: false }));
    import(&mesh, EAST, "[]");
    assert_eq!(service(&mesh, "clusterset.local"), None);
    import(&mesh, EAST, "[10.9.0.1]");
    assert!(service(&mesh, "clusterset.local").is_some());
    import(&mesh, EAST, "[nowhere]");
    assert_eq!(service(&mesh, "clusterset.local"), None);
}

#[test]
fn hosts_in_the_domain_of_the_cluster_can_be_limited_to_it() {
    let mesh = shop(Some(MultiClusterOptions { imported_hosts: true, cluster_local: true }));
    import(&mesh, EAST, "[10.9.0.1]");
    for cluster in [EAST, WEST] {
        export(&mesh, cluster);
    }
    assert_eq!(endpoints(&mesh, "cluster.local"), reach(false, false));
    assert_eq!(endpoints(&mesh, "clusterset.local"), reach(true, true));
    assert!(service(&mesh, "cluster.local").is_some_and(|service| service.cluster_local));
    assert!(service(&mesh, "clusterset.local").is_some_and(|service| !service.cluster_local));
}

#[test]
fn exported_and_imported_services_are_listed() {
    let listed = |mesh: &TestGraph, cluster: &str| {
        mesh.get(&mesh.handles.multi_cluster_services, &ObjectKey::new(cluster, "shop", "cart"))
    };
    let hosts = |hosts: &[(&str, bool)]| hosts.iter().map(|(domain, all)| (key(domain).host, *all)).collect();
    let mesh = shop(Some(MultiClusterOptions { imported_hosts: true, cluster_local: true }));
    assert_eq!(listed(&mesh, WEST), None);
    export(&mesh, WEST);
    let exported = MultiClusterService {
        is_exported: true,
        hosts: hosts(&[("cluster.local", false)]),
        ..MultiClusterService::default()
    };
    assert_eq!(listed(&mesh, WEST), Some(exported));
    import(&mesh, WEST, "[10.9.1.2, 10.9.1.1]");
    import(&mesh, EAST, "[]");
    let both = MultiClusterService {
        is_exported: true,
        is_imported: true,
        address: "10.9.1.1".into(),
        hosts: hosts(&[("cluster.local", false), ("clusterset.local", true)]),
    };
    assert_eq!(listed(&mesh, WEST), Some(both));
    let pending = MultiClusterService { is_imported: true, ..MultiClusterService::default() };
    assert_eq!(listed(&mesh, EAST), Some(pending.clone()), "the import has no address yet");
    delete(&mesh, WEST, Kind::ServiceExport);
    let imported = MultiClusterService { address: "10.9.1.1".into(), ..pending };
    assert_eq!(listed(&mesh, WEST), Some(imported));
    delete(&mesh, WEST, Kind::ServiceImport);
    assert_eq!(listed(&mesh, WEST), None);

    let disabled = shop(None);
    export(&disabled, WEST);
    assert_eq!(listed(&disabled, WEST), None);
}

#[test]
fn missing_service_exports_are_created() {
    let missing = |mesh: &TestGraph, cluster: &str, namespace: &str| {
        mesh.get(&mesh.handles.missing_service_exports, &ObjectKey::new(cluster, namespace, "cart"))
    };
    let serve = |mesh: &TestGraph, cluster: &str| {
        let kind = ServedKind { cluster: cluster.into(), kind: Kind::ServiceExport };
        mesh.handles.inputs.served_kinds.set(kind, ());
        mesh.engine.flush();
    };
    let service = |namespace: &str, uid: &str| {
        format!("{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: {namespace}, uid: '{uid}'}}}}")
    };
    let api = MultiClusterApi { group: "net.gke.io".into(), version: "v1".into() };
    let options = GraphOptions { exports_services: true, multi_cluster_api: api, ..GraphOptions::default() };
    let mesh = TestGraph::with(options, "");
    apply(&mesh, EAST, &service("shop", "u1"));
    apply(&mesh, EAST, &service("kube-system", "u2"));
    apply(&mesh, WEST, &service("shop", "u3"));
    assert_eq!(missing(&mesh, EAST, "shop"), None, "the cluster does not serve the kind");
    serve(&mesh, EAST);
    serve(&mesh, WEST);
    let wanted =
        |uid: &str| Some(MissingServiceExport { api_version: "net.gke.io/v1".into(), service_uid: uid.into() });
    assert_eq!(missing(&mesh, EAST, "shop"), wanted("u1"));
    assert_eq!(missing(&mesh, EAST, "kube-system"), None, "the namespace is limited to its cluster");
    export(&mesh, EAST);
    assert_eq!(missing(&mesh, EAST, "shop"), None);
    delete(&mesh, EAST, Kind::ServiceExport);
    assert_eq!(missing(&mesh, EAST, "shop"), wanted("u1"));
    delete(&mesh, EAST, Kind::Service);
    assert_eq!(missing(&mesh, EAST, "shop"), None);

    assert_eq!(missing(&mesh, WEST, "shop"), None, "the remote cluster does not request it");
    let namespace = |clusters: &str| {
        let annotations = format!("{{topology.istio.io/controlPlaneClusters: '{clusters}'}}");
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: istio-system, annotations: {annotations}}}}}")
    };
    apply(&mesh, WEST, &namespace("other"));
    assert_eq!(missing(&mesh, WEST, "shop"), None);
    apply(&mesh, WEST, &namespace("other, Kubernetes"));
    assert_eq!(missing(&mesh, WEST, "shop"), wanted("u3"));

    let settings = "{serviceSettings: [{hosts: ['*.shop.svc.cluster.local'], settings: {clusterLocal: true}}]}";
    let config_map =
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: \"";
    apply(&mesh, EAST, &format!("{config_map}{settings}\"}}}}"));
    assert_eq!(missing(&mesh, WEST, "shop"), None);

    let disabled = TestGraph::new("");
    apply(&disabled, EAST, &service("shop", "u1"));
    serve(&disabled, EAST);
    assert_eq!(missing(&disabled, EAST, "shop"), None);
}

#[test]
fn imports_that_routes_refer_to_are_of_the_configured_group() {
    let group = |api: &str, group: &str| {
        let group = GroupKind { group: group.into(), kind: "ServiceImport".into() };
        MultiClusterApi { group: api.into(), version: "v1".into() }.is_service_import(&group)
    };
    assert!(group("net.gke.io", "net.gke.io") && !group("net.gke.io", "multicluster.x-k8s.io"));
}

#[test]
fn pod_serves_the_import_of_its_service() {
    let mesh = shop(Some(MultiClusterOptions { imported_hosts: true, cluster_local: false }));
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: cart-1, namespace: shop, labels: {app: cart}}, \
               spec: {containers: [{name: a}]}, status: {podIP: 10.1.0.1}}";
    apply(&mesh, EAST, pod);
    mesh.connect(super::sidecar("shop", "cart-1", "10.1.0.1", &[]));
    let targets = || -> Vec<String> {
        let now = mesh.engine.snapshot();
        let all = now.iter(&mesh.handles.service_targets);
        all.flat_map(|(_, targets)| targets.iter().map(|target| target.service.host.to_string()).collect::<Vec<_>>())
            .collect()
    };
    let own = "cart.shop.svc.cluster.local";
    assert_eq!(targets(), [own]);
    import(&mesh, EAST, "[10.9.0.1]");
    assert_eq!(targets(), [own, "cart.shop.svc.clusterset.local"]);
    delete(&mesh, EAST, Kind::ServiceImport);
    import(&mesh, WEST, "[10.9.0.1]");
    assert_eq!(targets(), [own], "another cluster imports it");
}
