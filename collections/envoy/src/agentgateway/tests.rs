use std::time::Duration;

use serde_json::{Value, json};
use sluice_model::gateway_api::{DeclaredRule, HttpRule};
use sluice_model::{
    CertificateKeyPair, CorsPolicy, Decimal, HeaderOperations, Headers, HttpMatch, HttpRedirect, HttpRetry,
    HttpRewrite, ObjectKey, Redacted, RedirectPort, ResourceType, RootCertificates, StringMatch,
};

use super::*;

fn json_of(made: &AgentgatewayResource) -> Value {
    let mut message = sluice_proto::json::encode_any(ResourceType::Agentgateway.type_url(), &made.bytes);
    message.as_object_mut().map(|fields| fields.remove("@type"));
    message
}

fn object(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new("c", namespace, name)
}

fn http(kind: &str, rule: &HttpRule, backends: Vec<RouteBackendInputs<'_>>, mirrors: Vec<MirrorInputs>) -> Vec<Value> {
    let route = object("shop", "cart");
    let hostnames = ["cart.example".into()];
    let inputs = HttpRuleInputs {
        kind,
        route: &route,
        number: 1,
        rule,
        hostnames: &hostnames,
        backends,
        mirrors,
        external_auths: Some(Vec::new()),
    };
    build_http_rule(&inputs)
        .iter()
        .map(|rule| json_of(&rule.attach("http", "edge/door.http", None))["route"].take())
        .collect()
}

/// What a rule with this action and these declared fields does with requests.
fn policies(action: sluice_model::HttpRoute, declared: DeclaredRule) -> Value {
    let rule = HttpRule { action, declared, ..HttpRule::default() };
    http("HTTPRoute", &rule, Vec::new(), Vec::new())[0]["trafficPolicies"].take()
}

fn service(name: &str) -> BackendService {
    let host = Host::new(&format!("{name}.shop.svc.cluster.local"));
    BackendService { namespace: "shop".into(), host, port: 8080 }
}

fn at(uri: StringMatch) -> HttpMatch {
    HttpMatch { uri: Some(uri), ..HttpMatch::default() }
}

#[test]
fn bind_has_the_protocol_and_the_tunnel_of_its_listener() {
    let bind = |protocol: &str| {
        let made = build_bind(&object("edge", "door"), 8443, protocol, false);
        assert_eq!(made.name, "bind/8443/edge/door");
        let bind = json_of(&made)["bind"].take();
        let field = |name: &str| bind[name].as_str().unwrap_or("default").to_owned();
        assert_eq!((&bind["key"], &bind["port"]), (&json!("8443/edge/door"), &json!(8443)));
        (field("protocol"), field("tunnelProtocol"))
    };
    let pair = |protocol: &str, tunnel: &str| (protocol.to_owned(), tunnel.to_owned());
    assert_eq!(bind("HTTP"), pair("default", "default"));
    assert_eq!(bind("HTTPS"), pair("TLS", "default"));
    assert_eq!(bind("TLS"), pair("TLS", "default"));
    assert_eq!(bind("TCP"), pair("TCP", "default"));
    assert_eq!(bind("HBONE"), pair("default", "HBONE_GATEWAY"));
}

#[test]
fn listener_of_a_set_is_distinguished_from_that_of_its_gateway() {
    let (gateway, set) = (object("edge", "door"), object("shop", "more"));
    assert_eq!(listener_key(&gateway, None, "http"), "edge/door.http");
    assert_eq!(listener_key(&gateway, Some(&set), "http"), "shop/more.http");
    assert_eq!(listener_key(&gateway, Some(&gateway), "http"), "edge/door.http/set");
    let inputs = AgentgatewayListenerInputs {
        gateway: &gateway,
        set: Some(&set),
        section: "http",
        hostname: "*.example",
        port: 80,
        protocol: "HTTP",
        tls: None,
    };
    let made = build_listener(&inputs).expect("a listener");
    assert_eq!(made.name, "listener/shop/more.http");
    let expected = json!({"listener": {
        "key": "shop/more.http", "bindKey": "80/edge/door", "hostname": "*.example", "protocol": "HTTP",
        "name": {
            "gatewayName": "door", "gatewayNamespace": "edge", "listenerName": "http",
            "listenerSet": {"name": "more", "namespace": "shop"},
        },
    }});
    assert_eq!(json_of(&made), expected);
    assert_eq!(build_listener(&AgentgatewayListenerInputs { protocol: "UDP", ..inputs }), None);
}

