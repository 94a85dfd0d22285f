use super::*;
use crate::patch_listener;

const MANAGER: &str = "envoy.filters.network.http_connection_manager";
const MANAGER_TYPE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

fn http(name: &str) -> Value {
    json!({"name": name, "typedConfig": buffer(1)})
}

fn manager(filters: &[&str]) -> Value {
    let filters: Vec<Value> = filters.iter().map(|name| http(name)).collect();
    json!({"name": MANAGER, "typedConfig": any(MANAGER_TYPE, json!({"statPrefix": "s", "httpFilters": filters}))})
}

fn echo(name: &str) -> Value {
    json!({"name": name, "typedConfig": any("envoy.extensions.filters.network.echo.v3.Echo", json!({}))})
}

/// An outbound listener on port 80 with an HTTP filter chain and a TLS filter chain.
fn listener() -> Value {
    json!({
        "name": "0.0.0.0_80",
        "trafficDirection": "OUTBOUND",
        "address": {"socketAddress": {"address": "0.0.0.0", "portValue": 80}},
        "listenerFilters": [{"name": "l1", "typedConfig": buffer(1)}, {"name": "l2"}],
        "filterChains": [
            {"name": "http", "filters": [echo("first"), manager(&["a", "b"])]},
            {
                "name": "tls",
                "filterChainMatch": {
                    "serverNames": ["x.example.com"], "transportProtocol": "tls",
                    "applicationProtocols": ["h2", "http/1.1"], "destinationPort": 443,
                },
                "filters": [echo("only")],
            },
        ],
    })
}

fn with(apply_to: ApplyTo, operation: PatchOperation, fields: ListenerMatch, value: &Value) -> EnvoyPatch {
    EnvoyPatch { object: ObjectMatch::Listener(fields), ..patch(apply_to, operation, value) }
}

fn in_chain(chain: FilterChainMatch) -> ListenerMatch {
    ListenerMatch { chain: Some(chain), ..ListenerMatch::default() }
}

fn by_filter(name: &str, sub_filter: Option<&str>) -> ListenerMatch {
    let filter = FilterMatch { name: name.into(), sub_filter: sub_filter.map(Into::into) };
    in_chain(FilterChainMatch { filter: Some(filter), ..FilterChainMatch::default() })
}

fn result(patches: &[EnvoyPatch]) -> Value {
    changed(ApplyTo::Listener, patch_listener(&encoded(ApplyTo::Listener, &listener()), patches, ProxyType::Sidecar))
}

fn outcome(patch: EnvoyPatch) -> PatchOutcome {
    patch_listener(&encoded(ApplyTo::Listener, &listener()), &[patch], ProxyType::Sidecar)
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|element| element["name"].as_str().unwrap_or_default()).collect()
}

fn http_names(listener: &Value) -> Vec<&str> {
    let chain = &listener["filterChains"][0];
    let filters = chain["filters"].as_array().expect("filters");
    let manager = filters.iter().find(|filter| filter["name"] == MANAGER).expect("the manager");
    names(&manager["typedConfig"]["httpFilters"])
}

#[test]
fn listeners_are_merged_and_removed_by_port_and_name() {
    let over = json!({"perConnectionBufferLimitBytes": 5});
    let merge = |fields| with(ApplyTo::Listener, PatchOperation::Merge, fields, &over);
    let by = ListenerMatch::default;
    assert_eq!(result(&[merge(ListenerMatch { port: 80, ..by() })])["perConnectionBufferLimitBytes"], 5);
    assert_eq!(result(&[merge(ListenerMatch { name: "0.0.0.0_80".into(), ..by() })])["name"], "0.0.0.0_80");
    assert_eq!(outcome(merge(ListenerMatch { port: 81, ..by() })), PatchOutcome::Unchanged);
    assert_eq!(outcome(merge(ListenerMatch { name: "x".into(), ..by() })), PatchOutcome::Unchanged);
    let inbound = EnvoyPatch { context: PatchContext::SidecarInbound, ..merge(by()) };
    assert_eq!(outcome(inbound), PatchOutcome::Unchanged);
    let remove = with(ApplyTo::Listener, PatchOperation::Remove, by(), &Value::Null);
    assert_eq!(outcome(remove), PatchOutcome::Removed);
}

