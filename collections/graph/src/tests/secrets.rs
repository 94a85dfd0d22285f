//! Secrets: the resources that a change touches, and the proxies that get them.

use sluice_model::{Identity, Kind, Layer, Proxy, ProxyKey, ProxyType, ResourceType, SecretReader, Text, View};

use super::{TestGraph, sidecar};
use crate::GraphOptions;

const NAMESPACES: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
apiVersion: v1
kind: Namespace
metadata: {name: bank}
";

/// A Secret or ConfigMap with these keys. Each value is PEM whose content depends on `number`.
fn object(kind: &str, namespace: &str, name: &str, keys: &[&str], number: u8) -> String {
    let pem = |label: &str| format!("-----BEGIN {label}-----\\nMAMCAQ{number}=\\n-----END {label}-----\\n");
    let pem =
        |key: &&str| format!("{key}: \"{}\"", pem(if key.ends_with("key") { "PRIVATE KEY" } else { "CERTIFICATE" }));
    let data = keys.iter().map(pem).collect::<Vec<_>>().join(", ");
    let field = if kind == "Secret" { "stringData" } else { "data" };
    format!(
        "\n---\n{{apiVersion: v1, kind: {kind}, metadata: {{namespace: {namespace}, name: {name}}}, {field}: {{{data}}}}}\n"
    )
}

fn tls(namespace: &str, name: &str, number: u8) -> String {
    object("Secret", namespace, name, &["tls.crt", "tls.key"], number)
}

/// A router of namespace `edge`, with a verified identity or without one.
fn router(name: &str, is_verified: bool) -> Proxy {
    Proxy {
        proxy_type: ProxyType::Router,
        identity: is_verified.then(|| Identity::new("cluster.local", "edge", "gateway")),
        ..sidecar("edge", name, "10.1.0.8", &[("istio", "gateway")])
    }
}

impl TestGraph {
    /// Connects a proxy that subscribes to secrets.
    fn subscribe(&self, proxy: Proxy) -> ProxyKey {
        let key = self.connect(proxy);
        self.engine.transaction(|tx| tx.set(&self.handles.inputs.secret_clients, key.clone(), ()));
        key
    }

    /// The layers of secrets in the scope of a proxy; `None` while its rights are not decided.
    fn secret_layers(&self, proxy: &ProxyKey) -> Option<Vec<Layer>> {
        self.engine.flush();
        self.get(&self.handles.scopes, proxy)
            .expect("a scope")
            .layers
            .get(&ResourceType::Secret)
            .map(|layers| layers.to_vec())
    }

    /// The secrets a proxy can get.
    fn secrets_of(&self, proxy: &ProxyKey) -> Vec<String> {
        let layers = self.secret_layers(proxy).unwrap_or_default();
        let now = self.engine.snapshot();
        let keys = self.handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key.clone());
        let seen = keys.filter(|key| key.resource_type == ResourceType::Secret && layers.contains(&key.layer));
        let mut names: Vec<String> = seen.map(|key| key.name.to_string()).collect();
        names.sort();
        names
    }

    /// The changes of secrets since the last call.
    fn changed_secrets(&mut self) -> Vec<String> {
        let name = |line: String| {
            let sign = line.chars().next().unwrap_or_default();
            format!("{sign}{}", line.rsplit(' ').next().unwrap_or_default())
        };
        self.changed().into_iter().map(name).collect()
    }
}

