//! What is deployed for Gateways (G04): the data of templates, which the deployment controller renders and writes.

use std::collections::{BTreeMap, BTreeSet};

use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{
    DeployedPort, Gateway, GatewayClass, GatewayDeployment, GatewayParameters, Infrastructure, Listener, ListenerSet,
};
use sluice_model::{Kind, Labels, Namespace, ObjectKey, Reject, RejectCause, Severity, Text, label};

use super::classes::{GatewayController, find_controller};
use super::listeners::{ListenerSetIndex, deployed_account, deployed_name, eligible_sets, is_managed};
use super::parameters::{ParameterIndex, ParameterLookup};
use super::revisions::{RevisionLookup, Revisions};
use crate::inputs::{ObjectCollections, RejectKey};
use crate::options::GraphOptions;

/// The version of the controller of the reference, which annotation `gateway.istio.io/controller-version` names. The reference writes
/// it with the status of the Gateway, where the API server ignores annotations, so it is only read here.
const CONTROLLER_VERSION: i64 = 5;
/// Labels and annotations of `spec.infrastructure` with this prefix are left out.
const RESERVED_PREFIX: &str = "gateway.networking.k8s.io/";
/// Annotations of namespaces by which OpenShift allocates user ids.
const OPENSHIFT_PREFIX: &str = "openshift.io/sa.scc.";
/// Maximum length of the name of a port of a Service, in bytes.
const MAX_PORT_NAME_BYTES: usize = 63;
/// The port of the proxy's health checks, which every Service has.
const STATUS_PORT: (&str, u16) = ("status-port", 15021);

/// What is deployed for the Gateways of our controllers and of this revision (G04).
/// Key: the Gateway. From: `kubernetes_gateways`, `gateway_classes`, `namespaces` (of the Gateway), `own_revision`,
/// `listener_sets` (of the Gateway), `gateway_parameters`. Changes when: labels, annotations or spec of the Gateway do, or one
/// of these. Size: Gateways for which proxies are deployed. Rejects: those of [`derive_deployment_rejects`].
pub(super) fn derive_deployments<'s>(
    objects: &ObjectCollections<'s>,
    revisions: &Revisions<'s>,
    sets: &ListenerSetIndex<'s>,
    parameters: &ParameterIndex<'s>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, GatewayDeployment> {
    let graph_options = options.clone();
    objects.kubernetes_gateways.derive("gateway_deployments", |deps| {
        let lookups = DeploymentLookups {
            classes: deps.on(&objects.gateway_classes),
            namespaces: deps.on(&objects.namespaces),
            sets: deps.by(sets),
            parameters: ParameterLookup::on(deps, parameters),
            revisions: revisions.on(deps),
        };
        move |cx, key, gateway| {
            let is_ours = graph_options.gateway_api.deploys && lookups.revisions.owns(cx, key, &gateway.meta.labels);
            is_ours.then(|| lookups.deployment(cx, key, gateway, &graph_options)).flatten()
        }
    })
}

/// The first problem of the ConfigMaps; empty if they have none.
fn overlay_problem(overlays: &[(ObjectKey, GatewayParameters)]) -> Text {
    let first = overlays.iter().find_map(|(of, parameters)| Some((of, parameters.problems.first()?)));
    first.map(|(of, problem)| format!("ConfigMap {}/{}, {problem}", of.namespace, of.name).into()).unwrap_or_default()
}

/// Gateways whose objects cannot be rendered because of their parameters.
/// Key: `RejectKey`. From: `gateway_deployments`. Changes when: the problem of the Gateway does. Size: Gateways with a problem.
/// Rejects: all.
pub(super) fn derive_deployment_rejects<'s>(
    deployments: &Collection<'s, ObjectKey, GatewayDeployment>,
) -> Collection<'s, RejectKey, Vec<Reject>> {
    deployments.flat_map("gateway_api/deployment_rejects", |key, deployment| {
        let kind = Kind::KubernetesGateway;
        (!deployment.problem.is_empty()).then(|| {
            let reject = Reject {
                kind,
                object: key.clone(),
                field_path: "spec.infrastructure.parametersRef".into(),
                reason: format!("its proxies are not deployed or changed: {}", deployment.problem).into(),
                severity: Severity::Warning,
                cause: RejectCause::Other,
            };
            (RejectKey { kind, object: key.clone() }, vec![reject])
        })
    })
}

