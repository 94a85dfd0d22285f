//! EndpointSlice (S04).

use serde::Deserialize;
use sluice_model::{EndpointSlice, Object, SliceEndpoint, SlicePort, Text};

use crate::{Findings, Item, metadata::Metadata};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of the slices of a ServiceImport, which controllers of the Multi-Cluster Services API copy from other clusters. They are not
/// read: the endpoints are read from their own clusters.
const IMPORTED_SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Input {
    metadata: Metadata,
    #[serde(default)]
    address_type: Text,
    #[serde(default)]
    ports: Option<Vec<Port>>,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Port {
    name: Option<Text>,
    port: Option<u16>,
    protocol: Option<Text>,
    app_protocol: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    addresses: Vec<Text>,
    conditions: Option<Conditions>,
    target_ref: Option<TargetRef>,
    node_name: Option<Text>,
    hostname: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TargetRef {
    kind: Text,
    namespace: Option<Text>,
    name: Text,
}

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(item.object)?;
    let key = item.key;
    let labels = input.metadata.take_labels();
    let ports = input.ports.unwrap_or_default().into_iter().map(|port| SlicePort {
        name: port.name.unwrap_or_default(),
        port: port.port.unwrap_or_default(),
        transport: port.protocol.unwrap_or_else(|| "TCP".into()),
        app_protocol: port.app_protocol.unwrap_or_default(),
    });
    let endpoints = input.endpoints.unwrap_or_default().into_iter().map(|endpoint| {
        let conditions = endpoint.conditions.unwrap_or_default();
        let target_pod = endpoint
            .target_ref
            .filter(|target| target.kind == "Pod")
            .map(|target| (target.namespace.unwrap_or_else(|| key.namespace.clone()), target.name));
        SliceEndpoint {
            addresses: endpoint.addresses,
            // Consumers treat an unset `ready` as true. An unset `serving` is the same as `ready`, an unset `terminating` is false.
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(true),
            target_pod,
            node: endpoint.node_name.unwrap_or_default(),
            hostname: endpoint.hostname.unwrap_or_default(),
        }
    });
    Some(Object::EndpointSlice(EndpointSlice {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        service: match labels.contains_key(IMPORTED_SERVICE_NAME) {
            true => Text::default(),
            false => labels.get(SERVICE_NAME).cloned().unwrap_or_default(),
        },
        address_type: input.address_type,
        ports: ports.collect(),
        endpoints: endpoints.collect(),
        labels,
    }))
}
