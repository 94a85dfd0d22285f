//! Parses the xDS node that a proxy sends with its first request (X04, X05).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Number, Value};
use sluice_model::{
    EnvoyExtensions, InterceptionMode, IpFamilies, Labels, Locality, Proxy, ProxyConfig, ProxyType, Text, label,
};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::protobuf::value::Kind;
use sluice_proto::google::protobuf::{Struct, Value as ProtoValue};

use crate::{Findings, merge_proxy_config};

/// Maximum nesting of node metadata. Deeper metadata is ignored.
const MAX_DEPTH: usize = 32;

/// Why a node cannot be served; displayed as a lower-case fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeParseError {
    /// The node ID does not have four parts.
    #[error("missing parts in the service node {0:?}")]
    MissingParts(String),
    /// The first part of the node ID is not a type of proxy.
    #[error("invalid node type in the service node {0:?}")]
    InvalidType(String),
    /// Neither the node ID nor the metadata has a valid IP address.
    #[error("no valid IP address in the service node id or metadata")]
    NoAddress,
}

/// Parses the node of a proxy. `aliases` maps other names of clusters to their IDs.
///
/// # Errors
/// The node ID does not have the form `TYPE~IP~NAME~DOMAIN`, or there is no valid IP address.
pub fn parse_proxy(node: &Node, aliases: &BTreeMap<Text, Text>) -> Result<Proxy, NodeParseError> {
    let parts: Vec<&str> = node.id.split('~').collect();
    let &[kind, ip, name, domain] = parts.as_slice() else {
        return Err(NodeParseError::MissingParts(node.id.clone()));
    };
    let proxy_type = match kind {
        "sidecar" => ProxyType::Sidecar,
        "router" => ProxyType::Router,
        "waypoint" => ProxyType::Waypoint,
        "ztunnel" => ProxyType::Ztunnel,
        _ => return Err(NodeParseError::InvalidType(node.id.clone())),
    };
    let metadata = Metadata(node.metadata.as_ref().map(struct_fields).unwrap_or_default());
    let addresses = metadata.list("INSTANCE_IPS");
    let ips = if !addresses.is_empty() && addresses.iter().all(|ip| ip.parse::<IpAddr>().is_ok()) {
        addresses
    } else if ip.parse::<IpAddr>().is_ok() {
        vec![ip.into()]
    } else {
        return Err(NodeParseError::NoAddress);
    };
    let mut namespace = metadata.text("NAMESPACE");
    if namespace.is_empty()
        && let Some((first, _)) = domain.split_once('.')
    {
        namespace = first.into();
    }
    let cluster = metadata.text("CLUSTER_ID");
    let config = metadata.0.get("PROXY_CONFIG").filter(|value| value.is_object());
    let labels = metadata.labels("LABELS");
    let locality = locality(node, &labels);
    Ok(Proxy {
        id: node.id.as_str().into(),
        service_cluster: node.cluster.as_str().into(),
        proxy_type,
        ip_families: families(&ips),
        ips,
        name: match name.rsplit_once('.') {
            // The ID contains `POD.NAMESPACE`; the name of the pod may contain dots.
            Some((pod, last)) if last == namespace.as_str() => pod.into(),
            _ => name.into(),
        },
        namespace,
        dns_domain: domain.into(),
        labels,
        annotations: metadata.labels("ANNOTATIONS"),
        cluster: aliases.get(&cluster).cloned().unwrap_or(cluster),
        network: metadata.text("NETWORK"),
        network_view: metadata.list("REQUESTED_NETWORK_VIEW"),
        node_name: metadata.text("NODE_NAME"),
        workload_name: metadata.text("WORKLOAD_NAME"),
        service_account: metadata.text("SERVICE_ACCOUNT"),
        // Identities come from the authentication of the caller, never from its node.
        identity: None,
        mesh_id: metadata.text("MESH_ID"),
        revision: metadata.text("ISTIO_REVISION"),
        istio_version: metadata.text("ISTIO_VERSION"),
        interception_mode: match metadata.text("INTERCEPTION_MODE").as_str() {
            "TPROXY" => InterceptionMode::Tproxy,
            "NONE" => InterceptionMode::None,
            _ => InterceptionMode::Redirect,
        },
        locality,
        extensions: extensions(node),
        dns_capture: metadata.flag("DNS_CAPTURE"),
        dns_auto_allocate: metadata.flag("DNS_AUTO_ALLOCATE"),
        http10: metadata.text("HTTP10") == "1",
        virtual_hosts: metadata.flag("VHDS"),
        http_proxy_port: metadata.text("HTTP_PROXY_PORT").parse().unwrap_or_default(),
        pod_ports: metadata.pod_ports(),
        config: config
            .map(|value| merge_proxy_config(ProxyConfig::default(), value, "PROXY_CONFIG", &Findings::default()))
            .map(Arc::new),
        sidecar: None,
        metadata: metadata.0.iter().map(|(name, value)| (name.as_str().into(), value.to_string().into())).collect(),
    })
}