#[test]
fn filter_chains_match_by_their_criteria() {
    let over = json!({"transportSocketConnectTimeout": "7s"});
    let by = FilterChainMatch::default;
    let merge = |chain| with(ApplyTo::FilterChain, PatchOperation::Merge, in_chain(chain), &over);
    for chain in [
        FilterChainMatch { name: "tls".into(), ..by() },
        FilterChainMatch { sni: "x.example.com".into(), ..by() },
        FilterChainMatch { transport_protocol: "tls".into(), ..by() },
        FilterChainMatch { application_protocols: "http/1.1,h2".into(), ..by() },
        FilterChainMatch { destination_port: 443, ..by() },
    ] {
        let result = result(&[merge(chain.clone())]);
        let found = |chain: usize| result["filterChains"][chain].get("transportSocketConnectTimeout").is_some();
        assert!(!found(0) && found(1), "{chain:?}");
    }
    for chain in [
        FilterChainMatch { name: "x".into(), ..by() },
        FilterChainMatch { sni: "y.example.com".into(), ..by() },
        FilterChainMatch { application_protocols: "h2,h3".into(), ..by() },
        FilterChainMatch { destination_port: 80, ..by() },
    ] {
        assert_eq!(outcome(merge(chain.clone())), PatchOutcome::Unchanged, "{chain:?}");
    }
    let chain = FilterChainMatch { name: "http".into(), ..by() };
    let remove = with(ApplyTo::FilterChain, PatchOperation::Remove, in_chain(chain), &Value::Null);
    let add = patch(ApplyTo::FilterChain, PatchOperation::Add, &json!({"name": "new", "filters": [echo("e")]}));
    let empty = patch(ApplyTo::FilterChain, PatchOperation::Add, &json!({"name": "empty"}));
    assert_eq!(names(&result(&[remove, add, empty])["filterChains"]), ["tls", "new"]);
}

#[test]
fn port_of_a_virtual_listener_matches_its_filter_chains() {
    let mut listener = listener();
    listener["name"] = json!("virtualInbound");
    listener["trafficDirection"] = json!("INBOUND");
    let fields = ListenerMatch { port: 443, ..ListenerMatch::default() };
    let patch = with(ApplyTo::NetworkFilter, PatchOperation::Add, fields, &echo("new"));
    let result = changed(
        ApplyTo::Listener,
        patch_listener(&encoded(ApplyTo::Listener, &listener), &[patch], ProxyType::Sidecar),
    );
    assert_eq!(names(&result["filterChains"][0]["filters"]), ["first", MANAGER]);
    assert_eq!(names(&result["filterChains"][1]["filters"]), ["only", "new"]);
}

#[test]
fn listener_filters_are_inserted_removed_and_replaced() {
    use PatchOperation::{Add, InsertAfter, InsertBefore, InsertFirst, Merge, Remove, Replace};
    let by = |name: &str| ListenerMatch { listener_filter: name.into(), ..ListenerMatch::default() };
    let new = json!({"name": "new"});
    for (operation, near, expected) in [
        (Add, "", vec!["l1", "l2", "new"]),
        (InsertFirst, "l2", vec!["new", "l1", "l2"]),
        (InsertBefore, "l2", vec!["l1", "new", "l2"]),
        (InsertBefore, "", vec!["new", "l1", "l2"]),
        (InsertAfter, "l1", vec!["l1", "new", "l2"]),
        (InsertAfter, "", vec!["l1", "l2", "new"]),
        (Replace, "l1", vec!["new", "l2"]),
        (Remove, "l1", vec!["l2"]),
    ] {
        let result = result(&[with(ApplyTo::ListenerFilter, operation, by(near), &new)]);
        assert_eq!(names(&result["listenerFilters"]), expected, "{operation:?} {near}");
    }
    for (operation, near) in [
        (Remove, ""),
        (Replace, ""),
        (InsertBefore, "x"),
        (InsertAfter, "x"),
        (Replace, "x"),
        (Merge, ""),
        (Merge, "l2"),
    ] {
        let patch = with(ApplyTo::ListenerFilter, operation, by(near), &new);
        assert_eq!(outcome(patch), PatchOutcome::Unchanged, "{operation:?} {near}");
    }
    // The name is kept.
    let over = json!({"name": "other", "typedConfig": buffer(9)});
    let result = result(&[with(ApplyTo::ListenerFilter, Merge, by("l1"), &over)]);
    assert_eq!(result["listenerFilters"][0], json!({"name": "l1", "typedConfig": buffer(9)}));
}

#[test]
fn network_filters_are_inserted_removed_and_replaced() {
    use PatchOperation::{Add, InsertAfter, InsertBefore, InsertFirst, Merge, Remove, Replace};
    for (operation, near, expected) in [
        (Add, None, vec!["first", MANAGER, "new"]),
        (InsertFirst, None, vec!["new", "first", MANAGER]),
        (InsertBefore, Some(MANAGER), vec!["first", "new", MANAGER]),
        (InsertBefore, None, vec!["new", "first", MANAGER]),
        (InsertAfter, Some("first"), vec!["first", "new", MANAGER]),
        (InsertAfter, None, vec!["first", MANAGER, "new"]),
        (Replace, Some("first"), vec!["new", MANAGER]),
        (Remove, Some("first"), vec![MANAGER]),
    ] {
        let fields = near.map(|near| by_filter(near, None)).unwrap_or_default();
        let result = result(&[with(ApplyTo::NetworkFilter, operation, fields, &echo("new"))]);
        assert_eq!(names(&result["filterChains"][0]["filters"]), expected, "{operation:?} {near:?}");
    }
    let over = json!({"name": MANAGER, "typedConfig": any(MANAGER_TYPE, json!({"statPrefix": "t"}))});
    let result = result(&[with(ApplyTo::NetworkFilter, Merge, by_filter(MANAGER, None), &over)]);
    assert_eq!(result["filterChains"][0]["filters"][1]["typedConfig"]["statPrefix"], "t");
    assert_eq!(http_names(&result), ["a", "b"]);
    // A configuration of another type is not merged.
    let fields = by_filter("first", None);
    assert_eq!(
        outcome(with(ApplyTo::NetworkFilter, Merge, fields, &json!({"typedConfig": buffer(1)}))),
        PatchOutcome::Unchanged
    );
}

