//! Runs analyzers on small sets of objects.

use std::collections::BTreeSet;
use std::path::Path;

use sluice_analyze::{
    ANALYZERS, AnalyzedObject, MeshObjects, Origin, Settings, Suppression, analyze, default_resources,
};
use sluice_parse::yaml::{Limits, parse_documents};

fn resources(yaml: &str) -> Vec<AnalyzedObject> {
    let documents = parse_documents(yaml, &Limits::default()).into_iter().filter_map(Result::ok);
    documents
        .map(|document| {
            let origin = Origin::File { name: "test.yaml".to_owned(), line: document.line };
            AnalyzedObject::new(document.value, origin, "shop")
        })
        .collect()
}

/// `CODE name`, for the messages of one analyzer.
fn messages(analyzer: &str, yaml: &str) -> Vec<String> {
    let resources = resources(yaml);
    let mesh = MeshObjects::new(&resources, Settings::default());
    let analyzer = ANALYZERS.iter().find(|known| known.name == analyzer).expect("an analyzer");
    let found = analyze(&mesh, &[analyzer]);
    for message in &found {
        assert!(analyzer.codes.contains(&message.message_type.code), "{message:?}");
    }
    found.iter().map(|message| format!("{} {}", message.message_type.code, message.resource.name())).collect()
}

fn virtual_service(spec: &str) -> String {
    format!("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: routes}}\nspec: {spec}\n---\n")
}

const CART: &str = "\
apiVersion: v1
kind: Service
metadata: {name: cart}
spec: {selector: {app: cart}, ports: [{name: http, port: 80}, {name: grpc, port: 81}]}
---
";
const CART_POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: cart-1, labels: {app: cart, version: v1}}
spec: {containers: [{name: istio-proxy, image: proxyv2}]}
---
";

#[test]
fn missing_destination_is_found() {
    let route = |to: &str| virtual_service(&format!("{{hosts: [a.test], http: [{{route: [{{destination: {to}}}]}}]}}"));
    let run = |to: &str| messages("virtualservice.DestinationHostAnalyzer", &(CART.to_owned() + &route(to)));
    assert_eq!(run("{host: cart, port: {number: 80}}"), [""; 0]);
    assert_eq!(run("{host: cart.shop.svc.cluster.local, port: {number: 81}}"), [""; 0]);
    assert_eq!(run("{host: other}"), ["IST0101 routes"]);
    assert_eq!(run("{host: cart, port: {number: 82}}"), ["IST0101 routes"]);
    assert_eq!(run("{host: cart}"), ["IST0112 routes"]);
}

#[test]
fn missing_subset_is_found() {
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: cart}\nspec: {host: cart, subsets: [{name: v1, labels: {version: v1}}]}\n---\n";
    let route = |subset: &str| {
        let to = format!("{{host: cart, subset: {subset}}}");
        rule.to_owned() + &virtual_service(&format!("{{hosts: [a.test], http: [{{route: [{{destination: {to}}}]}}]}}"))
    };
    assert_eq!(messages("virtualservice.DestinationRuleAnalyzer", &route("v1")), [""; 0]);
    assert_eq!(messages("virtualservice.DestinationRuleAnalyzer", &route("v2")), ["IST0101 routes"]);
    let subsets = "destinationrule.SubsetSelectPodAnalyzer";
    assert_eq!(messages(subsets, &format!("{rule}{CART}{CART_POD}")), [""; 0]);
    assert_eq!(messages(subsets, &format!("{rule}{CART}")), ["IST0173 cart"]);
    assert_eq!(messages(subsets, rule), ["IST0174 cart"]);
}

#[test]
fn missing_gateway_and_host_are_found() {
    let gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec: {selector: {app: cart}, servers: [{port: {number: 80}, hosts: ['*.test']}]}\n---\n";
    let run = |spec: &str| messages("virtualservice.GatewayAnalyzer", &(gateway.to_owned() + &virtual_service(spec)));
    assert_eq!(run("{hosts: [a.test], gateways: [edge, mesh]}"), [""; 0]);
    assert_eq!(run("{hosts: [a.example], gateways: [shop/edge]}"), ["IST0132 routes"]);
    assert_eq!(run("{hosts: [a.test], gateways: [other]}"), ["IST0101 routes", "IST0132 routes"]);
    let ports = "gateway.IngressGatewayPortAnalyzer";
    assert_eq!(messages(ports, &format!("{gateway}{CART}{CART_POD}")), [""; 0]);
    assert_eq!(messages(ports, &format!("{gateway}{CART_POD}")), ["IST0162 edge"]);
    assert_eq!(messages(ports, gateway), ["IST0101 edge"]);
    let second = gateway.replace("edge", "edge2");
    let conflicts = "gateway.ConflictingGatewayAnalyzer";
    assert_eq!(messages(conflicts, &format!("{gateway}{second}")), ["IST0145 edge", "IST0145 edge2"]);
    assert_eq!(messages(conflicts, &format!("{gateway}{}", second.replace("80", "81"))), [""; 0]);
}

#[test]
fn conflicting_hosts_are_found() {
    let one = virtual_service("{hosts: [cart]}");
    let two = virtual_service("{hosts: [cart.shop.svc.cluster.local]}").replace("routes", "routes2");
    let run = |yaml: String| messages("virtualservice.ConflictingMeshGatewayHostsAnalyzer", &yaml);
    assert_eq!(run(format!("{one}{two}")), ["IST0109 routes", "IST0109 routes2"]);
    assert_eq!(run(format!("{one}{}", two.replace("cart.", "other."))), [""; 0]);
}

