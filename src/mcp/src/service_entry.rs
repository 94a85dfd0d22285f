//! Services of Kubernetes as ServiceEntries without endpoints (C09).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use sluice_model::{ExportTo, ObjectKey, Resolution, Service, Text};
use sluice_parse::protocol_name;

/// What precedes the name of the Service in the name of its ServiceEntry.
const NAME_PREFIX: &str = "synthetic-";
/// The address of a Service without a virtual address.
const NO_ADDRESS: &str = "0.0.0.0";

/// The ServiceEntry of a Service: its key, and what an API server would return.
pub(crate) fn service_entry(service: &Service) -> (ObjectKey, Value) {
    let name = format!("{NAME_PREFIX}{}", service.name);
    let mut metadata = Map::new();
    metadata.insert("namespace".to_owned(), service.namespace.as_str().into());
    metadata.insert("name".to_owned(), name.as_str().into());
    if let Ok(created) = jiff::Timestamp::from_second(service.created)
        && service.created > 0
    {
        metadata.insert("creationTimestamp".to_owned(), created.to_string().into());
    }
    let mut spec = Map::new();
    spec.insert("hosts".to_owned(), json!([service.host.as_str()]));
    spec.insert("addresses".to_owned(), json!(addresses(service)));
    spec.insert("ports".to_owned(), service.ports.iter().map(|port| {
        json!({"number": port.port, "name": port.name.as_str(), "protocol": protocol_name(port.protocol).unwrap_or_default()})
    }).collect());
    spec.insert("location".to_owned(), if service.mesh_external { "MESH_EXTERNAL" } else { "MESH_INTERNAL" }.into());
    spec.insert("resolution".to_owned(), resolution(service.resolution).into());
    if let ExportTo::Namespaces(namespaces) = &service.export_to {
        spec.insert("exportTo".to_owned(), namespaces.iter().map(Text::as_str).collect());
    }
    if !service.subject_alt_names.is_empty() {
        spec.insert("subjectAltNames".to_owned(), service.subject_alt_names.iter().map(Text::as_str).collect());
    }
    if !service.selector.is_empty() {
        let labels: Map<String, Value> =
            service.selector.iter().map(|(name, value)| (name.to_string(), value.as_str().into())).collect();
        spec.insert("workloadSelector".to_owned(), json!({"labels": labels}));
    }
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": metadata, "spec": spec,
    });
    (ObjectKey::new(service.cluster.clone(), service.namespace.clone(), name), object)
}

/// The virtual addresses in all clusters, each once, those of the declaring cluster first.
fn addresses(service: &Service) -> Vec<&str> {
    let own = service.addresses.iter().filter(|(cluster, _)| **cluster == service.cluster);
    let others = service.addresses.iter().filter(|(cluster, _)| **cluster != service.cluster);
    let mut seen = BTreeSet::new();
    let all = own.chain(others).flat_map(|(_, addresses)| addresses).map(Text::as_str);
    let addresses: Vec<&str> = all.filter(|address| seen.insert(*address)).collect();
    if addresses.is_empty() { vec![NO_ADDRESS] } else { addresses }
}

/// The name of the resolution. An ExternalName has no name of its own there.
fn resolution(resolution: Resolution) -> &'static str {
    match resolution {
        Resolution::ClientSideLb => "STATIC",
        Resolution::DnsLb => "DNS",
        Resolution::DnsRoundRobinLb => "DNS_ROUND_ROBIN",
        Resolution::DynamicDns => "DYNAMIC_DNS",
        Resolution::Passthrough | Resolution::Alias => "NONE",
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::{Kind, Protocol, ServicePort, TextMap};
    use sluice_parse::{kind_info, parse_object};

    use super::*;
    use crate::resource::{object_of, resource_of};

    fn service() -> Service {
        let port = |port, name: &str, protocol| ServicePort {
            port,
            name: name.into(),
            protocol,
            target_port: Text::default(),
        };
        Service {
            namespace: "shop".into(),
            host: "web.shop.svc.cluster.local".into(),
            name: "web".into(),
            cluster: "c".into(),
            created: 1_770_091_506,
            addresses: TextMap::from_iter([("c".into(), vec!["10.1.0.1".into()])]),
            ports: vec![port(80, "http-web", Protocol::Http), port(9000, "data", Protocol::Unsupported)],
            export_to: ExportTo::Namespaces(["bank".into(), "shop".into()].into()),
            selector: TextMap::from_iter([("app".into(), "web".into())]),
            ..Service::default()
        }
    }

    #[test]
    fn service_entry_has_what_clients_of_the_service_need() {
        let (key, entry) = service_entry(&service());
        assert_eq!((key.namespace.as_str(), key.name.as_str()), ("shop", "synthetic-web"));
        let expected = json!({
            "hosts": ["web.shop.svc.cluster.local"], "addresses": ["10.1.0.1"], "location": "MESH_INTERNAL", "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http-web", "protocol": "HTTP"}, {"number": 9000, "name": "data", "protocol": ""}],
            "exportTo": ["bank", "shop"], "workloadSelector": {"labels": {"app": "web"}},
        });
        assert_eq!(entry["spec"], expected);
        assert_eq!(entry["metadata"]["creationTimestamp"], "2026-02-03T04:05:06Z");
        // Another control plane reads it as a ServiceEntry without findings.
        let info = kind_info(Kind::ServiceEntry).expect("a kind");
        let resource = resource_of(info, &key, &entry).expect("a resource");
        let object = object_of(info, resource).expect("a valid resource");
        let parsed = parse_object(&"d".into(), "cluster.local", &object).expect("a kind");
        assert!(parsed.object.is_some() && parsed.rejects.is_empty(), "{:?}", parsed.rejects);
    }

    #[test]
    fn addresses_of_all_clusters_are_named_once() {
        let mut service = service();
        service.addresses.insert("a".into(), vec!["10.1.0.1".into(), "10.2.0.1".into()]);
        assert_eq!(service_entry(&service).1["spec"]["addresses"], json!(["10.1.0.1", "10.2.0.1"]));
    }

    #[test]
    fn headless_service_has_the_unspecified_address() {
        let service = Service { addresses: TextMap::new(), resolution: Resolution::Passthrough, ..service() };
        let (_, entry) = service_entry(&service);
        assert_eq!(entry["spec"]["addresses"], json!(["0.0.0.0"]));
        assert_eq!(entry["spec"]["resolution"], "NONE");
    }
}
