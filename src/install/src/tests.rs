//! Tests of IstioOperator files: from files and flags to objects.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::{Capabilities, Charts, Component, InstallInputs, Installation, Manifest};

const HEAD: &str = "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\n";
/// The CRDs may not be embedded.
const NO_CRDS: &str = "values.base.enableIstioConfigCRDs=false";

fn inputs(files: &[&str], settings: &[&str]) -> InstallInputs {
    let files = files.iter().enumerate().map(|(index, text)| (format!("file-{index}"), format!("{HEAD}{text}")));
    let settings = settings.iter().chain([&NO_CRDS]).map(|text| (*text).to_owned());
    InstallInputs { files: files.collect(), settings: settings.collect(), ..InstallInputs::default() }
}

fn rendered(files: &[&str], settings: &[&str]) -> Result<(Installation, Vec<Manifest>), String> {
    let installation = Installation::read(&inputs(files, settings)).map_err(|error| error.to_string())?;
    let charts = Charts::embedded().expect("charts");
    let manifests = installation.render(&charts, &Capabilities::default()).map_err(|error| error.to_string())?;
    Ok((installation, manifests))
}

/// The rendered objects by `KIND NAMESPACE/NAME`.
fn objects(files: &[&str], settings: &[&str]) -> BTreeMap<String, Json> {
    let (_, manifests) = rendered(files, settings).expect("a valid installation");
    let objects = manifests.into_iter().flat_map(|manifest| manifest.objects);
    objects.map(|object| (object.key().to_string(), object.json().clone())).collect()
}

#[track_caller]
fn refused(files: &[&str], settings: &[&str], expected: &str) {
    let error = rendered(files, settings).map(drop).expect_err(expected);
    assert!(error.contains(expected), "{error}");
}

#[test]
fn default_profile_has_base_control_plane_and_ingress_gateway() {
    let (installation, manifests) = rendered(&[], &[]).expect("a valid installation");
    assert_eq!((installation.namespace.as_str(), installation.revision.as_str()), ("istio-system", "default"));
    let components: Vec<Component> = manifests.iter().map(|manifest| manifest.component).collect();
    assert_eq!(components, [Component::Base, Component::Pilot, Component::IngressGateway]);
    let objects = objects(&[], &[]);
    for name in [
        "ServiceAccount istio-system/istio-reader-service-account",
        "Deployment istio-system/istiod",
        "MutatingWebhookConfiguration istio-sidecar-injector",
        "Deployment istio-system/istio-ingressgateway",
    ] {
        assert!(objects.contains_key(name), "{name}: {:?}", objects.keys());
    }
    let kinds: Vec<&str> = manifests[1].objects.iter().map(|object| object.key().kind.as_str()).collect();
    let position = |kind: &str| kinds.iter().position(|other| *other == kind).expect(kind);
    assert!(position("ServiceAccount") < position("ConfigMap") && position("ConfigMap") < position("Deployment"));
    assert!(position("Deployment") < position("MutatingWebhookConfiguration"), "{kinds:?}");
}

#[test]
fn profiles_decide_the_components() {
    let count = |profile: &str| {
        let (installation, manifests) = rendered(&[], &[&format!("profile={profile}")]).expect(profile);
        (manifests.len(), installation.notes.len())
    };
    let expected = [("demo", (4, 0)), ("minimal", (2, 0)), ("empty", (0, 0)), ("ambient", (4, 0)), ("remote", (2, 0))];
    for (profile, number) in expected {
        assert_eq!(count(profile), number, "{profile}");
    }
    refused(
        &[],
        &["profile=large"],
        "spec.profile: \"large\" is not known; the profiles are ambient, default, demo, empty",
    );
}

