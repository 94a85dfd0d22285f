//! The configuration of the plugin: an entry of the chain, which the agent writes.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::selectors::EnablementSelectors;

/// Name and type of the entry, and name of the executable file.
pub(crate) const NAME: &str = "istio-cni";
/// Version of the specification of the entry.
pub(crate) const VERSION: &str = "0.3.1";
/// Name of the kubeconfig in the directory of the agent.
pub(crate) const KUBECONFIG: &str = "istio-cni-kubeconfig";

/// An entry of the chain.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PluginConfig {
    #[serde(rename = "cniVersion")]
    pub(crate) cni_version: String,
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) plugin_log_level: String,
    pub(crate) cni_agent_run_dir: String,
    pub(crate) ambient_enabled: bool,
    pub(crate) enablement_selectors: Vec<Value>,
    pub(crate) exclude_namespaces: Vec<String>,
    pub(crate) pod_namespace: String,
    pub(crate) enable_ambient_detection_retry: bool,
    /// The result of the plugin before it in the chain.
    #[serde(rename = "prevResult", skip_serializing)]
    pub(crate) previous: Value,
}

impl PluginConfig {
    /// Parses standard input.
    pub(crate) fn parse(input: &[u8]) -> Result<Self> {
        serde_json::from_slice(input).context("network configuration")
    }

    /// Which pods belong to the ambient mesh.
    pub(crate) fn selectors(&self) -> Result<EnablementSelectors> {
        EnablementSelectors::read(self.enablement_selectors.clone())
            .map_err(|error| anyhow::anyhow!("enablement_selectors{error}"))
    }

    /// The addresses that the plugin before it has assigned.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let ips = self.previous["ips"].as_array().into_iter().flatten();
        ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
    }

    /// The result: that of the plugin before it, or an empty one.
    pub(crate) fn result(&self) -> Value {
        match &self.previous {
            Value::Null => json!({"cniVersion": self.cni_version, "dns": {}}),
            previous => previous.clone(),
        }
    }
}
