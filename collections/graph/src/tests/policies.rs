//! Security policies: the listeners that a change touches, in one epoch.

use sluice_engine::Origin;
use sluice_model::{Jwks, JwksKey, Kind, ObjectKey, ProxyKey, ProxyType, Resource, ResourceType};

use super::{TestGraph, sidecar};

/// Two namespaces with two workloads each, a sidecar at every one, and a gateway.
struct PolicyTestMesh {
    mesh: TestGraph,
    proxies: Vec<(&'static str, ProxyKey)>,
}

fn test_mesh() -> PolicyTestMesh {
    let mut text = String::new();
    for namespace in ["east", "west"] {
        for (n, app) in ["mill", "school"].iter().enumerate() {
            let subnet = namespace.len() + n + usize::from(namespace == "west") * 2;
            text += &format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {app}, namespace: {namespace}}}\n\
                 spec: {{clusterIP: 10.0.{subnet}.1, selector: {{app: {app}}}, ports: [{{name: http, port: 80}}]}}\n"
            );
        }
    }
    text += "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: door, namespace: west}\n\
             spec: {selector: {istio: door}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n";
    let mut mesh = TestGraph::new(&text);
    let mut proxies = Vec::new();
    let all = [("east", "mill"), ("east", "school"), ("west", "mill"), ("west", "school")];
    for (n, (namespace, app)) in all.into_iter().enumerate() {
        let label: &'static str = ["east/mill", "east/school", "west/mill", "west/school"][n];
        let proxy = sidecar(namespace, app, &format!("10.9.0.{n}"), &[("app", app), ("tier", app)]);
        proxies.push((label, mesh.connect(proxy)));
    }
    let labels = [("istio", "door"), ("gateway.networking.k8s.io/gateway-name", "door")];
    let mut router = sidecar("west", "door", "10.9.0.9", &labels);
    router.proxy_type = ProxyType::Router;
    proxies.push(("door", mesh.connect(router)));
    mesh.changed();
    PolicyTestMesh { mesh, proxies }
}

impl PolicyTestMesh {
    /// The listener of that name that a proxy gets, over all its layers.
    fn listener(&self, proxy: &ProxyKey, name: &str) -> Option<Resource> {
        let scope = self.mesh.get(&self.mesh.handles.scopes, proxy)?;
        let layers = scope.layers.get(&ResourceType::Listener)?;
        layers.iter().find_map(|layer| {
            let key = sluice_model::ResourceKey {
                resource_type: ResourceType::Listener,
                layer: layer.clone(),
                name: name.into(),
            };
            self.mesh.handles.resources.iter().find_map(|of| self.mesh.get(of, &key))
        })
    }

    fn listeners(&self) -> Vec<Option<Resource>> {
        let name = |of: &str| if of == "door" { "0.0.0.0_80" } else { "virtualInbound" };
        self.proxies.iter().map(|(of, proxy)| self.listener(proxy, name(of))).collect()
    }

    /// The proxies whose own listener `change` changes. No other resource may change.
    fn touched(&mut self, change: impl FnOnce(&TestGraph)) -> Vec<&'static str> {
        let before = self.listeners();
        assert!(before.iter().all(Option::is_some), "every proxy has a listener");
        let epoch = self.mesh.engine.snapshot().epoch();
        change(&self.mesh);
        assert!(self.mesh.engine.snapshot().epoch().0 <= epoch.0 + 1, "it arrives in one epoch");
        for line in self.mesh.changed() {
            let own = line.contains(" workload:") || line.contains("scopes ");
            assert!(own && !line.contains("~clusters"), "{line}");
        }
        let after = self.listeners();
        let rows = self.proxies.iter().zip(before.iter().zip(&after));
        rows.filter(|(_, (before, after))| before != after).map(|((name, _), _)| *name).collect()
    }
}