#[test]
fn a_secret_touches_its_resources_and_nothing_else() {
    let mut mesh = TestGraph::new(&format!("{NAMESPACES}{}{}", tls("edge", "shop", 0), tls("bank", "vault", 0)));
    let router = mesh.subscribe(router("a", true));
    assert_eq!(mesh.secrets_of(&router), ["kubernetes://edge/shop", "kubernetes://shop"]);
    mesh.changed();

    mesh.apply(&tls("edge", "shop", 1));
    assert_eq!(mesh.changed_secrets(), ["~kubernetes://edge/shop", "~kubernetes://shop"]);
    mesh.apply(&tls("edge", "shop", 1));
    assert_eq!(mesh.changed_secrets(), [""; 0], "nothing has changed");
    mesh.apply(&tls("bank", "vault", 1));
    assert_eq!(mesh.changed_secrets(), [""; 0], "no proxy of that namespace subscribes");
    mesh.apply(&object("Secret", "edge", "password", &["password"], 0));
    assert_eq!(mesh.changed_secrets(), [""; 0], "no proxy can use it");

    mesh.apply(&object("Secret", "edge", "shop", &["tls.crt", "tls.key", "ca.crt"], 1));
    assert_eq!(mesh.changed_secrets(), ["+kubernetes://edge/shop-cacert", "+kubernetes://shop-cacert"]);
    mesh.apply(&object("Secret", "edge", "shop-cacert", &["cacert"], 2));
    let roots = ["~kubernetes://edge/shop-cacert", "~kubernetes://shop-cacert"];
    let own = ["kubernetes://edge/shop-cacert-cacert", "kubernetes://shop-cacert-cacert"];
    let with = |sign: char| own.map(|name| format!("{sign}{name}")).into_iter().chain(roots.map(String::from));
    assert_eq!(mesh.changed_secrets(), with('+').collect::<Vec<_>>(), "the roots are also a credential of their own");
    mesh.delete(Kind::Secret, "edge", "shop-cacert");
    assert_eq!(mesh.changed_secrets(), with('-').collect::<Vec<_>>());
    mesh.write(&object("Secret", "edge", "shop", &["tls.crt"], 1), true);
    assert_eq!(
        mesh.changed_secrets(),
        [
            "-kubernetes://edge/shop",
            "-kubernetes://edge/shop-cacert",
            "-kubernetes://shop",
            "-kubernetes://shop-cacert"
        ],
        "a certificate without its key is not served"
    );
}

#[test]
fn roots_in_config_maps_are_for_all_authenticated_subscribers() {
    let mut mesh = TestGraph::new(NAMESPACES);
    let known = mesh.subscribe(router("a", true));
    let unknown = mesh.subscribe(router("b", false));
    mesh.changed();
    mesh.apply(&object("ConfigMap", "bank", "roots", &["ca.crt"], 0));
    let names = ["configmap://bank/roots", "configmap://bank/roots-cacert"];
    assert_eq!(mesh.changed_secrets(), names.map(|name| format!("+{name}")));
    assert_eq!((mesh.secrets_of(&known), mesh.secret_layers(&unknown)), (names.map(String::from).into(), Some(vec![])));
    mesh.apply(&object("ConfigMap", "bank", "roots", &["something"], 0));
    assert_eq!(mesh.changed_secrets(), names.map(|name| format!("-{name}")));
}

#[test]
fn a_proxy_gets_only_secrets_of_its_own_namespace() {
    let mesh = TestGraph::new(&format!("{NAMESPACES}{}{}", tls("edge", "shop", 0), tls("bank", "vault", 0)));
    let unsubscribed = mesh.connect(router("a", true));
    assert_eq!(mesh.secret_layers(&unsubscribed), None, "it has not subscribed");
    let unknown = mesh.subscribe(router("b", false));
    assert_eq!(mesh.secret_layers(&unknown), Some(Vec::new()));
    // Its node claims namespace `bank`, but its verified identity applies.
    let claims = Proxy { namespace: "bank".into(), ..router("c", true) };
    let claims = mesh.subscribe(claims);
    assert_eq!(mesh.secrets_of(&claims), ["kubernetes://edge/shop", "kubernetes://shop"]);
    let elsewhere = mesh.subscribe(Proxy { cluster: "elsewhere".into(), ..router("d", true) });
    assert_eq!(
        mesh.secrets_of(&elsewhere),
        ["kubernetes://edge/shop", "kubernetes://shop"],
        "with the secrets of the control plane's cluster"
    );
}