#[test]
fn http_filters_are_inserted_removed_and_replaced() {
    use PatchOperation::{Add, InsertAfter, InsertBefore, InsertFirst, Merge, Remove, Replace};
    for (operation, near, expected) in [
        (Add, None, vec!["a", "b", "new"]),
        (InsertFirst, Some("b"), vec!["new", "a", "b"]),
        (InsertBefore, Some("b"), vec!["a", "new", "b"]),
        (InsertBefore, None, vec!["new", "a", "b"]),
        (InsertAfter, Some("a"), vec!["a", "new", "b"]),
        (InsertAfter, None, vec!["a", "b", "new"]),
        (Replace, Some("a"), vec!["new", "b"]),
        (Remove, Some("a"), vec!["b"]),
    ] {
        let fields = by_filter(MANAGER, near);
        let result = result(&[with(ApplyTo::HttpFilter, operation, fields, &http("new"))]);
        assert_eq!(http_names(&result), expected, "{operation:?} {near:?}");
    }
    for (operation, near) in [(Remove, None), (Replace, None), (InsertBefore, Some("x")), (Merge, Some("x"))] {
        let patch = with(ApplyTo::HttpFilter, operation, by_filter(MANAGER, near), &http("new"));
        assert_eq!(outcome(patch), PatchOutcome::Unchanged, "{operation:?} {near:?}");
    }
    // A patch matches filters that earlier patches inserted, and merges come last.
    let first = with(ApplyTo::HttpFilter, InsertFirst, by_filter(MANAGER, None), &http("new"));
    let over = json!({"name": "renamed", "typedConfig": buffer(9)});
    let second = with(ApplyTo::HttpFilter, Merge, by_filter(MANAGER, Some("new")), &over);
    let result = result(&[second, first]);
    assert_eq!(http_names(&result), ["renamed", "a", "b"]);
}

#[test]
fn transport_socket_of_the_same_name_is_merged_alone() {
    let tls = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    let socket = |context: Value| json!({"name": "tls", "typedConfig": any(tls, context)});
    let mut listener = listener();
    listener["filterChains"][0]["transportSocket"] = socket(json!({"requireSni": true}));
    let over = json!({"name": "n", "transportSocket": socket(json!({"sessionTimeout": "600s"}))});
    let merge = patch(ApplyTo::FilterChain, PatchOperation::Merge, &over);
    let result = changed(
        ApplyTo::Listener,
        patch_listener(&encoded(ApplyTo::Listener, &listener), &[merge], ProxyType::Sidecar),
    );
    let chain = &result["filterChains"][0];
    assert_eq!(chain["transportSocket"], socket(json!({"requireSni": true, "sessionTimeout": "600s"})));
    assert_eq!(chain["name"], "http");
    // Without a transport socket the whole value is merged.
    assert_eq!(result["filterChains"][1]["name"], "n");
}

#[test]
fn inline_routes_of_an_inbound_listener_are_patched() {
    let table = json!({"name": "inbound|8080||", "virtualHosts": [{"name": "v", "domains": ["*"], "routes": [
        {"name": "default", "match": {"prefix": "/"}, "route": {"cluster": "inbound|8080||"}},
    ]}]});
    let mut listener = listener();
    listener["trafficDirection"] = json!("INBOUND");
    listener["filterChains"][0]["filters"][1]["typedConfig"]["routeConfig"] = table;
    let merge = patch(ApplyTo::HttpRoute, PatchOperation::Merge, &json!({"decorator": {"operation": "o"}}));
    let patched =
        |patch: EnvoyPatch| patch_listener(&encoded(ApplyTo::Listener, &listener), &[patch], ProxyType::Sidecar);
    let result = changed(ApplyTo::Listener, patched(merge.clone()));
    let table = &result["filterChains"][0]["filters"][1]["typedConfig"]["routeConfig"];
    assert_eq!(table["virtualHosts"][0]["routes"][0]["decorator"]["operation"], "o");
    let outbound = EnvoyPatch { context: PatchContext::SidecarOutbound, ..merge };
    assert_eq!(patched(outbound), PatchOutcome::Unchanged);
}
