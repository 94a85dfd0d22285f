//! Parses the xDS node that a proxy sends with its first request (X04, X05).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Number, Value};
use sluice_model::{
    EnvoyExtensions, InterceptionMode, IpFamilies, Labels, Locality, MAX_NODE_VALUES, OtherNetworks, Proxy,
    ProxyConfig, ProxyType, Text, label,
};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::protobuf::value::Kind;
use sluice_proto::google::protobuf::{Struct, Value as ProtoValue};
use sluice_proto::json::Shortened;

use crate::{Findings, merge_proxy_config};

/// Maximum nesting of node metadata. Deeper metadata is ignored.
const MAX_DEPTH: usize = 32;
/// Maximum length of a name or address in a node.
const MAX_NAME_BYTES: usize = 512;
/// Maximum length of a list in a node.
const MAX_LIST_BYTES: usize = 16 << 10;
/// Maximum size of the labels of a node, with [`ENTRY_BYTES`] for each.
const MAX_LABEL_BYTES: usize = 32 << 10;
/// Memory of an entry of a map besides its texts: what is built from short texts is much larger than these.
const ENTRY_BYTES: usize = 64;
/// Maximum size of the fields of `PROXY_CONFIG` that resources depend on.
const MAX_CONFIG_BYTES: usize = 16 << 10;
/// A longer value of other metadata is not kept.
const MAX_KEPT_VALUE_BYTES: usize = 1024;
/// Maximum size of other metadata, with [`ENTRY_BYTES`] for each value. Further values are not kept.
const MAX_KEPT_METADATA_BYTES: usize = 16 << 10;
/// The annotations that builders read.
const READ_ANNOTATIONS: [&str; 2] =
    ["resource.opentelemetry.io/service.name", "ambient.istio.io/xfcc-include-client-identity"];

/// Why a node cannot be served; displayed as a lower-case fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeParseError {
    /// The node ID does not have four parts.
    #[error("missing parts in the service node {}", quoted(.0))]
    MissingParts(String),
    /// The first part of the node ID is not a type of proxy.
    #[error("invalid node type in the service node {}", quoted(.0))]
    InvalidType(String),
    /// Neither the node ID nor the metadata has a valid IP address.
    #[error("no valid IP address in the service node id or metadata")]
    NoAddress,
    /// A part of the node is longer than a proxy needs.
    #[error("{field} of the node is longer than {limit} bytes")]
    TooLong {
        /// The part.
        field: &'static str,
        /// Its maximum length.
        limit: usize,
    },
    /// The node has more labels than a proxy needs, or longer ones.
    #[error("{0} of the node take more than {MAX_LABEL_BYTES} bytes, with {ENTRY_BYTES} for each label")]
    TooManyLabels(&'static str),
    /// The metadata has more values than a proxy needs.
    #[error("the metadata of the node has more than {MAX_NODE_VALUES} values")]
    TooManyValues,
}

fn limited(field: &'static str, length: usize, limit: usize) -> Result<(), NodeParseError> {
    if length > limit { Err(NodeParseError::TooLong { field, limit }) } else { Ok(()) }
}

/// Longest quotation in an error.
const MAX_QUOTED_BYTES: usize = 200;

fn quoted(text: &str) -> String {
    Shortened::of(&format_args!("{text:?}"), MAX_QUOTED_BYTES)
}

