//! Routers: the resources that servers of Gateways, Ingresses and bound VirtualServices touch.

use sluice_model::{Kind, ProxyType, Resource, ResourceType, View};

use super::{TestGraph, sidecar};
use crate::GraphOptions;

/// A Service, and its pod's slice.
const CART: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.0.0.1, ports: [{name: tcp, port: 9000}, {name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: tcp, port: 9000}, {name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
";

/// Routes of every kind to the cart, for servers with any host.
const ROUTES: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec:
  hosts: ['*']
  gateways: [edge/front]
  http: [{route: [{destination: {host: cart, port: {number: 80}}}]}]
  tcp: [{route: [{destination: {host: cart, port: {number: 9000}}}]}]
  tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: cart, port: {number: 9000}}}]}]
";

impl TestGraph {
    /// Names of the listeners written for routers.
    pub(super) fn router_listeners(&self) -> Vec<String> {
        let now = self.engine.snapshot();
        let keys = self.handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key.clone());
        let listeners = keys.filter(|key| key.resource_type == ResourceType::Listener);
        let listeners =
            listeners.filter(|key| matches!(key.layer.view, View::Workload(_)) && key.name != *"virtualInbound");
        listeners.map(|key| key.name.to_string()).collect()
    }

    /// The changes of resources and route tables since the last call, in any layer: each line once.
    pub(super) fn touched(&mut self) -> Vec<String> {
        let Some(batch) = self.feed.try_next() else { return Vec::new() };
        let sign = |old: bool, new: bool| match (old, new) {
            (false, _) => '+',
            (_, false) => '-',
            _ => '~',
        };
        let mut lines = std::collections::BTreeSet::new();
        for resources in &self.handles.resources {
            for event in batch.events(resources) {
                let sign = sign(event.old.is_some(), event.new.is_some());
                lines.insert(format!("{sign}{:?} {}", event.key.resource_type, event.key.name));
            }
        }
        for segments in &self.handles.segments {
            for event in batch.events(segments) {
                let sign = sign(event.old.is_some(), event.new.is_some());
                lines.insert(format!("{sign}Route {} {}", event.key.name, event.key.segment));
            }
        }
        lines.into_iter().collect()
    }
}

/// A mesh with a router and these objects; nothing is pending.
fn edge(text: &str) -> TestGraph {
    let mut mesh = TestGraph::new(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: edge}}}}\n---{text}"));
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("istio", "ingressgateway")]);
    router.proxy_type = ProxyType::Router;
    mesh.connect(router);
    mesh.touched();
    mesh
}

fn gateway(servers: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: front, namespace: edge}}
spec:
  selector: {{istio: ingressgateway}}
  servers: [{servers}]
"
    )
}

