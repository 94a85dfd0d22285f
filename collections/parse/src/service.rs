//! Kubernetes Service (S01 to S03).

use serde::Deserialize;
use serde_json::Value;
use sluice_model::{IpFamilies, KubernetesService, KubernetesServicePort, Labels, Object, ServiceType, Text};

use crate::metadata::{Metadata, meta};
use crate::{Findings, Item, protocol};

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "type")]
    service_type: Option<Text>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<Text>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<Text>>,
    ip_families: Option<Vec<Text>>,
    external_name: Option<Text>,
    #[serde(rename = "externalIPs")]
    external_ips: Option<Vec<Text>>,
    ports: Option<Vec<Port>>,
    selector: Option<Labels>,
    traffic_distribution: Option<Text>,
    internal_traffic_policy: Option<Text>,
    publish_not_ready_addresses: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: Option<Text>,
    port: u16,
    protocol: Option<Text>,
    app_protocol: Option<Text>,
    target_port: Option<Value>,
    node_port: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: Option<LoadBalancer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    ingress: Option<Vec<Ingress>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ingress {
    ip: Option<Text>,
    hostname: Option<Text>,
}

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(item.object)?;
    let key = item.key;
    let spec = input.spec;
    let service_type = match spec.service_type.as_deref() {
        None | Some("ClusterIP" | "") => ServiceType::ClusterIp,
        Some("NodePort") => ServiceType::NodePort,
        Some("LoadBalancer") => ServiceType::LoadBalancer,
        Some("ExternalName") => ServiceType::ExternalName,
        Some(other) => {
            findings.warning(
                "spec.type",
                format!("expected one of `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalName`, found `{other}`"),
            );
            ServiceType::ClusterIp
        }
    };
    let cluster_ip = spec.cluster_ip.unwrap_or_default();
    let headless = cluster_ip == "None";
    let cluster_ips = match spec.cluster_ips {
        _ if headless || cluster_ip.is_empty() => Vec::new(),
        Some(all) if all.len() > 1 => all,
        _ => vec![cluster_ip],
    };
    let ports = spec.ports.unwrap_or_default().into_iter().enumerate();
    let ports = ports.filter_map(|(i, port)| service_port(i, port, findings)).collect();
    let ingress = input.status.and_then(|s| s.load_balancer).and_then(|lb| lb.ingress).unwrap_or_default();
    let address =
        |ingress: Ingress| [ingress.ip, ingress.hostname].into_iter().flatten().find(|address| !address.is_empty());
    let owners = input.metadata.owner_references.as_deref().unwrap_or_default();
    let owner_pool = owners.iter().find(|owner| *owner.kind == *"InferencePool").map(|owner| owner.uid.clone());
    let uid = std::mem::take(&mut input.metadata.uid);
    Some(Object::Service(KubernetesService {
        meta: meta(key, &mut input.metadata, findings),
        service_type,
        cluster_ips,
        headless,
        ip_families: match spec.ip_families.as_deref() {
            None | Some([]) => None,
            Some([only]) => Some(if *only == *"IPv4" { IpFamilies::V4 } else { IpFamilies::V6 }),
            Some(_) => Some(IpFamilies::Dual),
        },
        external_name: spec.external_name.unwrap_or_default(),
        external_ips: spec.external_ips.unwrap_or_default(),
        load_balancer: ingress.into_iter().filter_map(address).collect(),
        ports,
        selector: spec.selector.unwrap_or_default(),
        traffic_distribution: spec.traffic_distribution.unwrap_or_default(),
        internal_traffic_local: spec.internal_traffic_policy.is_some_and(|policy| policy == "Local"),
        publish_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
        uid,
        owner_pool: owner_pool.unwrap_or_default(),
        conditions: item.conditions(),
    }))
}

fn service_port(i: usize, port: Port, findings: &Findings) -> Option<KubernetesServicePort> {
    if port.port == 0 {
        findings.error(&format!("spec.ports[{i}].port"), "expected a port from 1 to 65535; this port is ignored");
        return None;
    }
    let name = port.name.unwrap_or_default();
    let transport = port.protocol.unwrap_or_else(|| "TCP".into());
    let target_port = match port.target_port {
        Some(Value::String(text)) => text.into(),
        Some(Value::Number(number)) if number.as_u64() != Some(0) => number.to_string().into(),
        _ => Text::default(),
    };
    Some(KubernetesServicePort {
        protocol: protocol::service_port_protocol(port.port, &name, &transport, port.app_protocol.as_deref()),
        name,
        port: port.port,
        transport: if transport == "TCP" { Text::default() } else { transport },
        target_port,
        node_port: port.node_port.unwrap_or_default(),
    })
}
