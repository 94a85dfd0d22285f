//! What the plugin sends to the agent when a pod gets its network: JSON, as `istio-cni` writes it, so that the plugin of one
//! version works with the agent of another.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Path of the request.
pub(crate) const PATH: &str = "/cmdadd";
/// Name of the socket in the directory of the agent.
pub(crate) const SOCKET: &str = "pluginevent.sock";

/// A pod gets its network.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AddEvent {
    /// Path of the network namespace on the node.
    pub(crate) netns: String,
    /// Name of the pod.
    pub(crate) pod_name: String,
    /// Namespace of the pod.
    pub(crate) pod_namespace: String,
    /// Addresses of the pod.
    #[serde(rename = "IPs", default, deserialize_with = "null_is_empty")]
    pub(crate) ips: Vec<IpConfig>,
}

/// An address of a pod.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct IpConfig {
    /// The address with its network.
    pub(crate) address: IpNetwork,
}

/// A network, as Go's `net.IPNet` is written.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct IpNetwork {
    /// The address.
    #[serde(rename = "IP")]
    pub(crate) ip: IpAddr,
    /// The mask in base64. Not read: a pod has the address alone.
    #[serde(rename = "Mask", default)]
    pub(crate) mask: Option<String>,
}

impl From<IpAddr> for IpConfig {
    fn from(ip: IpAddr) -> Self {
        Self { address: IpNetwork { ip, mask: None } }
    }
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<IpConfig>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_istio_is_read() {
        let text = r#"{"Netns":"/var/run/netns/a","PodName":"web-1","PodNamespace":"shop",
            "IPs":[{"Interface":2,"Address":{"IP":"10.0.0.7","Mask":"/////w=="},"Gateway":"10.0.0.1"}]}"#;
        let event: AddEvent = serde_json::from_str(text).expect("an event");
        assert_eq!(event.ips[0].address.ip, IpAddr::from([10, 0, 0, 7]));
        let text = r#"{"Netns":"/a","PodName":"b","PodNamespace":"c","IPs":null}"#;
        assert!(serde_json::from_str::<AddEvent>(text).expect("an event").ips.is_empty());
        assert!(serde_json::from_str::<AddEvent>("{}").is_err());
    }
}
