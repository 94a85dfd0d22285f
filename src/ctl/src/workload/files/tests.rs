use super::*;

const MESH: &str = "
trustDomain: td.example
defaultConfig:
  proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'false', OF_ANNOTATION: mesh, OF_MESH: mesh}
";

fn group(object: Value) -> WorkloadGroup {
    WorkloadGroup::of(&object).expect("a valid WorkloadGroup")
}

fn vms(spec: Value) -> WorkloadGroup {
    group(json!({"kind": "WorkloadGroup", "metadata": {"name": "vms", "namespace": "shop"}, "spec": spec}))
}

fn files(group: &WorkloadGroup, change: impl FnOnce(&mut MachineSettings<'_>)) -> Result<ConfigurationFiles, String> {
    files_of_mesh(&parse_value(MESH, &Limits::default()).expect("YAML"), group, change)
}

fn files_of_mesh(
    mesh: &Value,
    group: &WorkloadGroup,
    change: impl FnOnce(&mut MachineSettings<'_>),
) -> Result<ConfigurationFiles, String> {
    let mut settings = MachineSettings {
        mesh,
        istio_namespace: "istio-system",
        revision: None,
        cluster_id: "east",
        autoregister: false,
        capture_dns: true,
        address: None,
    };
    change(&mut settings);
    configuration_files(group, &settings)
}

/// The lines that a file has, and another one does not have.
fn added(before: &str, after: &str) -> Vec<String> {
    after.lines().filter(|line| !before.lines().any(|other| other == *line)).map(str::to_owned).collect()
}

#[test]
fn files_are_those_of_istioctl() {
    let group = vms(json!({"template": {}, "probe": {"httpGet": {"port": 8080}}}));
    let files = files(&group, |_| {}).expect("files");
    let expected = "\
CANONICAL_REVISION='latest'
CANONICAL_SERVICE='vms'
ISTIO_INBOUND_PORTS='*'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{\"service.istio.io/canonical-name\":\"vms\",\"service.istio.io/canonical-revision\":\"latest\"}'
ISTIO_META_CLUSTER_ID='east'
ISTIO_META_DNS_CAPTURE='true'
ISTIO_META_MESH_ID=''
ISTIO_META_NETWORK=''
ISTIO_META_WORKLOAD_NAME='vms'
ISTIO_NAMESPACE='shop'
ISTIO_SERVICE='vms.shop'
ISTIO_SERVICE_CIDR='*'
OF_ANNOTATION='mesh'
OF_MESH='mesh'
POD_NAMESPACE='shop'
SERVICE_ACCOUNT='default'
TRUST_DOMAIN='td.example'
";
    assert_eq!(files.environment, expected);
    let proxy = &files.mesh["defaultConfig"];
    assert_eq!(proxy["readinessProbe"], json!({"httpGet": {"port": 8080}}));
    assert_eq!(proxy["proxyMetadata"]["ISTIO_META_CLUSTER_ID"], "east");
    assert_eq!(proxy["proxyMetadata"]["OF_MESH"], "mesh");
    assert_eq!(proxy.as_object().map(serde_json::Map::len), Some(2), "{proxy}");
}

#[test]
fn ports_labels_and_account_are_those_of_the_group() {
    let empty = files(&vms(json!({"template": {}})), |_| {}).expect("files").environment;
    let group = vms(json!({
        "metadata": {"labels": {"app": "cart", "version": "v1"}},
        "template": {
            "ports": {"web": 8080, "grpc": 3550}, "serviceAccount": "cart", "network": "vm-net", "labels": {"version": "v2"},
        },
    }));
    let files = files(&group, |_| {}).expect("files");
    let labels = r#"{"app":"cart","service.istio.io/canonical-name":"cart","service.istio.io/canonical-revision":"v2","version":"v2"}"#;
    assert_eq!(
        added(&empty, &files.environment),
        [
            "CANONICAL_REVISION='v2'",
            "CANONICAL_SERVICE='cart'",
            "ISTIO_INBOUND_PORTS='3550,8080'",
            &format!("ISTIO_METAJSON_LABELS='{labels}'"),
            "ISTIO_META_NETWORK='vm-net'",
            r#"ISTIO_META_POD_PORTS='[{"containerPort":3550,"name":"grpc","protocol":""},{"containerPort":8080,"name":"web","protocol":""}]'"#,
            "SERVICE_ACCOUNT='cart'",
        ]
    );
}

#[test]
fn revision_names_the_control_plane() {
    let group = vms(json!({"template": {}}));
    let default = files(&group, |_| {}).expect("files");
    let canary = files(&group, |settings| settings.revision = Some("canary")).expect("files");
    let address = "istiod-canary.istio-system.svc:15012";
    assert_eq!(added(&default.environment, &canary.environment), [format!("CA_ADDR='{address}'")]);
    assert_eq!(canary.mesh["defaultConfig"]["discoveryAddress"], address);
    let mesh = json!({"defaultConfig": {"discoveryAddress": "istiod.example:15012"}});
    let stated = files_of_mesh(&mesh, &group, |settings| settings.revision = Some("canary"));
    assert_eq!(stated.expect("files").mesh["defaultConfig"]["discoveryAddress"], "istiod.example:15012");
}

#[test]
fn annotations_override_the_mesh_config() {
    let annotation =
        |value: &str| json!({PROXY_CONFIG_ANNOTATION: format!("proxyMetadata: {{OF_ANNOTATION: {value}}}")});
    let group = group(json!({
        "kind": "WorkloadGroup",
        "metadata": {"name": "vms", "namespace": "shop", "annotations": annotation("object")},
        "spec": {"metadata": {"annotations": {PROXY_CONFIG_ANNOTATION: "statusPort: 15099"}}, "template": {}},
    }));
    let files = files(&group, |_| {}).expect("files");
    assert_eq!(files.mesh["defaultConfig"]["proxyMetadata"]["OF_ANNOTATION"], "object");
    assert_eq!(files.mesh["defaultConfig"]["proxyMetadata"]["OF_MESH"], "mesh");
    assert!(files.environment.contains("ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15099'\n"), "{}", files.environment);
}

#[test]
fn addresses_and_registration_are_those_of_the_flags() {
    let group = vms(json!({"template": {}}));
    let default = files(&group, |_| {}).expect("files").environment;
    let with = |change: fn(&mut MachineSettings<'_>)| {
        let changed = files(&group, change).expect("files").environment;
        (added(&default, &changed), added(&changed, &default))
    };
    let none = Vec::<String>::new;
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    assert_eq!(
        with(|settings| settings.autoregister = true),
        (vec!["ISTIO_META_AUTO_REGISTER_GROUP='vms'".to_owned()], none())
    );
    // The mesh config has false.
    assert_eq!(
        with(|settings| settings.capture_dns = false),
        (vec!["ISTIO_META_DNS_CAPTURE='false'".to_owned()], vec!["ISTIO_META_DNS_CAPTURE='true'".to_owned()])
    );
    let internal = files(&group, |settings| settings.address = Some(MachineAddress::Internal(address("10.1.2.3"))));
    assert_eq!(added(&default, &internal.expect("files").environment), ["ISTIO_SVC_IP='10.1.2.3'"]);
    let external = files(&group, |settings| settings.address = Some(MachineAddress::External(address("2001:db8::1"))));
    assert_eq!(
        added(&default, &external.expect("files").environment),
        ["ISTIO_SVC_IP='2001:db8::1'", "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION='true'"]
    );
}

#[test]
fn values_are_quoted_and_names_are_checked() {
    let group = vms(json!({"template": {}}));
    let with = |name: &str, value: &str| {
        let mesh = json!({"defaultConfig": {"proxyMetadata": {name: value}}});
        files_of_mesh(&mesh, &group, |_| {})
    };
    let files = with("MOTTO", "it's $(id)\nMORE=1").expect("files");
    assert!(files.environment.contains("MOTTO='it'\"'\"'s $(id)\nMORE=1'\n"), "{}", files.environment);
    for name in ["", "1ST", "A-B", "A=$(id);B", "A B"] {
        let error = with(name, "value").expect_err(name);
        assert!(error.contains(&format!("proxyMetadata: {name:?} is not the name")), "{error}");
    }
}

#[test]
fn objects_that_are_no_workload_group_are_refused() {
    let refused = |object: Value| WorkloadGroup::of(&object).expect_err("refused");
    assert_eq!(refused(json!({"kind": "Pod"})), "kind: \"Pod\" is not WorkloadGroup");
    assert_eq!(refused(json!({"kind": "WorkloadGroup", "metadata": {"name": "a"}})), "metadata.namespace is missing");
    let invalid = json!({"template": {"ports": {"http": "many"}}});
    let error = refused(json!({"kind": "WorkloadGroup", "metadata": {"name": "a", "namespace": "b"}, "spec": invalid}));
    assert!(error.starts_with("spec.template.ports"), "{error}");
    assert_eq!(vms(json!({"template": {}, "more": 1})).unknown, ["spec.more"]);
    let bad = json!({PROXY_CONFIG_ANNOTATION: "statusPort: [1]"});
    let error = files(&vms(json!({"metadata": {"annotations": bad}})), |_| {}).expect_err("refused");
    assert!(error.contains("statusPort"), "{error}");
}
