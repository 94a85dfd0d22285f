//! Parsing of Gateway API kinds: values and findings.

use std::time::Duration;

use sluice_model::gateway_api::{AddressKind, GroupKind, ListenerTlsMode, NamespaceSelection};
use sluice_model::{Decimal, Object, RedirectPort, Severity, StringMatch, Text};

use crate::parse_object;
use crate::yaml::{Limits, parse_value};

const API: &str = "apiVersion: gateway.networking.k8s.io/v1";

/// The object, and its findings as `severity path`.
fn read(kind: &str, spec: &str) -> (Option<Object>, Vec<String>) {
    let text = format!("{{{API}, kind: {kind}, metadata: {{name: x, namespace: web}}, spec: {{{spec}}}}}");
    let value = parse_value(&text, &Limits::default()).expect("yaml");
    let parsed = parse_object(&"c".into(), "cluster.local", &value).expect("a known kind");
    let shown = parsed.rejects.iter().map(|reject| {
        let sign = match reject.severity {
            Severity::Error => '!',
            Severity::Refused => '-',
            Severity::Warning => '?',
        };
        format!("{sign}{}", reject.field_path)
    });
    (parsed.object, shown.collect())
}

fn findings(kind: &str, spec: &str) -> Vec<String> {
    read(kind, spec).1
}

#[test]
fn gateway_references_have_defaults() {
    let (object, found) = read(
        "Gateway",
        "gatewayClassName: istio, addresses: [{value: 10.0.0.1}, {type: Hostname, value: door.web.svc}],
        allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}},
        listeners: [{name: tls, port: 443, protocol: HTTPS, hostname: '*.example', tls: {certificateRefs: [{name: c}]},
        allowedRoutes: {namespaces: {from: All}, kinds: [{kind: HTTPRoute}]}}]",
    );
    assert_eq!(found, [""; 0]);
    let Some(Object::KubernetesGateway(gateway)) = object else { panic!("{object:?}") };
    assert_eq!(gateway.class, *"istio");
    let kinds: Vec<_> = gateway.addresses.iter().map(|address| &address.kind).collect();
    assert_eq!(kinds, [&AddressKind::Unset, &AddressKind::Hostname]);
    assert!(matches!(&gateway.allowed_listeners, NamespaceSelection::Selected(Some(_))));
    let listener = &gateway.listeners[0];
    let tls = listener.tls.as_ref().expect("TLS");
    assert_eq!((tls.mode, &tls.certificates[0].kind), (None, &GroupKind { group: "".into(), kind: "Secret".into() }));
    assert_eq!(listener.allowed_routes.namespaces, NamespaceSelection::All);
    assert!(listener.allowed_routes.kinds[0].is("gateway.networking.k8s.io", "HTTPRoute"));
}

#[test]
fn routes_have_the_defaults_that_their_definition_declares() {
    let rules = |spec: &str| match read("HTTPRoute", &format!("parentRefs: [{{name: door}}], {spec}")) {
        (Some(Object::HTTPRoute(route)), found) if found.is_empty() => route.rules,
        (object, found) => panic!("{object:?} {found:?}"),
    };
    let all = Some(StringMatch::Prefix("/".into()));
    let uris = |spec: &str| -> Vec<Vec<Option<StringMatch>>> {
        rules(spec).iter().map(|rule| rule.matches.iter().map(|found| found.uri.clone()).collect()).collect()
    };
    assert_eq!(uris("hostnames: [a.example]"), [vec![all.clone()]], "a rule for all paths");
    assert_eq!(uris("rules: [{backendRefs: [{name: b, port: 80}]}]"), [vec![all.clone()]]);
    assert_eq!(uris("rules: [{matches: [{method: GET}]}]"), [vec![all]]);
    assert_eq!(uris("rules: [{matches: []}]"), [vec![]], "an empty list is no default");
    let cors = "rules: [{filters: [{type: CORS, cors: {allowOrigins: ['https://a.example']}}]}]";
    let age = rules(cors)[0].action.cors.as_ref().and_then(|cors| cors.max_age);
    assert_eq!(age, Some(Duration::from_secs(5)));
}

