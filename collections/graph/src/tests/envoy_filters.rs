//! The resources that an EnvoyFilter touches. After its removal nothing of it is left.

use prost::Message;
use sluice_engine::Origin;
use sluice_model::{Kind, Layer, ObjectKey, Proxy, ProxyKey, Resource, ResourceKey, ResourceType, VersionPattern};
use sluice_parse::{parse_object, yaml};
use sluice_proto::envoy::config::cluster::v3::Cluster;

use super::{TestGraph, sidecar};

/// Two namespaces with a Service each, and a sidecar of each.
fn test_mesh() -> TestGraph {
    let mut mesh = TestGraph::new(
        "
apiVersion: v1
kind: Service
metadata: {name: anvil, namespace: forge}
spec: {clusterIP: 10.1.0.1, selector: {app: anvil}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: kiln, namespace: pottery}
spec: {clusterIP: 10.1.0.2, selector: {app: kiln}, ports: [{name: tcp, port: 9000}]}
",
    );
    mesh.connect(sidecar("forge", "anvil", "10.9.0.1", &[("app", "anvil")]));
    mesh.connect(sidecar("pottery", "kiln", "10.9.0.2", &[("app", "kiln")]));
    mesh.changed();
    mesh
}

fn filter(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {spec}\n"
    )
}

/// Lines without the names of patch sets, which are hashes.
fn changed(mesh: &mut TestGraph) -> Vec<String> {
    let mut lines: Vec<String> = mesh.changed();
    for line in &mut lines {
        if let Some((before, rest)) = line.split_once("patches#") {
            let (_, after) = rest.split_once(' ').unwrap_or_default();
            *line = format!("{before}patches {after}");
        }
    }
    lines
}

const ANVIL: &str = "sidecar~10.9.0.1~anvil.forge~forge.svc.cluster.local";
const KILN: &str = "sidecar~10.9.0.2~kiln.pottery~pottery.svc.cluster.local";

#[test]
fn an_extension_config_is_for_those_it_selects() {
    let mut mesh = test_mesh();
    let config = "{applyTo: EXTENSION_CONFIG, match: {context: GATEWAY}, patch: {operation: ADD, value: {name: lua, \
                  typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, \
                  inline_code: 'VALUE'}}}}";
    let spec = |code: &str| format!("{{configPatches: [{}]}}", config.replace("VALUE", code));
    mesh.apply(&filter("forge", "lua", &spec("one")));
    let added = "extension_configs/patches workload:patches lua";
    assert_eq!(changed(&mut mesh), [format!("+{added}"), format!("~scopes {ANVIL}")]);
    // A change of the content does not change the selected proxies.
    mesh.apply(&filter("forge", "lua", &spec("two")));
    assert_eq!(changed(&mut mesh), [format!("~{added}")]);
    // In the root namespace it applies to all proxies, which share one patch set.
    mesh.delete(Kind::EnvoyFilter, "forge", "lua");
    assert_eq!(changed(&mut mesh), [format!("-{added}"), format!("~scopes {ANVIL}")]);
    mesh.apply(&filter("istio-system", "lua", &spec("one")));
    assert_eq!(changed(&mut mesh), [format!("+{added}"), format!("~scopes {ANVIL}"), format!("~scopes {KILN}")]);
}

/// All published rows of a mesh, to check that nothing is left.
fn rows(mesh: &TestGraph) -> Vec<String> {
    let now = mesh.engine.snapshot();
    let resources = mesh.handles.resources.iter().flat_map(|of| now.iter(of).map(|(key, _)| format!("{key:?}")));
    let segments = mesh.handles.segments.iter().flat_map(|of| now.iter(of).map(|(key, _)| format!("{key:?}")));
    let mut rows: Vec<String> = resources.chain(segments).collect();
    rows.extend(now.iter(&mesh.handles.scopes).map(|(key, scope)| format!("{key:?} {scope:?}")));
    rows.sort();
    rows
}

