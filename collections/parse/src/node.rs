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
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    addresses: Option<Vec<Address>>,
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
    let addresses = input.status.and_then(|status| status.addresses).unwrap_or_default();
    // Only the first external address is used. Internal addresses are not reachable from other networks.
    let external = addresses.into_iter().filter(|a| a.address_type == "ExternalIP" && !a.address.is_empty());
    let addresses = external.map(|a| a.address).take(1).collect();
    Some(Object::Node(Node { locality, addresses, labels }))
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
