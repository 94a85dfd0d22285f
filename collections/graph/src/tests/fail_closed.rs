//! Security policies with a part that cannot be read: nothing becomes allowed that the policy denied before.
//!
//! Each value of each valid policy is replaced by values of other types, one at a time. [`evaluate`] decides from the
//! listeners of two workloads and a gateway which requests their Envoys accept.

mod evaluate;

use std::collections::BTreeSet;

use prost::Message as _;
use serde_json::{Value, json};
use sluice_engine::Origin;
use sluice_model::{Object, ParsedObject, ProxyKey, ProxyType, ResourceType, Severity, SlotValues};
use sluice_parse::parse_object;
use sluice_proto::istio::security::Authorization;

use super::{TestGraph, sidecar};
use evaluate::{TestConnection, TestRequest, TestToken, accepts, accepts_plaintext, matches};

/// Two sidecars and a gateway in the namespace `east`, with a policy of each kind for the workload `mill`.
const MESH: &str = "
apiVersion: v1
kind: Service
metadata: {name: mill, namespace: east}
spec: {clusterIP: 10.0.0.1, selector: {app: mill}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: school, namespace: east}
spec: {clusterIP: 10.0.0.2, selector: {app: school}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: east}
spec: {selector: {istio: door}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: neighbour, namespace: east}
spec:
  selector: {matchLabels: {app: mill}}
  rules:
  - {to: [{operation: {paths: [/a]}}], from: [{source: {principals: [td/ns/east/sa/one]}}]}
  - {from: [{source: {requestPrincipals: ['*']}}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: neighbour, namespace: east}
spec: {selector: {matchLabels: {app: mill}}, jwtRules: [{issuer: near, jwks: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"near\"}]}'}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: neighbour, namespace: east}
spec: {selector: {matchLabels: {app: mill}}, mtls: {mode: PERMISSIVE}}
";

/// The mesh, and the policy whose parts are replaced.
struct MutatedPolicyMesh {
    mesh: TestGraph,
    proxies: Vec<(ProxyKey, &'static str)>,
}

impl MutatedPolicyMesh {
    fn start() -> Self {
        let mesh = TestGraph::with(crate::GraphOptions::default(), "");
        mesh.engine.transaction(|_| ());
        let documents = sluice_parse::yaml::parse_documents(MESH, &sluice_parse::yaml::Limits::default());
        for document in documents {
            apply(&mesh, &document.expect("yaml").value);
        }
        let mut proxies = Vec::new();
        for (n, app) in ["mill", "school"].into_iter().enumerate() {
            let proxy = sidecar("east", app, &format!("10.9.0.{n}"), &[("app", app), ("v", "1")]);
            proxies.push((mesh.connect(proxy), "virtualInbound"));
        }
        let labels = [("istio", "door"), ("gateway.networking.k8s.io/gateway-name", "door")];
        let mut router = sidecar("east", "door", "10.9.0.9", &labels);
        router.proxy_type = ProxyType::Router;
        proxies.push((mesh.connect(router), "0.0.0.0_80"));
        Self { mesh, proxies }
    }

    /// The listener of each proxy.
    fn listeners(&self) -> Vec<Value> {
        let snapshot = self.mesh.engine.snapshot();
        let listener = |proxy: &ProxyKey, name: &str| {
            let scope = self.mesh.get(&self.mesh.handles.scopes, proxy)?;
            scope.layers.get(&ResourceType::Listener)?.iter().find_map(|layer| {
                let key = sluice_model::ResourceKey {
                    resource_type: ResourceType::Listener,
                    layer: layer.clone(),
                    name: name.into(),
                };
                let resource = self.mesh.handles.resources.iter().find_map(|of| snapshot.get(of, &key))?;
                let bytes = resource.bytes(&SlotValues::new())?;
                Some(sluice_proto::json::encode_any("type.googleapis.com/envoy.config.listener.v3.Listener", &bytes))
            })
        };
        self.proxies.iter().map(|(proxy, name)| listener(proxy, name).expect("a listener")).collect()
    }
}

/// What a proxy accepts: the indices of requests, and the ports with plaintext.
fn accepted(listener: &Value, requests: &[TestRequest]) -> (BTreeSet<usize>, BTreeSet<u64>) {
    let found = requests.iter().enumerate().filter(|(_, request)| accepts(listener, request)).map(|(n, _)| n);
    (found.collect(), [80, 90].into_iter().filter(|port| accepts_plaintext(listener, *port)).collect())
}

/// Parses and writes an object.
fn apply(mesh: &TestGraph, object: &Value) -> ParsedObject {
    let parsed = parse_object(&"Kubernetes".into(), "cluster.local", object).expect("known kind");
    mesh.engine.transaction(|tx| mesh.handles.inputs.apply(tx, parsed.clone(), Origin::default()));
    parsed
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": kind,
        "metadata": {"name": "policy", "namespace": "east"},
        "spec": spec,
    })
}

/// Requests that differ in what the policies below match, each with up to so many tokens.
fn requests(token_count: usize) -> Vec<TestRequest> {
    let mut requests = Vec::new();
    let token = |place: &'static str, issuer: &'static str, audience: &'static str, signed: bool| TestToken {
        place,
        issuer,
        audience,
        key: if signed { issuer } else { "forged" },
    };
    let tokens = [
        None,
        Some(token("authorization", "near", "a", true)),
        Some(token("authorization", "far", "a", true)),
        Some(token("authorization", "far", "a", false)),
        Some(token("authorization", "far", "b", true)),
        Some(token("authorization", "other", "a", true)),
        Some(token("x-token", "far", "a", true)),
        Some(token("x-token", "far", "a", false)),
    ];
    for method in ["GET", "POST"] {
        for path in ["/a", "/b"] {
            for account in ["one", "two"] {
                for header in ["1", "2"] {
                    requests.extend(tokens.iter().take(token_count).map(|token| TestRequest {
                        method,
                        path,
                        header,
                        token: token.clone(),
                        connection: TestConnection { port: 80, account, address: "10.1.0.1" },
                    }));
                }
            }
        }
    }
    requests
}

fn authorization_policies() -> Vec<Value> {
    let rules = json!([
        {"to": [{"operation": {"methods": ["GET"], "notPaths": ["/b"]}}], "from": [{"source": {"principals": ["td/ns/east/sa/one"]}}]},
        {"from": [{"source": {"namespaces": ["east"], "notPrincipals": ["td/ns/east/sa/one"]}}, {"source": {"principals": ["td/ns/east/sa/three"]}}],
         "when": [{"key": "request.headers[x-id]", "values": ["1"], "notValues": ["2"]}]},
        {"to": [{"operation": {"paths": ["/b", "/c"]}}, {"operation": {"ports": ["81"]}}],
         "when": [{"key": "request.auth.claims[iss]", "values": ["near", "far"]}]},
    ]);
    let selector = json!({"matchLabels": {"app": "school", "v": "1"}});
    let mut policies = Vec::new();
    for action in ["ALLOW", "DENY", "CUSTOM"] {
        let mut spec = json!({"action": action, "selector": selector, "rules": rules});
        if action == "CUSTOM" {
            spec["provider"] = json!({"name": "warden"});
            spec["rules"] = json!([{"to": [{"operation": {"methods": ["GET"], "paths": ["/a"]}}]}]);
        }
        policies.push(spec.clone());
        if action == "CUSTOM" {
            continue;
        }
        spec["selector"] = Value::Null;
        policies.push(spec.clone());
        spec["targetRefs"] = json!([
            {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "window"},
            {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"},
        ]);
        policies.push(spec);
    }
    policies
}

fn request_authentications() -> Vec<Value> {
    let keys = |name: &str| format!("{{\"keys\":[{{\"kty\":\"oct\",\"k\":\"{name}\"}}]}}");
    let far = json!({
        "issuer": "far", "jwks": keys("far"), "audiences": ["a"], "fromHeaders": [{"name": "x-token", "prefix": ""}],
        "spaceDelimitedClaims": ["scp"], "outputPayloadToHeader": "x-payload",
        "outputClaimToHeaders": [{"header": "x-s", "claim": "sub"}],
    });
    let other = json!({"issuer": "other", "jwks": keys("other")});
    let selector = json!({"matchLabels": {"app": "school"}});
    let target = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"}]);
    vec![
        json!({"selector": selector, "jwtRules": [far, other]}),
        json!({"selector": selector, "jwtRules": [other]}),
        json!({"jwtRules": [far]}),
        json!({"targetRefs": target, "jwtRules": [far, other]}),
    ]
}

fn peer_authentications() -> Vec<Value> {
    let mode = |mode: &str| json!({"mode": mode});
    let (mill, school) = (json!({"matchLabels": {"app": "mill"}}), json!({"matchLabels": {"app": "school", "v": "1"}}));
    let ports = json!({"80": mode("PERMISSIVE"), "90": mode("STRICT")});
    vec![
        json!({"mtls": mode("STRICT")}),
        json!({"mtls": mode("PERMISSIVE")}),
        json!({"selector": school, "mtls": mode("STRICT"), "portLevelMtls": ports}),
        json!({"selector": school, "mtls": mode("PERMISSIVE"), "portLevelMtls": ports}),
        json!({"selector": mill, "mtls": mode("STRICT")}),
        json!({"selector": school, "mtls": mode("DISABLE")}),
    ]
}

/// The JSON pointers of all values.
fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| pointers(value, &format!("{at}/{}", key.replace('/', "~1")), into));
        }
        Value::Array(elements) => {
            elements.iter().enumerate().for_each(|(n, value)| pointers(value, &format!("{at}/{n}"), into));
        }
        _ => {}
    }
}