#[test]
fn every_kind_of_server_has_a_listener() {
    let mesh = edge(&format!("{CART}---{ROUTES}"));
    let check = |protocol: &str, tls: &str| {
        let server = format!("{{port: {{number: 8443, name: it, protocol: {protocol}}}, hosts: ['*']{tls}}}");
        mesh.apply(&gateway(&server));
        assert_eq!(mesh.router_listeners(), ["0.0.0.0_8443"], "{server}");
    };
    for protocol in
        ["HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "TCP", "UDP", "MONGO", "REDIS", "MYSQL", "HBONE"]
    {
        check(protocol, "");
    }
    check("HTTP", ", tls: {httpsRedirect: true}");
    for mode in ["SIMPLE, credentialName: c", "MUTUAL, credentialName: c", "OPTIONAL_MUTUAL, credentialName: c"] {
        check("HTTPS", &format!(", tls: {{mode: {mode}}}"));
        check("TLS", &format!(", tls: {{mode: {mode}}}"));
    }
    for mode in ["ISTIO_MUTUAL", "PASSTHROUGH", "AUTO_PASSTHROUGH"] {
        check("HTTPS", &format!(", tls: {{mode: {mode}}}"));
        check("TLS", &format!(", tls: {{mode: {mode}}}"));
    }
}

#[test]
fn a_server_touches_its_listener_and_table() {
    let mut mesh = edge(&format!("{CART}---{ROUTES}"));
    let plain = "{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example]}";
    let tls = |mode: &str| {
        format!(
            "{{port: {{number: 443, name: https, protocol: HTTPS}}, hosts: [b.example], \
             tls: {{mode: {mode}, credentialName: c}}}}"
        )
    };
    mesh.apply(&gateway(plain));
    assert_eq!(
        mesh.touched(),
        ["+Listener 0.0.0.0_80", "+Route http.80 ", "+Route http.80 a.example:80"],
        "the first server of a port"
    );
    mesh.apply(&gateway(&format!("{plain}, {}", tls("SIMPLE"))));
    let table = "https.443.https.front.edge";
    let new = ["+Listener 0.0.0.0_443".to_owned(), format!("+Route {table} "), format!("+Route {table} b.example:443")];
    assert_eq!(mesh.touched(), new, "a second port");
    mesh.apply(&gateway(&format!("{plain}, {}", tls("MUTUAL"))));
    assert_eq!(mesh.touched(), ["~Listener 0.0.0.0_443"], "the TLS mode is a property of the listener only");
    mesh.apply(&gateway(&format!("{}, {}", plain.replace("a.", "c."), tls("MUTUAL"))));
    assert_eq!(
        mesh.touched(),
        ["+Route http.80 c.example:80", "-Route http.80 a.example:80"],
        "hosts of a plain HTTP server are in the route table only"
    );
    mesh.delete(Kind::Gateway, "edge", "front");
    let gone = [
        "-Listener 0.0.0.0_443".to_owned(),
        "-Listener 0.0.0.0_80".to_owned(),
        "-Route http.80 ".to_owned(),
        "-Route http.80 c.example:80".to_owned(),
        format!("-Route {table} "),
        format!("-Route {table} b.example:443"),
    ];
    assert_eq!(mesh.touched(), gone);
}

#[test]
fn a_virtual_service_touches_what_its_routes_are_for() {
    let servers = "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*.example']}, \
                   {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}, \
                   {port: {number: 9443, name: tls, protocol: TLS}, hosts: ['*'], tls: {mode: PASSTHROUGH}}";
    let mut mesh = edge(&format!("{CART}---{}", gateway(servers)));
    assert_eq!(mesh.router_listeners(), ["0.0.0.0_80"], "without a TCP route, a TCP server has no listener");
    let of = |host: &str, routes: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {}, namespace: shop}}
spec: {{hosts: [{host}], gateways: [edge/front], {routes}}}
",
            host.replace('.', "-")
        )
    };
    let to = |port: u16| format!("route: [{{destination: {{host: cart, port: {{number: {port}}}}}}}]");
    mesh.apply(&of("a.example", &format!("http: [{{{}}}]", to(80))));
    assert_eq!(mesh.touched(), ["+Route http.80 a.example:80", "-Route http.80 blackhole:80"]);
    mesh.apply(&of("b.example", &format!("http: [{{{}}}]", to(80))));
    assert_eq!(mesh.touched(), ["+Route http.80 b.example:80"], "the other host does not change");
    mesh.apply(&of("b.example", &format!("http: [{{timeout: 1s, {}}}]", to(80))));
    assert_eq!(mesh.touched(), ["~Route http.80 b.example:80"]);
    mesh.apply(&of("c.example", &format!("tcp: [{{match: [{{port: 9000}}], {}}}]", to(9000))));
    assert_eq!(mesh.touched(), ["+Listener 0.0.0.0_9000"]);
    let tls = |name: &str| of("d.example", &format!("tls: [{{match: [{{sniHosts: [{name}]}}], {}}}]", to(9000)));
    mesh.apply(&tls("d.example"));
    assert_eq!(mesh.touched(), ["+Listener 0.0.0.0_9443"]);
    mesh.apply(&tls("x.d.example").replace("hosts: [d.example]", "hosts: ['*.d.example']"));
    assert_eq!(mesh.touched(), ["~Listener 0.0.0.0_9443"]);
    mesh.delete(Kind::VirtualService, "shop", "d-example");
    assert_eq!(mesh.touched(), ["-Listener 0.0.0.0_9443"]);
}

