//! TrafficExtension and WasmPlugin (T05): extensions that run in proxies.

use serde::{Deserialize, Serialize};

use crate::{Attachment, Text, Timestamp, WorkloadMode};

/// Where in a filter chain an extension runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ExtensionPhase {
    /// Before Istio's filters for statistics.
    #[default]
    Unspecified,
    /// Before authentication.
    Authn,
    /// Between authentication and authorization.
    Authz,
    /// Between authorization and statistics.
    Stats,
}

/// The traffic that an extension applies to.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TrafficSelector {
    /// The traffic directions.
    pub mode: WorkloadMode,
    /// Ports; empty is all.
    pub ports: Vec<u32>,
}

impl TrafficSelector {
    /// Whether it selects traffic of that direction and port.
    #[must_use]
    pub fn is_for(&self, server: bool, port: u32) -> bool {
        self.mode.is_for(server) && (self.ports.is_empty() || self.ports.contains(&port))
    }
}

/// A TrafficExtension, or a WasmPlugin converted to one.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TrafficExtension {
    /// Namespace.
    pub namespace: Text,
    /// Name; that of a WasmPlugin has a prefix, so that it differs from the names of TrafficExtensions.
    pub name: Text,
    /// Older ones come first.
    pub created: Timestamp,
    /// Its target.
    pub attachment: Attachment,
    /// Its phase in the filter chain.
    pub phase: ExtensionPhase,
    /// Within the phase, higher priorities come first, those without a priority last.
    pub priority: Option<i32>,
    /// The traffic that it applies to; empty is all.
    pub matches: Vec<TrafficSelector>,
    /// Its code.
    pub code: ExtensionCode,
}

impl TrafficExtension {
    /// Name of its filter, and of its extension configuration resource.
    #[must_use]
    pub fn filter_name(&self) -> Text {
        format!("extensions.istio.io/trafficextension/{}.{}", self.namespace, self.name).into()
    }

    /// Whether it is a network filter instead of an HTTP filter.
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(&self.code, ExtensionCode::Wasm(wasm) if wasm.network)
    }
}

/// The code of an extension.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ExtensionCode {
    /// A Lua script.
    Lua(Text),
    /// A WebAssembly module.
    Wasm(Box<WasmConfig>),
}

/// Source of a module.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum WasmSource {
    /// A file on the machine of the proxy.
    File(Text),
    /// A URL from which the agent of the proxy fetches it.
    Remote(Text),
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the API's own words")]
pub enum PullPolicy {
    IfNotPresent,
    Always,
}

impl PullPolicy {
    /// The enum value of the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
        }
    }
}

/// Action for traffic when a module fails.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum FailStrategy {
    /// It is rejected.
    #[default]
    Close,
    /// It is passed on.
    Open,
    /// The module is reloaded.
    Reload,
}

/// A WebAssembly module and its settings.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct WasmConfig {
    /// Its source.
    pub source: WasmSource,
    /// Its SHA-256 checksum; empty if it is not verified.
    pub sha256: Text,
    /// Pull policy of its image, if set.
    pub pull_policy: Option<PullPolicy>,
    /// Secret with credentials for its image, in the namespace of the extension; empty if none.
    pub pull_secret: Text,
    /// Its configuration: canonical JSON text of the object, empty if none.
    pub plugin_config: Text,
    /// Name of the plugin within the module.
    pub plugin_name: Text,
    /// Action when it fails.
    pub fail_strategy: FailStrategy,
    /// Environment of the module: name and value; `None` passes on the variable of the proxy.
    pub env: Vec<(Text, Option<Text>)>,
    /// Whether it is a network filter instead of an HTTP filter.
    pub network: bool,
    /// `resourceVersion` of the object: agents fetch a module again when it changes.
    pub resource_version: Text,
}
