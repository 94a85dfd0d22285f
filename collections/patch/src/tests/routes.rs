use std::collections::BTreeSet;

use sluice_model::{RouteActionMatch, RouteMatch, RouteTableMatch, VirtualHostMatch};

use super::*;
use crate::{RouteTableContext, patch_route_table, patch_virtual_host};

fn outbound(name: &str) -> RouteTableContext<'_> {
    RouteTableContext { name, context: PatchContext::SidecarOutbound, service_ports: None }
}

fn with(apply_to: ApplyTo, operation: PatchOperation, fields: RouteTableMatch, value: &Value) -> EnvoyPatch {
    EnvoyPatch { object: ObjectMatch::RouteTable(fields), ..patch(apply_to, operation, value) }
}

fn in_host(host: VirtualHostMatch) -> RouteTableMatch {
    RouteTableMatch { virtual_host: Some(host), ..RouteTableMatch::default() }
}

fn by_route(name: &str, action: RouteActionMatch) -> RouteTableMatch {
    in_host(VirtualHostMatch { route: Some(RouteMatch { name: name.into(), action }), ..VirtualHostMatch::default() })
}

fn host() -> Value {
    json!({"name": "v:80", "domains": ["v", "v.forge"], "routes": [
        {"name": "r", "match": {"prefix": "/r"}, "route": {"cluster": "c"}},
        {"name": "m", "match": {"prefix": "/m"}, "redirect": {"pathRedirect": "/"}},
        {"name": "d", "match": {"prefix": "/d"}, "directResponse": {"status": 200}},
    ]})
}

fn of_host(patches: &[EnvoyPatch]) -> PatchOutcome {
    patch_virtual_host(&encoded(ApplyTo::VirtualHost, &host()), patches, &outbound("80"))
}