struct DeploymentLookups {
    classes: Dep<ObjectKey, GatewayClass>,
    namespaces: Dep<ObjectKey, Namespace>,
    sets: IndexDep<ObjectKey, ObjectKey, ListenerSet>,
    parameters: ParameterLookup,
    revisions: RevisionLookup,
}

impl DeploymentLookups {
    fn deployment(
        &self,
        cx: &Context,
        key: &ObjectKey,
        gateway: &Gateway,
        options: &GraphOptions,
    ) -> Option<GatewayDeployment> {
        let api = &options.gateway_api;
        let controller = find_controller(cx, &self.classes, &key.cluster, &gateway.class, api)?;
        let template = controller.template()?;
        if !is_managed(gateway, options) || is_of_later_controller(&gateway.meta.annotations) {
            return None;
        }
        let (parameters, problem) = match self.parameters.of_gateway(cx, key, gateway) {
            Ok(parameters) => (parameters, Text::default()),
            Err(problem) => (None, problem.message),
        };
        let defaults = self.parameters.of_class(cx, &gateway.class);
        let overlays = defaults.into_iter().chain(parameters).map(|(of, data)| (of, GatewayParameters::clone(&data)));
        let overlays: Vec<(ObjectKey, GatewayParameters)> = overlays.collect();
        let problem = if problem.is_empty() { overlay_problem(&overlays) } else { problem };
        let service_type = gateway.meta.annotations.get(label::SERVICE_TYPE).cloned();
        // The reference decides by the name of the class, also for classes that users create.
        let is_named = |part: &str| gateway.class.contains(part);
        let is_ambient = is_named("waypoint") || is_named("east-west");
        Some(GatewayDeployment {
            gateway: GatewayDeployment::without_status(gateway),
            controller: api.controller_name(controller).into(),
            template: template.into(),
            name: deployed_name(gateway, controller),
            service_account: deployed_account(gateway, controller),
            service_type: service_type.unwrap_or_else(|| controller.service_type().into()),
            ports: self.ports(cx, (key, gateway), controller, options),
            labels: deployed_labels(gateway, api.waypoints && !is_ambient, api.copies_labels),
            annotations: deployed_metadata(
                gateway.infrastructure.annotations.as_ref(),
                &gateway.meta.annotations,
                api.copies_labels,
            ),
            is_east_west: controller == GatewayController::EastWest,
            takes_default_network: is_ambient && !gateway.meta.labels.contains_key(label::NETWORK),
            namespace_ids: self.namespace_ids(cx, key),
            overlays,
            problem,
        })
    }

    /// Ports of the Service: those of the listeners, including those of ListenerSets that the Gateway allows.
    fn ports(
        &self,
        cx: &Context,
        (key, gateway): (&ObjectKey, &Gateway),
        controller: GatewayController,
        options: &GraphOptions,
    ) -> Vec<DeployedPort> {
        let sets = eligible_sets(cx, &self.sets, &self.namespaces, (key, gateway));
        let mut ports = PortList::default();
        ports.add(STATUS_PORT.0, STATUS_PORT.1, "TCP", "tcp");
        let all = gateway.listeners.iter().chain(sets.iter().flat_map(|(_, set)| &set.listeners));
        let relays_datagrams = controller == GatewayController::Router && options.gateway_api.experimental;
        for (index, listener) in all.enumerate() {
            let is_udp = relays_datagrams && *listener.protocol == *"UDP";
            ports.add_listener(listener, index, is_udp, options.http3);
        }
        ports.ports
    }

    fn namespace_ids(&self, cx: &Context, key: &ObjectKey) -> BTreeMap<String, String> {
        let namespace = cx.get(&self.namespaces, &ObjectKey::new(key.cluster.clone(), "", key.namespace.clone()));
        let annotations = namespace.iter().flat_map(|namespace| namespace.annotations.iter());
        let ids = annotations.filter(|(name, _)| name.starts_with(OPENSHIFT_PREFIX));
        ids.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }
}