#[test]
fn the_cluster_that_authenticated_a_proxy_decides_and_not_the_one_that_it_claims() {
    let options = GraphOptions { reviews_secrets: true, ..GraphOptions::default() };
    let mesh = TestGraph::with(options, &format!("{NAMESPACES}{}", tls("edge", "shop", 0)));
    let proxy = |name: &str, proven: &str, claimed: &str| Proxy {
        proven_cluster: Some(proven.into()),
        cluster: claimed.into(),
        ..router(name, true)
    };
    mesh.subscribe(proxy("a", "east", "Kubernetes"));
    mesh.subscribe(proxy("b", "Kubernetes", "east"));
    mesh.engine.flush();
    let wanted: Vec<Text> =
        mesh.engine.snapshot().iter(&mesh.handles.wanted_secret_reviews).map(|(key, _)| key.cluster.clone()).collect();
    assert_eq!(wanted, ["Kubernetes", "east"], "each is reviewed by its own cluster");
    let reader = |cluster: &str| SecretReader {
        cluster: cluster.into(),
        namespace: "edge".into(),
        service_account: "gateway".into(),
    };
    mesh.engine.transaction(|tx| {
        tx.set(&mesh.handles.inputs.secret_reviews, reader("Kubernetes"), false);
        tx.set(&mesh.handles.inputs.secret_reviews, reader("east"), true);
    });
    let layers = |name: &str| mesh.secret_layers(&ProxyKey(router(name, true).id)).expect("reviewed").len();
    assert!(layers("a") > layers("b"), "a review by the claimed cluster gives no access");
}

/// A pod with the service account of [`router`].
fn gateway_pod(name: &str) -> String {
    format!(
        "\n---\n{{apiVersion: v1, kind: Pod, metadata: {{namespace: edge, name: {name}}}, spec: {{serviceAccountName: gateway}}}}\n"
    )
}

/// The service account of [`router`] in a cluster.
fn gateway_in(cluster: &str) -> SecretReader {
    SecretReader { cluster: cluster.into(), namespace: "edge".into(), service_account: "gateway".into() }
}

impl TestGraph {
    /// The clusters that are to review the service account of [`router`].
    fn reviewing_clusters(&self) -> Vec<String> {
        self.engine.flush();
        let snapshot = self.engine.snapshot();
        snapshot.iter(&self.handles.wanted_secret_reviews).map(|(key, _)| key.cluster.to_string()).collect()
    }
}