#[test]
fn clusters_by_server_name_are_for_auto_passthrough_routers() {
    let mut mesh = edge(CART);
    let server = |mode: &str| {
        gateway(&format!(
            "{{port: {{number: 15443, name: tls, protocol: TLS}}, hosts: ['*.local'], tls: {{mode: {mode}}}}}"
        ))
    };
    mesh.apply(&server("PASSTHROUGH"));
    assert_eq!(mesh.touched(), [""; 0], "no route, no listener");
    let of = |sign: char| {
        let mut lines = vec![format!("{sign}Listener 0.0.0.0_15443")];
        for port in ["80", "9000"] {
            for kind in ["Cluster", "Endpoint"] {
                lines.push(format!("{sign}{kind} outbound_.{port}_._.cart.shop.svc.cluster.local"));
            }
        }
        lines.sort();
        lines
    };
    mesh.apply(&server("AUTO_PASSTHROUGH"));
    assert_eq!(mesh.touched(), of('+'));
    let chains = |mesh: &TestGraph| {
        let now = mesh.engine.snapshot();
        let mut all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        let found = all.find(|(key, _)| key.name == *"0.0.0.0_15443").map(|(_, resource)| resource.clone());
        let Some(Resource::Encoded(bytes)) = found else { panic!("no listener: {found:?}") };
        let listener: sluice_proto::envoy::config::listener::v3::Listener =
            prost::Message::decode(bytes).expect("a listener");
        listener.filter_chains.len()
    };
    assert_eq!(chains(&mesh), 2);
    // Another Service adds a filter chain, and no other listener is written.
    mesh.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: shop}
spec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}]}
",
    );
    let touched = mesh.touched();
    assert!(touched.contains(&"~Listener 0.0.0.0_15443".to_owned()), "{touched:?}");
    assert!(touched.iter().all(|line| line.contains("15443") || line.contains("pay.shop")), "{touched:?}");
    assert_eq!(chains(&mesh), 3);
    // A host that no server has gets no filter chain.
    mesh.apply(&server("AUTO_PASSTHROUGH").replace("*.local", "pay.shop.svc.cluster.local"));
    assert_eq!(mesh.touched(), ["~Listener 0.0.0.0_15443"]);
    assert_eq!(chains(&mesh), 1);
    mesh.delete(Kind::Service, "shop", "pay");
    mesh.touched();
    mesh.apply(&server("AUTO_PASSTHROUGH"));
    mesh.touched();
    mesh.apply(&server("PASSTHROUGH"));
    assert_eq!(mesh.touched(), of('-'));
}

#[test]
fn an_ingress_touches_the_routes_of_its_hosts() {
    let class = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: istio}
spec: {controller: istio.io/ingress-controller}
";
    let mut mesh = edge(&format!("{CART}---{class}"));
    let ingress = |name: &str, more: &str, rules: &[(&str, &str)]| {
        let rule = |(host, path): &(&str, &str)| {
            format!(
                "{{host: {host}, http: {{paths: [{{path: {path}, pathType: Prefix, \
                 backend: {{service: {{name: cart, port: {{name: http}}}}}}}}]}}}}"
            )
        };
        let rules: Vec<String> = rules.iter().map(rule).collect();
        format!(
            "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}, namespace: shop}}
spec: {{ingressClassName: istio, {more}rules: [{}]}}
",
            rules.join(", ")
        )
    };
    let two = [("a.example", "/"), ("b.example", "/")];
    mesh.apply(&ingress("web", "", &two));
    let first =
        ["+Listener 0.0.0.0_80", "+Route http.80 ", "+Route http.80 a.example:80", "+Route http.80 b.example:80"];
    assert_eq!(mesh.touched(), first);
    mesh.apply(&ingress("web", "", &[("a.example", "/"), ("b.example", "/b")]));
    assert_eq!(mesh.touched(), ["~Route http.80 b.example:80"]);
    // Rules of one host are merged over Ingresses; the router has one server for a port.
    mesh.apply(&ingress("more", "", &[("b.example", "/longer")]));
    assert_eq!(mesh.touched(), ["~Route http.80 b.example:80"]);
    mesh.apply(&ingress("web", "tls: [{hosts: [a.example], secretName: cert}], ", &[("a.example", "/")]));
    let table = "https.443.https-443-ingress-web-shop-0.web-istio-autogenerated-k8s-ingress-shop.istio-system";
    let mut secure =
        ["+Listener 0.0.0.0_443".to_owned(), format!("+Route {table} "), format!("+Route {table} a.example:443")]
            .to_vec();
    secure.push("~Route http.80 b.example:80".to_owned());
    assert_eq!(mesh.touched(), secure);
    // A port name that no longer exists has no destination.
    mesh.apply(&CART.replace("{name: http, port: 80}", "{name: http-web, port: 80}"));
    let mut touched = mesh.touched();
    touched.retain(|line| line.contains("Route "));
    let mut expected = ["+Route http.80 blackhole:80", "-Route http.80 a.example:80", "-Route http.80 b.example:80"]
        .map(str::to_owned)
        .to_vec();
    expected.extend([format!("+Route {table} blackhole:443"), format!("-Route {table} a.example:443")]);
    expected.sort();
    assert_eq!(touched, expected);
    mesh.delete(Kind::IngressClass, "", "istio");
    let touched = mesh.touched();
    assert!(touched.contains(&"-Listener 0.0.0.0_443".to_owned()), "{touched:?}");
    assert!(mesh.router_listeners().is_empty(), "the class is not ours");
}

