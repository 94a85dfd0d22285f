use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::route_action::HostRewriteSpecifier;
use sluice_model::{
    HashKey, Headers, HttpDestination, HttpRedirect, HttpRewrite, PersistentSession, RedirectPort, StringMatch,
};

use super::*;

fn destination(host: &str, weight: i32) -> HttpDestination {
    let destination = Destination { host: Host::from(host), ..Destination::default() };
    HttpDestination { destination, weight, headers: None }
}

fn route_to(host: &str) -> HttpRoute {
    HttpRoute { route: vec![destination(host, 0)], ..HttpRoute::default() }
}

fn matching(uri: StringMatch) -> HttpMatch {
    HttpMatch { uri: Some(uri), ..HttpMatch::default() }
}

fn build(http: Vec<HttpRoute>) -> Vec<Route> {
    build_for(http, "shop", &Labels::new(), None)
}

/// Services `kept` and `known` have persistent sessions.
fn session_of(host: &Host) -> Option<PersistentSession> {
    ["kept", "known"].contains(&host.as_str()).then(|| PersistentSession::Header(host.as_str().into()))
}

fn build_for(http: Vec<HttpRoute>, namespace: &str, labels: &Labels, hash: Option<&ConsistentHash>) -> Vec<Route> {
    let virtual_service =
        VirtualService { namespace: "shop".into(), name: "vs".into(), http, ..VirtualService::default() };
    build_routes(&RouteInputs {
        virtual_service: &virtual_service,
        port: 80,
        gateway: "mesh",
        namespace,
        labels,
        is_tls: false,
        waypoint: false,
        append_x_forwarded_host: false,
        default_retry: None,
        shadow_suffix: false,
        grpc: false,
        service: &|host| {
            let alias_of = (host.as_str() == "alias").then(|| Host::from("target"));
            Some(DestinationService { alias_of, session: session_of(host), ..DestinationService::default() })
        },
        hash: &|_| hash.cloned(),
    })
}

fn action(route: &Route) -> &envoy_types::pb::envoy::config::route::v3::RouteAction {
    match &route.action {
        Some(Action::Route(action)) => action,
        other => panic!("not a route: {other:?}"),
    }
}

fn operation_of(route: &Route) -> &str {
    route.decorator.as_ref().map(|decorator| decorator.operation.as_str()).unwrap_or_default()
}

#[test]
fn routes_after_one_that_matches_everything_are_left_out() {
    let routes = build(vec![
        HttpRoute { matches: vec![matching(StringMatch::Exact("/a".into()))], ..route_to("a") },
        HttpRoute { matches: vec![matching(StringMatch::Prefix("/".into()))], ..route_to("b") },
        route_to("c"),
    ]);
    let operations: Vec<_> = routes.iter().map(operation_of).collect();
    assert_eq!(operations, ["a:80/a", "b:80/*"]);
    assert!(!is_catch_all(&routes[0]) && is_catch_all(&routes[1]));
}

#[test]
fn client_conditions_are_evaluated_at_build_time() {
    let matched = |edit: fn(&mut HttpMatch)| {
        let mut matched = HttpMatch::default();
        edit(&mut matched);
        HttpRoute { matches: vec![matched], ..route_to("a") }
    };
    let labels = Labels::from([("app".into(), "x".into())]);
    let count = |edit| build_for(vec![matched(edit)], "shop", &labels, None).len();
    assert_eq!(count(|m| m.port = 80), 1);
    assert_eq!(count(|m| m.port = 81), 0);
    assert_eq!(count(|m| m.source_namespace = "shop".into()), 1);
    assert_eq!(count(|m| m.source_namespace = "other".into()), 0);
    assert_eq!(count(|m| m.source_labels = Labels::from([("app".into(), "x".into())])), 1);
    assert_eq!(count(|m| m.source_labels = Labels::from([("app".into(), "y".into())])), 0);
    assert_eq!(count(|m| m.gateways = vec!["mesh".into()]), 1);
    assert_eq!(count(|m| m.gateways = vec!["edge/front".into()]), 0);
}

#[test]
fn weighted_destinations_have_the_operation_name_of_the_virtual_service() {
    let routes = build(vec![HttpRoute {
        route: vec![destination("a", 80), destination("alias", 20), destination("c", 0)],
        ..HttpRoute::default()
    }]);
    let Some(ClusterSpecifier::WeightedClusters(weighted)) = &action(&routes[0]).cluster_specifier else {
        panic!("weights are expected");
    };
    let clusters: Vec<_> =
        weighted.clusters.iter().map(|c| (c.name.as_str(), c.weight.map(|w| w.value).unwrap_or_default())).collect();
    assert_eq!(clusters, [("outbound|80||a", 80), ("outbound|80||target", 20)]);
    assert_eq!(operation_of(&routes[0]), "vs:80/*");
}

#[test]
fn timeouts_are_unlimited_unless_declared() {
    let routes = build(vec![HttpRoute { timeout: Some(Duration::from_millis(1500)), ..route_to("a") }]);
    let timeout = action(&routes[0]).timeout.unwrap();
    assert_eq!((timeout.seconds, timeout.nanos), (1, 500_000_000));
    assert_eq!(action(&build(vec![route_to("a")])[0]).timeout, Some(Default::default()));
}