#[test]
fn invalid_gateway_fields_are_reported_with_their_path() {
    let listener = |rest: &str| {
        findings("Gateway", &format!("gatewayClassName: istio, listeners: [{{name: a, port: 80, {rest}}}]"))
    };
    assert_eq!(findings("Gateway", "listeners: [{name: a, protocol: HTTP}]"), ["!spec.gatewayClassName"]);
    assert_eq!(findings("Gateway", "gatewayClassName: istio"), ["-spec.listeners"]);
    assert_eq!(listener("protocol: HTTP, tls: {mode: Passthrough}"), ["-spec.listeners[0].tls"]);
    assert_eq!(listener("protocol: HTTPS, tls: {mode: Passthrough}"), ["-spec.listeners[0].tls.mode"]);
    assert_eq!(listener("protocol: HTTPS, tls: {}"), ["-spec.listeners[0].tls.certificateRefs"]);
    assert_eq!(listener("protocol: HTTP, hostname: 'a.*.b'"), ["-spec.listeners[0].hostname"]);
    assert_eq!(listener("protocol: HTTP, sort: b"), ["?spec.listeners[0].sort"]);
    assert_eq!(
        listener("protocol: HTTP, allowedRoutes: {namespaces: {from: Selector}}"),
        ["-spec.listeners[0].allowedRoutes.namespaces.selector"]
    );
    let two =
        "gatewayClassName: istio, listeners: [{name: a, port: 1, protocol: TCP}, {name: a, port: 2, protocol: TCP}]";
    assert_eq!(findings("Gateway", two), ["-spec.listeners[1].name"]);
}

#[test]
fn inference_pool_has_defaults_and_its_invalid_fields_are_reported() {
    let read = |spec: &str| {
        let text = format!(
            "{{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {{name: x, uid: u}}, spec: {{{spec}}}}}"
        );
        let value = parse_value(&text, &Limits::default()).expect("yaml");
        let parsed = parse_object(&"c".into(), "cluster.local", &value).expect("a known kind");
        let paths = parsed.rejects.iter().map(|reject| format!("{:?} {}", reject.severity, reject.field_path));
        (parsed.object, paths.collect::<Vec<_>>())
    };
    let pool = |ports: &str, picker: &str| {
        format!("selector: {{matchLabels: {{app: llm}}}}, targetPorts: [{ports}], endpointPickerRef: {{{picker}}}")
    };
    let (port, picker) = ("{number: 8000}", "name: picker, port: {number: 9002}");
    let (object, found) = read(&pool(port, picker));
    assert_eq!(found, [""; 0]);
    let Some(Object::InferencePool(read_pool)) = object else { panic!("{object:?}") };
    assert_eq!((read_pool.target_ports.as_slice(), read_pool.app_protocol.as_str()), (&[8000][..], "http"));
    assert_eq!((read_pool.picker.port, read_pool.picker.fails_open, read_pool.uid.as_str()), (Some(9002), false, "u"));
    let findings = |spec: &str| read(spec).1;
    let all = ["Error spec.endpointPickerRef", "Error spec.selector", "Error spec.targetPorts"];
    assert_eq!(findings(""), all);
    assert_eq!(findings(&pool("{}", picker)), ["Error spec.targetPorts", "Error spec.targetPorts[0].number"]);
    let nine: Vec<String> = (1..10).map(|number| format!("{{number: {number}}}")).collect();
    assert_eq!(findings(&pool(&nine.join(", "), picker)), ["Error spec.targetPorts"]);
    assert_eq!(findings(&pool("{number: 1}, {number: 1}", picker)), ["Refused spec.targetPorts"]);
    assert_eq!(findings(&pool(port, "name: picker")), ["Refused spec.endpointPickerRef.port"]);
    assert_eq!(findings(&pool(port, "kind: Pod, name: picker")), ["Warning spec.endpointPickerRef.kind"]);
    let mode = format!("{picker}, failureMode: Retry");
    assert_eq!(findings(&pool(port, &mode)), ["Error spec.endpointPickerRef.failureMode"]);
    let selector = pool(port, picker).replace("{app: llm}", "{}");
    assert_eq!(findings(&selector), ["Error spec.selector.matchLabels"]);
}

#[test]
fn tls_passthrough_is_read() {
    let spec = "gatewayClassName: istio, listeners: [{name: a, port: 443, protocol: TLS, tls: {mode: Passthrough}}]";
    let (Some(Object::KubernetesGateway(gateway)), _) = read("Gateway", spec) else { panic!("a Gateway") };
    assert_eq!(gateway.listeners[0].tls.as_ref().and_then(|tls| tls.mode), Some(ListenerTlsMode::Passthrough));
}