#[test]
fn the_host_name_of_a_network_gateway_is_resolved_and_its_addresses_are_used() {
    let mut mesh = TestGraph::new(
        "
apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec: {type: LoadBalancer, clusterIP: 10.0.0.9, ports: [{name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{hostname: lb.example}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: parts, namespace: shop}
spec:
  hosts: [parts.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  location: MESH_INTERNAL
  endpoints: [{address: 10.9.0.1, network: far, serviceAccount: parts}]
",
    );
    let mut client = sidecar("shop", "client", "10.1.0.9", &[]);
    client.network = "near".into();
    mesh.connect(client);
    mesh.touched();
    let asked = |mesh: &TestGraph| {
        let now = mesh.engine.snapshot();
        now.iter(&mesh.handles.gateway_names).map(|(name, ())| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mesh), ["lb.example"]);
    let addresses = |mesh: &TestGraph| {
        let now = mesh.engine.snapshot();
        let mut all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        let name = "outbound|80||parts.example";
        let found = all.find(|(key, _)| key.resource_type == ResourceType::Endpoint && key.name == *name);
        let Some((_, Resource::Encoded(bytes))) = found else { panic!("no endpoints") };
        let load: sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment =
            prost::Message::decode(bytes.clone()).expect("an assignment");
        let text = format!("{load:?}");
        ["10.9.0.1", "192.0.2.1", "192.0.2.2"].into_iter().filter(|address| text.contains(address)).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&mesh), ["10.9.0.1"], "the host name is not resolved yet");
    let names = mesh.handles.inputs.resolved_names.clone();
    names.set("lb.example".into(), vec!["192.0.2.1".into(), "192.0.2.2".into()]);
    mesh.engine.flush();
    assert_eq!(mesh.touched(), ["~Endpoint outbound|80||parts.example"]);
    assert_eq!(addresses(&mesh), ["192.0.2.1", "192.0.2.2"]);
    mesh.delete(Kind::Service, "istio-system", "eastwest");
    mesh.engine.flush();
    assert_eq!(asked(&mesh), [""; 0]);
    assert_eq!(addresses(&mesh), ["10.9.0.1"]);
}

#[test]
fn a_router_may_get_only_the_clusters_it_sends_to() {
    let other = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{clusterIP: 10.0.1.1, ports: [{{name: http, port: 80}}]}}\n"
        )
    };
    let options = GraphOptions { filter_gateway_clusters: true, ..GraphOptions::default() };
    let mut mesh = TestGraph::with(
        options,
        &format!(
            "{CART}{}{}---{}",
            other("till"),
            other("scale"),
            gateway("{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}")
        ),
    );
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("istio", "ingressgateway")]);
    router.proxy_type = ProxyType::Router;
    let router = mesh.connect(router);
    let clusters = |mesh: &TestGraph| -> Vec<String> {
        mesh.engine.flush();
        let layers = &mesh.get(&mesh.handles.scopes, &router).expect("a scope").layers[&ResourceType::Cluster];
        let now = mesh.engine.snapshot();
        let keys = mesh.handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key.clone());
        let seen = keys.filter(|key| key.resource_type == ResourceType::Cluster && layers.contains(&key.layer));
        let mut names: Vec<String> = seen.map(|key| key.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(clusters(&mesh), ["BlackHoleCluster"], "no route has a destination");
    mesh.touched();

    mesh.apply(ROUTES);
    let cart = ["outbound|80||cart.shop.svc.cluster.local", "outbound|9000||cart.shop.svc.cluster.local"];
    assert_eq!(clusters(&mesh), ["BlackHoleCluster", cart[0], cart[1]]);
    let touched: Vec<String> = mesh.touched().into_iter().filter(|line| line.contains("Cluster")).collect();
    assert_eq!(touched, cart.map(|name| format!("+Cluster {name}")));

    let filter = "
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: lua
  namespace: edge
  annotations: {envoyfilter.istio.io/referenced-services: 'shop/till.shop.svc.cluster.local,other/scale.shop.svc.cluster.local'}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: GATEWAY}
    patch:
      operation: INSERT_FIRST
      value:
        name: envoy.filters.http.buffer
        typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, maxRequestBytes: 1}