#[test]
fn without_a_proven_cluster_every_cluster_with_pods_of_the_identity_has_to_permit_secrets() {
    let options = GraphOptions { reviews_secrets: true, ..GraphOptions::default() };
    let mesh = TestGraph::with(options, &format!("{NAMESPACES}{}", tls("edge", "shop", 0)));
    mesh.write_in("east", &format!("{NAMESPACES}{}", tls("edge", "shop", 1)), false);
    let reviews = &mesh.handles.inputs.secret_reviews;
    let claiming = |cluster: &str, name: &str| Proxy { cluster: cluster.into(), ..router(name, true) };
    let certificates_of = |proxy: &ProxyKey| -> Option<Vec<String>> {
        let layers = mesh.secret_layers(proxy)?;
        let profiles = layers.into_iter().filter(|layer| layer.view == View::Namespace("edge".into()));
        Some(
            profiles
                .map(|layer| layer.profile.to_string())
                .filter(|profile| profile.contains("Certificates"))
                .collect(),
        )
    };

    // No cluster has such a pod, as for a workload outside Kubernetes: the cluster of the control plane decides.
    let claims_east = mesh.subscribe(claiming("east", "a"));
    assert_eq!(mesh.reviewing_clusters(), ["Kubernetes"], "a claim is no proof");
    reviews.set(gateway_in("Kubernetes"), true);
    assert!(certificates_of(&claims_east).expect("reviewed").iter().all(|layer| !layer.contains("east")));

    // A gateway in a remote cluster: its cluster decides, and its Secrets are looked up first.
    mesh.write_in("east", &gateway_pod("one"), false);
    assert_eq!(mesh.reviewing_clusters(), ["east"]);
    assert_eq!(mesh.secret_layers(&claims_east), None, "it is not reviewed yet");
    reviews.set(gateway_in("east"), true);
    let of_east = certificates_of(&claims_east).expect("reviewed");
    assert!(of_east.len() == 1 && of_east[0].contains("east"), "{of_east:?}");

    // A pod of the remote cluster that may not read Secrets there claims the cluster of the control plane, which permits it.
    let claims_own = mesh.subscribe(claiming("Kubernetes", "b"));
    assert_eq!(mesh.reviewing_clusters(), ["Kubernetes", "east"]);
    reviews.set(gateway_in("east"), false);
    reviews.set(gateway_in("Kubernetes"), true);
    assert_eq!(certificates_of(&claims_own), Some(Vec::new()), "its own cluster forbids it");
    reviews.set(gateway_in("east"), true);
    assert_eq!(certificates_of(&claims_own).map(|layers| layers.len()), Some(1));

    // With pods in both clusters, each claim needs the permission of both.
    mesh.apply(&gateway_pod("two"));
    reviews.set(gateway_in("Kubernetes"), false);
    for proxy in [&claims_east, &claims_own] {
        assert_eq!(certificates_of(proxy), Some(Vec::new()));
    }
    // A proven cluster decides alone.
    let proven = mesh.subscribe(Proxy { proven_cluster: Some("east".into()), ..claiming("Kubernetes", "c") });
    assert_eq!(certificates_of(&proven).map(|layers| layers.len()), Some(1));
}

#[test]
fn only_the_first_and_the_last_pod_of_an_identity_in_a_cluster_change_who_reviews_it() {
    let options = GraphOptions { reviews_secrets: true, ..GraphOptions::default() };
    let mut mesh = TestGraph::with(options, NAMESPACES);
    let review = |mesh: &TestGraph, cluster: &str| {
        mesh.engine.transaction(|tx| tx.set(&mesh.handles.inputs.secret_reviews, gateway_in(cluster), true));
    };
    mesh.subscribe(router("a", true));
    review(&mesh, "Kubernetes");
    mesh.changed();
    mesh.apply(&gateway_pod("one"));
    assert_eq!(mesh.changed_secrets(), [""; 0], "the cluster of the control plane reviews it already");
    mesh.write_in("east", &gateway_pod("one"), false);
    let lost = mesh.changed();
    assert_eq!(lost.len(), 1, "its scope has no Secrets until the other cluster has reviewed it: {lost:?}");
    review(&mesh, "east");
    mesh.changed();
    mesh.write_in("east", &gateway_pod("two"), false);
    assert_eq!(mesh.changed(), [""; 0]);
}

#[test]
fn access_reviews_decide_which_proxies_may_read_secrets() {
    let options = GraphOptions { reviews_secrets: true, ..GraphOptions::default() };
    let text = object("Secret", "edge", "shop", &["tls.crt", "tls.key", "ca.crt"], 0);
    let mesh = TestGraph::with(options, &format!("{NAMESPACES}{text}"));
    let router = mesh.subscribe(router("a", true));
    assert_eq!(mesh.secret_layers(&router), None, "nothing is decided yet");
    let reader =
        SecretReader { cluster: "Kubernetes".into(), namespace: "edge".into(), service_account: "gateway".into() };
    let wanted: Vec<_> =
        mesh.engine.snapshot().iter(&mesh.handles.wanted_secret_reviews).map(|(key, _)| key.clone()).collect();
    assert_eq!(wanted, std::slice::from_ref(&reader));

    let reviews = &mesh.handles.inputs.secret_reviews;
    reviews.set(reader.clone(), false);
    assert_eq!(mesh.secrets_of(&router), ["kubernetes://edge/shop-cacert", "kubernetes://shop-cacert"]);
    reviews.set(reader, true);
    assert_eq!(
        mesh.secrets_of(&router),
        ["kubernetes://edge/shop", "kubernetes://edge/shop-cacert", "kubernetes://shop", "kubernetes://shop-cacert"]
    );
}

