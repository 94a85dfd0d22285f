//! What is deployed for Gateways: which change touches the data of which Gateway (G04).

use std::sync::Arc;

use sluice_engine::Snapshot;
use sluice_model::gateway_api::GatewayDeployment;
use sluice_model::{Kind, ObjectKey};

use super::TestGraph;
use crate::{GatewayApiOptions, GraphOptions, RejectKey};

const GATEWAYS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge, uid: u1, labels: {team: one}}
spec:
  gatewayClassName: istio
  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: params}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: hatch, namespace: edge, uid: u2, annotations: {networking.istio.io/service-type: NodePort}}
spec:
  gatewayClassName: istio
  allowedListeners: {namespaces: {from: Same}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
";

/// A mesh, and its last state that was compared.
struct Deployments {
    mesh: TestGraph,
    before: Arc<Snapshot>,
}

impl Deployments {
    fn new(options: GraphOptions) -> Self {
        let mesh = TestGraph::with(options, GATEWAYS);
        mesh.engine.flush();
        let before = mesh.engine.snapshot();
        Self { mesh, before }
    }

    fn of(&self, name: &str) -> Option<GatewayDeployment> {
        self.mesh.engine.flush();
        let key = ObjectKey::new("Kubernetes", "edge", name);
        self.mesh.get(&self.mesh.handles.gateway_deployments, &key)
    }

    /// The findings about a Gateway.
    fn findings(&self, name: &str) -> Vec<String> {
        self.mesh.engine.flush();
        let key = RejectKey { kind: Kind::KubernetesGateway, object: ObjectKey::new("Kubernetes", "edge", name) };
        let rejects = self.mesh.get(&self.mesh.handles.rejects, &key).unwrap_or_default();
        rejects.iter().map(|reject| reject.reason.to_string()).collect()
    }

    /// The Gateways whose deployment has changed since the last call.
    fn touched(&mut self) -> Vec<String> {
        self.mesh.engine.flush();
        let now = self.mesh.engine.snapshot();
        let changes = now.changes_since(&self.before, &self.mesh.handles.gateway_deployments);
        self.before = now;
        changes.iter().map(|event| event.key.name.to_string()).collect()
    }
}

const PARAMETERS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: params, namespace: edge}
data: {deployment: 'spec: {replicas: 2}'}
";

#[test]
fn parameters_and_listener_sets_touch_their_gateway_only() {
    let mut state = Deployments::new(GraphOptions::default());
    assert_eq!(state.of("door").expect("deployed").problem, "parametersRef ConfigMap edge/params does not exist");
    assert_eq!(state.findings("door").len(), 1);
    state.mesh.apply(&PARAMETERS.replace("data: {", "data: {other: x, "));
    let findings = state.findings("door");
    assert!(findings[0].contains("ConfigMap edge/params, data.other: unsupported overlay"), "{findings:?}");
    assert_eq!(state.touched(), ["door"]);
    state.mesh.apply(PARAMETERS);
    assert_eq!((state.touched(), state.findings("door")), (vec!["door".to_owned()], Vec::new()));
    let door = state.of("door").expect("deployed");
    assert!(door.problem.is_empty() && door.overlays.len() == 1, "{door:?}");
    assert_eq!((door.name.as_str(), door.service_type.as_str()), ("door-istio", "LoadBalancer"));
    assert_eq!(door.labels["team"], "one");
    state.mesh.apply(
        "{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: more, namespace: edge},
          spec: {parentRef: {name: hatch}, listeners: [{name: b, port: 8080, protocol: HTTP}]}}",
    );
    assert_eq!(state.touched(), ["hatch"]);
    let hatch = state.of("hatch").expect("deployed");
    let ports: Vec<(&str, u16)> = hatch.ports.iter().map(|port| (port.name.as_str(), port.port)).collect();
    assert_eq!(ports, [("status-port", 15021), ("http", 80), ("b", 8080)]);
    assert_eq!(hatch.service_type, "NodePort");
    // Defaults of the class, of which the oldest are used.
    let defaults = |name: &str, created: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: istio-system,
              creationTimestamp: '{created}', labels: {{gateway.istio.io/defaults-for-class: istio}}}},
              data: {{service: 'spec: {{}}'}}}}"
        )
    };
    state.mesh.apply(&defaults("b", "2026-01-01T00:00:00Z"));
    assert_eq!(state.touched(), ["door", "hatch"]);
    state.mesh.apply(&defaults("a", "2026-01-02T00:00:00Z"));
    assert_eq!(state.touched(), [""; 0]);
    let door = state.of("door").expect("deployed");
    let order: Vec<&str> = door.overlays.iter().map(|(of, _)| of.name.as_str()).collect();
    assert_eq!(order, ["b", "params"], "parameters of the Gateway are applied last");
}

#[test]
fn statuses_and_other_gateways_touch_nothing() {
    let mut state = Deployments::new(GraphOptions::default());
    state.mesh.apply(&GATEWAYS.replace("spec:", "status: {addresses: [{value: a.example}]}\nspec:"));
    assert_eq!(state.touched(), [""; 0]);
    // A Gateway that names its Service, one of a later controller, one of another class, and a deleted one.
    let hatch = |from: &str, to: &str| GATEWAYS.replace(from, to);
    state.mesh.apply(&hatch("gatewayClassName: istio\n  allowed", "gatewayClassName: other\n  allowed"));
    assert_eq!((state.touched(), state.of("hatch")), (vec!["hatch".to_owned()], None));
    state.mesh.apply(GATEWAYS);
    assert_eq!(state.touched(), ["hatch"]);
    let version = "annotations: {gateway.istio.io/controller-version: '6', ";
    state.mesh.apply(&hatch("annotations: {", version));
    assert_eq!((state.touched(), state.of("hatch")), (vec!["hatch".to_owned()], None));
    state.mesh.apply(&hatch("allowedListeners", "addresses: [{type: Hostname, value: own}]\n  allowedListeners"));
    assert_eq!((state.touched(), state.of("hatch")), (Vec::<String>::new(), None));
    state.mesh.delete(Kind::KubernetesGateway, "edge", "door");
    assert_eq!((state.touched(), state.of("door")), (vec!["door".to_owned()], None));
}

#[test]
fn nothing_is_deployed_without_the_controller() {
    let gateway_api = GatewayApiOptions { deploys: false, ..GatewayApiOptions::default() };
    let state = Deployments::new(GraphOptions { gateway_api, ..GraphOptions::default() });
    assert_eq!(state.of("door"), None);
}
