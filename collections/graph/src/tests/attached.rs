//! Telemetries and extensions touch the listeners of the proxies that they select, and no other resource.

use sluice_model::{Identity, Kind, Proxy, ProxyKey, ResourceKey, ResourceType};

use super::{TestGraph, sidecar};

/// Two namespaces with a Service each; sidecars `web` and `job` in `east`, `web` in `north`.
fn test_mesh() -> TestGraph {
    let mut text = String::new();
    for (number, namespace) in ["east", "north"].iter().enumerate() {
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: mill, namespace: {namespace}}}\n\
             spec: {{clusterIP: 10.5.0.{number}, ports: [{{name: http, port: 80}}, {{name: tcp, port: 9000}}]}}\n",
        );
    }
    let mut mesh = TestGraph::new(&text);
    for (namespace, app, ip) in [("east", "web", "10.9.0.1"), ("east", "job", "10.9.0.2"), ("north", "web", "10.9.0.3")]
    {
        mesh.connect(sidecar(namespace, app, ip, &[("app", app)]));
    }
    mesh.changed();
    mesh
}

fn object(kind: &str, namespace: &str, spec: &str) -> String {
    let group = match kind {
        "Telemetry" => "telemetry.istio.io/v1",
        "ProxyConfig" => "networking.istio.io/v1beta1",
        _ => "extensions.istio.io/v1alpha1",
    };
    format!("apiVersion: {group}\nkind: {kind}\nmetadata: {{name: it, namespace: {namespace}}}\nspec: {spec}\n")
}

/// The changes, each line once. Workloads are shown by namespace, proxies by name.
fn changed(mesh: &mut TestGraph) -> Vec<String> {
    let short = |line: &String| match (line.split_once('#'), line.split_once(" sidecar~")) {
        (Some((start, end)), _) => format!("{start} {}", end.rsplit(' ').next().unwrap_or_default()),
        (_, Some((start, end))) => format!("{start} {}", end.split('~').nth(1).unwrap_or_default()),
        _ => line.clone(),
    };
    let mut lines: Vec<String> = mesh.changed().iter().map(short).collect();
    lines.sort();
    lines.dedup();
    lines
}

/// All outbound listeners, added or removed with a profile.
fn outbound(sign: char) -> Vec<String> {
    let listeners = ["fixed workload:fixed virtualOutbound", "outbound-resources base 0.0.0.0_80"].map(str::to_owned);
    let tcp = ["0", "1"].map(|number| format!("outbound-resources base 10.5.0.{number}_9000"));
    listeners.into_iter().chain(tcp).map(|name| format!("{sign}listeners/{name}")).collect()
}

fn sorted(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().collect();
    lines.sort();
    lines
}

fn inbound(signs: &str, namespace: &str) -> Vec<String> {
    signs.chars().map(|sign| format!("{sign}listeners/inbound workload:{namespace} virtualInbound")).collect()
}

const LOG: &str = "{accessLogging: [{providers: [{name: envoy}]}]}";

