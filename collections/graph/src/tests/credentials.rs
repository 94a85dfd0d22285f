//! Rules whose Secret a proxy is not served: its cluster accepts no certificate.

use prost::Message;
use sluice_model::{Identity, Kind, Layer, Proxy, ProxyKey, ProxyType, Resource, ResourceType, SecretReader};
use sluice_proto::envoy::config::cluster::v3::Cluster;
use sluice_proto::envoy::config::core::v3::transport_socket::ConfigType;
use sluice_proto::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use sluice_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;

use super::{TestGraph, sidecar};
use crate::GraphOptions;

const CART: &str = "outbound|80||cart.shop.svc.cluster.local";

const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.0.0.1, selector: {app: cart}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {clusterIP: 10.0.0.2, selector: {app: stock}, ports: [{name: http, port: 80}]}
";

fn rule(mode: &str, more: &str) -> String {
    format!(
        "---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: cart, namespace: shop}}
spec:
  host: cart.shop.svc.cluster.local
  trafficPolicy: {{tls: {{mode: {mode}, credentialName: cart}}}}
  {more}
"
    )
}

/// A Secret `cart` with these keys.
fn secret(namespace: &str, keys: &[&str]) -> String {
    let pem = |label: &str| format!("-----BEGIN {label}-----\\nMAMCAQA=\\n-----END {label}-----\\n");
    let pem =
        |key: &&str| format!("{key}: \"{}\"", pem(if key.ends_with("key") { "PRIVATE KEY" } else { "CERTIFICATE" }));
    let data = keys.iter().map(pem).collect::<Vec<_>>().join(", ");
    format!(
        "---\n{{apiVersion: v1, kind: Secret, metadata: {{namespace: {namespace}, name: cart}}, stringData: {{{data}}}}}\n"
    )
}

const PAIR: [&str; 2] = ["tls.crt", "tls.key"];
const ALL: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

fn verified(proxy: Proxy) -> Proxy {
    let identity = Some(Identity::new("cluster.local", proxy.namespace.clone(), "client"));
    Proxy { identity, ..proxy }
}

fn router(namespace: &str) -> Proxy {
    let proxy = sidecar(namespace, "door", &format!("10.1.0.{}", namespace.len()), &[("istio", "door")]);
    verified(Proxy { proxy_type: ProxyType::Router, ..proxy })
}

/// How a cluster connects.
#[derive(Debug, PartialEq)]
enum Tls {
    Plaintext,
    /// No certificate of a server is accepted.
    Refused,
    /// With these Secrets.
    Secrets(Vec<String>),
}

fn secrets(names: &[&str]) -> Tls {
    Tls::Secrets(names.iter().map(|name| (*name).to_owned()).collect())
}

impl TestGraph {
    /// The TLS settings of the cluster [`CART`] that a proxy gets: that of its first layer.
    fn tls(&self, proxy: &ProxyKey) -> Tls {
        self.engine.flush();
        let scope = self.get(&self.handles.scopes, proxy).expect("a scope");
        let snapshot = self.engine.snapshot();
        let found = |layer: &Layer| {
            let rows = self.handles.resources.iter().flat_map(|of| snapshot.iter(of));
            let row = rows.into_iter().find(|(key, _)| {
                key.resource_type == ResourceType::Cluster && key.layer == *layer && key.name == *CART
            });
            row.map(|(_, resource)| resource.clone())
        };
        let Some(Resource::Encoded(bytes)) = scope.layers[&ResourceType::Cluster].iter().find_map(found) else {
            panic!("{proxy:?} has no cluster")
        };
        let cluster = Cluster::decode(bytes).expect("a cluster");
        let Some(socket) = cluster.transport_socket else { return Tls::Plaintext };
        let Some(ConfigType::TypedConfig(config)) = socket.config_type else { panic!("no configuration") };
        let context = UpstreamTlsContext::decode(config.value.as_slice()).expect("a TLS context");
        let common = context.common_tls_context.expect("settings");
        let mut names: Vec<String> =
            common.tls_certificate_sds_secret_configs.iter().map(|secret| secret.name.clone()).collect();
        match common.validation_context_type {
            Some(ValidationContextType::ValidationContext(context)) => {
                assert_eq!((context.verify_certificate_hash.len(), names.len()), (1, 0));
                return Tls::Refused;
            }
            Some(ValidationContextType::CombinedValidationContext(context)) => {
                names.extend(context.validation_context_sds_secret_config.map(|secret| secret.name));
            }
            _ => {}
        }
        Tls::Secrets(names)
    }
}

#[test]
fn a_cluster_follows_the_presence_of_its_secret() {
    let mut mesh = TestGraph::new(&(SHOP.to_owned() + &rule("MUTUAL", "")));
    let door = mesh.connect(router("shop"));
    let anonymous = mesh.connect(Proxy { identity: None, id: "router~anonymous".into(), ..router("shop") });
    let client = mesh.connect(verified(sidecar("shop", "client", "10.1.0.9", &[])));
    assert_eq!((mesh.tls(&door), mesh.tls(&client)), (Tls::Refused, Tls::Plaintext), "the rule selects no sidecars");
    mesh.changed();
    for keys in [&PAIR[..], &["ca.crt"], &["password"]] {
        mesh.apply(&secret("shop", keys));
        assert_eq!(mesh.tls(&door), Tls::Refused, "{keys:?}");
        assert_eq!(mesh.changed(), Vec::<String>::new());
    }
    let usable = secrets(&["kubernetes://cart", "kubernetes://cart-cacert"]);
    mesh.apply(&secret("shop", &ALL));
    assert_eq!((mesh.tls(&door), mesh.tls(&anonymous)), (usable, Tls::Refused));
    let changed = mesh.changed();
    assert!(changed.len() == 1 && changed[0].starts_with("-clusters/outbound"), "{changed:#?}");
    mesh.apply(&secret("shop", &ALL));
    assert_eq!(mesh.changed(), Vec::<String>::new(), "a renewed certificate changes no cluster");
    mesh.delete(Kind::Secret, "shop", "cart");
    assert_eq!(mesh.tls(&door), Tls::Refused);
}

