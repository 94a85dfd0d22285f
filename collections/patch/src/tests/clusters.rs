use super::*;
use crate::{added_resources, patch_cluster};

fn named(fields: ClusterMatch, operation: PatchOperation, context: PatchContext) -> EnvoyPatch {
    let value = if operation == PatchOperation::Remove { Value::Null } else { json!({"altStatName": "x"}) };
    EnvoyPatch { object: ObjectMatch::Cluster(fields), context, ..patch(ApplyTo::Cluster, operation, &value) }
}

fn merges(name: &str, cluster: &Value, fields: ClusterMatch, context: PatchContext, proxy_type: ProxyType) -> bool {
    let patch = named(fields, PatchOperation::Merge, context);
    match patch_cluster(name, &encoded(ApplyTo::Cluster, cluster), &[patch], proxy_type) {
        PatchOutcome::Unchanged => false,
        PatchOutcome::Changed(_) => true,
        PatchOutcome::Removed => panic!("removed"),
    }
}

#[test]
fn clusters_match_by_the_parts_of_their_name() {
    let outbound = "outbound|80|v1|a.forge.svc.cluster.local";
    let cluster = json!({"name": outbound});
    let finds = |fields: ClusterMatch| merges(outbound, &cluster, fields, PatchContext::Any, ProxyType::Sidecar);
    let by = ClusterMatch::default;
    assert!(finds(by()));
    assert!(finds(ClusterMatch { name: outbound.into(), port: 1, ..by() }));
    assert!(!finds(ClusterMatch { name: "other".into(), ..by() }));
    assert!(finds(ClusterMatch { port: 80, subset: "v1".into(), ..by() }));
    assert!(!finds(ClusterMatch { port: 81, ..by() }));
    assert!(!finds(ClusterMatch { subset: "v2".into(), ..by() }));
    assert!(finds(ClusterMatch { service: "a.forge.svc.cluster.local".into(), ..by() }));
    assert!(!finds(ClusterMatch { service: "b.forge.svc.cluster.local".into(), ..by() }));
    let sni = "outbound_.443_.v1_.a.forge.svc.cluster.local";
    let fields = ClusterMatch { port: 443, service: "a.forge.svc.cluster.local".into(), ..by() };
    assert!(merges(sni, &json!({"name": sni}), fields, PatchContext::Gateway, ProxyType::Router));
}

#[test]
fn inbound_cluster_matches_by_its_services() {
    let metadata = json!({"filterMetadata": {"istio": {"services": [{"host": "a.forge"}, {"host": "b.forge"}]}}});
    let cluster = json!({"name": "inbound|8080||", "metadata": metadata});
    let finds = |service: &str| {
        let fields = ClusterMatch { service: service.into(), ..ClusterMatch::default() };
        merges("inbound|8080||", &cluster, fields, PatchContext::SidecarInbound, ProxyType::Sidecar)
    };
    assert!(finds("b.forge"));
    assert!(!finds("c.forge"));
}

#[test]
fn patches_apply_in_their_context_only() {
    for (name, proxy_type, side) in [
        ("outbound|80||a", ProxyType::Sidecar, PatchContext::SidecarOutbound),
        ("BlackHoleCluster", ProxyType::Sidecar, PatchContext::SidecarOutbound),
        ("inbound|80||", ProxyType::Sidecar, PatchContext::SidecarInbound),
        ("InboundPassthroughCluster", ProxyType::Sidecar, PatchContext::SidecarInbound),
        ("outbound|80||a", ProxyType::Router, PatchContext::Gateway),
    ] {
        let finds = |context| merges(name, &json!({"name": name}), ClusterMatch::default(), context, proxy_type);
        for context in [PatchContext::SidecarInbound, PatchContext::SidecarOutbound, PatchContext::Gateway] {
            assert_eq!(finds(context), context == side, "{name} {context:?}");
        }
        assert!(finds(PatchContext::Any));
    }
}

#[test]
fn clusters_are_removed_and_added() {
    let cluster = encoded(ApplyTo::Cluster, &json!({"name": "outbound|80||a"}));
    let remove = named(ClusterMatch::default(), PatchOperation::Remove, PatchContext::Any);
    assert_eq!(
        patch_cluster("outbound|80||a", &cluster, std::slice::from_ref(&remove), ProxyType::Sidecar),
        PatchOutcome::Removed
    );
    let add = |name: &str| patch(ApplyTo::Cluster, PatchOperation::Add, &json!({"name": name, "altStatName": name}));
    let added = added_resources(&[remove, add("x"), add("y"), add("x"), add("")], ApplyTo::Cluster, ProxyType::Sidecar);
    assert_eq!(added.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    // An added cluster changes no other cluster.
    assert_eq!(patch_cluster("outbound|80||a", &cluster, &[add("x")], ProxyType::Sidecar), PatchOutcome::Unchanged);
}

const TLS: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";

fn socket(name: &str, context: Value) -> Value {
    json!({"name": name, "typedConfig": any(TLS, context)})
}

#[test]
fn transport_socket_is_merged_by_name_and_nothing_else_is() {
    let over = patch(
        ApplyTo::Cluster,
        PatchOperation::Merge,
        &json!({"altStatName": "x", "transportSocket": socket("tls", json!({"sni": "new"}))}),
    );
    let result = |cluster: Value| {
        let mut cluster = cluster;
        cluster["name"] = json!("c");
        changed(
            ApplyTo::Cluster,
            patch_cluster("c", &encoded(ApplyTo::Cluster, &cluster), std::slice::from_ref(&over), ProxyType::Sidecar),
        )
    };
    let own = || socket("tls", json!({"sni": "old", "maxSessionKeys": 3}));
    let merged = socket("tls", json!({"sni": "new", "maxSessionKeys": 3}));
    assert_eq!(result(json!({"transportSocket": own()})), json!({"name": "c", "transportSocket": merged}));
    let other = socket("other", json!({"sni": "old"}));
    let new = socket("tls", json!({"sni": "new"}));
    assert_eq!(result(json!({"transportSocket": other})), json!({"name": "c", "transportSocket": new}));
    let choices = json!([{"name": "m", "transportSocket": other}, {"name": "n", "transportSocket": own()}]);
    let result = result(json!({"transportSocketMatches": choices}));
    assert_eq!(result["transportSocketMatches"][1]["transportSocket"], merged);
    assert_eq!(result["transportSocketMatches"][0]["transportSocket"], other);
    assert_eq!(result.get("transportSocket"), None);
}

#[test]
fn waypoints_have_patches_of_outbound_clusters_and_add_inbound_ones() {
    let merges = |name: &str, context| {
        merges(name, &json!({"name": name}), ClusterMatch::default(), context, ProxyType::Waypoint)
    };
    assert!(merges("outbound|80||a", PatchContext::SidecarOutbound));
    assert!(merges("outbound|80||a", PatchContext::Any));
    for name in ["inbound-vip|80|http|a", "main_internal", "connect_originate"] {
        assert!(!merges(name, PatchContext::Any), "{name}");
    }
    let add = |context| EnvoyPatch {
        value: PatchValue(encoded(ApplyTo::Cluster, &json!({"name": "x"})).into()),
        ..named(ClusterMatch::default(), PatchOperation::Add, context)
    };
    let added = |context| added_resources(&[add(context)], ApplyTo::Cluster, ProxyType::Waypoint).len();
    assert_eq!(added(PatchContext::SidecarInbound), 1);
    assert_eq!([PatchContext::Any, PatchContext::SidecarOutbound].map(added), [0, 0]);
}