/// An EnvoyFilter with a matching patch of each kind, in one namespace.
fn everything() -> String {
    let clusters = "{applyTo: CLUSTER, match: {cluster: {service: kiln.pottery.svc.cluster.local}}, \
                    patch: {operation: MERGE, value: {connect_timeout: 3s}}}";
    let inbound = "{applyTo: CLUSTER, match: {context: SIDECAR_INBOUND, cluster: {portNumber: 8080}}, \
                   patch: {operation: REMOVE}}";
    let cluster = "{applyTo: CLUSTER, patch: {operation: ADD, value: {name: new-cluster, connect_timeout: 1s}}}";
    let listener = "{applyTo: LISTENER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, \
                    value: {name: new-listener, address: {socket_address: {address: 127.0.0.1, port_value: 1999}}}}}";
    let filters = "{applyTo: NETWORK_FILTER, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 9000}}, \
                   patch: {operation: INSERT_FIRST, value: {name: echo, typed_config: {'@type': \
                   type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}}}";
    let host = "{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {portNumber: 80, \
                vhost: {name: 'anvil.forge.svc.cluster.local:80'}}}, \
                patch: {operation: MERGE, value: {response_headers_to_remove: [x]}}}";
    let added = "{applyTo: VIRTUAL_HOST, match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: '80'}}, \
                 patch: {operation: ADD, value: {name: new, domains: [new]}}}";
    let patches = [clusters, inbound, cluster, listener, filters, host, added].join(", ");
    filter("forge", "everything", &format!("{{configPatches: [{patches}]}}"))
}

