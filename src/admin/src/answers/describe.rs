//! `describe`: everything that acts on a pod or a service (I08).

mod destination_rules;
mod gateways;
mod pods;
mod policies;
mod ports;
mod services;
mod virtual_services;

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_model::Text;

use super::AnswerError;
use super::mesh_facts::MeshFacts;
use super::objects::ObjectVersion;
use crate::AdminState;
pub(super) use pods::{DescribedPod, find_pod, selecting, waypoint_address};
use policies::PeerDescription;
pub(super) use policies::{DISABLE, STRICT, action_text, applied_authorization, peer_description};
pub(super) use ports::target_port;
pub(super) use services::{short_name, waypoint};

/// What is described.
#[derive(Clone, Debug)]
pub(crate) enum DescribeQuestion {
    /// A pod, with its namespace or the default one.
    Pod { name: String, namespace: String },
    /// A service, with its namespace or the default one.
    Service { name: String, namespace: String },
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Description {
    Pod(Box<PodDescription>),
    Service(Box<ServiceAnswer>),
}

/// A pod, and everything that acts on it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodDescription {
    epoch: u64,
    /// `NAME.NAMESPACE`.
    pod: String,
    cluster: Text,
    /// Label `istio.io/rev`, or what the proxy states.
    revision: Text,
    service_account: Text,
    running: bool,
    ready: bool,
    ports: Vec<ports::PodPort>,
    /// How it is part of the mesh.
    mesh: MeshMembership,
    /// Whether its proxy is connected to this instance.
    connected: bool,
    warnings: Vec<String>,
    services: Vec<ServiceDescription>,
    peer_authentication: PeerDescription,
    authorization_policies: Vec<policies::AuthorizationDescription>,
    request_authentications: Vec<policies::TokenDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sidecar: Option<ObjectVersion>,
    /// `NAMESPACE/NAME` of the waypoint through which the pod is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    waypoint: Option<String>,
    /// EnvoyFilters, Telemetries, WasmPlugins and TrafficExtensions.
    extensions: Vec<ObjectVersion>,
}

/// How a pod is part of the mesh.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MeshMembership {
    Sidecar,
    Gateway,
    Waypoint,
    Ztunnel,
    /// Its traffic is redirected to ztunnel.
    Ambient,
    None,
}

/// A service that was asked for.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceAnswer {
    epoch: u64,
    /// `NAME.NAMESPACE` of its pods.
    pods: Vec<String>,
    warnings: Vec<String>,
    #[serde(flatten)]
    service: ServiceDescription,
    /// What its pods require, where they differ: the mode with the names of the pods.
    mutual_tls: BTreeMap<&'static str, Vec<String>>,
}

/// A service, and the rules of its clients.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceDescription {
    /// `NAME.NAMESPACE`, or the host of a ServiceEntry.
    service: String,
    host: String,
    object: ObjectVersion,
    ports: Vec<ports::PortDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_rule: Option<destination_rules::RuleDescription>,
    virtual_services: Vec<virtual_services::RouteDescription>,
    gateways: Vec<gateways::GatewayDescription>,
    /// `NAMESPACE/NAME` of the waypoint of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    waypoint: Option<String>,
}

/// Answers the question. Waits for the dataflow thread.
pub(crate) fn describe(state: &AdminState, question: &DescribeQuestion) -> Result<Description, AnswerError> {
    let facts = MeshFacts::new(state);
    match question {
        DescribeQuestion::Pod { name, namespace } => {
            let pod = find_pod(&facts, name, namespace)?;
            Ok(Description::Pod(Box::new(pods::describe(&facts, &pod))))
        }
        DescribeQuestion::Service { name, namespace } => {
            Ok(Description::Service(Box::new(services::describe(&facts, name, namespace)?)))
        }
    }
}

/// The waypoint in the record of an ambient collection: `NAMESPACE/NAME`.
pub(super) fn waypoint_text(key: &sluice_model::ObjectKey) -> String {
    format!("{}/{}", key.namespace, key.name)
}