#[test]
fn http_route_becomes_the_model_of_virtual_services() {
    let (object, found) = read(
        "HTTPRoute",
        "parentRefs: [{name: gw}, {group: '', kind: Service, name: s, namespace: other, port: 80}],
        rules: [{matches: [{path: {value: /a/}, headers: [{name: X, value: v}]}, {path: {type: Exact, value: /b}}],
        filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: '1'}, {name: a, value: '2'}]}},
        {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}},
        {type: RequestMirror, requestMirror: {backendRef: {name: m, port: 1}, fraction: {numerator: 1, denominator: 8}}}],
        backendRefs: [{name: b, port: 8080, weight: 3}], timeouts: {request: 3s}}, {name: named}]",
    );
    assert_eq!(found, [""; 0]);
    let Some(Object::HTTPRoute(route)) = object else { panic!("{object:?}") };
    let parents: Vec<_> = route.parents.iter().map(|p| (p.kind.kind.as_str(), p.namespace.as_str(), p.port)).collect();
    assert_eq!(parents, [("Gateway", "web", 0), ("Service", "other", 80)]);
    let rule = &route.rules[0];
    let paths: Vec<_> = rule.matches.iter().map(|m| m.uri.clone().expect("a path")).collect();
    assert_eq!(paths, [StringMatch::Prefix("/a".into()), StringMatch::Exact("/b".into())]);
    assert_eq!(rule.action.name, *"web.x.0");
    let set = &rule.action.headers.as_ref().expect("headers").request.set;
    assert_eq!(set.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), [("a", "1")]);
    assert_eq!(rule.action.rewrite.as_ref().expect("a rewrite").uri, *"/");
    assert_eq!(rule.mirrors[0].percentage, Some(Decimal::from_f64(12.5)));
    assert_eq!((rule.backends[0].backend.weight, rule.backends[0].backend.port), (3, Some(8080)));
    assert_eq!(route.rules[1].action.name, *"named");
}

#[test]
fn invalid_http_route_fields_are_reported_with_their_path() {
    let rule = |rest: &str| findings("HTTPRoute", &format!("parentRefs: [{{name: gw}}], rules: [{{{rest}}}]"));
    assert_eq!(rule("backendRefs: [{name: a.b, port: 80}]"), ["-spec.rules[0].backendRefs[0].name"]);
    assert_eq!(rule("backendRefs: [{name: a}]"), ["-spec.rules[0].backendRefs[0].port"]);
    assert_eq!(rule("backendRefs: [{name: a, weight: 0}]"), [""; 0]);
    assert_eq!(rule("matches: [{path: {type: Glob, value: /a}}]"), ["!spec.rules[0].matches[0].path.type"]);
    assert_eq!(rule("filters: [{type: ExtensionRef, extensionRef: {}}]"), ["-spec.rules[0].filters[0].type"]);
    assert_eq!(
        rule("filters: [{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: \"b\\n\"}]}}]"),
        ["!spec.rules[0].filters[0].requestHeaderModifier.add[0].value"]
    );
    assert_eq!(
        rule("filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath}}}]"),
        ["!spec.rules[0].filters[0].requestRedirect.path.replaceFullPath"]
    );
    assert_eq!(rule("timeouts: {request: 1s, backendRequest: 2s}"), ["-spec.rules[0].timeouts.backendRequest"]);
    assert_eq!(rule("retry: {codes: [200]}"), ["!spec.rules[0].retry.codes"]);
}

#[test]
fn redirect_keeps_the_request_port_unless_it_sets_a_scheme() {
    let port = |redirect: &str| {
        let filter = format!("{{type: RequestRedirect, requestRedirect: {{{redirect}}}}}");
        let (object, _) = read("HTTPRoute", &format!("rules: [{{filters: [{filter}]}}]"));
        let Some(Object::HTTPRoute(route)) = object else { panic!("{object:?}") };
        route.rules[0].action.redirect.as_ref().expect("a redirect").port
    };
    assert_eq!(port("hostname: a.b"), RedirectPort::FromRequest);
    assert_eq!(port("scheme: https"), RedirectPort::FromProtocol);
    assert_eq!(port("scheme: https, port: 8443"), RedirectPort::Port(8443));
}

#[test]
fn cors_origins_support_wildcards() {
    let origin = |origin: &str| {
        let filter = format!("{{type: CORS, cors: {{allowOrigins: ['{origin}']}}}}");
        let (object, _) = read("HTTPRoute", &format!("rules: [{{filters: [{filter}]}}]"));
        let Some(Object::HTTPRoute(route)) = object else { panic!("{object:?}") };
        route.rules[0].action.cors.as_ref().expect("CORS").allow_origins[0].clone()
    };
    assert_eq!(origin("https://a.b"), StringMatch::Exact("https://a.b".into()));
    assert_eq!(origin("https://a.*"), StringMatch::Prefix("https://a.".into()));
    assert_eq!(origin("https://*.b"), StringMatch::Regex(r"^https://.*\.b$".into()));
    assert!(matches!(origin("*"), StringMatch::Regex(_)));
}