#[test]
fn an_envoy_filter_touches_what_it_matches_and_leaves_nothing_behind() {
    let mut mesh = test_mesh();
    let before = rows(&mesh);
    mesh.apply(&everything());
    let touched = [
        "clusters/inbound/patched workload:forge#",
        "clusters/outbound/patched base outbound|9000||kiln.pottery.svc.cluster.local",
        "listeners/outbound-resources/patched base 10.1.0.2_9000",
        "patches/added workload:patches new-cluster",
        "patches/added workload:patches new-listener",
        "routes/headers/patched base 80 ",
        "routes/headers/patched namespace:forge 80 ",
        "routes/virtual-hosts/patched base 80 anvil.forge.svc.cluster.local:80",
        "routes/virtual-hosts/patched namespace:forge 80 anvil.forge.svc.cluster.local:80",
    ];
    let lines = changed(&mut mesh);
    let (scopes, lines): (Vec<String>, Vec<String>) = lines.into_iter().partition(|line| line.contains("scopes"));
    assert_eq!(scopes, [format!("~scopes {ANVIL}")]);
    assert_eq!(lines.len(), touched.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(touched) {
        assert!(line.starts_with(&format!("+{expected}")), "{line}: {expected}");
    }
    // A change that its patches do not match is not patched.
    let kiln = "apiVersion: v1\nkind: Service\nmetadata: {name: kiln, namespace: pottery}\nspec: {clusterIP: 10.1.0.2, \
                selector: {app: kiln}, ports: [{name: tcp, port: 9000}, {name: http-more, port: 81}]}\n";
    mesh.apply(kiln);
    let lines = changed(&mut mesh);
    let patched: Vec<&String> = lines.iter().filter(|line| line.contains("patched")).collect();
    assert_eq!(patched, ["+clusters/outbound/patched base outbound|81||kiln.pottery.svc.cluster.local"]);
    mesh.apply(&kiln.replace(", {name: http-more, port: 81}", ""));
    mesh.delete(Kind::EnvoyFilter, "forge", "everything");
    assert_eq!(rows(&mesh), before);
}

/// A cluster, from the first layer of the proxy that has it.
fn cluster_of_anvil(mesh: &TestGraph, name: &str) -> Cluster {
    let scope = mesh.get(&mesh.handles.scopes, &ProxyKey(ANVIL.into())).expect("a scope");
    let now = mesh.engine.snapshot();
    let find = |layer: &Layer| {
        let key = ResourceKey { resource_type: ResourceType::Cluster, layer: layer.clone(), name: name.into() };
        mesh.handles.resources.iter().find_map(|of| now.get(of, &key).map(|found| (*found).clone()))
    };
    let found = scope.layers[&ResourceType::Cluster].iter().find_map(find);
    Cluster::decode(found.and_then(|found| found.bytes(&scope.slots)).expect("a cluster")).expect("decodes")
}

#[test]
fn patches_apply_by_priority_then_root_namespace_then_age() {
    let mut mesh = test_mesh();
    let stamp = |number: u32| format!("creationTimestamp: '2026-01-01T00:00:0{number}Z'");
    let merge = |name: &str| {
        format!("configPatches: [{{applyTo: CLUSTER, patch: {{operation: MERGE, value: {{alt_stat_name: {name}}}}}}}]")
    };
    let own = |namespace: &str, name: &str, age: u32, spec: &str| {
        filter(namespace, name, spec).replace("metadata: {", &format!("metadata: {{{}, ", stamp(age)))
    };
    let name_of =
        |mesh: &TestGraph| cluster_of_anvil(mesh, "outbound|9000||kiln.pottery.svc.cluster.local").alt_stat_name;
    // The patch that applies last overrides the others.
    mesh.apply(&own("istio-system", "z", 9, &format!("{{{}}}", merge("root"))));
    assert_eq!(name_of(&mesh), "root");
    mesh.apply(&own("forge", "b", 2, &format!("{{{}}}", merge("forge-b"))));
    assert_eq!(name_of(&mesh), "forge-b");
    mesh.apply(&own("forge", "a", 3, &format!("{{{}}}", merge("forge-a"))));
    assert_eq!(name_of(&mesh), "forge-a");
    mesh.apply(&own("istio-system", "y", 1, &format!("{{priority: 5, {}}}", merge("late"))));
    assert_eq!(name_of(&mesh), "late");
    mesh.apply(&own(
        "forge",
        "c",
        4,
        &format!("{{priority: 9, workloadSelector: {{labels: {{app: other}}}}, {}}}", merge("other")),
    ));
    assert_eq!(name_of(&mesh), "late");
    mesh.changed();
    // An EnvoyFilter of another namespace does not apply here.
    mesh.apply(&own("nowhere", "c", 4, &format!("{{{}}}", merge("nowhere"))));
    assert_eq!(mesh.changed(), Vec::<String>::new());
}

#[test]
fn versions_and_metadata_decide_who_has_a_patch() {
    let mut mesh = test_mesh();
    let proxy = |ip: &str, version: &str, ring: &str| Proxy {
        istio_version: version.into(),
        metadata: [("RING".into(), format!("{ring:?}").into())].into(),
        ..sidecar("forge", "anvil", ip, &[("app", "anvil")])
    };
    let old = mesh.connect(proxy("10.9.0.3", "1.29.4", "inner"));
    let new = mesh.connect(proxy("10.9.0.4", "1.30.0", "inner"));
    let outer = mesh.connect(proxy("10.9.0.5", "1.30.0", "outer"));
    mesh.changed();
    let spec = "{configPatches: [{applyTo: CLUSTER, match: {proxy: {proxyVersion: '^1\\.30.*', metadata: {RING: inner}}}, \
                patch: {operation: MERGE, value: {alt_stat_name: x}}}]}";
    mesh.apply(&filter("forge", "ring", spec));
    let scopes: Vec<String> = changed(&mut mesh).into_iter().filter(|line| line.contains("scopes")).collect();
    assert_eq!(scopes, [format!("~scopes {}", new.0)], "neither {} nor {}", old.0, outer.0);
    // The first proxy of a version adds a patch set for the version.
    let newer = mesh.connect(proxy("10.9.0.6", "1.30.1", "inner"));
    let scope = mesh.get(&mesh.handles.scopes, &newer).expect("a scope");
    let clusters = &scope.layers[&ResourceType::Cluster];
    assert!(clusters.iter().any(|layer| layer.profile.contains("patches#")), "{clusters:?}");
}

#[test]
fn a_listener_keeps_its_slots_when_it_is_patched() {
    let mut mesh = test_mesh();
    let spec = "{configPatches: [{applyTo: LISTENER, match: {context: SIDECAR_INBOUND, listener: {name: virtualInbound}}, \
                patch: {operation: MERGE, value: {tcp_backlog_size: 7}}}]}";
    mesh.apply(&filter("istio-system", "backlog", spec));
    let now = mesh.engine.snapshot();
    let all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
    let found: Vec<_> = all.filter(|(key, _)| key.name.as_str() == "virtualInbound").collect();
    let templates = found.iter().filter(|(_, resource)| matches!(resource, Resource::Template(_)));
    assert_eq!(
        (found.len(), templates.count()),
        (4, 4),
        "two workloads, each with the original and the patched listener"
    );
    drop(now);
    assert!(changed(&mut mesh).iter().any(|line| line.contains("listeners/inbound/patched")));
}

#[test]
fn an_invalid_patch_loses_only_itself() {
    let mut mesh = test_mesh();
    let merge = |value: &str| format!("{{applyTo: LISTENER, patch: {{operation: MERGE, value: {{{value}}}}}}}");
    let [bad, good] = ["tcp_backlog_size: many", "tcp_backlog_size: 7"].map(merge);
    // This patch is valid, but Envoy would reject its result, so the listener is not patched with it.
    let odd = "{applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: \
               {name: envoy.filters.network.http_connection_manager}}}}, patch: {operation: MERGE, value: {typed_config: \
               {'@type': type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}}}";
    mesh.write(&filter("forge", "half", &format!("{{configPatches: [{bad}, {odd}, {good}]}}")), true);
    let lines = changed(&mut mesh);
    for listener in ["inbound/patched", "outbound-resources/patched", "fixed/patched"] {
        assert!(lines.iter().any(|line| line.contains(&format!("+listeners/{listener}"))), "{listener}: {lines:#?}");
    }
    assert_eq!(mesh.engine.panics(), []);
    let key = crate::RejectKey { kind: Kind::EnvoyFilter, object: ObjectKey::new("Kubernetes", "forge", "half") };
    let rejects = mesh.get(&mesh.handles.rejects, &key).expect("a reject");
    let paths: Vec<&str> = rejects.iter().map(|reject| reject.field_path.as_str()).collect();
    assert_eq!(paths, ["spec.configPatches[0].patch.value.tcp_backlog_size"]);
}

#[test]
fn an_added_resource_replaces_a_removed_one_with_its_name() {
    let mesh = test_mesh();
    let name = "outbound|9000||kiln.pottery.svc.cluster.local";
    let remove = format!("{{applyTo: CLUSTER, match: {{cluster: {{name: '{name}'}}}}, patch: {{operation: REMOVE}}}}");
    let add =
        format!("{{applyTo: CLUSTER, patch: {{operation: ADD, value: {{name: '{name}', alt_stat_name: mine}}}}}}");
    mesh.apply(&filter("forge", "other", &format!("{{configPatches: [{add}, {remove}]}}")));
    assert_eq!(cluster_of_anvil(&mesh, name).alt_stat_name, "mine");
}

#[test]
fn patches_over_the_limit_of_a_namespace_are_findings_and_the_rest_applies() {
    use crate::options::PatchLimits;
    let limits = PatchLimits { max_repeated_bytes: 40, ..PatchLimits::default() };
    let options = crate::GraphOptions { patch_limits: limits, ..crate::GraphOptions::default() };
    let mut mesh = TestGraph::with(options, LIMITED_MESH);
    let proxy = mesh.connect(sidecar("east", "mill", "10.9.0.1", &[("app", "mill")]));
    mesh.changed();
    let stat_name = |mesh: &TestGraph| {
        let scope = mesh.get(&mesh.handles.scopes, &proxy)?;
        scope.layers.get(&sluice_model::ResourceType::Cluster)?.iter().find_map(|layer| {
            let key = sluice_model::ResourceKey {
                resource_type: sluice_model::ResourceType::Cluster,
                layer: layer.clone(),
                name: "outbound|80||mill.east.svc.cluster.local".into(),
            };
            let resource = mesh.handles.resources.iter().find_map(|of| mesh.get(of, &key))?;
            let bytes = resource.bytes(&sluice_model::SlotValues::new())?;
            let url = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
            Some(sluice_proto::json::encode_any(url, &bytes)["altStatName"].as_str().unwrap_or_default().to_owned())
        })
    };
    let filter = |namespace: &str, names: &[&str]| {
        let patch = |name: &&str| {
            format!("{{applyTo: CLUSTER, patch: {{operation: MERGE, value: {{alt_stat_name: {name}}}}}}}")
        };
        let patches: Vec<String> = names.iter().map(patch).collect();
        format!(
            "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: it, namespace: {namespace}}}\n\
             spec: {{configPatches: [{}]}}\n",
            patches.join(", ")
        )
    };
    let rejects = |mesh: &TestGraph, namespace: &str| {
        let key = crate::RejectKey { kind: Kind::EnvoyFilter, object: ObjectKey::new("Kubernetes", namespace, "it") };
        let rejects = mesh.get(&mesh.handles.rejects, &key).unwrap_or_default();
        rejects.iter().map(|reject| (reject.field_path.to_string(), reject.reason.to_string())).collect::<Vec<_>>()
    };
    let long = "x".repeat(30);
    mesh.apply(&filter("east", &["first", &long, "last"]));
    assert_eq!(stat_name(&mesh).as_deref(), Some("last"), "the patches within the limit apply");
    let found = rejects(&mesh, "east");
    assert_eq!(found.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["spec.configPatches[1]"]);
    assert!(found[0].1.contains("namespace `east` may have 40 bytes"), "{found:?}");
    mesh.apply(&filter("istio-system", &[&long]));
    assert_eq!(rejects(&mesh, "istio-system"), [], "another namespace has its own limit");
    mesh.apply(&filter("east", &["first"]));
    assert_eq!((stat_name(&mesh).as_deref(), rejects(&mesh, "east")), (Some("first"), Vec::new()));
}

#[test]
fn patches_are_limited_by_the_parts_of_the_mesh_that_they_may_match() {
    use crate::options::PatchLimits;
    let services = |numbers: std::ops::Range<usize>| {
        let service = |number| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: far}}\n\
                 spec: {{clusterIP: 10.0.1.{number}, selector: {{app: s{number}}}, ports: [{{name: http, port: 80}}]}}\n"
            )
        };
        numbers.map(service).collect::<String>()
    };
    let merge = |object: &str, name: &str| {
        format!("{{applyTo: CLUSTER, {object}patch: {{operation: MERGE, value: {{alt_stat_name: {name}}}}}}}")
    };
    let named = merge("match: {cluster: {service: mill.east.svc.cluster.local}}, ", "named");
    let spec = format!("{{configPatches: [{}, {named}]}}", merge("", "everything"));
    let default = PatchLimits::default();
    for (limits, limit) in [
        (PatchLimits { max_copied_bytes: 200, ..default }, "may have 200 bytes"),
        (PatchLimits { max_patched_parts: 15, ..default }, "may have 15 patches"),
    ] {
        let options = crate::GraphOptions { patch_limits: limits, ..crate::GraphOptions::default() };
        let mut mesh = TestGraph::with(options, &(LIMITED_MESH.to_owned() + &services(0..8)));
        mesh.connect(sidecar("east", "mill", "10.9.0.1", &[("app", "mill")]));
        mesh.apply(&filter("east", "it", &spec));
        // How many more patched clusters there are.
        let patched = |mesh: &mut TestGraph| {
            let changed = mesh.changed();
            let patched: Vec<&String> =
                changed.iter().filter(|line| line.contains("clusters/outbound/patched")).collect();
            let count = |sign| patched.iter().filter(|line| line.starts_with(sign)).count().cast_signed();
            count('+') - count('-')
        };
        let rejects = |mesh: &TestGraph| {
            let object = ObjectKey::new("Kubernetes", "east", "it");
            let key = crate::RejectKey { kind: Kind::EnvoyFilter, object };
            let rejects = mesh.get(&mesh.handles.rejects, &key).unwrap_or_default();
            rejects.iter().map(|reject| (reject.field_path.to_string(), reject.reason.to_string())).collect::<Vec<_>>()
        };
        assert_eq!((patched(&mut mesh), rejects(&mesh)), (9, vec![]));
        // 9 and 10 ports count as 10.
        mesh.apply(&services(8..9));
        assert_eq!((patched(&mut mesh), rejects(&mesh)), (1, vec![]));
        mesh.apply(&services(9..20));
        let found = rejects(&mesh);
        assert_eq!(found.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["spec.configPatches[0]"]);
        assert!(found[0].1.contains(limit) && found[0].1.contains("about 24 for this one"), "{found:?}");
        assert_eq!(patched(&mut mesh), -9, "only the named cluster is patched");
        for number in 8..20 {
            mesh.delete(Kind::Service, "far", &format!("s{number}"));
        }
        assert_eq!((patched(&mut mesh), rejects(&mesh)), (8, vec![]));
    }
}