/// Metadata of a node, as JSON.
struct Metadata(Map<String, Value>);

impl Metadata {
    /// A string. A number or boolean is converted to its text.
    fn text(&self, name: &str) -> Text {
        match self.0.get(name) {
            Some(Value::String(text)) => text.into(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string().into(),
            _ => Text::default(),
        }
    }

    /// A list in one string, separated by commas.
    fn list(&self, name: &str) -> Vec<Text> {
        self.text(name).split(',').filter(|part| !part.is_empty()).map(Text::from).collect()
    }

    /// A boolean in a string, by the rules of Go's `strconv.ParseBool`.
    fn flag(&self, name: &str) -> bool {
        matches!(self.text(name).as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True")
    }

    fn labels(&self, name: &str) -> Labels {
        let object = self.0.get(name).and_then(Value::as_object);
        let text = |value: &Value| value.as_str().map(Text::from);
        object.into_iter().flatten().filter_map(|(key, value)| Some((key.into(), text(value)?))).collect()
    }

    /// `POD_PORTS`: a list of container ports as JSON in a string.
    fn pod_ports(&self) -> Vec<(Text, u16, Text)> {
        let ports = serde_json::from_str::<Value>(&self.text("POD_PORTS")).unwrap_or_default();
        let port = |port: &Value| {
            let text = |name| Text::from(port.get(name).and_then(Value::as_str).unwrap_or_default());
            let number = u16::try_from(port.get("containerPort")?.as_u64()?).ok()?;
            Some((text("name"), number, text("protocol")))
        };
        ports.as_array().into_iter().flatten().filter_map(port).collect()
    }
}

fn families(ips: &[Text]) -> IpFamilies {
    let is_v6 = |ip: &Text| ip.contains(':');
    match (ips.iter().any(|ip| !is_v6(ip)), ips.iter().any(is_v6)) {
        (true, true) => IpFamilies::Dual,
        (false, true) => IpFamilies::V6,
        _ => IpFamilies::V4,
    }
}

/// The value of the internal label that overrides it, otherwise the value in the metadata.
fn locality(node: &Node, labels: &Labels) -> Locality {
    if let Some(value) = labels.get(label::LOCALITY).filter(|value| !value.is_empty()) {
        return Locality::parse_label(value);
    }
    node.locality.as_ref().map_or_else(Locality::default, |locality| Locality {
        region: locality.region.as_str().into(),
        zone: locality.zone.as_str().into(),
        subzone: locality.sub_zone.as_str().into(),
    })
}

fn extensions(node: &Node) -> EnvoyExtensions {
    let enabled = node.extensions.iter().filter(|extension| !extension.disabled);
    let names: BTreeSet<Text> = enabled.map(|extension| extension.name.as_str().into()).collect();
    EnvoyExtensions((!node.extensions.is_empty()).then_some(names))
}

fn struct_fields(fields: &Struct) -> Map<String, Value> {
    fields.fields.iter().map(|(name, value)| (name.clone(), json(value, 1))).collect()
}

fn json(value: &ProtoValue, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(*flag),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::NumberValue(number)) => json_number(*number),
        Some(Kind::ListValue(list)) => list.values.iter().map(|item| json(item, depth + 1)).collect(),
        Some(Kind::StructValue(fields)) => {
            Value::Object(fields.fields.iter().map(|(name, value)| (name.clone(), json(value, depth + 1))).collect())
        }
    }
}