";
    mesh.apply(filter);
    let till = "outbound|80||till.shop.svc.cluster.local";
    assert_eq!(
        clusters(&mesh),
        ["BlackHoleCluster", cart[0], till, cart[1]],
        "the service of the namespace in the route"
    );
    mesh.delete(Kind::VirtualService, "shop", "cart");
    assert_eq!(clusters(&mesh), ["BlackHoleCluster", till]);
}

#[test]
fn a_label_for_sessions_touches_the_cluster_and_the_routes_of_its_service() {
    let sessions = sluice_model::SessionLabels { enabled: true, ..sluice_model::SessionLabels::default() };
    let mut mesh = TestGraph::with(GraphOptions { sessions, ..GraphOptions::default() }, CART);
    mesh.connect(sidecar("shop", "client", "10.1.0.9", &[]));
    mesh.touched();
    mesh.apply(&CART.replace(
        "{name: cart, namespace: shop}",
        "{name: cart, namespace: shop, labels: {istio.io/persistent-session: c}}",
    ));
    let name = "cart.shop.svc.cluster.local";
    let clusters = [80, 9000].map(|port| format!("~Cluster outbound|{port}||{name}"));
    assert_eq!(mesh.touched(), [clusters.to_vec(), vec![format!("~Route 80 {name}:80")]].concat());
}

impl TestGraph {
    /// The number of copies of the listeners with this name.
    fn listener_copies(&self, name: &str) -> usize {
        let now = self.engine.snapshot();
        let keys = self.handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key.clone());
        keys.filter(|key| key.resource_type == ResourceType::Listener && key.name == *name).count()
    }
}

/// A router of the namespace `edge` with these labels besides that of an ingress gateway.
fn labelled_router(number: usize, labels: &[(&str, &str)]) -> sluice_model::Proxy {
    let labels: Vec<_> = [("istio", "ingressgateway")].iter().chain(labels).copied().collect();
    let router = sidecar("edge", &format!("made-up-{number}"), &format!("10.2.0.{number}"), &labels);
    sluice_model::Proxy { proxy_type: ProxyType::Router, ..router }
}