#[test]
fn a_service_within_the_rounded_number_derives_no_envoy_filters_again() {
    let ports = |number: usize| {
        let ports: Vec<String> =
            (0..number).map(|port| format!("{{name: http-{port}, port: {}}}", 80 + port)).collect();
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: wide, namespace: far}}\n\
             spec: {{clusterIP: 10.0.1.1, selector: {{app: wide}}, ports: [{}]}}\n",
            ports.join(", ")
        )
    };
    let mesh = TestGraph::new(&(LIMITED_MESH.to_owned() + &ports(33)));
    let spec = "{configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x}}}]}";
    mesh.apply(&filter("east", "it", spec));
    let visited = |mesh: &TestGraph, name: &str| {
        let collections = mesh.engine.metrics().collections;
        collections.iter().find(|collection| collection.name == name).map(|collection| collection.records_in)
    };
    let names = ["envoy_filters/excess", "envoy_filters/within-limits"];
    let before = names.map(|name| visited(&mesh, name));
    assert!(before.iter().all(Option::is_some));
    // With that of the other Service, 34 and 40 ports count as 40.
    mesh.apply(&ports(39));
    assert_eq!(names.map(|name| visited(&mesh, name)), before);
    mesh.apply(&ports(40));
    let [excess, within] = names.map(|name| visited(&mesh, name));
    assert!(excess > before[0], "the number changes");
    assert_eq!(within, before[1]);
}