/// Variants of a policy with one value that cannot be read, or with a target that cannot exist.
fn unreadable_variants(kind: &str, spec: &Value) -> Vec<(String, Value, ParsedObject)> {
    let mut all = Vec::new();
    pointers(spec, "", &mut all);
    let mut variants = Vec::new();
    for pointer in all {
        let is_target = pointer.starts_with("/targetRefs/") && pointer.matches('/').count() == 3;
        let texts = if is_target { vec![json!("Gatway"), json!("")] } else { Vec::new() };
        for bad in [json!(7.5), json!([7.5])].into_iter().chain(texts) {
            let mut changed = spec.clone();
            *changed.pointer_mut(&pointer).expect("a pointer of it") = bad.clone();
            let parsed =
                parse_object(&"Kubernetes".into(), "cluster.local", &object(kind, &changed)).expect("known kind");
            // A value of the right type is another policy.
            let lowest = if is_target { Severity::Refused } else { Severity::Error };
            if parsed.rejects.iter().any(|reject| reject.severity >= lowest) {
                variants.push((format!("{pointer} = {bad} in {spec}"), changed, parsed));
            }
        }
    }
    variants
}

/// Checks all variants of policies of a kind in the mesh.
fn check(kind: &str, specs: &[Value], token_count: usize) {
    let test_mesh = MutatedPolicyMesh::start();
    let requests = requests(token_count);
    let (mut count, mut effective) = (0, 0);
    for spec in specs {
        let parsed = apply(&test_mesh.mesh, &object(kind, spec));
        assert!(parsed.rejects.iter().all(|reject| reject.severity == Severity::Warning), "{:?}", parsed.rejects);
        let listeners = test_mesh.listeners();
        let before: Vec<_> = listeners.iter().map(|listener| accepted(listener, &requests)).collect();
        for (change, changed, parsed) in unreadable_variants(kind, spec) {
            assert!(parsed.object.is_some(), "{kind}: the policy is dropped: {change}");
            apply(&test_mesh.mesh, &object(kind, &changed));
            for (n, changed) in test_mesh.listeners().iter().enumerate().filter(|(n, it)| **it != listeners[*n]) {
                effective += 1;
                let after = accepted(changed, &requests);
                let more = after.0.difference(&before[n].0).next().map(|request| &requests[*request]);
                let ports = after.1.difference(&before[n].1).next();
                assert!(
                    more.is_none() && ports.is_none(),
                    "{kind}: {change}: proxy {n} also accepts {more:?} {ports:?}"
                );
            }
            count += 1;
        }
    }
    assert!(count > 20 && effective > 20, "{count} variants change {effective} listeners");
}