#[test]
fn injection_is_checked() {
    let namespace =
        |labels: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {labels}}}\n---\n");
    let run = |yaml: &str| messages("injection.Analyzer", yaml);
    assert_eq!(run(&namespace("{}")), ["IST0102 shop"]);
    assert_eq!(run(&namespace("{istio.io/dataplane-mode: ambient}")), [""; 0]);
    assert_eq!(run(&namespace("{istio-injection: enabled, istio.io/rev: a}")), ["IST0123 shop"]);
    let enabled = namespace("{istio-injection: enabled}");
    assert_eq!(run(&(enabled.clone() + CART_POD)), [""; 0]);
    assert_eq!(run(&(enabled + &CART_POD.replace("istio-proxy", "app"))), ["IST0103 cart-1"]);
}

#[test]
fn sidecars_with_the_same_pods_are_found() {
    let sidecar = |name: &str, spec: &str| {
        format!("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
    };
    let run = |yaml: String| messages("sidecar.SelectorAnalyzer", &yaml);
    let selected = "{workloadSelector: {labels: {app: cart}}}";
    assert_eq!(run(sidecar("a", selected)), ["IST0101 a"]);
    assert_eq!(run(sidecar("a", selected) + CART_POD), [""; 0]);
    assert_eq!(run(sidecar("a", selected) + &sidecar("b", selected) + CART_POD), ["IST0110 a", "IST0110 b"]);
    assert_eq!(run(sidecar("a", "{}") + &sidecar("b", "{}")), ["IST0111 a", "IST0111 b"]);
}

#[test]
fn annotations_and_port_names_are_checked() {
    let pod =
        |annotation: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{{annotation}}}}}\n");
    let run = |annotation: &str| messages("annotations.K8sAnalyzer", &pod(annotation));
    assert_eq!(run("sidecar.istio.io/logLevel: debug, example.com/a: b"), [""; 0]);
    assert_eq!(run("sidecar.istio.io/nothing: a"), ["IST0108 a"]);
    assert_eq!(run("networking.istio.io/exportTo: '*'"), ["IST0107 a"]);
    assert_eq!(run("sidecar.istio.io/interceptionMode: OTHER"), ["IST0125 a"]);
    assert_eq!(run("sidecar.istio.io/inject: 'true'"), ["IST0135 a"]);
    assert_eq!(messages("service.PortNameAnalyzer", CART), [""; 0]);
    assert_eq!(messages("service.PortNameAnalyzer", &CART.replace("http,", "web,")), ["IST0118 cart"]);
}

#[test]
fn invalid_object_is_a_schema_error() {
    let run = |spec: &str| messages("schema.ValidationAnalyzer", &virtual_service(spec));
    assert_eq!(
        run("{hosts: [a.test], http: [{timeout: 100us, route: [{destination: {host: a}}]}]}"),
        ["IST0106 routes"]
    );
    let twice = "{hosts: [a.test], http: [{route: [{destination: {host: a}}]}, {route: [{destination: {host: b}}]}]}";
    assert_eq!(run(twice), ["IST0130 routes"]);
}

#[test]
fn suppressions_leave_messages_out() {
    let annotated = virtual_service("{gateways: [other], hosts: [a.test]}")
        .replace("{name: routes}", "{name: routes, annotations: {galley.istio.io/analyze-suppress: 'IST0132'}}");
    let resources = resources(&annotated);
    let mesh = MeshObjects::new(&resources, Settings::default());
    let gateways = ANALYZERS.iter().find(|known| known.name == "virtualservice.GatewayAnalyzer").expect("an analyzer");
    let found = analyze(&mesh, &[gateways]);
    let by_annotation: Vec<bool> = found.iter().map(|message| message.is_suppressed(&[])).collect();
    assert_eq!(by_annotation, [false, true]);
    let suppression: Suppression = "IST0101=VirtualService *.shop".parse().expect("valid");
    assert!(found.iter().all(|message| message.is_suppressed(std::slice::from_ref(&suppression))));
    assert!("IST0101".parse::<Suppression>().is_err());
}

#[test]
fn demo_has_no_errors() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/demo");
    let mut all = default_resources("istio-system");
    let mut files = Vec::new();
    yaml_files(&directory, &mut files);
    assert!(!files.is_empty());
    for file in files {
        all.extend(resources(&std::fs::read_to_string(file).expect("a file")));
    }
    let mesh = MeshObjects::new(&all, Settings::default());
    let found = analyze(&mesh, &ANALYZERS.iter().collect::<Vec<_>>());
    let errors = found.iter().filter(|message| message.message_type.level == sluice_analyze::Level::Error);
    let errors: BTreeSet<String> = errors.map(|message| format!("{}: {}", message.resource, message.text)).collect();
    assert_eq!(errors, BTreeSet::new());
}

/// No input makes an analyzer panic.
#[test]
fn inputs_of_all_cases_are_analyzed() {
    let mut files = Vec::new();
    yaml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"), &mut files);
    assert!(files.len() > 100);
    for file in files {
        let resources = resources(&std::fs::read_to_string(file).expect("a file"));
        let mesh = MeshObjects::new(&resources, Settings::default());
        let _ = analyze(&mesh, &ANALYZERS.iter().collect::<Vec<_>>());
    }
}

fn yaml_files(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            yaml_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}