const LIMITED_MESH: &str = "
apiVersion: v1
kind: Service
metadata: {name: mill, namespace: east}
spec: {clusterIP: 10.0.0.1, selector: {app: mill}, ports: [{name: http, port: 80}]}
";

#[test]
fn a_new_version_is_matched_once_with_each_of_many_expressions() {
    let connects = |filters: usize, versions: usize| {
        let mesh = test_mesh();
        for n in 0..filters {
            let patches = (0..30).map(|m| {
                format!(
                    "{{applyTo: CLUSTER, match: {{proxy: {{proxyVersion: '^1\\.{n}\\.{m}$'}}}}, \
                     patch: {{operation: MERGE, value: {{alt_stat_name: x}}}}}}"
                )
            });
            let spec = format!("{{configPatches: [{}]}}", patches.collect::<Vec<_>>().join(", "));
            mesh.apply(&filter("forge", &format!("f{n}"), &spec));
        }
        let texts = (0..filters).flat_map(|n| (0..30).map(move |m| format!("^1\\.{n}\\.{m}$")));
        let patterns: Vec<VersionPattern> = texts.map(|text| version_pattern(&text)).collect();
        let evaluations = || patterns.iter().map(VersionPattern::evaluations).sum::<u64>();
        let proxy = |number: usize, version: String| {
            let ip = format!("10.8.0.{number}");
            Proxy { istio_version: version.into(), ..sidecar("forge", "anvil", &ip, &[("app", "anvil")]) }
        };
        for number in 0..versions {
            mesh.connect(proxy(number, format!("1.999.{number}")));
        }
        // Another version in each run, as expressions keep results.
        let version = format!("1.2.{}", versions % 30);
        let added = [200, 201, 202].map(|number| {
            let proxy = proxy(number, version.clone());
            let before = evaluations();
            let _ = mesh.handles.client_profile(&mesh.engine.snapshot(), &proxy);
            let by_profile = evaluations() - before;
            let key = mesh.connect(proxy);
            assert!(is_patched(&mesh, &key));
            [by_profile, evaluations() - before - by_profile]
        });
        let within_limit = (30 * filters).min(crate::PatchLimits::default().max_patches);
        assert_eq!(added, [[within_limit as u64, 0], [0, 0], [0, 0]], "{filters} {versions}");
    };
    connects(4, 2);
    connects(40, 50);
}