#[test]
fn unreadable_authorization_policy_allows_no_more_requests() {
    check("AuthorizationPolicy", &authorization_policies(), 3);
}

#[test]
fn unreadable_request_authentication_allows_no_more_requests() {
    check("RequestAuthentication", &request_authentications(), usize::MAX);
}

#[test]
fn unreadable_peer_authentication_allows_no_more_requests() {
    check("PeerAuthentication", &peer_authentications(), 1);
}

/// Whether ztunnel accepts a connection to a workload without other policies.
fn ztunnel_accepts(parsed: &ParsedObject, connection: &TestConnection) -> bool {
    let Some(Object::AuthorizationPolicy(policy)) = &parsed.object else { return true };
    let Some(bytes) = sluice_envoy::ztunnel::build_authorization(policy, "istio-system", false) else { return true };
    let policy = Authorization::decode(bytes).expect("it decodes");
    let allow = policy.action() == sluice_proto::istio::security::Action::Allow;
    allow == matches(&policy, connection)
}

#[test]
fn unreadable_authorization_policy_allows_no_more_connections_of_ztunnel() {
    let mut connections = Vec::new();
    for port in [80, 81] {
        for account in ["one", "two", "three"] {
            connections.extend(["10.1.0.1", "10.2.0.1"].map(|address| TestConnection { port, account, address }));
        }
    }
    let rules = json!([
        {"to": [{"operation": {"ports": ["80"]}}], "from": [{"source": {"principals": ["td/ns/east/sa/one"]}}]},
        {"from": [{"source": {"namespaces": ["east"], "notIpBlocks": ["10.1.0.0/16"]}}, {"source": {"serviceAccounts": ["three"]}}]},
        {"when": [{"key": "source.ip", "values": ["10.2.0.0/16"]}, {"key": "destination.port", "notValues": ["80"]}]},
        {"from": [{"source": {"requestPrincipals": ["a"], "principals": ["td/ns/east/sa/two"]}}]},
    ]);
    for action in ["ALLOW", "DENY"] {
        let spec = json!({"action": action, "rules": rules});
        let parse = |spec: &Value| {
            parse_object(&"Kubernetes".into(), "cluster.local", &object("AuthorizationPolicy", spec))
                .expect("known kind")
        };
        let before = parse(&spec);
        for (change, _, parsed) in unreadable_variants("AuthorizationPolicy", &spec) {
            for connection in &connections {
                let more = ztunnel_accepts(&parsed, connection) && !ztunnel_accepts(&before, connection);
                assert!(!more, "{change}: also accepted: {connection:?}");
            }
        }
    }
}
