//! Extensions of a proxy as its listeners name them (T05).

use serde::Serialize;
use sluice_model::{ExtensionCode, ExtensionPhase, Text, TrafficExtension, TrafficSelector};

use crate::filter::Class;

/// An extension as listeners name it: what a module is and how it runs, proxies ask for by name.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerExtension {
    /// Name of the filter.
    pub name: Text,
    /// Where it runs.
    pub phase: ExtensionPhase,
    /// The traffic it is for; empty is all.
    pub matches: Vec<TrafficSelector>,
    /// It works on connections rather than on requests.
    pub network: bool,
    /// Its script, if it is one.
    pub script: Option<Text>,
}

impl ListenerExtension {
    /// What listeners need to know of an extension.
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

    /// Whether it runs there.
    pub(crate) fn is_for(&self, class: Class, port: u32) -> bool {
        let server = class == Class::Inbound;
        self.matches.is_empty() || self.matches.iter().any(|traffic| traffic.is_for(server, port))
    }
}