fn version_pattern(text: &str) -> VersionPattern {
    VersionPattern::new(text.into()).expect("a valid expression")
}

/// Whether patches apply to clusters of the proxy.
fn is_patched(mesh: &TestGraph, proxy: &ProxyKey) -> bool {
    let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
    scope.layers[&ResourceType::Cluster].iter().any(|layer| layer.profile.contains("patches#"))
}

/// A patch of clusters of the proxies with a version.
fn patch_of_version(pattern: &str) -> String {
    format!(
        "{{configPatches: [{{applyTo: CLUSTER, match: {{proxy: {{proxyVersion: '{pattern}'}}}}, \
         patch: {{operation: MERGE, value: {{alt_stat_name: x}}}}}}]}}"
    )
}

#[test]
fn dataflow_thread_evaluates_no_expression_for_versions_of_proxies() {
    let mesh = test_mesh();
    let of_namespaces =
        [("forge", "^61\\.1"), ("istio-system", "^61\\.[12]"), ("forge", "^61\\.2"), ("pottery", "^61\\.")];
    let patterns = of_namespaces.map(|(_, text)| version_pattern(text));
    for (number, (namespace, pattern)) in of_namespaces.into_iter().enumerate() {
        mesh.apply(&filter(namespace, &format!("f{number}"), &patch_of_version(pattern)));
    }
    let evaluations = || patterns.each_ref().map(VersionPattern::evaluations);
    let before = evaluations();
    let since = || std::array::from_fn::<_, 4, _>(|n| evaluations()[n] - before[n]);
    let proxy = |number: usize, version: &str| {
        let ip = format!("10.8.1.{number}");
        Proxy { istio_version: version.into(), ..sidecar("forge", "anvil", &ip, &[("app", "anvil")]) }
    };
    let connect = |proxy: Proxy| {
        let _ = mesh.handles.client_profile(&mesh.engine.snapshot(), &proxy);
        mesh.connect(proxy)
    };
    let keys: Vec<ProxyKey> = (0..100).map(|number| connect(proxy(number, "61.1.0"))).collect();
    assert!(keys.iter().all(|key| is_patched(&mesh, key)));
    assert_eq!(since(), [1, 1, 1, 0], "once for all proxies, and not with the expression of another namespace");
    // No patch applies to a gRPC library.
    connect(Proxy { grpc: true, ..proxy(100, "61.1.1") });
    assert_eq!(since(), [1, 1, 1, 0]);
    // A proxy that is derived again, and one that leaves.
    mesh.connect(Proxy { labels: [("app".into(), "mill".into())].into_iter().collect(), ..proxy(0, "61.1.0") });
    mesh.engine.transaction(|tx| tx.delete(&mesh.handles.inputs.proxies, keys[1].clone()));
    mesh.delete(Kind::EnvoyFilter, "forge", "f0");
    assert!(is_patched(&mesh, &keys[2]), "by the patch of the root namespace");
    assert_eq!(since(), [1, 1, 1, 0]);
}

