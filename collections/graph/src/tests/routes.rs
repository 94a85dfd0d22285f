//! The segments of route tables that a change touches.

use prost::Message;
use sluice_engine::Origin;
use sluice_model::{Kind, Layer, ProxyType, Resource, ResourceType, View};
use sluice_parse::{parse_object, yaml};
use sluice_proto::envoy::config::route::v3::VirtualHost;

use super::{TestGraph, sidecar};

const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}], selector: {app: cart}}
---
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: shop}
spec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}], selector: {app: pay}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
";

const ROUTE: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart]
  http: [{timeout: 1s, route: [{destination: {host: cart}}]}]
";

impl TestGraph {
    /// The changes in route tables since the last call: `+`, `~` or `-`, layer, table and segment.
    fn changed_segments(&mut self) -> Vec<String> {
        let Some(batch) = self.feed.try_next() else { return Vec::new() };
        let mut lines = Vec::new();
        for segments in &self.handles.segments {
            for event in batch.events(segments).filter(|event| event.key.resource_type == ResourceType::Route) {
                let sign = match (&event.old, &event.new) {
                    (None, _) => '+',
                    (_, None) => '-',
                    _ => '~',
                };
                let hidden = event.new.as_ref().is_some_and(|new| **new == Resource::Hidden);
                lines.push(format!(
                    "{sign}{} {} {}{}",
                    layer_name(&event.key.layer),
                    event.key.name,
                    event.key.segment,
                    if hidden { " hidden" } else { "" }
                ));
            }
        }
        lines.sort();
        lines
    }

    /// Domains of a virtual host in the base layer.
    fn domains(&self, table: &str, name: &str) -> Vec<String> {
        let snapshot = self.engine.snapshot();
        for segments in &self.handles.segments {
            for (key, segment) in snapshot.iter(segments) {
                if key.layer.view == View::Base
                    && key.name == *table
                    && key.segment == *name
                    && let Resource::Encoded(bytes) = segment
                {
                    return VirtualHost::decode(bytes.clone()).expect("a virtual host").domains;
                }
            }
        }
        Vec::new()
    }
}

fn layer_name(layer: &Layer) -> String {
    match &layer.view {
        View::Base => "base".into(),
        View::Namespace(namespace) => namespace.to_string(),
        View::Selected { namespace, .. } => format!("{namespace}+labels"),
        View::Sidecar { scope, .. } => scope.to_string(),
        View::Workload(_) => "router".into(),
    }
}

/// The shop with one connected sidecar, without pending changes.
fn shop() -> TestGraph {
    let mut mesh = TestGraph::new(SHOP);
    mesh.connect(sidecar("shop", "client", "10.1.0.9", &[("app", "client")]));
    let first = mesh.changed_segments();
    let expect = [
        "+base 80 ",
        "+base 80 allow_any",
        "+base 80 cart.shop.svc.cluster.local:80",
        "+base 80 pay.shop.svc.cluster.local:80",
        "+shop 80 ",
        "+shop 80 allow_any",
        "+shop 80 cart.shop.svc.cluster.local:80",
        "+shop 80 pay.shop.svc.cluster.local:80",
    ];
    assert_eq!(first, expect);
    mesh
}

#[test]
fn a_virtual_service_touches_the_virtual_hosts_of_its_host() {
    let mut mesh = shop();
    mesh.apply(ROUTE);
    let touched = ["~base 80 cart.shop.svc.cluster.local:80", "~shop 80 cart.shop.svc.cluster.local:80"];
    assert_eq!(mesh.changed_segments(), touched);
    mesh.apply(&ROUTE.replace("timeout: 1s", "timeout: 2s"));
    assert_eq!(mesh.changed_segments(), touched);
    mesh.apply(&ROUTE.replace("timeout: 1s", "timeout: 2000ms"));
    assert_eq!(mesh.changed_segments(), [""; 0]);
    mesh.delete(Kind::VirtualService, "shop", "cart");
    assert_eq!(mesh.changed_segments(), touched);
}

#[test]
fn a_private_virtual_service_touches_its_namespace_alone() {
    let mut mesh = shop();
    let private = ROUTE
        .replace("namespace: shop", "namespace: blog")
        .replace("hosts: [cart]", "hosts: [cart.shop.svc.cluster.local]\n  exportTo: ['.']");
    mesh.apply(&private);
    assert_eq!(mesh.changed_segments(), ["+blog 80 ", "+blog 80 allow_any", "+blog 80 cart.shop.svc.cluster.local:80"]);
}

#[test]
fn a_new_service_touches_no_other_virtual_host() {
    let mut mesh = shop();
    let add = |port: u16| {
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: ship, namespace: shop}}
spec: {{clusterIP: 10.0.0.3, ports: [{{name: http, port: {port}}}], selector: {{app: ship}}}}"
        )
    };
    mesh.apply(&add(80));
    assert_eq!(
        mesh.changed_segments(),
        ["+base 80 ship.shop.svc.cluster.local:80", "+shop 80 ship.shop.svc.cluster.local:80"]
    );
    mesh.apply(&add(81));
    assert_eq!(
        mesh.changed_segments(),
        [
            "+base 81 ",
            "+base 81 allow_any",
            "+base 81 ship.shop.svc.cluster.local:81",
            "+shop 81 ",
            "+shop 81 allow_any",
            "+shop 81 ship.shop.svc.cluster.local:81",
            "-base 80 ship.shop.svc.cluster.local:80",
            "-shop 80 ship.shop.svc.cluster.local:80",
        ]
    );
}