impl GatewayController {
    /// The template of the injector's configuration from which its Gateways are deployed; `None` if none are.
    fn template(self) -> Option<&'static str> {
        match self {
            Self::Router => Some("kube-gateway"),
            Self::Waypoint | Self::EastWest => Some("waypoint"),
            Self::Agentgateway => Some("agentgateway"),
            Self::AgentgatewayWaypoint => Some("agentgateway-waypoint"),
            Self::Remote => None,
        }
    }

    /// The type of the Service, unless an annotation sets another.
    fn service_type(self) -> &'static str {
        if matches!(self, Self::Waypoint | Self::AgentgatewayWaypoint) { "ClusterIP" } else { "LoadBalancer" }
    }
}

/// Whether an annotation says that a controller of a later version manages the Gateway, or one whose version is not a number.
fn is_of_later_controller(annotations: &Labels) -> bool {
    let version = annotations.get(label::CONTROLLER_VERSION).map(|version| version.parse::<i64>());
    version.is_some_and(|version| version.map_or(true, |version| version > CONTROLLER_VERSION))
}

/// Labels or annotations of deployed objects: those of `spec.infrastructure`, else those of the Gateway.
fn deployed_metadata(infrastructure: Option<&Labels>, of_gateway: &Labels, copies: bool) -> Labels {
    match infrastructure {
        Some(labels) => {
            let mut labels = labels.clone();
            labels.retain(|name, _| !name.starts_with(RESERVED_PREFIX));
            labels
        }
        None if copies => of_gateway.clone(),
        None => Labels::new(),
    }
}

/// Labels of deployed objects. Routers of an ambient mesh are not captured unless a label says so.
fn deployed_labels(gateway: &Gateway, sets_mode: bool, copies: bool) -> Labels {
    let Infrastructure { labels, .. } = &gateway.infrastructure;
    let mut deployed = deployed_metadata(labels.as_ref(), &gateway.meta.labels, copies);
    let has_mode =
        deployed.contains_key(label::DATAPLANE_MODE) || gateway.meta.labels.contains_key(label::DATAPLANE_MODE);
    if sets_mode && !has_mode {
        deployed.insert(label::DATAPLANE_MODE.into(), "none".into());
    }
    deployed
}

/// Ports of a Service. A Service with two ports of one name, or of one number and transport, is invalid.
#[derive(Default)]
struct PortList {
    ports: Vec<DeployedPort>,
    names: BTreeSet<String>,
}

impl PortList {
    fn add_listener(&mut self, listener: &Listener, index: usize, is_udp: bool, http3: bool) {
        let protocol = listener.protocol.to_lowercase();
        // Names of listeners may contain dots, and are longer.
        let mut name = listener.name.replace('.', "-");
        if name.is_empty() {
            name = format!("{protocol}-{index}");
        }
        let name = self.add(&name, listener.port, if is_udp { "UDP" } else { "TCP" }, &protocol);
        if http3 && protocol == "https" {
            self.add(&format!("{name}-quic"), listener.port, "UDP", &protocol);
        }
    }

    /// Adds a port, unless one of that number and transport exists. Returns its name.
    fn add(&mut self, name: &str, port: u16, transport: &str, app_protocol: &str) -> String {
        let is_same = |existing: &&DeployedPort| existing.port == port && *existing.transport == *transport;
        if let Some(existing) = self.ports.iter().find(is_same) {
            return existing.name.to_string();
        }
        let name = self.unique(name, port);
        self.names.insert(name.clone());
        self.ports.push(DeployedPort {
            name: name.as_str().into(),
            port,
            transport: transport.into(),
            app_protocol: app_protocol.into(),
        });
        name
    }

    /// The name, or the name with the number of the port if another port has it.
    fn unique(&self, name: &str, port: u16) -> String {
        let mut candidate = cut(name, MAX_PORT_NAME_BYTES).to_owned();
        let mut suffix = format!("-{port}");
        while self.names.contains(&candidate) {
            candidate = format!("{}{suffix}", cut(name, MAX_PORT_NAME_BYTES.saturating_sub(suffix.len())));
            suffix.push('x');
        }
        candidate
    }
}

