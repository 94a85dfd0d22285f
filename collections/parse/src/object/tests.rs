use sluice_model::{Object, ParsedObject, Protocol, Severity};

use super::{ObjectError, parse_object};
use crate::yaml::{Limits, parse_value};

fn parse(text: &str) -> Result<ParsedObject, ObjectError> {
    let value = parse_value(text, &Limits::default()).expect("yaml");
    parse_object(&"c1".into(), "cluster.local", &value)
}

/// The object and its findings as `severity path`.
fn read(text: &str) -> (Option<Object>, Vec<String>) {
    let parsed = parse(text).expect("known kind");
    let shown = parsed.rejects.iter().map(|reject| {
        let sign = if reject.severity == Severity::Error { '!' } else { '?' };
        format!("{sign}{}", reject.field_path)
    });
    (parsed.object, shown.collect())
}

#[test]
fn value_that_is_not_an_object_of_a_known_kind_is_an_error() {
    assert_eq!(parse("[1]").unwrap_err(), ObjectError::NotAnObject);
    assert_eq!(parse("{kind: Pod}").unwrap_err(), ObjectError::Missing("apiVersion"));
    assert_eq!(parse("{apiVersion: v1, kind: Pod}").unwrap_err(), ObjectError::Missing("metadata.name"));
    assert!(matches!(
        parse("{apiVersion: v1, kind: Cat, metadata: {name: a}}").unwrap_err(),
        ObjectError::UnknownKind { .. }
    ));
}

#[test]
fn namespaced_object_without_a_namespace_is_in_default() {
    let parsed = parse("{apiVersion: v1, kind: Pod, metadata: {name: a}}").expect("pod");
    assert_eq!((parsed.key.cluster.as_str(), parsed.key.namespace.as_str()), ("c1", "default"));
    let node = parse("{apiVersion: v1, kind: Node, metadata: {name: a, namespace: x}}").expect("node");
    assert_eq!(node.key.namespace, *"");
}

#[test]
fn wrong_type_is_reported_with_its_path() {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: many}]}}";
    let (object, findings) = read(service);
    assert!(object.is_none());
    assert_eq!(findings, ["!spec.ports[0].port"]);
}

#[test]
fn invalid_service_port_does_not_affect_other_ports() {
    let (object, findings) = read(
        "{apiVersion: v1, kind: Service, metadata: {name: a}, \
         spec: {clusterIP: None, ports: [{port: 0}, {name: grpc-x, port: 70, targetPort: 7000}]}}",
    );
    assert_eq!(findings, ["!spec.ports[0].port"]);
    let Some(Object::Service(service)) = object else { panic!("{object:?}") };
    assert!(service.headless && service.cluster_ips.is_empty());
    assert_eq!(service.ports.len(), 1);
    assert_eq!((service.ports[0].protocol, service.ports[0].target_port.as_str()), (Protocol::Grpc, "7000"));
}

#[test]
fn workload_of_a_pod_is_its_controller() {
    let pod = |owner: &str, labels: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p-1, generateName: p-, labels: {labels}, \
             ownerReferences: [{owner}]}}, status: {{phase: Running, podIP: 10.0.0.1, podIPs: [{{ip: 10.0.0.1}}, {{ip: '::1'}}]}}}}"
        );
        match read(&text).0 {
            Some(Object::Pod(pod)) => pod,
            other => panic!("{other:?}"),
        }
    };
    let deployed = pod("{kind: ReplicaSet, name: web-5f6d, controller: true}", "{pod-template-hash: 5f6d}");
    assert_eq!((deployed.workload_kind.as_str(), deployed.workload_name.as_str()), ("Deployment", "web"));
    assert_eq!(deployed.ips.len(), 2);
    assert_eq!(deployed.service_account, *"default");
    let job = pod("{kind: Job, name: nightly-29012345, controller: true}", "{}");
    assert_eq!((job.workload_kind.as_str(), job.workload_name.as_str()), ("CronJob", "nightly"));
    let other = pod("{kind: StatefulSet, name: db, controller: true}", "{}");
    assert_eq!((other.workload_kind.as_str(), other.workload_name.as_str()), ("StatefulSet", "db"));
    let named = pod("{kind: Job, name: x, controller: true}", "{service.istio.io/workload-name: mine}");
    assert_eq!(named.workload_name, *"mine");
}

#[test]
fn invalid_service_entry_does_not_apply() {
    let entry = |spec: &str| {
        read(&format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: a}}, spec: {{{spec}}}}}"
        ))
    };
    let check = |spec: &str, findings: &[&str]| {
        let (object, found) = entry(spec);
        assert_eq!(found, findings, "{spec}");
        assert_eq!(object.is_some(), !findings.iter().any(|finding| finding.starts_with('!')), "{spec}");
    };
    let http = "ports: [{number: 80, name: http, protocol: HTTP}]";
    check(&format!("hosts: [a.example], {http}"), &[]);
    check(&format!("hosts: [a.example], {http}, colour: blue"), &["?spec.colour"]);
    check(http, &["!spec.hosts"]);
    check(&format!("hosts: ['*'], {http}"), &["!spec.hosts[0]"]);
    check(&format!("hosts: [a.example], resolution: DNS, addresses: [10.0.0.0/8], {http}"), &["!spec.addresses"]);
    check(
        &format!("hosts: [a.example], resolution: NONE, endpoints: [{{address: 1.2.3.4}}], {http}"),
        &["!spec.endpoints"],
    );
    check(
        &format!("hosts: [a.example], resolution: STATIC, endpoints: [{{address: a.host}}], {http}"),
        &["!spec.endpoints[0].address"],
    );
    check("hosts: [a.example], ports: [{number: 80, name: a}, {number: 80, name: b}]", &["!spec.ports[1].number"]);
    check("hosts: [a.example], ports: [{number: 80, name: a, protocol: SMOKE}]", &["!spec.ports[0].protocol"]);
}

#[test]
fn workload_entry_has_labels_of_metadata_and_spec_and_its_health() {
    let entry = |annotations: &str, status: &str| {
        let text = format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: a, labels: {{x: outer}}, \
             annotations: {{{annotations}}}}}, spec: {{address: 1.2.3.4, labels: {{x: inner, y: '1'}}}}, status: {{{status}}}}}"
        );
        match read(&text).0 {
            Some(Object::WorkloadEntry(entry)) => entry,
            other => panic!("{other:?}"),
        }
    };
    let plain = entry("", "");
    assert_eq!(plain.workload.labels.get("x").map(|text| text.as_str()), Some("outer"));
    assert!(plain.workload.labels.contains_key("y") && plain.healthy);
    let checked = "proxy.istio.io/health-checks-enabled: 'true'";
    assert!(!entry(checked, "").healthy);
    assert!(entry(checked, "conditions: [{type: Healthy, status: 'True'}]").healthy);
}