#[test]
fn routers_with_made_up_labels_share_one_copy_until_something_selects_a_label() {
    let servers = "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}, \
                   {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}";
    let mut mesh = edge(&format!("{CART}---{ROUTES}---{}", gateway(servers)));
    let made_up = (0..40).map(|n| {
        let (number, long) = (n.to_string(), "x".repeat(60));
        let proxy =
            labelled_router(n, &[("x", &number), ("pod-template-hash", &number), (&format!("{long}{n}"), &long)]);
        mesh.connect(proxy)
    });
    let made_up: Vec<_> = made_up.collect();
    assert_eq!(mesh.touched(), [""; 0], "they have the resources of the first router");
    let layers = |mesh: &TestGraph, n: usize| mesh.get(&mesh.handles.scopes, &made_up[n]).expect("a scope").layers;
    assert_eq!(layers(&mesh, 7), layers(&mesh, 8));
    assert_eq!(mesh.listener_copies("0.0.0.0_80"), 1);
    for (kind, name, api, spec) in [
        (
            Kind::Gateway,
            "edge/selects",
            "networking.istio.io/v1",
            "{selector: {x: '7'}, servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: ['*']}]}",
        ),
        (
            Kind::VirtualService,
            "shop/selects",
            "networking.istio.io/v1",
            "{hosts: [a.example], gateways: [edge/front], http: [{match: [{sourceLabels: {x: '7'}}], \
             route: [{destination: {host: cart}}]}]}",
        ),
        (
            Kind::DestinationRule,
            "edge/selects",
            "networking.istio.io/v1",
            "{host: cart.shop.svc.cluster.local, workloadSelector: {matchLabels: {x: '7'}}}",
        ),
        (
            Kind::AuthorizationPolicy,
            "edge/selects",
            "security.istio.io/v1",
            "{selector: {matchLabels: {x: '7'}}, action: DENY, rules: [{}]}",
        ),
        (
            Kind::RequestAuthentication,
            "istio-system/selects",
            "security.istio.io/v1",
            "{selector: {matchLabels: {x: '7'}}, jwtRules: [{issuer: i, jwks: '{\"keys\": []}'}]}",
        ),
    ] {
        let (namespace, name) = name.split_once('/').expect("a namespace");
        mesh.apply(&format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
        ));
        assert_eq!(mesh.listener_copies("0.0.0.0_80"), 2, "{kind}: one router differs");
        assert_ne!(layers(&mesh, 7), layers(&mesh, 8), "{kind}");
        assert_eq!(layers(&mesh, 9), layers(&mesh, 8), "{kind}");
        mesh.delete(kind, namespace, name);
        assert_eq!(mesh.listener_copies("0.0.0.0_80"), 1, "{kind}: it is deleted");
        assert_eq!(layers(&mesh, 7), layers(&mesh, 8), "{kind}: it is deleted");
    }
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                  metadata: {name: elsewhere, namespace: shop}\nspec: {selector: {matchLabels: {x: '7'}}}\n";
    mesh.apply(policy);
    assert_eq!(mesh.listener_copies("0.0.0.0_80"), 1, "a policy of another namespace does not apply to routers");
    let names: Vec<_> =
        layers(&mesh, 7).values().flat_map(|of| of.iter().map(|layer| layer.to_string().len())).collect();
    assert!(names.iter().all(|length| *length < 2000), "{names:?}");
}

#[test]
fn a_selector_of_one_router_touches_no_other() {
    let mut mesh = edge(&gateway("{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}"));
    mesh.connect(labelled_router(1, &[("x", "1")]));
    mesh.touched();
    let of = |number: u16| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: own, namespace: edge}}\n\
             spec: {{selector: {{x: '{number}'}}, servers: [{{port: {{number: 81, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n"
        )
    };
    mesh.apply(&of(2));
    assert_eq!(mesh.touched(), [""; 0], "no router has the label");
    mesh.apply(&of(1));
    let added = [
        "+Listener 0.0.0.0_80",
        "+Listener 0.0.0.0_81",
        "+Route http.80 ",
        "+Route http.80 blackhole:80",
        "+Route http.81 ",
        "+Route http.81 blackhole:81",
    ];
    assert_eq!(mesh.touched(), added, "a copy of what the other router keeps, and the new server");
}

#[test]
fn routers_of_made_up_gateways_share_one_copy_until_a_policy_is_for_one() {
    use sluice_model::label::GATEWAY_NAME;
    let mesh = edge(&gateway("{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}"));
    for n in 0..20 {
        mesh.connect(labelled_router(n, &[(GATEWAY_NAME, &format!("g{n}"))]));
    }
    assert_eq!(mesh.listener_copies("0.0.0.0_80"), 2, "those with a Gateway, and the one without");
    mesh.apply(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: edge}\nspec:\n  \
         targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g7}]\n  action: DENY\n  rules: [{}]\n",
    );
    assert_eq!(mesh.listener_copies("0.0.0.0_80"), 3);
}