#[test]
fn listener_without_its_certificate_rejects_tls_connections() {
    let bytes = |text: &'static str| Redacted(Bytes::from_static(text.as_bytes()));
    let certificate = CertificateKeyPair { chain: bytes("CHAIN"), key: bytes("KEY"), ..CertificateKeyPair::default() };
    let roots = RootCertificates { certificates: bytes("ROOTS"), revoked: None };
    let gateway = object("edge", "door");
    let tls = |tls: ListenerTlsInputs<'_>| {
        let inputs = AgentgatewayListenerInputs {
            gateway: &gateway,
            set: None,
            section: "https",
            hostname: "",
            port: 443,
            protocol: "HTTPS",
            tls: Some(tls),
        };
        json_of(&build_listener(&inputs).expect("a listener"))["listener"]["tls"].take()
    };
    let without = ListenerTlsInputs { certificate: None, roots: None, allows_insecure: true };
    assert_eq!(tls(without), json!({"cert": "aW52YWxpZA==", "privateKey": "aW52YWxpZA=="}));
    let with = ListenerTlsInputs { certificate: Some(&certificate), ..without };
    assert_eq!(tls(with), json!({"cert": "Q0hBSU4=", "privateKey": "S0VZ"}));
    let mutual = ListenerTlsInputs { roots: Some(&roots), allows_insecure: false, ..with };
    assert_eq!(tls(mutual), json!({"cert": "Q0hBSU4=", "privateKey": "S0VZ", "root": "Uk9PVFM="}));
    let optional = tls(ListenerTlsInputs { allows_insecure: true, ..mutual });
    assert_eq!(optional["mtlsMode"], "ALLOW_INSECURE_FALLBACK");
}

#[test]
fn each_match_of_a_rule_of_an_http_route_is_a_route() {
    let special = HttpMatch {
        headers: [("x-user".into(), Some(StringMatch::Regex("a.*".into())))].into(),
        query_params: [("q".into(), Some(StringMatch::Exact("1".into())))].into(),
        method: Some(StringMatch::Exact("GET".into())),
        ..at(StringMatch::Exact("/cart/".into()))
    };
    let rule = HttpRule {
        matches: vec![at(StringMatch::Prefix("/".into())), special, at(StringMatch::Regex("/v[12]".into()))],
        declared: DeclaredRule { name: "first".into(), ..DeclaredRule::default() },
        ..HttpRule::default()
    };
    let routes = http("HTTPRoute", &rule, Vec::new(), Vec::new());
    let keys: Vec<&Value> = routes.iter().map(|route| &route["key"]).collect();
    assert_eq!(keys, ["shop/cart.1.0.http", "shop/cart.1.1.http", "shop/cart.1.2.http"]);
    let expected = json!({
        "key": "shop/cart.1.1.http", "listenerKey": "edge/door.http", "hostnames": ["cart.example"],
        "name": {"kind": "HTTPRoute", "name": "cart", "namespace": "shop", "ruleName": "first"},
        "matches": [{
            "path": {"exact": "/cart/"}, "method": {"exact": "GET"},
            "headers": [{"name": "x-user", "regex": "a.*"}], "queryParams": [{"name": "q", "exact": "1"}],
        }],
    });
    assert_eq!(routes[1], expected);
    assert_eq!(routes[0]["matches"], json!([{"path": {"pathPrefix": "/"}}]));
    assert_eq!(routes[2]["matches"], json!([{"path": {"regex": "/v[12]"}}]));
}

#[test]
fn rule_of_a_grpc_route_is_one_route_for_all_its_matches() {
    let rule = HttpRule {
        matches: vec![at(StringMatch::Exact("/s.S/M".into())), at(StringMatch::Prefix("/s.T/".into()))],
        ..HttpRule::default()
    };
    let routes = http("GRPCRoute", &rule, Vec::new(), Vec::new());
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0]["key"], "shop/cart.1.http");
    assert_eq!(routes[0]["matches"], json!([{"path": {"exact": "/s.S/M"}}, {"path": {"pathPrefix": "/s.T"}}]));
    let every = http("GRPCRoute", &HttpRule::default(), Vec::new(), Vec::new());
    assert_eq!(every[0]["matches"], json!([{"path": {"pathPrefix": "/"}}]));
}