#[test]
fn later_files_and_flags_have_precedence() {
    let first = "spec: {meshConfig: {accessLogFile: /a, trustDomain: x.example}, values: {pilot: {traceSampling: 1}}}";
    let second = "spec: {meshConfig: {accessLogFile: /b}}";
    let objects = objects(&[first, second], &["values.pilot.traceSampling=7", "values.pilot.env.PILOT_X=on"]);
    let mesh = objects["ConfigMap istio-system/istio"]["data"]["mesh"].as_str().expect("a mesh config").to_owned();
    assert!(mesh.contains("accessLogFile: /b\n") && mesh.contains("trustDomain: x.example\n"), "{mesh}");
    let container = &objects["Deployment istio-system/istiod"]["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().expect("variables");
    assert!(env.contains(&json!({"name": "PILOT_TRACE_SAMPLING", "value": "7"})), "{env:?}");
    assert!(env.contains(&json!({"name": "PILOT_X", "value": "on"})), "{env:?}");
}

#[test]
fn revision_hub_and_tag_are_translated() {
    let spec = "metadata: {name: mesh, namespace: mesh}
spec:
  revision: canary
  hub: registry.example/istio
  tag: 1.30
  components:
    pilot: {hub: registry.example, tag: 2.0.0, k8s: {replicaCount: 2}}
    ingressGateways: [{name: front, namespace: edge, label: {istio: front}}]
";
    let objects = objects(&[spec], &[]);
    let deployment = &objects["Deployment mesh/istiod-canary"];
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example/sluice:2.0.0");
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(deployment["metadata"]["labels"]["install.operator.istio.io/owning-resource"], "mesh");
    let values = objects["ConfigMap mesh/istio-sidecar-injector-canary"]["data"]["values"].as_str().expect("values");
    let values: Json = serde_json::from_str(values).expect("JSON");
    assert_eq!((&values["global"]["hub"], &values["global"]["tag"]), (&json!("registry.example/istio"), &json!("1.3")));
    let gateway = &objects["Deployment edge/front"]["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&gateway["istio"], &gateway["app"]), (&json!("front"), &json!("istio-ingressgateway")));
    assert_eq!(gateway["istio.io/rev"], "canary");
}

#[test]
fn values_of_gateways_are_those_of_istio() {
    let spec = "spec:
  components:
    ingressGateways: [{name: istio-ingressgateway, k8s: {service: {type: NodePort}, serviceAnnotations: {a: b}}}]
    egressGateways: [{enabled: true}]
  values:
    gateways:
      istio-ingressgateway:
        autoscaleEnabled: false
        replicaCount: 3
        cpu: {targetAverageUtilization: 50}
        ports: [{name: http2, port: 80, targetPort: 8080}]
        loadBalancerSourceRanges: [192.0.2.0/24]
";
    let objects = objects(&[spec], &[]);
    assert_eq!(objects["Deployment istio-system/istio-ingressgateway"]["spec"]["replicas"], 3);
    let service = &objects["Service istio-system/istio-ingressgateway"];
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(service["spec"]["ports"], json!([{"name": "http2", "port": 80, "targetPort": 8080}]));
    assert_eq!(service["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(objects["Service istio-system/istio-egressgateway"]["spec"]["type"], "ClusterIP");
    refused(
        &["spec: {values: {gateways: {istio-ingressgateway: {runAsRoot: true}}}}"],
        &[],
        "spec.values.gateways.istio-ingressgateway.runAsRoot: this value has no effect here",
    );
}

#[test]
fn cni_agent_has_its_values_and_injected_pods_rely_on_it() {
    let spec = "spec:
  hub: registry.example/istio
  components:
    cni: {namespace: kube-system, hub: registry.example, tag: 2.0.0, k8s: {env: [{name: A, value: b}], podAnnotations: {a: b}}}
  values:
    global: {logAsJson: true, proxy: {clusterDomain: x.example}}
    cni: {excludeNamespaces: [kube-system, build], resourceQuotas: {enabled: true}}
";
    let objects = objects(&[spec], &["revision=canary"]);
    let agent = &objects["DaemonSet kube-system/istio-cni-node"]["spec"]["template"];
    let container = &agent["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example/sluice-cni:2.0.0");
    assert!(container["args"].as_array().expect("flags").contains(&json!("--log_as_json")), "{container}");
    assert!(container["env"].as_array().expect("variables").contains(&json!({"name": "A", "value": "b"})));
    assert_eq!(
        (&agent["metadata"]["annotations"]["a"], &agent["metadata"]["labels"]["istio.io/rev"]),
        (&json!("b"), &json!("canary"))
    );
    let settings = &objects["ConfigMap kube-system/istio-cni-config"]["data"];
    assert_eq!(
        (&settings["EXCLUDE_NAMESPACES"], &settings["AMBIENT_ENABLED"]),
        (&json!("kube-system,build"), &json!("false"))
    );
    assert!(objects.contains_key("ResourceQuota kube-system/istio-cni-resource-quota"), "{:?}", objects.keys());
    let has_validation = |files: &[&str], settings: &[&str]| {
        let objects = super::tests::objects(files, settings);
        let values =
            objects["ConfigMap istio-system/istio-sidecar-injector"]["data"]["values"].as_str().map(str::to_owned);
        let values: Json = serde_json::from_str(&values.expect("values")).expect("JSON");
        values["pilot"]["cni"]["enabled"] == true
    };
    assert!(!has_validation(&[], &[]));
    assert!(has_validation(&["spec: {components: {cni: {}}}"], &[]));
    assert!(!has_validation(&["spec: {components: {cni: {}}}"], &["values.pilot.cni.enabled=false"]));
    let ambient = super::tests::objects(&[], &["profile=ambient"]);
    assert_eq!(ambient["ConfigMap istio-system/istio-cni-config"]["data"]["AMBIENT_ENABLED"], "true");
    refused(
        &["spec: {components: {cni: {}}, values: {cni: {logLevel: debug}}}"],
        &[],
        "chart cni: logLevel: this value is not known",
    );
    refused(
        &["spec: {components: {cni: {k8s: {replicaCount: 2}}}}"],
        &[],
        "spec.components.cni.k8s.replicaCount: the component has no Deployment",
    );
    refused(
        &["spec: {components: {pilot: {namespace: other}}}"],
        &[],
        "spec.components.pilot.namespace: the component is in the namespace",
    );
}

#[test]
fn ztunnel_has_its_values_and_the_control_plane_trusts_it() {
    let spec = "metadata: {namespace: mesh}
spec:
  hub: registry.example/istio
  tag: 1.31.2
  meshConfig: {defaultConfig: {proxyMetadata: {A: b}}}
  components:
    ztunnel: {namespace: nodes, tag: 1.31.3, k8s: {resources: {limits: {cpu: 2}}}}
  values:
    global: {network: east, multiCluster: {clusterName: c1}, logAsJson: true, variant: debug, proxy: {clusterDomain: x.example}}
    ztunnel: {resourceName: node-proxy, logLevel: debug, env: {LOCAL_XDS: 1}, terminationGracePeriodSeconds: 60}
";
    let objects = objects(&[spec], &["revision=canary"]);
    let pod = &objects["DaemonSet nodes/node-proxy"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "registry.example/istio/ztunnel:1.31.3-debug");
    assert_eq!((&pod["serviceAccountName"], &pod["terminationGracePeriodSeconds"]), (&json!("node-proxy"), &json!(60)));
    assert_eq!(container["resources"]["limits"], json!({"cpu": 2}));
    let variables = container["env"].as_array().expect("variables");
    for (name, value) in [
        ("XDS_ADDRESS", "istiod-canary.mesh.svc:15012"),
        ("CA_ADDRESS", "istiod-canary.mesh.svc:15012"),
        ("NETWORK", "east"),
        ("ISTIO_META_CLUSTER_ID", "c1"),
        ("RUST_LOG", "debug"),
        ("LOG_FORMAT", "json"),
        ("TERMINATION_GRACE_PERIOD_SECONDS", "60"),
        ("A", "b"),
        ("LOCAL_XDS", "1"),
    ] {
        assert!(variables.contains(&json!({"name": name, "value": value})), "{name}: {variables:?}");
    }
    assert!(objects.contains_key("ServiceAccount nodes/node-proxy"), "{:?}", objects.keys());
    let trusted = |objects: &BTreeMap<String, Json>, deployment: &str| {
        let container = &objects[deployment]["spec"]["template"]["spec"]["containers"][0];
        let mut variables = container["env"].as_array().expect("variables").iter();
        variables.find(|it| it["name"] == "CA_TRUSTED_NODE_ACCOUNTS").expect("it is set")["value"].clone()
    };
    assert_eq!(trusted(&objects, "Deployment mesh/istiod-canary"), "nodes/node-proxy");
    let ambient = super::tests::objects(&[], &["profile=ambient"]);
    assert_eq!(trusted(&ambient, "Deployment istio-system/istiod"), "istio-system/ztunnel");
    let image = &ambient["DaemonSet istio-system/ztunnel"]["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, "docker.io/istio/ztunnel:1.31-distroless");
    let stated = super::tests::objects(&[], &["profile=ambient", "values.pilot.trustedZtunnelName=other"]);
    assert_eq!(trusted(&stated, "Deployment istio-system/istiod"), "istio-system/other");
    // The service account may have capabilities on OpenShift. Elsewhere it needs no rights.
    let roles = |profile: &str| {
        let objects = super::tests::objects(&["spec: {components: {ztunnel: {}}}"], &[&format!("profile={profile}")]);
        objects.keys().filter(|key| key.contains("Role") && key.ends_with("ztunnel")).count()
    };
    assert_eq!((roles("openshift"), roles("minimal")), (2, 0));
    refused(
        &["spec: {components: {ztunnel: {}}, values: {ztunnel: {loglevel: debug}}}"],
        &[],
        "chart ztunnel: loglevel: this value is not known",
    );
}

#[test]
fn what_does_not_exist_here_is_refused_with_its_path() {
    refused(&[], &["components.istiodRemote.enabled=true"], "spec.components.istiodRemote: set the profile remote");
    assert!(rendered(&["spec: {components: {cni: {enabled: false}}}"], &[]).is_ok());
    refused(&["spec: {component: {}}"], &[], "spec.component: this field is not known; the fields are profile");
    refused(
        &["spec: {components: {pilot: {replicas: 1}}}"],
        &[],
        "spec.components.pilot.replicas: this field is not known",
    );
    refused(
        &["spec: {values: {pilot: {replicacount: 1}}}"],
        &[],
        "chart sluice: pilot.replicacount: this value is not known",
    );
    refused(&[], &["values.pilot.autoscaleMin=two"], "pilot.autoscaleMin: string where number is expected");
    refused(&[], &["values.global.caName=x"], "global.caName: this value has no effect: set the signer");
    refused(
        &[],
        &["components.ingressGateways.[0].hub=x"],
        "spec.components.ingressGateways[0].hub: a gateway has the image",
    );
    refused(&[], &["revision=Canary"], "spec.revision: \"Canary\" has other characters");
    refused(&[], &["values"], "--set values: PATH=VALUE is expected");
}

#[test]
fn files_that_are_no_istio_operator_are_refused() {
    let read = |text: &str| {
        let inputs = InstallInputs { files: vec![("f.yaml".to_owned(), text.to_owned())], ..InstallInputs::default() };
        Installation::read(&inputs).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(read(&format!("{HEAD}spec:\n")), Ok(()));
    let cases = [
        ("a: [", "f.yaml: line 1"),
        ("", "f.yaml: the file has 0 documents"),
        ("kind: Pod\napiVersion: v1\n", "f.yaml: kind \"Pod\" of \"v1\" is not IstioOperator"),
        (&format!("{HEAD}---\n{HEAD}"), "f.yaml: the file has 2 documents"),
        (&format!("{HEAD}specs: {{}}\n"), "f.yaml: specs: this field is not known"),
        (&format!("{HEAD}spec: []\n"), "f.yaml: spec: a map is expected"),
    ];
    for (text, expected) in cases {
        let error = read(text).expect_err(expected);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn namespace_of_the_flag_must_be_that_of_the_files() {
    let read = |file: &str, flag: &str| {
        let inputs = InstallInputs { namespace: Some(flag.to_owned()), ..inputs(&[file], &[]) };
        Installation::read(&inputs).map(|installation| installation.namespace).map_err(|error| error.to_string())
    };
    assert_eq!(read("spec: {}", "mesh"), Ok("mesh".to_owned()));
    assert_eq!(read("metadata: {namespace: mesh}", "mesh"), Ok("mesh".to_owned()));
    let error = read("spec: {values: {global: {istioNamespace: other}}}", "mesh").expect_err("two namespaces");
    assert_eq!(error, "--istioNamespace: the flag states mesh, but the files state other");
}

#[test]
fn removed_components_are_pruned_and_those_of_other_files_are_not() {
    let managed = |file: &str| Installation::read(&inputs(&[file], &[])).expect("a valid file").managed;
    assert_eq!(managed("spec: {}"), [Component::Pilot, Component::IngressGateway]);
    let without = "spec: {components: {ingressGateways: [{name: istio-ingressgateway, enabled: false}]}}";
    assert_eq!(managed(without), [Component::Pilot, Component::IngressGateway]);
    // A file with a gateway only, beside the one of the control plane.
    let gateway = "spec: {profile: empty, components: {ingressGateways: [{name: front}]}}";
    assert_eq!(managed(gateway), [Component::IngressGateway]);
}

#[test]
fn default_values_meet_the_schemas() {
    let charts = Charts::embedded().expect("charts");
    for chart in [&charts.base, &charts.control_plane, &charts.gateway, &charts.cni, &charts.ztunnel] {
        let schema = chart.schema.as_ref().expect("a schema");
        assert_eq!(crate::schema::validate(schema, &chart.values), Vec::<String>::new(), "{}", chart.name);
    }
}
