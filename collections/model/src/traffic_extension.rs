//! TrafficExtension and WasmPlugin (T05): code that runs in proxies.

use serde::Serialize;

use crate::{Attachment, Text, Timestamp, WorkloadMode};

/// Where in a filter chain an extension runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ExtensionPhase {
    /// Before Istio's own filters for statistics.
    #[default]
    Unspecified,
    /// Before authentication.
    Authn,
    /// Between authentication and authorization.
    Authz,
    /// Between authorization and statistics.
    Stats,
}

/// Traffic an extension is for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TrafficSelector {
    /// The sides of a proxy.
    pub mode: WorkloadMode,
    /// Ports; empty is all.
    pub ports: Vec<u32>,
}

impl TrafficSelector {
    /// Whether traffic of that side and port is meant.
    #[must_use]
    pub fn is_for(&self, server: bool, port: u32) -> bool {
        self.mode.is_for(server) && (self.ports.is_empty() || self.ports.contains(&port))
    }
}

/// A TrafficExtension, or what a WasmPlugin says in other words.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TrafficExtension {
    /// Namespace.
    pub namespace: Text,
    /// Name; that of a WasmPlugin is marked, so that it differs from every TrafficExtension's.
    pub name: Text,
    /// Older ones come first.
    pub created: Timestamp,
    /// The workloads it is for.
    pub attachment: Attachment,
    /// Where it runs.
    pub phase: ExtensionPhase,
    /// Higher ones come first within the phase; without comes last.
    pub priority: Option<i32>,
    /// The traffic it is for; empty is all.
    pub matches: Vec<TrafficSelector>,
    /// What runs.
    pub code: ExtensionCode,
}

impl TrafficExtension {
    /// The name of its filter, and of its configuration where proxies ask for it.
    #[must_use]
    pub fn filter_name(&self) -> Text {
        format!("extensions.istio.io/trafficextension/{}.{}", self.namespace, self.name).into()
    }

    /// Whether it works on connections rather than on requests.
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(&self.code, ExtensionCode::Wasm(wasm) if wasm.network)
    }
}

/// What an extension runs.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ExtensionCode {
    /// A Lua script.
    Lua(Text),
    /// A WebAssembly module.
    Wasm(Box<WasmConfig>),
}

/// Where a module comes from.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum WasmSource {
    /// A file of the proxy.
    File(Text),
    /// An address the proxy's agent fetches it from.
    Remote(Text),
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[allow(missing_docs, reason = "the API's own words")]
pub enum PullPolicy {
    IfNotPresent,
    Always,
}

impl PullPolicy {
    /// The word of the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
        }
    }
}

/// What happens to traffic when a module fails.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum FailStrategy {
    /// It is refused.
    #[default]
    Close,
    /// It passes.
    Open,
    /// The module is started again.
    Reload,
}

/// A WebAssembly module and how it runs.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct WasmConfig {
    /// Where it comes from.
    pub source: WasmSource,
    /// Its checksum, empty if it is not checked.
    pub sha256: Text,
    /// When its image is pulled, if said.
    pub pull_policy: Option<PullPolicy>,
    /// Secret to pull its image with, in the extension's namespace; empty if none.
    pub pull_secret: Text,
    /// Its configuration: canonical JSON text of the object, empty if none.
    pub plugin_config: Text,
    /// Name of the plugin within the module.
    pub plugin_name: Text,
    /// What happens when it fails.
    pub fail_strategy: FailStrategy,
    /// Environment of the module: name, and value or none where the proxy's own is passed on.
    pub env: Vec<(Text, Option<Text>)>,
    /// It works on connections rather than on requests.
    pub network: bool,
    /// `resourceVersion` of the object: agents fetch a module again when it changes.
    pub resource_version: Text,
}