#[test]
fn expressions_of_a_new_envoy_filter_are_evaluated_before_the_dataflow_thread_has_it() {
    let mesh = test_mesh();
    let proxy = Proxy { istio_version: "62.1.0".into(), ..sidecar("forge", "anvil", "10.8.2.1", &[("app", "anvil")]) };
    let _ = mesh.handles.client_profile(&mesh.engine.snapshot(), &proxy);
    let key = mesh.connect(proxy);
    assert!(!is_patched(&mesh, &key));
    let pattern = version_pattern("^62\\.1");
    let text = filter("forge", "new", &patch_of_version("^62\\.1"));
    let object = yaml::parse_documents(&text, &yaml::Limits::default()).remove(0).expect("yaml").value;
    let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("known kind");
    let mut written = 0;
    mesh.engine.transaction(|tx| {
        mesh.handles.inputs.apply(tx, parsed, Origin::default());
        written = pattern.evaluations();
    });
    assert!(is_patched(&mesh, &key));
    assert!(written > 0);
    assert_eq!(pattern.evaluations(), written);
}

#[test]
fn what_patches_read_of_a_proxy_is_part_of_its_profile() {
    let mesh = test_mesh();
    let proxy = |pairs: &[(&str, &str)], version: &str| Proxy {
        istio_version: version.into(),
        metadata: pairs.iter().map(|(name, text)| ((*name).into(), format!("{text:?}").into())).collect(),
        ..sidecar("forge", "anvil", "10.9.0.3", &[])
    };
    let profile = |mesh: &TestGraph, pairs: &[(&str, &str)], version: &str| {
        mesh.handles.client_profile(&mesh.engine.snapshot(), &proxy(pairs, version))
    };
    let others = [("NAME", "anvil-1"), ("RING", "outer"), ("TIER", "gold")];
    let plain = profile(&mesh, &[], "1.30.0");
    assert_eq!(profile(&mesh, &[("RING", "inner")], "1.30.0"), plain, "no patch reads it");
    let patch = |condition: &str| {
        format!(
            "{{configPatches: [{{applyTo: CLUSTER, match: {{proxy: {{{condition}}}}}, \
             patch: {{operation: MERGE, value: {{alt_stat_name: x}}}}}}]}}"
        )
    };
    mesh.apply(&filter("forge", "ring", &patch("metadata: {RING: inner}")));
    mesh.apply(&filter("istio-system", "tier", &patch("metadata: {TIER: silver}")));
    mesh.apply(&filter("elsewhere", "name", &patch("metadata: {NAME: anvil-1}")));
    mesh.apply(&filter("forge", "version", &patch("proxyVersion: '-made-up$'")));
    assert_eq!(profile(&mesh, &others, "1.30.1-x"), plain, "replicas and other values share a profile");
    let chosen = [
        profile(&mesh, &[("RING", "inner")], "1.30.0"),
        profile(&mesh, &[("TIER", "silver")], "1.30.0"),
        profile(&mesh, &[("RING", "inner"), ("TIER", "silver")], "1.30.0"),
        profile(&mesh, &[], "1.30.0-made-up"),
        plain,
    ];
    let distinct: std::collections::BTreeSet<_> = chosen.iter().map(|profile| profile.properties).collect();
    assert_eq!(distinct.len(), 5, "each combination is a profile");
    mesh.delete(Kind::EnvoyFilter, "forge", "ring");
    assert_eq!(profile(&mesh, &[("RING", "inner")], "1.30.0"), plain);
}