/// Converts a protobuf `Value` to JSON. Its numbers are floats; whole ones become integers.
fn json_number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and within what a float holds exactly")]
        return Value::Number((number as i64).into());
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use sluice_model::{InterceptionMode, IpFamilies, ProxyType};
    use sluice_proto::envoy::config::core::v3::Node;

    use super::parse_proxy;

    fn node(json: &serde_json::Value) -> Node {
        sluice_proto::json::decode::<Node>(json).expect("a node").message
    }

    #[test]
    fn sidecar_node_is_parsed() {
        let node = node(&json!({
            "id": "sidecar~10.1.0.1~web.v1-abc.shop~shop.svc.cluster.local",
            "cluster": "web.shop",
            "metadata": {
                "NAMESPACE": "shop", "CLUSTER_ID": "alias", "INSTANCE_IPS": "10.1.0.1,fd00::1", "INTERCEPTION_MODE": "TPROXY",
                "LABELS": {"app": "web"}, "DNS_CAPTURE": "true", "HTTP_PROXY_PORT": "15080", "HTTP10": "1",
                "POD_PORTS": "[{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}]",
                "PROXY_CONFIG": {"concurrency": 3}, "ENVOY_STATUS_PORT": 15021,
            },
            "locality": {"region": "r", "zone": "z"},
            "extensions": [{"name": "a"}, {"name": "b", "disabled": true}],
        }));
        let aliases = BTreeMap::from([("alias".into(), "east".into())]);
        let proxy = parse_proxy(&node, &aliases).expect("a proxy");
        assert_eq!((proxy.proxy_type, proxy.ip_families), (ProxyType::Sidecar, IpFamilies::Dual));
        assert_eq!(
            (proxy.name.as_str(), proxy.namespace.as_str(), proxy.cluster.as_str()),
            ("web.v1-abc", "shop", "east")
        );
        assert_eq!(proxy.interception_mode, InterceptionMode::Tproxy);
        assert_eq!(proxy.pod_ports, [("http".into(), 8080, "TCP".into())]);
        assert!(proxy.dns_capture && proxy.http10 && proxy.config.is_some());
        assert_eq!(proxy.http_proxy_port, 15080);
        assert_eq!(proxy.metadata.get("ENVOY_STATUS_PORT").map(|json| json.as_str()), Some("15021"));
        assert!(proxy.extensions.has("a") && !proxy.extensions.has("b"));
        assert_eq!(proxy.locality.zone, "z");
    }

    #[test]
    fn invalid_nodes_are_refused() {
        let refused = |id: &str| {
            let node = Node { id: id.to_owned(), ..Node::default() };
            parse_proxy(&node, &BTreeMap::new()).expect_err("refused").to_string()
        };
        assert!(refused("").contains("missing parts"));
        assert!(refused("sidecar~1.1.1.1~a.b").contains("missing parts"));
        assert!(refused("toaster~1.1.1.1~a.b~c").contains("invalid node type"));
        assert!(refused("sidecar~x~a.b~c").contains("no valid IP"));
    }

    #[test]
    fn namespace_is_read_from_the_domain_without_metadata() {
        let node = Node { id: "router~10.0.0.1~gw.infra~infra.svc.cluster.local".to_owned(), ..Node::default() };
        let proxy = parse_proxy(&node, &BTreeMap::new()).expect("a proxy");
        assert_eq!((proxy.namespace.as_str(), proxy.name.as_str()), ("infra", "gw"));
        assert!(proxy.extensions.has("anything") && proxy.config.is_none());
    }
}
