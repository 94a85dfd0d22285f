//! Extension configurations, which proxies request by name (ECDS, T05).

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    AsyncDataSource, DataSource, HttpUri, RemoteDataSource, TypedExtensionConfig, async_data_source,
    data_source::Specifier, http_uri::HttpUpstreamType,
};
use envoy_types::pb::envoy::extensions::filters::{http::wasm::v3::Wasm, network::wasm::v3::Wasm as NetworkWasm};
use envoy_types::pb::envoy::extensions::wasm::v3::{
    EnvironmentVariables, FailurePolicy, PluginConfig, VmConfig, plugin_config::Vm,
};
use envoy_types::pb::google::protobuf::{Any, StringValue};
use sluice_model::{ExtensionCode, FailStrategy, PullPolicy, Redacted, TrafficExtension, WasmConfig, WasmSource};

use crate::wire::{any, duration};

const RUNTIME: &str = "envoy.wasm.runtime.v8";
/// Environment variables that tell the agent how to fetch a module. The agent removes them.
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";
/// Timeout of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration of an extension, with its image pull secret if the proxy may read it; `None` for a script, which is
/// part of the listeners.
#[must_use]
pub fn build_extension(extension: &TrafficExtension, credential: Option<&Redacted>) -> Option<TypedExtensionConfig> {
    let ExtensionCode::Wasm(wasm) = &extension.code else { return None };
    let config = Some(plugin_config(extension, wasm, credential));
    let typed_config = if wasm.network { any(&NetworkWasm { config }) } else { any(&Wasm { config }) };
    Some(TypedExtensionConfig { name: extension.filter_name().to_string(), typed_config: Some(typed_config) })
}

fn plugin_config(extension: &TrafficExtension, wasm: &WasmConfig, credential: Option<&Redacted>) -> PluginConfig {
    let failure_policy = match wasm.fail_strategy {
        FailStrategy::Close => FailurePolicy::FailClosed,
        FailStrategy::Open => FailurePolicy::FailOpen,
        FailStrategy::Reload => FailurePolicy::FailReload,
    };
    let configuration = if wasm.plugin_config.is_empty() {
        Any::default()
    } else {
        any(&StringValue { value: wasm.plugin_config.to_string() })
    };
    PluginConfig {
        name: format!("{}.{}", extension.namespace, extension.name),
        root_id: wasm.plugin_name.to_string(),
        configuration: Some(configuration),
        failure_policy: failure_policy as i32,
        vm: Some(Vm::VmConfig(VmConfig {
            runtime: RUNTIME.to_owned(),
            code: Some(code(wasm)),
            environment_variables: Some(environment(wasm, credential)),
            ..VmConfig::default()
        })),
        ..PluginConfig::default()
    }
}

fn code(wasm: &WasmConfig) -> AsyncDataSource {
    let specifier = match &wasm.source {
        WasmSource::File(path) => async_data_source::Specifier::Local(DataSource {
            specifier: Some(Specifier::Filename(path.to_string())),
            ..DataSource::default()
        }),
        WasmSource::Remote(uri) => async_data_source::Specifier::Remote(RemoteDataSource {
            http_uri: Some(HttpUri {
                uri: uri.to_string(),
                // The agent fetches the module, so the cluster is not used.
                http_upstream_type: Some(HttpUpstreamType::Cluster("_".to_owned())),
                timeout: Some(duration(FETCH_TIMEOUT)),
            }),
            sha256: wasm.sha256.to_string(),
            ..RemoteDataSource::default()
        }),
    };
    AsyncDataSource { specifier: Some(specifier) }
}

