//! What the agent and the plugin read of Pods and Namespaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

/// Whether a pod is enrolled; written by the agent, read by the control plane.
pub(crate) const REDIRECTION: &str = "ambient.istio.io/redirection";
/// The value of [`REDIRECTION`] of a pod that is enrolled.
pub(crate) const ENABLED: &str = "enabled";
/// The value for a pod whose traffic is redirected, but that ztunnel does not serve yet.
pub(crate) const PENDING: &str = "pending";
/// The annotation of pods with a sidecar.
pub(crate) const SIDECAR_STATUS: &str = "sidecar.istio.io/status";

/// Namespace and name.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NodePod {
    pub(crate) name: PodName,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) service_account: String,
    pub(crate) host_network: bool,
    /// Its addresses; none until its network is set up.
    pub(crate) addresses: Vec<IpAddr>,
    /// All containers have ended, and none is started again.
    pub(crate) is_terminal: bool,
    /// All containers, those for initialisation first.
    pub(crate) containers: Vec<PodContainer>,
    /// States of the containers for initialisation.
    pub(crate) init_states: Vec<InitState>,
}

/// A container.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PodContainer {
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
}

/// The state of a container for initialisation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct InitState {
    pub(crate) name: String,
    /// It has ended successfully.
    pub(crate) succeeded: bool,
    /// How its last run ended: exit code and message.
    pub(crate) last: Option<(i64, String)>,
}

impl NodePod {
    /// Reads a Pod. `None` without a name or a UID.
    pub(crate) fn read(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (spec, status) = (&object["spec"], &object["status"]);
        let name = PodName { namespace: text(&metadata["namespace"])?, name: text(&metadata["name"])? };
        let mut addresses: Vec<IpAddr> =
            items(&status["podIPs"]).filter_map(|item| item["ip"].as_str()?.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(status["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok()));
        }
        Some(Self {
            name,
            uid: text(&metadata["uid"])?,
            resource_version: text(&metadata["resourceVersion"]).unwrap_or_default(),
            labels: text_map(&metadata["labels"]),
            annotations: text_map(&metadata["annotations"]),
            service_account: text(&spec["serviceAccountName"]).unwrap_or_default(),
            host_network: spec["hostNetwork"].as_bool().unwrap_or(false),
            addresses,
            is_terminal: matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")),
            containers: items(&spec["initContainers"])
                .chain(items(&spec["containers"]))
                .map(PodContainer::read)
                .collect(),
            init_states: items(&status["initContainerStatuses"]).map(InitState::read).collect(),
        })
    }

    /// The value of [`REDIRECTION`].
    pub(crate) fn redirection(&self) -> Option<&str> {
        self.annotations.get(REDIRECTION).map(String::as_str)
    }

    /// The container of the proxy.
    pub(crate) fn proxy(&self) -> Option<&PodContainer> {
        self.container("istio-proxy")
    }

    /// A container by name.
    pub(crate) fn container(&self, name: &str) -> Option<&PodContainer> {
        self.containers.iter().find(|container| container.name == name)
    }
}

impl PodContainer {
    fn read(value: &Value) -> Self {
        let id = |field: &str| value["securityContext"][field].as_u64().and_then(|id| u32::try_from(id).ok());
        let variable = |item: &Value| {
            Some((item["name"].as_str()?.to_owned(), item["value"].as_str().unwrap_or_default().to_owned()))
        };
        Self {
            name: value["name"].as_str().unwrap_or_default().to_owned(),
            args: items(&value["args"]).filter_map(|argument| argument.as_str().map(str::to_owned)).collect(),
            environment: items(&value["env"]).filter_map(variable).collect(),
            user: id("runAsUser"),
            group: id("runAsGroup"),
        }
    }
}

impl InitState {
    fn read(value: &Value) -> Self {
        let current = &value["state"]["terminated"];
        let last = &value["lastState"]["terminated"];
        let last =
            last["exitCode"].as_i64().map(|code| (code, last["message"].as_str().unwrap_or_default().to_owned()));
        Self {
            name: value["name"].as_str().unwrap_or_default().to_owned(),
            succeeded: current["reason"] == "Completed" || current["exitCode"] == 0,
            last,
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The texts of a map, such as labels.
pub(crate) fn text_map(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