#[test]
fn backend_that_is_not_known_keeps_its_share() {
    let set = HeaderOperations { set: [("x-a".into(), "1".into())].into(), ..HeaderOperations::default() };
    let headers = Headers { request: set, ..Headers::default() };
    let backends = vec![
        RouteBackendInputs { service: Some(service("cart")), weight: 3, headers: Some(&headers) },
        RouteBackendInputs { service: None, weight: 1, headers: None },
    ];
    let routes = http("HTTPRoute", &HttpRule::default(), backends, Vec::new());
    let expected = json!([
        {
            "backend": {"service": {"namespace": "shop", "hostname": "cart.shop.svc.cluster.local"}, "port": 8080},
            "weight": 3,
            "backendPolicies": [{"requestHeaderModifier": {"set": [{"name": "x-a", "value": "1"}]}}],
        },
        {"weight": 1},
    ]);
    assert_eq!(routes[0]["backends"], expected);
}

#[test]
fn filters_are_traffic_policies() {
    let action = |redirect: HttpRedirect| sluice_model::HttpRoute {
        redirect: Some(redirect),
        ..sluice_model::HttpRoute::default()
    };
    let of = |redirect: HttpRedirect| policies(action(redirect), DeclaredRule::default());
    let redirect = HttpRedirect {
        scheme: "https".into(),
        authority: "a.example".into(),
        port: RedirectPort::Port(8443),
        code: 301,
        prefix_rewrite: "/new/".into(),
        ..HttpRedirect::default()
    };
    let expected = json!({"scheme": "https", "host": "a.example", "port": 8443, "status": 301, "prefix": "/new"});
    assert_eq!(of(redirect), json!([{"requestRedirect": expected}]));
    let full = HttpRedirect { uri: "/only/".into(), ..HttpRedirect::default() };
    assert_eq!(of(full), json!([{"requestRedirect": {"full": "/only"}}]));

    let rewrite = |rewrite: HttpRewrite| {
        let action = sluice_model::HttpRoute { rewrite: Some(rewrite), ..sluice_model::HttpRoute::default() };
        policies(action, DeclaredRule::default())
    };
    let prefix = HttpRewrite { uri: "/".into(), authority: "b.example".into(), regex: None };
    assert_eq!(rewrite(prefix), json!([{"urlRewrite": {"host": "b.example", "prefix": ""}}]));
    let full = HttpRewrite { regex: Some(("/.*".into(), "/whole".into())), ..HttpRewrite::default() };
    assert_eq!(rewrite(full), json!([{"urlRewrite": {"full": "/whole"}}]));

    let cors = CorsPolicy {
        allow_methods: vec!["GET".into()],
        allow_credentials: Some(true),
        max_age: Some(Duration::from_secs(7)),
        ..CorsPolicy::default()
    };
    let with_cors = sluice_model::HttpRoute { cors: Some(cors.into()), ..sluice_model::HttpRoute::default() };
    let declared = DeclaredRule { allow_origins: vec!["https://*.example".into()], ..DeclaredRule::default() };
    let expected = json!({
        "allowCredentials": true, "allowMethods": ["GET"], "allowOrigins": ["https://*.example"], "maxAge": "7s",
    });
    assert_eq!(policies(with_cors, declared), json!([{"cors": expected}]));

    let response = HeaderOperations {
        add: [("x-b".into(), "2".into())].into(),
        remove: vec!["x-c".into()],
        ..HeaderOperations::default()
    };
    let headers = Headers { response, ..Headers::default() };
    let with_headers = sluice_model::HttpRoute { headers: Some(headers), ..sluice_model::HttpRoute::default() };
    let expected = json!({"add": [{"name": "x-b", "value": "2"}], "remove": ["x-c"]});
    assert_eq!(policies(with_headers, DeclaredRule::default()), json!([{"responseHeaderModifier": expected}]));
}

