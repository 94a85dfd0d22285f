//! Filters of extensions (T05): Wasm modules by ECDS, Lua scripts inline.

use envoy_types::pb::envoy::config::core::v3::{DataSource, ExtensionConfigSource, data_source::Specifier};
use envoy_types::pb::envoy::config::listener::v3::{Filter, filter};
use envoy_types::pb::envoy::extensions::filters::http::lua::v3::Lua;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter, http_filter};
use sluice_model::{ExtensionPhase, Text};

use crate::config_source::ads_source;
use crate::listener_settings::{ListenerClass, ListenerExtension, ListenerSettings};
use crate::security::PolicySteps;
use crate::wire::any;

/// The phases, in the order of the filter chain.
const PHASES: [ExtensionPhase; 4] =
    [ExtensionPhase::Authn, ExtensionPhase::Authz, ExtensionPhase::Stats, ExtensionPhase::Unspecified];

/// Accepted types of an ECDS configuration: the Wasm filter, or an RBAC filter that denies everything as a fallback.
const HTTP_TYPES: [&str; 2] =
    ["envoy.extensions.filters.http.wasm.v3.Wasm", "envoy.extensions.filters.http.rbac.v3.RBAC"];
const NETWORK_TYPES: [&str; 2] =
    ["envoy.extensions.filters.network.wasm.v3.Wasm", "envoy.extensions.filters.network.rbac.v3.RBAC"];

/// The extensions of one side and port of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct Extensions<'a> {
    settings: &'a ListenerSettings,
    class: ListenerClass,
    port: u32,
}

impl<'a> Extensions<'a> {
    pub(crate) fn on(settings: &'a ListenerSettings, class: ListenerClass, port: u32) -> Self {
        Self { settings, class, port }
    }

    fn of(self, network: bool, phase: ExtensionPhase) -> impl Iterator<Item = &'a ListenerExtension> {
        let here = move |extension: &&ListenerExtension| {
            extension.network == network && extension.phase == phase && extension.is_for(self.class, self.port)
        };
        self.settings.attached.extensions.iter().filter(here)
    }

    /// HTTP filters of a phase.
    pub(crate) fn http(self, phase: ExtensionPhase) -> impl Iterator<Item = HttpFilter> {
        self.of(false, phase).map(|extension| HttpFilter {
            name: extension.name.to_string(),
            config_type: Some(match &extension.script {
                Some(script) => http_filter::ConfigType::TypedConfig(any(&lua(script))),
                None => http_filter::ConfigType::ConfigDiscovery(discovery(&HTTP_TYPES)),
            }),
            ..HttpFilter::default()
        })
    }

    /// Network filters of a phase.
    pub(crate) fn network(self, phase: ExtensionPhase) -> impl Iterator<Item = Filter> {
        self.of(true, phase).map(|extension| Filter {
            name: extension.name.to_string(),
            config_type: Some(filter::ConfigType::ConfigDiscovery(discovery(&NETWORK_TYPES))),
        })
    }

    /// Network filters of all phases, with those of policies between them.
    pub(crate) fn network_around(self, policies: &PolicySteps<Filter>) -> Vec<Filter> {
        let mut filters = policies.custom.clone();
        filters.extend(self.network(ExtensionPhase::Authn));
        filters.extend(policies.authentication.iter().cloned());
        filters.extend(self.network(ExtensionPhase::Authz));
        filters.extend(policies.authorization.iter().cloned());
        filters.extend(self.network(ExtensionPhase::Stats));
        filters.extend(self.network(ExtensionPhase::Unspecified));
        filters
    }

    /// Network filters of all phases in order, for chains without policies.
    pub(crate) fn all_network(self) -> impl Iterator<Item = Filter> {
        PHASES.into_iter().flat_map(move |phase| self.network(phase))
    }
}

fn lua(script: &Text) -> Lua {
    let code = DataSource { specifier: Some(Specifier::InlineString(script.to_string())), ..DataSource::default() };
    Lua { default_source_code: Some(code), ..Lua::default() }
}

/// An ECDS filter. The listener waits for its configuration, because it may protect the application.
fn discovery(types: &[&str]) -> ExtensionConfigSource {
    ExtensionConfigSource {
        config_source: Some(ads_source()),
        type_urls: types.iter().map(|name| format!("type.googleapis.com/{name}")).collect(),
        ..ExtensionConfigSource::default()
    }
}