#[test]
fn endpoints_and_rules_without_hashing_touch_no_route() {
    let mut mesh = shop();
    let slice = SHOP.rsplit("---").next().unwrap_or_default();
    mesh.apply(&slice.replace("10.1.0.1", "10.1.0.2"));
    assert_eq!(mesh.changed_segments(), [""; 0]);
    let rule = "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: shop}
spec: {host: cart, trafficPolicy: {loadBalancer: {simple: RANDOM}}}";
    mesh.apply(rule);
    assert_eq!(mesh.changed_segments(), [""; 0]);
    mesh.apply(&rule.replace("simple: RANDOM", "consistentHash: {httpHeaderName: x-user}"));
    assert_eq!(
        mesh.changed_segments(),
        ["~base 80 cart.shop.svc.cluster.local:80", "~shop 80 cart.shop.svc.cluster.local:80"]
    );
}

#[test]
fn a_private_service_is_written_only_for_its_namespace() {
    let mut mesh = shop();
    let service = SHOP.split("---").next().unwrap_or_default();
    mesh.apply(&service.replace(
        "{name: cart, namespace: shop}",
        "{name: cart, namespace: shop, annotations: {networking.istio.io/exportTo: '.'}}",
    ));
    assert_eq!(mesh.changed_segments(), ["-base 80 cart.shop.svc.cluster.local:80"]);
}

#[test]
fn the_policy_for_unknown_hosts_is_one_segment_a_table() {
    let mut mesh = shop();
    mesh.apply(
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'outboundTrafficPolicy: {mode: REGISTRY_ONLY}'}",
    );
    assert_eq!(
        mesh.changed_segments(),
        ["+base 80 block_all", "+shop 80 block_all", "-base 80 allow_any", "-shop 80 allow_any"]
    );
}

#[test]
fn a_route_at_a_gateway_touches_the_routers_table_alone() {
    let mut mesh = shop();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: edge}
spec:
  selector: {istio: ingress}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]",
    );
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("istio", "ingress")]);
    router.proxy_type = ProxyType::Router;
    mesh.connect(router);
    assert_eq!(mesh.changed_segments(), ["+router http.80 ", "+router http.80 blackhole:80"]);
    let bound = ROUTE.replace("hosts: [cart]", "hosts: [cart.example]\n  gateways: [edge/front]");
    mesh.apply(&bound.replace("host: cart}", "host: cart.shop.svc.cluster.local}"));
    assert_eq!(mesh.changed_segments(), ["+router http.80 cart.example:80", "-router http.80 blackhole:80"]);
}

#[test]
fn a_bad_virtual_service_is_rejected_and_its_neighbours_apply() {
    let mut mesh = shop();
    let bad = ROUTE.replace("name: cart, ", "name: bad, ").replace("timeout: 1s", "timeout: soon");
    let text = format!("{bad}---{ROUTE}");
    let mut rejected = Vec::new();
    mesh.engine.transaction(|tx| {
        for document in yaml::parse_documents(&text, &yaml::Limits::default()) {
            let object = document.expect("yaml").value;
            let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("a known kind");
            rejected
                .extend(parsed.rejects.iter().map(|reject| (reject.object.name.clone(), reject.field_path.clone())));
            mesh.handles.inputs.apply(tx, parsed, Origin::default());
        }
    });
    assert_eq!(rejected, [("bad".into(), "spec.http[0].timeout".into())]);
    assert_eq!(
        mesh.changed_segments(),
        ["~base 80 cart.shop.svc.cluster.local:80", "~shop 80 cart.shop.svc.cluster.local:80"]
    );
}

#[test]
fn two_services_with_one_address_share_no_domain() {
    let mut mesh = shop();
    let entry = |name: &str, created: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop, creationTimestamp: '{created}'}}
spec:
  hosts: [{name}.example]
  addresses: [240.0.0.1]
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  resolution: STATIC
  endpoints: [{{address: 1.2.3.4}}]"
        )
    };
    mesh.apply(&entry("young", "2026-02-02T00:00:00Z"));
    assert!(mesh.domains("80", "young.example:80").contains(&"240.0.0.1".to_owned()));
    mesh.changed_segments();
    mesh.apply(&entry("old", "2026-01-01T00:00:00Z"));
    assert!(mesh.domains("80", "old.example:80").contains(&"240.0.0.1".to_owned()));
    assert!(!mesh.domains("80", "young.example:80").contains(&"240.0.0.1".to_owned()));
    mesh.delete(Kind::ServiceEntry, "shop", "old");
    mesh.engine.flush();
    assert!(mesh.domains("80", "young.example:80").contains(&"240.0.0.1".to_owned()));
}