#[test]
fn timeouts_and_retries_are_those_that_are_declared() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let declared =
        DeclaredRule { request_timeout: seconds(3), backend_request_timeout: seconds(1), ..DeclaredRule::default() };
    let expected = json!([{"timeout": {"request": "3s", "backendRequest": "1s"}}]);
    assert_eq!(policies(sluice_model::HttpRoute::default(), declared), expected);
    assert_eq!(policies(sluice_model::HttpRoute::default(), DeclaredRule::default()), Value::Null);
    let retried = || sluice_model::HttpRoute {
        retries: Some(HttpRetry { backoff: seconds(2), ..HttpRetry::default() }),
        ..sluice_model::HttpRoute::default()
    };
    let declared = DeclaredRule { retry_attempts: Some(4), retry_codes: vec![503], ..DeclaredRule::default() };
    let expected = json!([{"retry": {"attempts": 4, "retryStatusCodes": [503], "backoff": "2s"}}]);
    assert_eq!(policies(retried(), declared), expected);
    let never = DeclaredRule { retry_attempts: Some(0), ..DeclaredRule::default() };
    assert_eq!(policies(retried(), never), Value::Null);
}

#[test]
fn mirrors_without_a_share_are_left_out() {
    let mirror = |percentage: Option<f64>| MirrorInputs {
        service: service("copy"),
        percentage: percentage.map(Decimal::from_f64),
    };
    let mirrors = vec![mirror(None), mirror(Some(0.0)), mirror(Some(12.5))];
    let routes = http("HTTPRoute", &HttpRule::default(), Vec::new(), mirrors);
    let mirrors = &routes[0]["trafficPolicies"][0]["requestMirror"]["mirrors"];
    let shares: Vec<f64> =
        mirrors.as_array().into_iter().flatten().filter_map(|mirror| mirror["percentage"].as_f64()).collect();
    assert_eq!(shares, [100.0, 12.5]);
    assert_eq!(mirrors[0]["backend"]["service"]["hostname"], "copy.shop.svc.cluster.local");
    let none = http("HTTPRoute", &HttpRule::default(), Vec::new(), vec![mirror(Some(0.0))]);
    assert_eq!(none[0].get("trafficPolicies"), None);
}

#[test]
fn key_of_a_route_for_connections_begins_with_its_age() {
    let route = object("shop", "raw");
    let key = |created: i64| {
        let backends = vec![RouteBackendInputs { service: Some(service("db")), weight: 1, headers: None }];
        let hostnames = ["db.example".into()];
        let inputs =
            L4RuleInputs { kind: "TLSRoute", route: &route, created, number: 0, hostnames: &hostnames, backends };
        let made = build_l4_rule(&inputs).attach("tls", "edge/door.tls", None);
        let route = json_of(&made)["tcpRoute"].take();
        assert_eq!(made.name.as_str(), format!("tcp_route/{}", route["key"].as_str().expect("a key")));
        assert_eq!(route["hostnames"], json!(["db.example"]));
        assert_eq!(route["backends"][0]["backend"]["port"], 8080);
        route["key"].as_str().expect("a key").to_owned()
    };
    assert_eq!(key(1_700_000_000), "1700000000/shop/raw.0.tls");
    assert_eq!(key(7), "0000000007/shop/raw.0.tls");
    assert_eq!(key(0), "shop/raw.0.tls");
}

#[test]
fn tls_of_a_backend_without_usable_roots_fails() {
    let (policy, host) = (object("shop", "tls"), Host::new("cart.shop.svc.cluster.local"));
    let tls = |roots: BackendRoots<'_>, port: Option<u16>| {
        let names = ["spiffe://cluster.local/ns/shop/sa/cart".into()];
        let inputs = BackendTlsInputs {
            policy: &policy,
            host: &host,
            port,
            roots,
            certificate: None,
            hostname: "cart.example",
            subject_alt_names: &names,
        };
        json_of(&build_backend_tls(&inputs))["policy"].take()
    };
    let expected = json!({
        "key": "shop/tls:backend-tls:shop/cart.shop.svc.cluster.local",
        "target": {"service": {"namespace": "shop", "hostname": "cart.shop.svc.cluster.local"}},
        "backend": {"backendTls": {
            "hostname": "cart.example", "verifySubjectAltNames": ["spiffe://cluster.local/ns/shop/sa/cart"],
        }},
    });
    assert_eq!(tls(BackendRoots::System, None), expected);
    let given = tls(BackendRoots::Given(b"ROOTS"), Some(443));
    assert_eq!(given["backend"]["backendTls"]["root"], "Uk9PVFM=");
    assert_eq!(given["target"]["service"]["port"], 443);
    assert_eq!(given["key"], "shop/tls:backend-tls:shop/cart.shop.svc.cluster.local:443");
    assert_eq!(tls(BackendRoots::Unusable, None)["backend"]["backendTls"]["root"], "aW52YWxpZA==");
}