#[test]
fn only_secrets_of_the_namespace_of_a_proxy_count() {
    let mesh = TestGraph::new(&(SHOP.to_owned() + &rule("SIMPLE", "") + &secret("shop", &ALL)));
    let [near, far] = ["shop", "harbour"].map(|namespace| mesh.connect(router(namespace)));
    assert_eq!((mesh.tls(&near), mesh.tls(&far)), (secrets(&["kubernetes://cart-cacert"]), Tls::Refused));
    mesh.apply(&secret("harbour", &ALL));
    assert_eq!(mesh.tls(&far), secrets(&["kubernetes://cart-cacert"]));
    // Its identity decides, and not the namespace that it claims.
    let claims =
        mesh.connect(Proxy { identity: router("bank").identity, id: "router~claims".into(), ..router("shop") });
    assert_eq!(mesh.tls(&claims), Tls::Refused);
    // The Secret of another namespace is named.
    let named = rule("SIMPLE", "").replace("credentialName: cart", "credentialName: kubernetes://shop/cart");
    mesh.apply(&named);
    assert_eq!((mesh.tls(&near), mesh.tls(&far)), (secrets(&["kubernetes://shop/cart-cacert"]), Tls::Refused));
    let files = rule("SIMPLE", "").replace("credentialName: cart", "caCertificates: /roots.pem");
    mesh.apply(&files);
    assert_eq!(mesh.tls(&far), secrets(&["file-root:/roots.pem"]));
}

#[test]
fn a_selected_sidecar_is_refused_without_its_secret() {
    let selector = "workloadSelector: {matchLabels: {app: client}}";
    let mesh = TestGraph::new(&(SHOP.to_owned() + &rule("MUTUAL", selector)));
    let [client, other] = [("client", "10.1.0.8"), ("other", "10.1.0.9")]
        .map(|(app, ip)| mesh.connect(verified(sidecar("shop", app, ip, &[("app", app)]))));
    assert_eq!(mesh.tls(&client), Tls::Refused);
    assert_ne!(mesh.tls(&other), Tls::Refused, "the rule does not select it");
    mesh.apply(&secret("shop", &ALL));
    assert_eq!(mesh.tls(&client), secrets(&["kubernetes://cart", "kubernetes://cart-cacert"]));
}

#[test]
fn certificates_need_a_permission_and_roots_do_not() {
    let options = GraphOptions { reviews_secrets: true, ..GraphOptions::default() };
    let mesh = TestGraph::with(options, &(SHOP.to_owned() + &rule("MUTUAL", "") + &secret("shop", &ALL)));
    let door = mesh.connect(router("shop"));
    mesh.engine.flush();
    let snapshot = mesh.engine.snapshot();
    let wanted: Vec<SecretReader> =
        snapshot.iter(&mesh.handles.wanted_secret_reviews).map(|(key, _)| key.clone()).collect();
    assert_eq!(wanted.len(), 1, "the right is reviewed before the proxy asks for a Secret");
    let usable = || secrets(&["kubernetes://cart", "kubernetes://cart-cacert"]);
    assert_eq!(mesh.tls(&door), usable(), "not reviewed yet");
    mesh.handles.inputs.secret_reviews.set(wanted[0].clone(), false);
    assert_eq!(mesh.tls(&door), Tls::Refused);
    mesh.apply(&rule("SIMPLE", ""));
    assert_eq!(mesh.tls(&door), secrets(&["kubernetes://cart-cacert"]));
    mesh.apply(&rule("MUTUAL", ""));
    mesh.handles.inputs.secret_reviews.set(wanted[0].clone(), true);
    assert_eq!(mesh.tls(&door), usable());
}

#[test]
fn a_router_limited_to_its_destinations_gets_no_other_cluster() {
    let options = GraphOptions { filter_gateway_clusters: true, ..GraphOptions::default() };
    let routes = "---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec: {selector: {istio: door}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.example], gateways: [door], http: [{route: [{destination: {host: cart}}]}]}
";
    let mut mesh = TestGraph::with(options, &(SHOP.to_owned() + &rule("SIMPLE", "") + routes));
    let door = mesh.connect(router("shop"));
    assert_eq!(mesh.tls(&door), Tls::Refused);
    mesh.changed();
    mesh.apply(&secret("shop", &["ca.crt"]));
    assert_eq!(mesh.tls(&door), secrets(&["kubernetes://cart-cacert"]));
    mesh.delete(Kind::VirtualService, "shop", "cart");
    mesh.delete(Kind::Secret, "shop", "cart");
    let changed = mesh.changed();
    assert!(!changed.iter().any(|line| line.starts_with("+clusters/outbound")), "{changed:#?}");
}
