//! Tests of rendering and overlays.

use serde_json::{Value as Json, json};
use sluice_model::gateway_api::{DeployedKind, Gateway, GatewayDeployment, GatewayParameters};
use sluice_model::{ObjectKey, ObjectMeta};

use super::GatewayContext;
use super::overlay::apply_overlays;
use crate::{Injector, InjectorSettings};

fn overlays(key: &str, text: &str) -> Vec<(ObjectKey, GatewayParameters)> {
    let overlays = [(key.into(), text.into())].into();
    vec![(ObjectKey::new("c", "app", "params"), GatewayParameters { overlays, ..GatewayParameters::default() })]
}

fn overlaid(kind: DeployedKind, object: Json, text: &str) -> Result<Option<Json>, String> {
    apply_overlays(kind, object, &overlays(kind.overlay_key(), text))
}

#[test]
fn containers_and_ports_are_merged_by_their_keys() {
    let deployment = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "istio-proxy", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
    ]}}}});
    let text =
        "spec: {replicas: 2, template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: 1}}}]}}}";
    let merged = overlaid(DeployedKind::Deployment, deployment, text).expect("valid").expect("an object");
    assert_eq!(merged["spec"]["replicas"], 2);
    let requests = &merged["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": 1, "memory": "1Gi"}));
    let service = json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 81, "name": "other"}]}});
    let text = "spec: {ports: [{port: 80, nodePort: 30080}]}";
    let merged = overlaid(DeployedKind::Service, service, text).expect("valid").expect("an object");
    let ports = json!([{"port": 80, "name": "http", "nodePort": 30080}, {"port": 81, "name": "other"}]);
    assert_eq!(merged["spec"]["ports"], ports);
}

#[test]
fn budget_exists_with_an_overlay_only_which_replaces_its_selector() {
    let budget = || json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    assert_eq!(apply_overlays(DeployedKind::PodDisruptionBudget, budget(), &[]), Ok(None));
    let others = overlays("service", "spec: {}");
    assert_eq!(apply_overlays(DeployedKind::PodDisruptionBudget, budget(), &others), Ok(None));
    let text = "spec: {minAvailable: 1, selector: {matchLabels: {c: d}}}";
    let merged = overlaid(DeployedKind::PodDisruptionBudget, budget(), text).expect("valid").expect("an object");
    assert_eq!(merged, json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"c": "d"}}}}));
}

#[test]
fn overlay_cannot_give_the_object_another_identity() {
    let object = || json!({"metadata": {"name": "web", "namespace": "app"}});
    let apply = |text: &str| overlaid(DeployedKind::ServiceAccount, object(), text);
    assert!(apply("metadata: {labels: {team: one}}").is_ok());
    let error = apply("metadata: {name: other}").expect_err("another name");
    assert_eq!(error, "ConfigMap app/params, data.serviceAccount: an overlay may not change metadata.name");
    assert!(apply("metadata: {managedFields: [{manager: x}]}").is_err());
    assert!(apply("[1]").is_err());
}

#[test]
fn problem_of_a_config_map_prevents_the_deployment() {
    let problems = vec!["data.daemonSet: unsupported overlay".into()];
    let overlays =
        [(ObjectKey::new("c", "app", "params"), GatewayParameters { problems, ..GatewayParameters::default() })];
    let error = apply_overlays(DeployedKind::Service, json!({}), &overlays).expect_err("an unsupported key");
    assert_eq!(error, "ConfigMap app/params, data.daemonSet: unsupported overlay");
}

/// The rendering of a template for the Gateway `web` of namespace `app`.
fn rendered(template: &str) -> Result<Vec<super::DeployedObject>, String> {
    let config = json!({"templates": {"kube-gateway": template}}).to_string();
    let injector = Injector::new(&config, "{}", &[], InjectorSettings::default()).expect("a configuration");
    let meta = ObjectMeta { namespace: "app".into(), name: "web".into(), ..ObjectMeta::default() };
    let deployment = GatewayDeployment {
        gateway: Gateway { meta, uid: "u".into(), ..Gateway::default() },
        controller: "istio.io/gateway-controller".into(),
        template: "kube-gateway".into(),
        name: "web-istio".into(),
        service_account: "web-istio".into(),
        ..GatewayDeployment::default()
    };
    let context = GatewayContext { proxy_configs: &[], cluster: "c", kubernetes_version: 134, native_sidecars: false };
    injector.render_gateway(&deployment, &context)
}

#[test]
fn template_renders_objects_of_its_gateway_only() {
    let account = |metadata: &str| format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {metadata}\n");
    let objects = rendered(&account("{name: {{ .DeploymentName }}, namespace: {{ .Namespace }}}")).expect("valid");
    assert_eq!((objects.len(), objects[0].name.as_str()), (1, "web-istio"));
    let label = &objects[0].object["metadata"]["labels"]["gateway.istio.io/managed"];
    assert_eq!(*label, "istio.io-gateway-controller");
    assert!(rendered(&account("{name: web-istio, namespace: kube-system}")).is_err());
    assert!(rendered(&account("{name: default, namespace: app}")).is_err());
    assert!(rendered("apiVersion: v1\nkind: Secret\nmetadata: {name: web-istio, namespace: app}\n").is_err());
    assert!(rendered("{{ .Missing }}").is_err());
}
