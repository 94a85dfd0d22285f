use std::collections::BTreeSet;

use sluice_engine::{Engine, EngineOptions};
use sluice_model::HttpRoute;

use super::*;

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new("c", namespace, name)
}

fn virtual_service(namespace: &str, name: &str, hosts: &[&str], http: Vec<HttpRoute>) -> VirtualService {
    VirtualService {
        namespace: namespace.into(),
        name: name.into(),
        hosts: hosts.iter().map(|host| Host::from(*host)).collect(),
        gateways: if hosts.is_empty() { Vec::new() } else { vec![MESH_GATEWAY.into()] },
        http,
        ..VirtualService::default()
    }
}

#[test]
fn delegates_are_merged_while_they_exist() {
    let (engine, (declared, mesh, merged)) = Engine::start(EngineOptions::default(), |b| {
        b.dataflow("config", |g| {
            let (declared_in, declared) = g.input("virtual_services");
            let (mesh_in, mesh) = g.input("mesh_config");
            let merged = derive_merged_virtual_services(&declared, &mesh);
            (declared_in, mesh_in, merged.publish())
        })
    });
    mesh.set((), MeshConfig::default());
    let delegating = HttpRoute { delegate: Some(("other".into(), "leaf".into())), ..HttpRoute::default() };
    declared.set(key("shop", "root"), virtual_service("shop", "root", &["a"], vec![delegating, HttpRoute::default()]));
    let routes = || engine.snapshot().get(&merged, &key("shop", "root")).map_or(0, |vs| vs.http.len());
    engine.flush();
    assert_eq!(routes(), 1);
    let leaf = virtual_service("other", "leaf", &[], vec![HttpRoute::default(), HttpRoute::default()]);
    declared.set(key("other", "leaf"), leaf.clone());
    engine.flush();
    assert_eq!(routes(), 3);
    assert_eq!(engine.snapshot().iter(&merged).count(), 1);
    let private = Some(ExportTo::Namespaces(BTreeSet::from(["other".into()])));
    declared.set(key("other", "leaf"), VirtualService { export_to: private, ..leaf });
    engine.flush();
    assert_eq!(routes(), 1);
}

#[test]
fn virtual_services_of_the_own_namespace_come_first() {
    let in_namespaces = |names: &[&str]| Some(ExportTo::Namespaces(names.iter().map(|n| Text::from(*n)).collect()));
    let mut public = virtual_service("shop", "public", &["a"], Vec::new());
    public.export_to = Some(ExportTo::All);
    let mut private = virtual_service("shop", "private", &["a"], Vec::new());
    (private.export_to, private.created) = (in_namespaces(&["shop"]), 9);
    let mut exported = virtual_service("other", "exported", &["a"], Vec::new());
    (exported.export_to, exported.created) = (in_namespaces(&["shop"]), 5);
    let mut all = [&public, &private, &exported];
    all.sort_by_key(|vs| precedence(vs, "shop"));
    assert_eq!(all.map(|vs| vs.name.as_str()), ["private", "exported", "public"]);
    assert!(is_visible(&private, "shop") && !is_visible(&private, "") && is_visible(&public, ""));
}