#[test]
fn grpc_methods_become_path_matches() {
    let path = |method: &str| {
        let (object, found) = read("GRPCRoute", &format!("rules: [{{matches: [{{method: {{{method}}}}}]}}]"));
        let Some(Object::GRPCRoute(route)) = object else { return Err(found) };
        Ok(route.rules[0].matches[0].uri.clone().expect("a path"))
    };
    assert_eq!(path("service: a.B, method: C"), Ok(StringMatch::Exact("/a.B/C".into())));
    assert_eq!(path("service: a.B"), Ok(StringMatch::Prefix("/a.B/".into())));
    assert_eq!(path("method: C"), Ok(StringMatch::Regex("/[^/]+/C".into())));
    assert_eq!(path("type: RegularExpression, service: a.+"), Ok(StringMatch::Regex("/a.+/.+".into())));
    assert_eq!(path("type: Exact"), Err(vec!["!spec.rules[0].matches[0].method".to_owned()]));
}

#[test]
fn tcp_tls_and_udp_routes_have_backends_per_rule() {
    let spec = "parentRefs: [{name: gw, sectionName: tls}], hostnames: [a.example], \
        rules: [{backendRefs: [{name: a, port: 1}, {name: b, port: 2, weight: 0}]}]";
    let (Some(Object::TLSRoute(route)), found) = read("TLSRoute", spec) else { panic!("a TLSRoute") };
    assert_eq!(found, [""; 0]);
    assert_eq!((route.hostnames.as_slice(), &route.parents[0].section), (&["a.example".into()][..], &"tls".into()));
    let weights: Vec<i32> = route.rules[0].iter().map(|backend| backend.weight).collect();
    assert_eq!(weights, [1, 0]);
    for kind in ["TCPRoute", "UDPRoute"] {
        assert_eq!(findings(kind, spec), ["?spec.hostnames"]);
        assert_eq!(findings(kind, "parentRefs: [{name: gw}]"), ["-spec.rules"]);
    }
}

#[test]
fn invalid_reference_grant_grants_nothing() {
    let text =
        "from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], to: [{group: '', kind: Service}]";
    let (Some(Object::ReferenceGrant(grant)), found) = read("ReferenceGrant", text) else { panic!("a grant") };
    assert_eq!(found, [""; 0]);
    let (route, service) = (
        GroupKind { group: "gateway.networking.k8s.io".into(), kind: "HTTPRoute".into() },
        GroupKind { group: Text::default(), kind: "Service".into() },
    );
    assert!(grant.allows(&route, "a", &service, "any"));
    let (object, found) = read("ReferenceGrant", "from: [{kind: HTTPRoute}], to: [{kind: Service}]");
    assert!(object.is_none());
    assert_eq!(found, ["!spec.from[0].namespace"]);
}

#[test]
fn policies_and_listener_sets_require_a_target() {
    let policy = "targetRefs: [{group: '', kind: Service, name: s, sectionName: p}], \
        validation: {hostname: a.b, wellKnownCACertificates: System, subjectAltNames: [{type: URI, uri: 'spiffe://a'}]}";
    let (Some(Object::BackendTLSPolicy(read_policy)), found) = read("BackendTLSPolicy", policy) else { panic!("one") };
    assert_eq!(found, [""; 0]);
    assert_eq!(read_policy.validation.subject_alt_names, [Text::from("spiffe://a")]);
    assert_eq!(findings("BackendTLSPolicy", "targetRefs: [{kind: Service, name: s}]"), ["!spec.validation"]);
    let none = "targetRefs: [{kind: Service, name: s}], validation: {hostname: a.b}";
    assert_eq!(findings("BackendTLSPolicy", none), ["-spec.validation"]);
    assert_eq!(findings("ListenerSet", "listeners: [{name: a, protocol: HTTP}]"), ["!spec.parentRef"]);
    let set = "parentRef: {name: gw}, listeners: [{name: a, protocol: HTTP}]";
    let (Some(Object::ListenerSet(set)), _) = read("ListenerSet", set) else { panic!("a ListenerSet") };
    assert_eq!((set.parent.name.as_str(), set.listeners[0].port), ("gw", 0));
}
