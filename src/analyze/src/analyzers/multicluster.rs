//! Services that several clusters have (IST0170).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::codes::INCONSISTENT_SERVICE;
use crate::resource::SERVICE;
use crate::value::{at, items, number, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

pub(crate) fn services<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut by_name: BTreeMap<(&str, &str), Vec<&'m AnalyzedObject>> = BTreeMap::new();
    for service in mesh.all(SERVICE).iter().chain(mesh.remote_services()) {
        by_name.entry((service.namespace(), service.name())).or_default().push(service);
    }
    for services in by_name.into_values() {
        // The Service of the cluster of the control plane is the first one, if there is one.
        let Some((first, others)) = services.split_first() else { continue };
        let mut clusters = BTreeSet::new();
        let mut reasons = BTreeSet::new();
        for other in others {
            let mut note = |differs: bool, reason: &str| {
                if differs {
                    clusters.insert(other.origin.cluster().to_owned());
                    reasons.insert(reason.to_owned());
                }
            };
            note(is_headless(first) != is_headless(other), "some are headless");
            note(service_type(first) != service_type(other), "the types differ");
            note(ports(first) != ports(other), "the ports differ");
        }
        if !clusters.is_empty() {
            clusters.insert(first.origin.cluster().to_owned());
            let text = format!(
                "Service {} is not the same in clusters {}: {}",
                first.full_name(),
                super::join(&clusters),
                super::join(&reasons)
            );
            report.add(&INCONSISTENT_SERVICE, first, "", text);
        }
    }
}

fn is_headless(service: &AnalyzedObject) -> bool {
    text(service.spec(), "clusterIP") == "None"
}

fn service_type(service: &AnalyzedObject) -> &str {
    match text(service.spec(), "type") {
        "" => "ClusterIP",
        service_type => service_type,
    }
}

/// Name, number, transport, application protocol and target of each port. Ports of nodes are allocated by each cluster.
fn ports(service: &AnalyzedObject) -> BTreeSet<(&str, i64, &str, &str, String)> {
    let port = |port: &'_ Value| number(port, "port").unwrap_or_default();
    let ports = items(service.spec(), "ports").iter().map(|it| {
        let target = match at(it, "targetPort") {
            Value::Null => port(it).to_string(),
            target => target.as_str().map_or_else(|| target.to_string(), str::to_owned),
        };
        let transport = if text(it, "protocol").is_empty() { "TCP" } else { text(it, "protocol") };
        (text(it, "name"), port(it), transport, text(it, "appProtocol"), target)
    });
    ports.collect()
}