#[test]
fn a_telemetry_touches_the_listeners_of_its_namespace() {
    let mut mesh = test_mesh();
    mesh.apply(&object("Telemetry", "east", LOG));
    let scopes = ["~scopes job.east".to_owned(), "~scopes web.east".to_owned()];
    // Both sidecars share one workload, because no property distinguishes them.
    let expected = sorted([outbound('+'), inbound("+-", "east"), scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);

    // An equal object in another namespace shares the content. Content without a proxy is removed.
    mesh.apply(&object("Telemetry", "north", LOG));
    let scopes = ["~scopes web.north".to_owned()];
    let expected = sorted([outbound('-'), inbound("+-", "north"), scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);

    mesh.delete(Kind::Telemetry, "north", "it");
    let scopes = ["~scopes web.north".to_owned()];
    let expected = sorted([outbound('+'), inbound("+-", "north"), scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);
}

#[test]
fn a_telemetry_with_a_selector_touches_its_workload() {
    let mut mesh = test_mesh();
    mesh.apply(&object("Telemetry", "east", &LOG.replacen('{', "{selector: {matchLabels: {app: web}}, ", 1)));
    let scopes = ["~scopes web.east".to_owned()];
    let expected = sorted([outbound('+'), inbound("+", "east"), scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);
}

#[test]
fn a_telemetry_without_effect_touches_nothing() {
    let mut mesh = test_mesh();
    mesh.apply(&object("Telemetry", "east", "{}"));
    mesh.apply(&object("Telemetry", "istio-system", "{selector: {matchLabels: {app: web}}, tracing: [{}]}"));
    assert_eq!(changed(&mut mesh), Vec::<String>::new());
}

#[test]
fn a_telemetry_of_the_mesh_touches_every_listener_and_nothing_else() {
    let mut mesh = test_mesh();
    mesh.apply(&object("Telemetry", "istio-system", LOG));
    let scopes = ["job.east", "web.east", "web.north"].map(|name| format!("~scopes {name}"));
    let inbound = [inbound("+-", "east"), inbound("+-", "north")].concat();
    let expected = sorted([outbound('+'), outbound('-'), inbound, scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);
}

#[test]
fn a_proxy_config_touches_no_resource() {
    let mut mesh = test_mesh();
    mesh.apply(&object("ProxyConfig", "east", "{concurrency: 3}"));
    assert_eq!(changed(&mut mesh), Vec::<String>::new());
    assert_eq!(mesh.engine.snapshot().iter(&mesh.handles.proxy_configs).count(), 1);
}

#[test]
fn a_module_is_a_resource_of_its_own() {
    let mut mesh = test_mesh();
    mesh.apply(&object("WasmPlugin", "east", "{url: r.test/x}"));
    let module = |sign: &str, layer: &str, name: &str| {
        vec![format!("{sign}extension_configs/modules {layer} extensions.istio.io/trafficextension/{name}")]
    };
    let plugin = "east.it~istio-translated-wasmplugin";
    let scopes = ["~scopes job.east".to_owned(), "~scopes web.east".to_owned()];
    let made = module("+", "namespace:east", plugin);
    let expected = sorted([outbound('+'), inbound("+-", "east"), scopes.to_vec(), made].concat());
    assert_eq!(changed(&mut mesh), expected);

    // Listeners refer to it by name only.
    mesh.apply(&object("WasmPlugin", "east", "{url: r.test/y, pluginConfig: {a: b}}"));
    assert_eq!(changed(&mut mesh), module("~", "namespace:east", plugin));

    // An extension that no listener refers to touches only its subscribers.
    let unmatched = "{wasm: {url: r.test/x}, selector: {matchLabels: {app: none}}}";
    mesh.apply(&object("TrafficExtension", "istio-system", unmatched));
    assert_eq!(changed(&mut mesh), module("+", "base", "istio-system.it"));
}

#[test]
fn a_script_is_inline_in_the_listeners_of_its_workload() {
    let mut mesh = test_mesh();
    let script = "{lua: {inlineCode: x = 1}, selector: {matchLabels: {app: job}}, match: [{mode: SERVER}]}";
    mesh.apply(&object("TrafficExtension", "east", script));
    let scopes = ["~scopes job.east".to_owned()];
    let expected = sorted([outbound('+'), inbound("+", "east"), scopes.to_vec()].concat());
    assert_eq!(changed(&mut mesh), expected);
}

/// An image pull secret.
fn pull_secret(namespace: &str, name: &str, config: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         type: kubernetes.io/dockerconfigjson\nstringData: {{.dockerconfigjson: '{config}'}}\n"
    )
}

impl TestGraph {
    /// The configuration of an extension that a proxy gets.
    fn extension_of(&self, proxy: &ProxyKey, name: &str) -> String {
        self.engine.flush();
        let scope = self.get(&self.handles.scopes, proxy).expect("a scope");
        let mut layers = scope.layers[&ResourceType::ExtensionConfig].iter();
        let found = layers.find_map(|layer| {
            let key =
                ResourceKey { resource_type: ResourceType::ExtensionConfig, layer: layer.clone(), name: name.into() };
            self.handles.resources.iter().find_map(|of| self.get(of, &key))
        });
        let bytes = found.and_then(|resource| resource.bytes(&scope.slots)).expect("a configuration");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[test]
fn a_pull_secret_touches_the_module_of_proxies_that_may_use_it() {
    let mut mesh = TestGraph::new("");
    let proxy = |namespace: &str, app: &str, ip: &str, identity_namespace: &str| {
        let identity =
            (!identity_namespace.is_empty()).then(|| Identity::new("cluster.local", identity_namespace, "default"));
        Proxy { identity, ..sidecar(namespace, app, ip, &[("app", app)]) }
    };
    let web = mesh.connect(proxy("east", "web", "10.9.0.1", "east"));
    let job = mesh.connect(proxy("east", "job", "10.9.0.2", ""));
    let impersonator = mesh.connect(proxy("east", "liar", "10.9.0.3", "north"));
    let root = "{url: r.test/y, imagePullSecret: root, selector: {matchLabels: {app: web}}}";
    let near = "extensions.istio.io/trafficextension/east.it~istio-translated-wasmplugin";
    let far = "extensions.istio.io/trafficextension/istio-system.it~istio-translated-wasmplugin";
    mesh.apply(&object("WasmPlugin", "east", "{url: r.test/x, imagePullSecret: pull}"));
    mesh.apply(&object("WasmPlugin", "istio-system", root));
    mesh.changed();

    mesh.apply(&pull_secret("east", "pull", "first"));
    assert_eq!(changed(&mut mesh), [format!("+extension_configs/pulled workload:pulls {near}")]);
    assert!(mesh.extension_of(&web, near).contains("first"));
    for other in [&job, &impersonator] {
        assert!(!mesh.extension_of(other, near).contains("first"), "its identity is not of the namespace");
    }
    mesh.apply(&pull_secret("east", "pull", "second"));
    assert_eq!(changed(&mut mesh), [format!("~extension_configs/pulled workload:pulls {near}")]);
    mesh.apply(&pull_secret("north", "pull", "third"));
    mesh.apply(&pull_secret("east", "other", "third"));
    assert_eq!(changed(&mut mesh), Vec::<String>::new(), "no extension refers to it");

    mesh.apply(&pull_secret("istio-system", "root", "of-the-root"));
    assert_eq!(changed(&mut mesh), [format!("+extension_configs/pulled workload:pulls {far}")]);
    assert!(mesh.extension_of(&web, far).contains("of-the-root"));
    assert!(!mesh.extension_of(&impersonator, far).contains("of-the-root"), "the extension does not select it");

    mesh.delete(Kind::Secret, "east", "pull");
    assert_eq!(changed(&mut mesh), [format!("-extension_configs/pulled workload:pulls {near}")]);
    assert!(mesh.extension_of(&web, near).contains("r.test/x"), "the module is sent without the secret");
    assert!(!mesh.extension_of(&web, near).contains("second"));
}

#[test]
fn a_claimed_cluster_without_a_pod_of_the_identity_gives_no_pull_secret() {
    let mesh = TestGraph::new("");
    let claims = Proxy {
        identity: Some(Identity::new("cluster.local", "east", "web")),
        cluster: "remote".into(),
        ..sidecar("east", "web", "10.9.0.1", &[])
    };
    let claims = mesh.connect(claims);
    let name = "extensions.istio.io/trafficextension/east.it~istio-translated-wasmplugin";
    mesh.apply(&object("WasmPlugin", "east", "{url: r.test/x, imagePullSecret: pull}"));
    mesh.apply(&pull_secret("east", "pull", "of-own"));
    mesh.write_in("remote", &pull_secret("east", "pull", "of-remote"), false);
    assert!(mesh.extension_of(&claims, name).contains("of-own"));
    let pod = "{apiVersion: v1, kind: Pod, metadata: {namespace: east, name: web}, spec: {serviceAccountName: web}}";
    mesh.write_in("remote", pod, false);
    assert!(mesh.extension_of(&claims, name).contains("of-remote"));
}
