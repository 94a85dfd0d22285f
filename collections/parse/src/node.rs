//! Node (S06).

use serde::Deserialize;
use sluice_model::{Labels, Locality, Node, Object, Text, label};

use crate::{Findings, Item, metadata::Metadata};

const REGIONS: [&str; 2] = [label::REGION, "failure-domain.beta.kubernetes.io/region"];
const ZONES: [&str; 2] = [label::ZONE, "failure-domain.beta.kubernetes.io/zone"];
/// Frequent labels of the kubelet, which are dropped. All others are kept: `traffic.istio.io/nodeSelector` may refer to any.
const DROPPED_PREFIXES: [&str; 2] = ["beta.kubernetes.io/", "failure-domain.beta.kubernetes.io/"];

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    #[serde(default)]
    key: Text,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    addresses: Option<Vec<Address>>,
    #[serde(rename = "nodeInfo", default)]
    info: Option<NodeInfo>,
}

#[derive(Deserialize)]
struct NodeInfo {
    #[serde(rename = "kubeletVersion", default)]
    kubelet_version: Text,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "type", default)]
    address_type: Text,
    #[serde(default)]
    address: Text,
}

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(item.object)?;
    let mut labels = input.metadata.take_labels();
    let locality = locality(&labels);
    labels.retain(|name, _| !DROPPED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    let (addresses, info) = input.status.map(|status| (status.addresses, status.info)).unwrap_or_default();
    let kubelet_version = info.map(|info| info.kubelet_version).unwrap_or_default();
    let external = addresses.unwrap_or_default().into_iter().filter(|a| a.address_type == "ExternalIP");
    let mut addresses: Vec<Text> = Vec::new();
    for address in external.map(|a| a.address).filter(|address| !address.is_empty()) {
        // A node has few addresses.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let taints = input.spec.unwrap_or_default().taints.unwrap_or_default();
    let taints = taints.into_iter().map(|taint| taint.key).collect();
    Some(Object::Node(Node { locality, addresses, taints, labels, kubelet_version }))
}

/// Region and zone from their labels; the stable labels have precedence over the beta ones.
fn locality(labels: &Labels) -> Locality {
    let first = |names: [&str; 2]| {
        names.iter().find_map(|name| labels.get(name).filter(|value| !value.is_empty())).cloned().unwrap_or_default()
    };
    Locality {
        region: first(REGIONS),
        zone: first(ZONES),
        subzone: labels.get(label::SUBZONE).cloned().unwrap_or_default(),
    }
}