/// Parses the node of a proxy. `aliases` maps other names of clusters to their IDs.
///
/// # Errors
/// The node ID does not have the form `TYPE~IP~NAME~DOMAIN`, there is no valid IP address, a part is too long, or the metadata
/// has too many values.
pub fn parse_proxy(node: &Node, aliases: &BTreeMap<Text, Text>) -> Result<Proxy, NodeParseError> {
    limited("the id", node.id.len(), MAX_NAME_BYTES * 4)?;
    let parts: Vec<&str> = node.id.split('~').collect();
    let &[kind, ip, name, domain] = parts.as_slice() else {
        return Err(NodeParseError::MissingParts(node.id.clone()));
    };
    let proxy_type = match kind {
        "sidecar" => ProxyType::Sidecar,
        "router" => ProxyType::Router,
        "waypoint" => ProxyType::Waypoint,
        "ztunnel" => ProxyType::Ztunnel,
        "agentgateway" => ProxyType::Agentgateway,
        _ => return Err(NodeParseError::InvalidType(node.id.clone())),
    };
    if node.metadata.as_ref().map_or(0, values) > MAX_NODE_VALUES {
        return Err(NodeParseError::TooManyValues);
    }
    let metadata = Metadata(node.metadata.as_ref().map(struct_fields).unwrap_or_default());
    check_lengths(node, &metadata)?;
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
    let config = metadata.proxy_config()?;
    let labels = metadata.labels("LABELS");
    let mut annotations = metadata.labels("ANNOTATIONS");
    annotations.retain(|name, value| READ_ANNOTATIONS.contains(&name.as_str()) && value.len() <= MAX_NAME_BYTES);
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
        static_labels: metadata.labels("STATIC_LABELS"),
        annotations,
        cluster: aliases.get(&cluster).cloned().unwrap_or(cluster),
        // Like identities, this comes from the authentication of the caller.
        proven_cluster: None,
        network: metadata.text("NETWORK"),
        network_view: metadata.set("REQUESTED_NETWORK_VIEW"),
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
        grpc: proxy_type == ProxyType::Sidecar && metadata.text("GENERATOR") == "grpc",
        self_discovery: metadata.flag("ENABLE_SELF_DISCOVERY"),
        virtual_hosts: metadata.flag("VHDS"),
        on_demand_clusters: metadata.flag("ON_DEMAND_CLUSTERS"),
        endpoints_by_locality: metadata.flag("LEDS"),
        http_proxy_port: metadata.text("HTTP_PROXY_PORT").parse().unwrap_or_default(),
        pod_ports: metadata.pod_ports(),
        config,
        health_checked: metadata.0.get("PROXY_CONFIG").is_some_and(|config| config["readinessProbe"].is_object()),
        sidecar: None,
        location: None,
        other_networks: OtherNetworks::default(),
        metadata: metadata.kept(),
    })
}