#[test]
fn a_gateway_may_refer_to_secrets_of_its_namespace_and_to_those_that_are_granted() {
    let gateway = |namespace: &str, name: &str, secret: &str| {
        let server = "port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*']";
        format!(
            "
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{istio: gateway}}
  servers: [{{{server}, tls: {{mode: MUTUAL, credentialName: 'kubernetes-gateway://{secret}'}}}}]
"
        )
    };
    let vault = object("Secret", "bank", "vault", &["tls.crt", "tls.key", "ca.crt"], 0);
    let mut mesh = TestGraph::new(&format!("{NAMESPACES}{}{vault}", tls("edge", "near", 0)));
    let router = mesh.subscribe(router("a", true));
    let referenced = |mesh: &TestGraph| -> Vec<String> {
        let names = mesh.secrets_of(&router);
        names.into_iter().filter(|name| name.starts_with("kubernetes-gateway:")).collect()
    };
    assert_eq!(referenced(&mesh), [""; 0], "no Gateway refers to a secret");
    mesh.apply(&format!("{}{}", gateway("edge", "a", "edge/near"), gateway("edge", "b", "bank/vault")));
    assert_eq!(referenced(&mesh), ["kubernetes-gateway://edge/near"]);
    mesh.apply(&gateway("bank", "b", "bank/vault"));
    assert_eq!(referenced(&mesh), ["kubernetes-gateway://edge/near"], "the Gateway is not of the router's namespace");

    let grant = |namespace: &str, secret: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {{name: grant, namespace: bank}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: Gateway, namespace: {namespace}}}]
  to: [{{group: '', kind: Secret, name: {secret}}}]
"
        )
    };
    for (namespace, secret) in [("edge", "other"), ("bank", "vault")] {
        mesh.apply(&grant(namespace, secret));
        assert_eq!(referenced(&mesh), ["kubernetes-gateway://edge/near"]);
    }
    mesh.apply(&grant("edge", "vault"));
    assert_eq!(
        referenced(&mesh),
        ["kubernetes-gateway://bank/vault", "kubernetes-gateway://bank/vault-cacert", "kubernetes-gateway://edge/near"]
    );
    mesh.changed();
    mesh.apply(&object("Secret", "bank", "vault", &["tls.crt", "tls.key"], 1));
    let names = ["-kubernetes-gateway://bank/vault-cacert", "~kubernetes-gateway://bank/vault"];
    assert_eq!(mesh.changed_secrets(), names);
    mesh.delete(Kind::ReferenceGrant, "bank", "grant");
    assert_eq!(referenced(&mesh), ["kubernetes-gateway://edge/near"]);
}

#[test]
fn routers_with_hardware_for_keys_have_layers_of_their_own() {
    let provider = sluice_model::PrivateKeyProvider { qat: true, poll_delay: None, fallback: None };
    let config = sluice_model::ProxyConfig { private_key_provider: Some(provider), ..Default::default() };
    let mesh = TestGraph::new(&format!("{NAMESPACES}{}", tls("edge", "shop", 0)));
    let plain = mesh.subscribe(router("a", true));
    let hardware = mesh.subscribe(Proxy { config: Some(std::sync::Arc::new(config)), ..router("b", true) });
    let layers = |key: &ProxyKey| {
        let layers = mesh.secret_layers(key).expect("decided");
        layers.into_iter().filter(|layer| layer.view == View::Namespace(Text::from("edge"))).collect::<Vec<_>>()
    };
    let (plain, hardware) = (layers(&plain), layers(&hardware));
    assert_ne!(plain[0], hardware[0], "certificates");
    assert_eq!(plain[1], hardware[1], "roots");
}