fn routes(patches: &[EnvoyPatch]) -> Vec<String> {
    let host = changed(ApplyTo::VirtualHost, of_host(patches));
    let routes = host["routes"].as_array().cloned().unwrap_or_default();
    routes.iter().map(|route| route["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn tables_match_by_name_and_port() {
    let table = encoded(ApplyTo::RouteConfiguration, &json!({"name": "t"}));
    let over = json!({"responseHeadersToRemove": ["x"]});
    let finds = |facts: &RouteTableContext<'_>, fields: RouteTableMatch| {
        let patch = with(ApplyTo::RouteConfiguration, PatchOperation::Merge, fields, &over);
        match patch_route_table(&table, &[patch], facts) {
            PatchOutcome::Changed(_) => true,
            PatchOutcome::Unchanged => false,
            PatchOutcome::Removed => panic!("removed"),
        }
    };
    let by = RouteTableMatch::default;
    assert!(finds(&outbound("80"), by()));
    assert!(finds(&outbound("80"), RouteTableMatch { port: 80, name: "80".into(), ..by() }));
    assert!(finds(&outbound("80"), RouteTableMatch { gateway: "only/gateways".into(), ..by() }));
    assert!(!finds(&outbound("a.forge:80"), RouteTableMatch { port: 80, ..by() }));
    assert!(finds(&outbound("inbound|8080||"), RouteTableMatch { port: 8080, ..by() }));
    let ports = BTreeSet::from([80]);
    let gateway = |name, service_ports| RouteTableContext { name, context: PatchContext::Gateway, service_ports };
    let plain = gateway("http.8080", Some(&ports));
    assert!(finds(&plain, RouteTableMatch { port: 80, ..by() }));
    assert!(!finds(&plain, RouteTableMatch { port: 8080, ..by() }));
    assert!(finds(&gateway("http.8080", None), RouteTableMatch { port: 8080, ..by() }));
    assert!(!finds(&plain, RouteTableMatch { port_name: "http".into(), ..by() }));
    let tls = gateway("https.443.https-n.g.istio-ingress", None);
    let fields = RouteTableMatch { port: 443, port_name: "https-n".into(), gateway: "istio-ingress/g".into(), ..by() };
    assert!(finds(&tls, fields));
    assert!(!finds(&tls, RouteTableMatch { gateway: "istio-ingress/h".into(), ..by() }));
}

#[test]
fn virtual_hosts_are_merged_removed_and_replaced() {
    let by_name = || in_host(VirtualHostMatch { name: "v:80".into(), ..VirtualHostMatch::default() });
    let by_domain = |domain: &str| in_host(VirtualHostMatch { domain: domain.into(), ..VirtualHostMatch::default() });
    let over = json!({"responseHeadersToRemove": ["x"]});
    let merge = with(ApplyTo::VirtualHost, PatchOperation::Merge, by_name(), &over);
    assert_eq!(changed(ApplyTo::VirtualHost, of_host(&[merge]))["responseHeadersToRemove"], json!(["x"]));
    let remove = |fields| with(ApplyTo::VirtualHost, PatchOperation::Remove, fields, &Value::Null);
    assert_eq!(of_host(&[remove(by_domain("v.forge"))]), PatchOutcome::Removed);
    assert_eq!(of_host(&[remove(by_domain("w"))]), PatchOutcome::Unchanged);
    let other = json!({"name": "w", "domains": ["w"]});
    let replace = with(ApplyTo::VirtualHost, PatchOperation::Replace, by_name(), &other);
    assert_eq!(changed(ApplyTo::VirtualHost, of_host(&[replace])), other);
}

#[test]
fn added_virtual_host_is_in_the_table() {
    let table = encoded(ApplyTo::RouteConfiguration, &json!({"name": "80"}));
    let new = json!({"name": "new", "domains": ["new"]});
    let fields = RouteTableMatch { name: "80".into(), ..RouteTableMatch::default() };
    let add = with(ApplyTo::VirtualHost, PatchOperation::Add, fields, &new);
    let result =
        changed(ApplyTo::RouteConfiguration, patch_route_table(&table, std::slice::from_ref(&add), &outbound("80")));
    assert_eq!(result["virtualHosts"], json!([new]));
    assert_eq!(patch_route_table(&table, std::slice::from_ref(&add), &outbound("81")), PatchOutcome::Unchanged);
    assert_eq!(of_host(&[add]), PatchOutcome::Unchanged);
    // Replacing the list removes all others.
    let hosts = json!({"virtualHosts": [new]});
    let replace = patch(ApplyTo::RouteConfiguration, PatchOperation::MergeAndReplaceList, &hosts);
    assert_eq!(of_host(&[replace]), PatchOutcome::Removed);
}

#[test]
fn routes_match_by_name_and_action() {
    let over = json!({"decorator": {"operation": "o"}});
    let found = |fields: RouteTableMatch| {
        let host = match of_host(&[with(ApplyTo::HttpRoute, PatchOperation::Merge, fields, &over)]) {
            PatchOutcome::Unchanged => return String::new(),
            outcome => changed(ApplyTo::VirtualHost, outcome),
        };
        let routes = host["routes"].as_array().cloned().unwrap_or_default();
        let changed = routes.iter().filter(|route| route.get("decorator").is_some());
        changed.map(|route| route["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(found(RouteTableMatch::default()), "rmd");
    assert_eq!(found(by_route("m", RouteActionMatch::Any)), "m");
    assert_eq!(found(by_route("", RouteActionMatch::Route)), "r");
    assert_eq!(found(by_route("", RouteActionMatch::Redirect)), "m");
    assert_eq!(found(by_route("", RouteActionMatch::DirectResponse)), "d");
    assert_eq!(found(by_route("m", RouteActionMatch::Route)), "");
}

#[test]
fn routes_are_inserted_and_removed() {
    use PatchOperation::{Add, InsertAfter, InsertBefore, InsertFirst, Remove};
    let new = json!({"name": "new", "match": {"prefix": "/"}, "directResponse": {"status": 201}});
    let near = |name: &str| by_route(name, RouteActionMatch::Any);
    let any = RouteTableMatch::default;
    for (operation, fields, expected) in [
        (Add, any(), vec!["r", "m", "d", "new"]),
        (InsertFirst, any(), vec!["new", "r", "m", "d"]),
        (InsertFirst, near("m"), vec!["new", "r", "m", "d"]),
        (InsertBefore, near("m"), vec!["r", "new", "m", "d"]),
        (InsertBefore, any(), vec!["new", "r", "m", "d"]),
        (InsertAfter, near("m"), vec!["r", "m", "new", "d"]),
        (InsertAfter, any(), vec!["r", "m", "d", "new"]),
        (Remove, near("m"), vec!["r", "d"]),
    ] {
        let patch = with(ApplyTo::HttpRoute, operation, fields.clone(), &new);
        assert_eq!(routes(&[patch]), expected, "{operation:?} {fields:?}");
    }
    for operation in [InsertFirst, InsertBefore, InsertAfter, Remove] {
        assert_eq!(of_host(&[with(ApplyTo::HttpRoute, operation, near("x"), &new)]), PatchOutcome::Unchanged);
    }
    // A removed route does not match an insertion.
    let remove = with(ApplyTo::HttpRoute, Remove, near("m"), &Value::Null);
    let insert = with(ApplyTo::HttpRoute, InsertBefore, near("m"), &new);
    assert_eq!(routes(&[insert, remove]), ["r", "d"]);
}
