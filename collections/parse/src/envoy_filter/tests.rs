use serde_json::json;
use sluice_model::{
    ApplyTo, EnvoyFilter, Object, ObjectMatch, ParsedObject, PatchContext, PatchOperation, Severity, VersionMatch,
};

use crate::parse_object;

fn parse(spec: serde_json::Value) -> ParsedObject {
    let object = json!({
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"namespace": "forge", "name": "f"},
        "spec": spec,
    });
    parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("a known kind")
}

fn filter(parsed: &ParsedObject) -> &EnvoyFilter {
    match &parsed.object {
        Some(Object::EnvoyFilter(filter)) => filter,
        other => panic!("{other:?} {:?}", parsed.rejects),
    }
}

/// The findings of a single patch as `path: reason`, with paths relative to the patch.
fn wrong(patch: serde_json::Value, severity: Severity) -> Vec<String> {
    let parsed = parse(json!({"configPatches": [patch]}));
    let kept = filter(&parsed).patches.iter().flatten().count();
    assert_eq!(kept, usize::from(severity == Severity::Warning), "{:?}", parsed.rejects);
    let rejects = parsed.rejects.iter().filter(|reject| reject.severity == severity);
    rejects.map(|reject| reject.field_path.replace("spec.configPatches[0].", "")).collect()
}

fn cluster(value: serde_json::Value) -> serde_json::Value {
    json!({"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": value}})
}

#[test]
fn all_fields_of_a_patch_are_read() {
    let parsed = parse(json!({
        "workloadSelector": {"labels": {"app": "anvil"}},
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"}],
        "priority": -3,
        "configPatches": [{
            "applyTo": "HTTP_FILTER",
            "match": {
                "context": "SIDECAR_INBOUND",
                "proxy": {"proxyVersion": "^1\\.30.*", "metadata": {"RING": "inner"}},
                "listener": {"portNumber": 15006, "portName": "x", "filterChain": {"destinationPort": 8080, "filter": {
                    "name": "envoy.filters.network.http_connection_manager",
                    "subFilter": {"name": "envoy.filters.http.router"},
                }}},
            },
            "patch": {"operation": "INSERT_BEFORE", "filterClass": "AUTHN", "value": {
                "name": "b",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                    "maxRequestBytes": 7,
                },
            }},
        }],
    }));
    assert_eq!(parsed.rejects, []);
    let filter = filter(&parsed);
    assert_eq!((filter.priority, filter.attachment.selector.len(), filter.attachment.targets.len()), (-3, 1, 1));
    let patch = filter.patches[0].as_ref().expect("applies");
    assert_eq!((patch.apply_to, patch.context), (ApplyTo::HttpFilter, PatchContext::SidecarInbound));
    assert_eq!(patch.operation, PatchOperation::InsertBefore);
    let VersionMatch::Matches(version) = &patch.version else { panic!("{patch:?}") };
    assert!(version.is_match("1.30.1") && !version.is_match("1.3.0"));
    let written = serde_json::to_value(&patch.version).expect("JSON");
    assert_eq!(written, json!({"Matches": "^1\\.30.*"}));
    assert_eq!(serde_json::from_value::<VersionMatch>(written).ok().as_ref(), Some(&patch.version));
    assert!(serde_json::from_value::<VersionMatch>(json!({"Matches": "("})).is_err());
    assert_eq!(patch.metadata.len(), 1);
    let ObjectMatch::Listener(listener) = &patch.object else { panic!("{:?}", patch.object) };
    let chain = listener.chain.as_ref().expect("a chain");
    assert_eq!((listener.port, chain.destination_port), (15006, 8080));
    let sub_filter = chain.filter.as_ref().and_then(|filter| filter.sub_filter.clone());
    assert_eq!(sub_filter, Some("envoy.filters.http.router".into()));
    assert!(!patch.value.0.is_empty());
}

#[test]
fn invalid_patch_does_not_affect_other_patches() {
    let buffer = "type.googleapis.com/envoy.extensions.filters.http.nothing.v3.Nothing";
    let parsed = parse(json!({"configPatches": [
        cluster(json!({"connectTimeout": "3s"})),
        cluster(json!({"connectTimeout": "soon"})),
        {"applyTo": "HTTP_FILTER", "patch": {"operation": "ADD", "value": {"name": "x", "typedConfig": {"@type": buffer}}}},
        {"applyTo": "CLUSTER", "patch": {"operation": "INSERT_FIRST", "value": {"name": "c"}}},
    ]}));
    let patches = &filter(&parsed).patches;
    assert_eq!(patches.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true]);
    // The order of clusters has no meaning.
    assert_eq!(patches[3].as_ref().map(|patch| patch.operation), Some(PatchOperation::Add));
    let paths: Vec<&str> = parsed.rejects.iter().map(|reject| reject.field_path.as_str()).collect();
    assert_eq!(paths.len(), 2, "{:?}", parsed.rejects);
    assert_eq!(paths[0], "spec.configPatches[1].patch.value.connectTimeout");
    assert!(paths[1].starts_with("spec.configPatches[2].patch.value.typedConfig"), "{paths:?}");
}