fn policy(kind: &str, namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: it, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

const GET: &str = "rules: [{to: [{operation: {methods: [GET], ports: ['80']}}]}]";

#[test]
fn a_policy_touches_the_workloads_of_its_namespace() {
    let mut test_mesh = test_mesh();
    let text = policy("AuthorizationPolicy", "east", &format!("{{{GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["east/mill", "east/school"]);
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), [""; 0], "the same object again is no change");
    let removed = |mesh: &TestGraph| mesh.delete(Kind::AuthorizationPolicy, "east", "it");
    assert_eq!(test_mesh.touched(removed), ["east/mill", "east/school"]);
}

#[test]
fn a_policy_with_a_selector_touches_what_it_selects() {
    let mut test_mesh = test_mesh();
    let apply = |spec: &str| policy("AuthorizationPolicy", "east", spec);
    let selector = "selector: {matchLabels: {app: mill}}";
    let text = apply(&format!("{{{selector}, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["east/mill"]);
    let text = apply(&format!("{{{selector}, action: DENY, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["east/mill"]);
    let text = apply(&format!("{{selector: {{matchLabels: {{tier: school}}}}, action: DENY, {GET}}}"));
    assert_eq!(
        test_mesh.touched(|mesh| mesh.apply(&text)),
        ["east/mill", "east/school"],
        "one workload is no longer selected"
    );
    let text = apply(&format!("{{selector: {{matchLabels: {{app: none}}}}, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["east/school"]);
}

#[test]
fn a_policy_of_the_root_namespace_touches_all_workloads() {
    let mut test_mesh = test_mesh();
    let text = policy("AuthorizationPolicy", "istio-system", &format!("{{{GET}}}"));
    let all = ["east/mill", "east/school", "west/mill", "west/school", "door"];
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), all);
    let text =
        policy("AuthorizationPolicy", "istio-system", &format!("{{selector: {{matchLabels: {{app: mill}}}}, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["east/school", "west/school", "door"]);
    let text = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'rootNamespace: west'}
";
    // The root namespace is another one now, so the policy applies to its own namespace only.
    test_mesh.mesh.apply(text);
    test_mesh.mesh.changed();
    let text = policy("AuthorizationPolicy", "west", "{action: DENY, rules: [{}]}");
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), all);
}

#[test]
fn a_policy_with_a_target_touches_its_gateway() {
    let mut test_mesh = test_mesh();
    let target = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: door}]";
    let text = policy("AuthorizationPolicy", "west", &format!("{{{target}, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["door"]);
    let text = policy(
        "AuthorizationPolicy",
        "west",
        &format!("{{selector: {{matchLabels: {{istio: door}}}}, action: DENY, {GET}}}"),
    );
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["door"]);
    test_mesh.mesh.delete(Kind::AuthorizationPolicy, "west", "it");
    test_mesh.mesh.changed();
    let text = policy("AuthorizationPolicy", "east", &format!("{{{target}, {GET}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), [""; 0], "the policy is in another namespace");
}

#[test]
fn a_policy_with_a_target_that_cannot_exist_touches_every_gateway_of_its_namespace() {
    let mut test_mesh = test_mesh();
    for target in [
        "{group: gateway.networking.k8s.io, kind: Gatway, name: window}",
        "{group: networking.istio.io, kind: Gateway, name: window}",
        "{group: gateway.networking.k8s.io, kind: Gateway, name: window, namespace: far}",
    ] {
        let text = |namespace: &str| {
            policy("AuthorizationPolicy", namespace, &format!("{{targetRefs: [{target}], action: DENY, {GET}}}"))
        };
        assert_eq!(test_mesh.touched(|mesh| mesh.write(&text("west"), true)), ["door"], "{target}");
        assert_eq!(test_mesh.touched(|mesh| mesh.write(&text("east"), true)), [""; 0], "{target}");
        let removed = |mesh: &TestGraph| mesh.delete(Kind::AuthorizationPolicy, "west", "it");
        assert_eq!(test_mesh.touched(removed), ["door"], "{target}");
    }
}

#[test]
fn jwks_touch_the_listeners_that_verify_with_them() {
    let mut test_mesh = test_mesh();
    let rule = "jwtRules: [{issuer: i, jwksUri: 'https://idp.test/keys', timeout: 7s}]";
    let text =
        policy("RequestAuthentication", "west", &format!("{{selector: {{matchLabels: {{app: school}}}}, {rule}}}"));
    assert_eq!(test_mesh.touched(|mesh| mesh.apply(&text)), ["west/school"]);
    let key = JwksKey { uri: "https://idp.test/keys".into(), ..JwksKey::default() };
    let wanted = |test_mesh: &PolicyTestMesh| {
        test_mesh.mesh.get(&test_mesh.mesh.handles.wanted_jwks, &key).map(|wanted| wanted.timeout.as_secs())
    };
    assert_eq!(wanted(&test_mesh), Some(7));
    let fetched = |mesh: &TestGraph| {
        let jwks = Jwks { text: "{\"keys\":[]}".into(), ..Jwks::default() };
        mesh.engine.transaction(|tx| tx.set_from(&mesh.handles.inputs.jwks, key.clone(), jwks, Origin::default()));
    };
    assert_eq!(test_mesh.touched(fetched), ["west/school"]);
    let removed = |mesh: &TestGraph| mesh.delete(Kind::RequestAuthentication, "west", "it");
    assert_eq!(test_mesh.touched(removed), ["west/school"]);
    assert_eq!(wanted(&test_mesh), None);
}

/// The rejects of a RequestAuthentication: field paths and reasons.
fn rejects(test_mesh: &TestGraph, namespace: &str, name: &str) -> Vec<(String, String)> {
    let object = ObjectKey::new("Kubernetes", namespace, name);
    let key = crate::RejectKey { kind: Kind::RequestAuthentication, object };
    let rejects = test_mesh.get(&test_mesh.handles.rejects, &key).unwrap_or_default();
    rejects.iter().map(|reject| (reject.field_path.to_string(), reject.reason.to_string())).collect()
}

#[test]
fn key_sets_of_a_namespace_are_limited_and_do_not_affect_others() {
    let mesh = TestGraph::with(crate::GraphOptions { max_key_sets: 2, ..crate::GraphOptions::default() }, "");
    let policy = |namespace: &str, name: &str, created: &str, uris: &[&str]| {
        let rules = uris.iter().map(|uri| format!("{{issuer: i, jwksUri: 'https://{uri}/keys', timeout: 1h}}"));
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: {name}, namespace: \
             {namespace}, creationTimestamp: '{created}'}}\nspec: {{jwtRules: [{}]}}\n",
            rules.collect::<Vec<_>>().join(", ")
        )
    };
    mesh.apply(&policy("east", "new", "2026-02-01T00:00:00Z", &["a", "b", "c"]));
    mesh.apply(&policy("east", "old", "2026-01-01T00:00:00Z", &["d"]));
    mesh.apply(&policy("west", "other", "2026-03-01T00:00:00Z", &["c", "e"]));
    let wanted = |uri: &str| {
        let key = JwksKey { uri: format!("https://{uri}/keys").into(), ..JwksKey::default() };
        mesh.get(&mesh.handles.wanted_jwks, &key)
    };
    let namespaces = |uri: &str| wanted(uri).map(|wanted| wanted.namespaces.iter().cloned().collect::<Vec<_>>());
    assert_eq!(namespaces("d"), Some(vec!["east".into()]), "the oldest comes first");
    assert_eq!(namespaces("a"), Some(vec!["east".into()]));
    assert_eq!(namespaces("b"), None);
    assert_eq!(namespaces("c"), Some(vec!["west".into()]), "the other namespace has its own limit");
    assert_eq!(wanted("a").map(|wanted| wanted.timeout.as_secs()), Some(30), "the timeout is capped");
    let paths: Vec<String> = rejects(&mesh, "east", "new").into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["spec.jwtRules[1].jwksUri", "spec.jwtRules[2].jwksUri"]);
    assert!(rejects(&mesh, "east", "new")[0].1.contains("more than 2 key sets"));
    assert_eq!(rejects(&mesh, "west", "other"), []);
    mesh.delete(Kind::RequestAuthentication, "east", "old");
    assert_eq!(rejects(&mesh, "east", "new").len(), 1, "the finding disappears with its cause");
}

#[test]
fn refused_key_set_is_a_finding_about_the_policy() {
    let mesh =
        TestGraph::new(&policy("RequestAuthentication", "west", "{jwtRules: [{issuer: i, jwksUri: 'https://a/k'}]}"));
    let key = JwksKey { uri: "https://a/k".into(), ..JwksKey::default() };
    let refused = Jwks { text: "".into(), refused: "too large".into() };
    mesh.engine.transaction(|tx| tx.set_from(&mesh.handles.inputs.jwks, key, refused, Origin::default()));
    assert_eq!(rejects(&mesh, "west", "it"), [("spec.jwtRules[0].jwksUri".to_owned(), "too large".to_owned())]);
}

#[test]
fn a_partly_invalid_policy_still_denies() {
    let mut test_mesh = test_mesh();
    let text = policy("AuthorizationPolicy", "east", "{rules: [{when: [{key: request.scheme, values: [https]}]}]}");
    assert_eq!(test_mesh.touched(|mesh| mesh.write(&text, true)), ["east/mill", "east/school"]);
    let key = crate::RejectKey { kind: Kind::AuthorizationPolicy, object: ObjectKey::new("Kubernetes", "east", "it") };
    let rejects = test_mesh.mesh.get(&test_mesh.mesh.handles.rejects, &key).unwrap_or_default();
    assert_eq!(
        rejects.iter().map(|reject| reject.field_path.as_str()).collect::<Vec<_>>(),
        ["spec.rules[0].when[0].key"]
    );
}

#[test]
fn peers_are_selected_by_label_too() {
    let test_mesh = test_mesh();
    let text = policy("PeerAuthentication", "east", "{selector: {matchLabels: {app: mill}}, mtls: {mode: STRICT}}");
    let before = test_mesh.listeners();
    test_mesh.mesh.apply(&text);
    let after = test_mesh.listeners();
    let changed: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before != after).collect();
    assert_eq!(changed, [true, false, false, false, false]);
}