/// The beginning of a text with at most so many bytes.
fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_of_a_later_controller_is_left_alone() {
        let annotated = |version: &str| Labels::from([(label::CONTROLLER_VERSION.into(), version.into())]);
        assert!(!is_of_later_controller(&Labels::new()));
        assert!(!is_of_later_controller(&annotated("4")));
        assert!(!is_of_later_controller(&annotated("5")));
        assert!(is_of_later_controller(&annotated("6")));
        assert!(is_of_later_controller(&annotated("v7")));
    }

    #[test]
    fn names_of_ports_are_unique_and_valid() {
        let listener = |name: &str, port: u16, protocol: &str| Listener {
            name: name.into(),
            port,
            protocol: protocol.into(),
            ..Listener::default()
        };
        let long = "l".repeat(70);
        let mut list = PortList::default();
        list.add("status-port", 15021, "TCP", "tcp");
        let all = [
            listener("a.b", 80, "HTTP"),
            listener("a-b", 81, "HTTP"),
            listener("web", 443, "HTTPS"),
            listener("status-port", 82, "TCP"),
            listener(&long, 83, "HTTP"),
            listener(&long, 84, "HTTP"),
            listener("", 85, "TCP"),
            listener("dns", 53, "UDP"),
        ];
        for (index, listener) in all.iter().enumerate() {
            list.add_listener(listener, index, *listener.protocol == *"UDP", true);
        }
        let names: Vec<&str> = list.ports.iter().map(|port| port.name.as_str()).collect();
        let (first, second) = ("l".repeat(63), format!("{}-84", "l".repeat(60)));
        let expected = [
            "status-port",
            "a-b",
            "a-b-81",
            "web",
            "web-quic",
            "status-port-82",
            first.as_str(),
            second.as_str(),
            "tcp-6",
            "dns",
        ];
        assert_eq!(names, expected);
        let dns = &list.ports[9];
        assert_eq!((dns.port, dns.transport.as_str(), dns.app_protocol.as_str()), (53, "UDP", "udp"));
        let quic = &list.ports[4];
        assert_eq!((quic.port, quic.transport.as_str(), quic.app_protocol.as_str()), (443, "UDP", "https"));
    }

    #[test]
    fn one_port_is_deployed_for_each_number_and_transport() {
        let ports = |listeners: &[(&str, u16, &str)]| {
            let mut list = PortList::default();
            list.add(STATUS_PORT.0, STATUS_PORT.1, "TCP", "tcp");
            for (index, (name, port, protocol)) in listeners.iter().enumerate() {
                let listener =
                    Listener { name: (*name).into(), port: *port, protocol: (*protocol).into(), ..Listener::default() };
                list.add_listener(&listener, index, *protocol == "UDP", true);
            }
            list.ports.iter().map(|port| format!("{} {}/{}", port.name, port.port, port.transport)).collect::<Vec<_>>()
        };
        let status = "status-port 15021/TCP";
        let two = [("web", 443, "HTTPS"), ("other", 443, "HTTPS"), ("udp", 443, "UDP")];
        assert_eq!(ports(&two), [status, "web 443/TCP", "web-quic 443/UDP"]);
        assert_eq!(ports(&[two[2], two[0]]), [status, "udp 443/UDP", "web 443/TCP"]);
        assert_eq!(ports(&[("health", STATUS_PORT.1, "TCP")]), [status]);
    }

    #[test]
    fn labels_of_the_infrastructure_replace_those_of_the_gateway() {
        let of = |name: &str| Labels::from([(name.into(), "x".into())]);
        let own = of("own");
        assert_eq!(deployed_metadata(None, &own, true), own);
        assert_eq!(deployed_metadata(None, &own, false), Labels::new());
        assert_eq!(deployed_metadata(Some(&of("team")), &own, true), of("team"));
        let reserved = of("gateway.networking.k8s.io/gateway-name");
        assert_eq!(deployed_metadata(Some(&reserved), &own, true), Labels::new());
    }
}