#[test]
fn zero_attempts_disable_the_default_retries() {
    let policy = build_retry_policy(None, false).unwrap();
    assert_eq!(policy.retry_host_predicate.len(), 1);
    assert_eq!(build_retry_policy(None, true).unwrap().retry_host_predicate.len(), 0);
    assert_eq!(build_retry_policy(Some(&HttpRetry::default()), false), None);
    let retry = HttpRetry { attempts: 3, retry_on: "5xx, 503 ,reset".into(), ..HttpRetry::default() };
    let policy = build_retry_policy(Some(&retry), false).unwrap();
    assert_eq!(policy.retry_on, "5xx,reset,retriable-status-codes");
    assert_eq!(policy.retriable_status_codes, [503]);
}

#[test]
fn consistent_hashing_retries_the_same_host() {
    let hash = ConsistentHash { key: Some(HashKey::Header("x-user".into())), ..ConsistentHash::default() };
    let routes = build_for(vec![route_to("a")], "shop", &Labels::new(), Some(&hash));
    assert_eq!(action(&routes[0]).hash_policy.len(), 1);
    assert!(action(&routes[0]).retry_policy.as_ref().unwrap().retry_host_predicate.is_empty());
}

#[test]
fn authority_header_becomes_a_rewrite() {
    let mut headers = Headers::default();
    headers.request.set.insert("Host".into(), "set.example".into());
    headers.request.set.insert("x".into(), "1".into());
    let rewritten = |route: &Route| match &action(route).host_rewrite_specifier {
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => host.clone(),
        other => panic!("no literal: {other:?}"),
    };
    let routes = build(vec![HttpRoute { headers: Some(headers), ..route_to("a") }]);
    assert_eq!(rewritten(&routes[0]), "set.example");
    assert_eq!(routes[0].request_headers_to_add.len(), 1);
    let rewrite = HttpRewrite { authority: "new.example".into(), ..HttpRewrite::default() };
    assert_eq!(rewritten(&build(vec![HttpRoute { rewrite: Some(rewrite), ..route_to("a") }])[0]), "new.example");
}

#[test]
fn redirects_omit_the_default_port() {
    let check = |port: RedirectPort, scheme: &str, is_tls: bool, expect: u32| {
        let redirect = HttpRedirect { port, scheme: scheme.into(), ..HttpRedirect::default() };
        assert_eq!(redirect::build_redirect(&redirect, 8080, is_tls).unwrap().port_redirect, expect);
    };
    check(RedirectPort::FromProtocol, "", false, 0);
    check(RedirectPort::FromRequest, "", false, 8080);
    check(RedirectPort::Port(443), "https", false, 0);
    check(RedirectPort::Port(443), "", true, 0);
    check(RedirectPort::Port(443), "", false, 443);
}

#[test]
fn routes_that_match_everything_are_sorted_last() {
    let mut routes = build(vec![route_to("all")]);
    routes.extend(build(vec![HttpRoute { matches: vec![matching(StringMatch::Exact("/a".into()))], ..route_to("a") }]));
    let operations: Vec<_> = catch_all_last(routes).iter().map(|route| operation_of(route).to_owned()).collect();
    assert_eq!(operations, ["a:80/a", "all:80/*"]);
}

#[test]
fn persistent_session_of_the_destination_is_used() {
    let kept = |destinations: &[(&str, i32)]| -> Option<usize> {
        let to = |(host, weight): &(&str, i32)| HttpDestination {
            destination: Destination { host: Host::from(*host), ..Destination::default() },
            weight: *weight,
            ..HttpDestination::default()
        };
        let route = HttpRoute { route: destinations.iter().map(to).collect(), ..HttpRoute::default() };
        let [route] = <[Route; 1]>::try_from(build_for(vec![route], "", &Labels::new(), None)).expect("a route");
        route.typed_per_filter_config.get("envoy.filters.http.stateful_session").map(|own| own.value.len())
    };
    let (a, b) = (kept(&[("kept", 0)]), kept(&[("known", 0)]));
    assert!(a.is_some() && a != b, "{a:?} {b:?}");
    assert_eq!(kept(&[("plain", 0)]), None);
    assert_eq!(kept(&[("plain", 1), ("kept", 1)]), a);
    assert_eq!(kept(&[("kept", 1), ("known", 1)]), a, "the first of two");
    assert_eq!(kept(&[("kept", 1), ("plain", 1)]), None, "the last destination decides");
    assert_eq!(kept(&[("plain", 1), ("kept", 0)]), None);
}

#[test]
fn mirrored_requests_keep_their_host_unless_the_server_says_otherwise() {
    let route = HttpRoute { mirror: Some(Destination::default()), ..HttpRoute::default() };
    for suffix in [false, true] {
        let mirrors = super::mirror::build_mirrors(&route, suffix, |_| "copy".to_owned());
        assert_eq!(mirrors[0].disable_shadow_host_suffix_append, !suffix);
    }
}