/// The credential of the image pull. It is empty if the proxy may not read the Secret or the Secret does not exist.
fn environment(wasm: &WasmConfig, credential: Option<&Redacted>) -> EnvironmentVariables {
    let mut key_values: HashMap<String, String> = HashMap::new();
    if let Some(policy) = wasm.pull_policy.map(PullPolicy::name) {
        key_values.insert(PULL_POLICY.to_owned(), policy.to_owned());
    }
    key_values.insert(RESOURCE_VERSION.to_owned(), wasm.resource_version.to_string());
    let own = wasm.env.iter().filter_map(|(name, value)| Some((name.to_string(), value.as_ref()?.to_string())));
    key_values.extend(own);
    // The extension cannot override this variable.
    if !wasm.pull_secret.is_empty() || key_values.contains_key(PULL_SECRET) {
        let text = credential.map(|credential| String::from_utf8_lossy(&credential.0).into_owned());
        key_values.insert(PULL_SECRET.to_owned(), text.unwrap_or_default());
    }
    let host_env_keys =
        wasm.env.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name.to_string()).collect();
    EnvironmentVariables { host_env_keys, key_values }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sluice_model::{Attachment, ExtensionPhase};

    use super::*;

    fn extension(code: ExtensionCode) -> TrafficExtension {
        TrafficExtension {
            namespace: "lab".into(),
            name: "x".into(),
            created: 0,
            attachment: Attachment::default(),
            phase: ExtensionPhase::Authn,
            priority: None,
            matches: Vec::new(),
            code,
        }
    }

    fn module() -> WasmConfig {
        WasmConfig {
            source: WasmSource::Remote("oci://r.test/x".into()),
            sha256: "ab".into(),
            pull_policy: Some(PullPolicy::Always),
            pull_secret: "cred".into(),
            plugin_config: "{}".into(),
            plugin_name: "root".into(),
            fail_strategy: FailStrategy::Reload,
            env: vec![("A".into(), Some("b".into())), ("H".into(), None)],
            network: false,
            resource_version: "7".into(),
        }
    }

    fn plugin(config: &TypedExtensionConfig) -> PluginConfig {
        let any = config.typed_config.as_ref().expect("a configuration");
        Wasm::decode(any.value.as_slice()).expect("a module").config.expect("a plugin")
    }

    #[test]
    fn wasm_module_has_the_environment_for_the_agent() {
        let built = build_extension(&extension(ExtensionCode::Wasm(Box::new(module()))), None).expect("a module");
        assert_eq!(built.name, "extensions.istio.io/trafficextension/lab.x");
        let plugin = plugin(&built);
        assert_eq!((plugin.name.as_str(), plugin.root_id.as_str()), ("lab.x", "root"));
        assert_eq!(plugin.failure_policy, FailurePolicy::FailReload as i32);
        let Some(Vm::VmConfig(vm)) = plugin.vm else { panic!("a machine") };
        let variables = vm.environment_variables.expect("variables");
        assert_eq!(variables.host_env_keys, ["H"]);
        let expected = [(PULL_SECRET, ""), (PULL_POLICY, "Always"), (RESOURCE_VERSION, "7"), ("A", "b")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables.key_values, HashMap::from(expected));
    }

    #[test]
    fn pull_credential_is_part_of_the_environment() {
        let secret_of = |module: WasmConfig, credential: Option<&'static str>| {
            let credential = credential.map(|text| Redacted(text.as_bytes().into()));
            let extension = extension(ExtensionCode::Wasm(Box::new(module)));
            let built = build_extension(&extension, credential.as_ref()).expect("a module");
            let Some(Vm::VmConfig(vm)) = plugin(&built).vm else { panic!("a machine") };
            vm.environment_variables.expect("variables").key_values.get(PULL_SECRET).cloned()
        };
        assert_eq!(secret_of(module(), Some("{}")).as_deref(), Some("{}"));
        assert_eq!(secret_of(module(), None).as_deref(), Some(""));
        let public = WasmConfig { pull_secret: "".into(), ..module() };
        assert_eq!(secret_of(public.clone(), None), None);
        let own = WasmConfig { env: vec![(PULL_SECRET.into(), Some("x".into()))], ..public };
        assert_eq!(secret_of(own, None).as_deref(), Some(""), "an extension does not say what it is");
    }

    #[test]
    fn filter_type_follows_the_plugin_type() {
        let network = WasmConfig { network: true, ..module() };
        let built = build_extension(&extension(ExtensionCode::Wasm(Box::new(network))), None).expect("a module");
        let url = built.typed_config.expect("a configuration").type_url;
        assert_eq!(url, "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm");
        assert_eq!(build_extension(&extension(ExtensionCode::Lua("x = 1".into())), None), None);
    }
}