/// Checks the parts of a node that are kept as they are.
fn check_lengths(node: &Node, metadata: &Metadata) -> Result<(), NodeParseError> {
    const NAMES: [&str; 12] = [
        "NAMESPACE",
        "CLUSTER_ID",
        "NETWORK",
        "NODE_NAME",
        "WORKLOAD_NAME",
        "SERVICE_ACCOUNT",
        "MESH_ID",
        "ISTIO_REVISION",
        "ISTIO_VERSION",
        "INTERCEPTION_MODE",
        "HTTP10",
        "HTTP_PROXY_PORT",
    ];
    limited("the cluster", node.cluster.len(), MAX_NAME_BYTES)?;
    for name in NAMES {
        limited(name, metadata.text(name).len(), MAX_NAME_BYTES)?;
    }
    for name in ["INSTANCE_IPS", "REQUESTED_NETWORK_VIEW", "POD_PORTS"] {
        limited(name, metadata.text(name).len(), MAX_LIST_BYTES)?;
    }
    let locality = node.locality.as_ref();
    let places = locality.map(|locality| [&locality.region, &locality.zone, &locality.sub_zone]);
    for place in places.iter().flatten() {
        limited("the locality", place.len(), MAX_NAME_BYTES)?;
    }
    // Labels decide which policies apply, so none is dropped.
    for field in ["LABELS", "STATIC_LABELS"] {
        let labels = metadata.0.get(field).and_then(Value::as_object).into_iter().flatten();
        let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len) + ENTRY_BYTES;
        if labels.map(size).sum::<usize>() > MAX_LABEL_BYTES {
            return Err(NodeParseError::TooManyLabels(field));
        }
    }
    Ok(())
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

    /// The elements of a list whose order has no meaning.
    fn set(&self, name: &str) -> Vec<Text> {
        self.list(name).into_iter().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The fields of `PROXY_CONFIG` that resources depend on.
    fn proxy_config(&self) -> Result<Option<Arc<ProxyConfig>>, NodeParseError> {
        const NAME: &str = "PROXY_CONFIG";
        let Some(value) = self.0.get(NAME).filter(|value| value.is_object()) else { return Ok(None) };
        let config = merge_proxy_config(ProxyConfig::default(), value, NAME, &Findings::only_counted()).of_resources();
        limited(NAME, serde_json::to_string(&config).map_or(0, |text| text.len()), MAX_CONFIG_BYTES)?;
        Ok(Some(Arc::new(config)))
    }

    /// Strings, numbers and booleans as JSON text, within limits. Builders read some, and EnvoyFilters may match on any.
    fn kept(&self) -> Labels {
        let mut left = MAX_KEPT_METADATA_BYTES;
        let scalars = self.0.iter().filter(|(_, value)| !(value.is_object() || value.is_array() || value.is_null()));
        let texts = scalars.map(|(name, value)| (Text::from(name.as_str()), Text::from(value.to_string())));
        let short = texts.filter(|(name, value)| name.len() + value.len() <= MAX_KEPT_VALUE_BYTES);
        let fits = short.take_while(|(name, value)| {
            let size = name.len() + value.len() + ENTRY_BYTES;
            left.checked_sub(size).inspect(|rest| left = *rest).is_some()
        });
        fits.collect()
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
    let read = enabled.map(|extension| extension.name.as_str()).filter(|name| EnvoyExtensions::READ.contains(name));
    let names: BTreeSet<Text> = read.map(Text::from).collect();
    EnvoyExtensions((!node.extensions.is_empty()).then_some(names))
}

/// The number of values in a struct, nested ones included. The decoder limits the nesting.
fn values(fields: &Struct) -> usize {
    fields.fields.values().map(nested_values).sum()
}

fn nested_values(value: &ProtoValue) -> usize {
    let inner = match &value.kind {
        Some(Kind::ListValue(list)) => list.values.iter().map(nested_values).sum(),
        Some(Kind::StructValue(fields)) => values(fields),
        _ => 0,
    };
    1 + inner
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

    use serde_json::{Map, json};
    use sluice_model::{EnvoyExtensions, InterceptionMode, IpFamilies, Proxy, ProxyType};
    use sluice_proto::envoy::config::core::v3::Node;

    use super::{ENTRY_BYTES, MAX_KEPT_METADATA_BYTES, MAX_LABEL_BYTES, MAX_NAME_BYTES, NodeParseError, parse_proxy};

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
                "LABELS": {"app": "web", "tier": "front"}, "STATIC_LABELS": {"tier": "front"}, "DNS_CAPTURE": "true", "HTTP_PROXY_PORT": "15080", "HTTP10": "1",
                "POD_PORTS": "[{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}]",
                "PROXY_CONFIG": {"concurrency": 3}, "ENVOY_STATUS_PORT": 15021,
            },
            "locality": {"region": "r", "zone": "z"},
            "extensions": [{"name": "istio.alpn"}, {"name": "istio.stats", "disabled": true}, {"name": "other"}],
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
        assert_eq!(proxy.extensions, EnvoyExtensions(Some(["istio.alpn".into()].into())));
        assert_eq!(proxy.locality.zone, "z");
        let text = |labels: &sluice_model::Labels| labels.get("tier").map(|tier| tier.as_str().to_owned());
        assert_eq!((proxy.labels.len(), text(&proxy.static_labels)), (2, Some("front".to_owned())));
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
        assert_eq!(refused(&"~".repeat(3000)), "the id of the node is longer than 2048 bytes");
    }

    #[test]
    fn namespace_is_read_from_the_domain_without_metadata() {
        let node = Node { id: "router~10.0.0.1~gw.infra~infra.svc.cluster.local".to_owned(), ..Node::default() };
        let proxy = parse_proxy(&node, &BTreeMap::new()).expect("a proxy");
        assert_eq!((proxy.namespace.as_str(), proxy.name.as_str()), ("infra", "gw"));
        assert!(proxy.extensions.has("istio.stats") && proxy.config.is_none());
    }

    fn with_metadata(metadata: serde_json::Value) -> Result<Proxy, NodeParseError> {
        let id = "sidecar~10.1.0.1~web.shop~shop.svc.cluster.local";
        parse_proxy(&node(&json!({"id": id, "metadata": metadata})), &BTreeMap::new())
    }

    #[test]
    fn generator_grpc_makes_a_sidecar_a_grpc_client() {
        let is_grpc = |metadata| with_metadata(metadata).expect("a proxy").grpc;
        assert!(is_grpc(json!({"GENERATOR": "grpc"})));
        assert!(!is_grpc(json!({"GENERATOR": "api"})) && !is_grpc(json!({})));
        let router =
            json!({"id": "router~10.1.0.1~web.shop~shop.svc.cluster.local", "metadata": {"GENERATOR": "grpc"}});
        assert!(!parse_proxy(&node(&router), &BTreeMap::new()).expect("a proxy").grpc);
    }

    #[test]
    fn nodes_with_long_parts_are_refused() {
        let long = |bytes: usize| "x".repeat(bytes);
        let refused = |metadata| with_metadata(metadata).expect_err("refused").to_string();
        for name in ["NAMESPACE", "CLUSTER_ID", "NETWORK", "ISTIO_VERSION"] {
            assert!(with_metadata(json!({name: long(MAX_NAME_BYTES)})).is_ok());
            assert_eq!(refused(json!({name: long(513)})), format!("{name} of the node is longer than 512 bytes"));
        }
        let tag = json!({"literal": {"value": long(20_000)}});
        assert!(refused(json!({"PROXY_CONFIG": {"tracing": {"customTags": {"a": tag}}}})).contains("PROXY_CONFIG"));
    }

    #[test]
    fn nodes_whose_labels_take_too_much_memory_are_refused() {
        let labels = |number: usize| (0..number).map(|n| (format!("{n:03}"), json!("v"))).collect::<Map<_, _>>();
        for field in ["LABELS", "STATIC_LABELS"] {
            let refused = Err(NodeParseError::TooManyLabels(field));
            assert_eq!(with_metadata(json!({field: {"a": "x".repeat(40_000)}})), refused);
            // A label of 4 bytes counts as 68.
            let most = MAX_LABEL_BYTES / 68;
            assert_eq!(with_metadata(json!({field: labels(most + 1)})), refused);
            assert!(with_metadata(json!({field: labels(most)})).is_ok());
        }
        let text = NodeParseError::TooManyLabels("LABELS").to_string();
        assert_eq!(text, "LABELS of the node take more than 32768 bytes, with 64 for each label");
    }

    #[test]
    fn nodes_with_too_many_values_are_refused() {
        let tags = |number: usize| json!({"PROXY_CONFIG": {"extraStatTags": vec![json!({}); number]}});
        assert!(with_metadata(tags(8190)).is_ok());
        assert_eq!(with_metadata(tags(8191)), Err(NodeParseError::TooManyValues));
    }

    #[test]
    fn only_metadata_that_is_read_is_kept() {
        let plain = with_metadata(json!({"PROXY_CONFIG": {}})).expect("a proxy");
        let made_up = json!({
            "PROXY_CONFIG": {"proxyMetadata": {"A": "x".repeat(100_000)}, "caCertificatesPem": ["x"], "concurrency": 7},
            "ANNOTATIONS": {"made-up": "x".repeat(100_000)},
            "MADE_UP": "x".repeat(100_000),
            "NESTED": {"a": ["x"]},
        });
        assert_eq!(with_metadata(made_up).expect("a proxy"), plain);
        let many: Map<_, _> = (0..5000).map(|n| (format!("K{n}"), json!("x".repeat(100)))).collect();
        let kept = with_metadata(many.into()).expect("a proxy").metadata;
        assert!(!kept.is_empty() && kept.iter().map(|(name, json)| name.len() + json.len()).sum::<usize>() <= 16 << 10);
        let short: Map<_, _> = (0..5000).map(|n| (format!("{n}"), json!(1))).collect();
        assert!(with_metadata(short.into()).expect("a proxy").metadata.len() <= MAX_KEPT_METADATA_BYTES / ENTRY_BYTES);
    }
}