#[test]
fn invalid_patches_are_rejected() {
    let listener = |apply_to: &str, patterns: serde_json::Value| json!({"applyTo": apply_to, "match": {"listener": patterns}, "patch": {"operation": "REMOVE"}});
    let filter = |filter: serde_json::Value| json!({"filterChain": {"filter": filter}});
    let hcm = "envoy.filters.network.http_connection_manager";
    for (patch, path) in [
        (json!({"applyTo": "CLUSTER"}), "patch"),
        (json!({"patch": {"operation": "REMOVE"}}), "applyTo"),
        (json!({"applyTo": "CLUSTER", "patch": {"value": {}}}), "patch.operation"),
        (json!({"applyTo": "CLUSTER", "patch": {"operation": "MERGE"}}), "patch.value"),
        (listener("CLUSTER", json!({})), "match"),
        (listener("HTTP_ROUTE", json!({})), "match"),
        (listener("NETWORK_FILTER", filter(json!({}))), "match.listener.filterChain.filter.name"),
        (
            listener("NETWORK_FILTER", filter(json!({"name": hcm, "subFilter": {"name": "x"}}))),
            "match.listener.filterChain.filter.subFilter",
        ),
        (
            listener("HTTP_FILTER", filter(json!({"name": "other", "subFilter": {"name": "x"}}))),
            "match.listener.filterChain.filter.subFilter",
        ),
        (
            listener("HTTP_FILTER", filter(json!({"name": hcm, "subFilter": {}}))),
            "match.listener.filterChain.filter.subFilter.name",
        ),
        (
            json!({"applyTo": "CLUSTER", "match": {"proxy": {"proxyVersion": "("}}, "patch": {"operation": "REMOVE"}}),
            "match.proxy.proxyVersion",
        ),
    ] {
        assert_eq!(wrong(patch.clone(), Severity::Error), [path], "{patch}");
    }
    let wildcard = parse(json!({"workloadSelector": {"labels": {"app": "*"}}}));
    let refusals: Vec<_> =
        wildcard.rejects.iter().map(|reject| (reject.field_path.as_str(), reject.severity)).collect();
    assert_eq!(refusals, [("spec.workloadSelector.labels[app]", Severity::Refused)]);
}

#[test]
fn patch_with_one_more_expression_for_versions_than_an_object_may_have_is_rejected() {
    let patch = |n: usize| json!({"applyTo": "CLUSTER", "match": {"proxy": {"proxyVersion": format!("^1\\.{n}")}}, "patch": {"operation": "REMOVE"}});
    let patches: Vec<serde_json::Value> = (0..34).map(|n| patch(n.min(32))).chain([patch(0)]).collect();
    let parsed = parse(json!({"configPatches": patches}));
    let rejects: Vec<_> = parsed.rejects.iter().map(|reject| (reject.field_path.as_str(), reject.severity)).collect();
    let path = |n: usize| format!("spec.configPatches[{n}].match.proxy.proxyVersion");
    assert_eq!(rejects, [(path(32).as_str(), Severity::Error), (path(33).as_str(), Severity::Error)]);
    let left_out: Vec<usize> = (0..35).filter(|n| filter(&parsed).patches[*n].is_none()).collect();
    assert_eq!(left_out, [32, 33], "the patches of the other expressions apply");
}

#[test]
fn suspicious_patches_are_warnings() {
    let long = "a".repeat(1025);
    let old = json!({"filterChain": {"filter": {"name": "envoy.http_connection_manager"}}});
    for (patch, path) in [
        (cluster(json!({"noSuchField": 1})), "patch.value.noSuchField"),
        (json!({"applyTo": "HTTP_FILTER", "patch": {"operation": "ADD", "value": {"name": "x"}}}), "patch.value"),
        (
            json!({"applyTo": "CLUSTER", "match": {"proxy": {"proxyVersion": long}}, "patch": {"operation": "REMOVE"}}),
            "match.proxy.proxyVersion",
        ),
        (
            json!({"applyTo": "NETWORK_FILTER", "match": {"listener": old}, "patch": {"operation": "REMOVE"}}),
            "match.listener.filterChain.filter.name",
        ),
    ] {
        assert_eq!(wrong(patch.clone(), Severity::Warning), [path], "{patch}");
    }
}

#[test]
fn bootstrap_patches_are_accepted_and_reported_to_have_no_effect() {
    let parsed = parse(json!({"configPatches": [
        {"applyTo": "BOOTSTRAP", "patch": {"operation": "MERGE", "value": {"statsFlushInterval": "60s"}}},
    ]}));
    assert_eq!(filter(&parsed).patches, vec![None]);
    let findings: Vec<_> = parsed.rejects.iter().map(|it| (it.field_path.as_str(), it.severity)).collect();
    assert_eq!(findings, [("spec.configPatches[0].applyTo", Severity::Warning)]);
}
