//! Extensions of a proxy in its listeners (T05).

use serde::Serialize;
use sluice_model::{ExtensionCode, ExtensionPhase, Text, TrafficExtension, TrafficSelector};

use super::listener_class::ListenerClass;

/// An extension in a listener. The proxy requests the configuration of a Wasm module by name (ECDS).
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerExtension {
    /// Name of the filter.
    pub name: Text,
    /// Phase in the filter chain.
    pub phase: ExtensionPhase,
    /// Traffic that it applies to; empty for all.
    pub matches: Vec<TrafficSelector>,
    /// Whether it is a network filter and not an HTTP filter.
    pub network: bool,
    /// The Lua script, if it is one.
    pub script: Option<Text>,
}

impl ListenerExtension {
    /// The part of an extension that listeners depend on.
    #[must_use]
    pub fn of(extension: &TrafficExtension) -> Self {
        Self {
            name: extension.filter_name(),
            phase: extension.phase,
            matches: extension.matches.clone(),
            network: extension.is_network(),
            script: match &extension.code {
                ExtensionCode::Lua(script) => Some(script.clone()),
                ExtensionCode::Wasm(_) => None,
            },
        }
    }

    /// Whether it applies to this side and port.
    pub(crate) fn is_for(&self, class: ListenerClass, port: u32) -> bool {
        let server = class == ListenerClass::Inbound;
        self.matches.is_empty() || self.matches.iter().any(|traffic| traffic.is_for(server, port))
    }
}
