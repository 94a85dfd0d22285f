//! Converts an extension: the URL of its module becomes the path of a file.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use prost::Message as _;
use sluice_proto::envoy::config::core::v3::async_data_source::Specifier as Code;
use sluice_proto::envoy::config::core::v3::{
    AsyncDataSource, DataSource, HttpUri, TypedExtensionConfig, data_source::Specifier,
};
use sluice_proto::envoy::config::rbac::v3::Rbac as Rules;
use sluice_proto::envoy::extensions::filters::http::rbac::v3::Rbac;
use sluice_proto::envoy::extensions::filters::http::wasm::v3::Wasm;
use sluice_proto::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use sluice_proto::envoy::extensions::wasm::v3::{FailurePolicy, PluginConfig, VmConfig, plugin_config::Vm};
use sluice_proto::google::protobuf::Any;
use sluice_proto::wire;
use tracing::warn;
use zeroize::Zeroizing;

use super::cache::{ModuleCache, ModuleRequest, PullPolicy};
use super::client::redacted;

const HTTP: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm";
/// Types of filters in the untyped form, which an EnvoyFilter may use.
const TYPED_STRUCTS: [&str; 2] =
    ["type.googleapis.com/udpa.type.v1.TypedStruct", "type.googleapis.com/xds.type.v3.TypedStruct"];
/// Environment variables with this prefix are for the agent, not for the module.
const AGENT_VARIABLE_PREFIX: &str = "ISTIO_META_";
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";
/// Time limit of a fetch if the extension has none.
const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The checksum that the control plane sends if the WasmPlugin has none.
const NO_CHECKSUM: &str = "nil";

/// Whether an encoded response may refer to a module.
pub(crate) fn is_wasm(response: &[u8]) -> bool {
    const TYPE_SUFFIX: &[u8] = b".wasm.v3.Wasm";
    response.windows(TYPE_SUFFIX.len()).any(|window| window == TYPE_SUFFIX)
}

/// The extension with its module as a file. An extension without a remote module is returned unchanged.
///
/// # Errors
/// The extension is malformed.
pub(super) async fn convert(cache: &ModuleCache, extension: Any) -> Result<Any> {
    let plugin = wasm_plugin(&extension).inspect_err(|_| cache.metrics().wasm_converted("unmarshal_failure"))?;
    let Some(WasmFilter { name, network, mut plugin }) = plugin else {
        cache.metrics().wasm_converted("no_remote_load");
        return Ok(extension);
    };
    let vm = vm_of(&mut plugin).with_context(|| format!("extension {name:?}"))?;
    let typed = match vm.code.as_ref().and_then(|code| code.specifier.as_ref()) {
        Some(Code::Remote(_)) => match fetch_module(cache, &name, vm).await {
            Ok(()) => {
                cache.metrics().wasm_converted("success");
                wasm_filter(network, plugin)
            }
            Err(failure) => {
                cache.metrics().wasm_converted(failure.result);
                let fail_open = fails_open(&plugin);
                let effect = if fail_open { "all traffic is allowed" } else { "all traffic is denied" };
                let error = format!("{:#}", failure.reason);
                warn!(target: "wasm", extension = name, error, effect, "failed to load the module");
                replacement_filter(network, fail_open)
            }
        },
        Some(Code::Local(_)) => {
            cache.metrics().wasm_converted("no_remote_load");
            let Some(variables) = &mut vm.environment_variables else { return Ok(extension) };
            if variables.key_values.remove(PULL_SECRET).is_none() {
                return Ok(extension);
            }
            wasm_filter(network, plugin)
        }
        None => {
            cache.metrics().wasm_converted("unmarshal_failure");
            bail!("extension {name:?} refers to no module");
        }
    };
    let extension = TypedExtensionConfig { name, typed_config: Some(typed) };
    Ok(wire::to_any(&extension))
}

/// A filter that runs a module.
struct WasmFilter {
    name: String,
    network: bool,
    plugin: PluginConfig,
}

fn wasm_plugin(extension: &Any) -> Result<Option<WasmFilter>> {
    let extension = TypedExtensionConfig::decode(extension.value.as_slice()).context("an extension is malformed")?;
    let name = extension.name;
    let malformed = || format!("extension {name:?} is malformed");
    let mut typed = extension.typed_config.with_context(|| format!("extension {name:?} has no configuration"))?;
    if TYPED_STRUCTS.contains(&typed.type_url.as_str()) && is_wasm(&typed.value) {
        let mut structure = sluice_proto::json::encode_any(&typed.type_url, &typed.value);
        let type_url = structure["typeUrl"].take();
        let mut fields = structure["value"].take();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("@type".to_owned(), type_url);
        }
        // The text of the error is dropped: it may quote credentials.
        let decoded = sluice_proto::json::decode_any(&fields).map_err(|error| anyhow!("at {}", error.path));
        let (type_url, value) = decoded.with_context(malformed)?.message;
        typed = Any { type_url, value };
    }
    let network = match typed.type_url.as_str() {
        HTTP => false,
        NETWORK => true,
        _ => return Ok(None),
    };
    // The messages of both filters have the same field.
    let filter = Wasm::decode(typed.value.as_slice()).with_context(malformed)?;
    Ok(Some(WasmFilter { network, plugin: filter.config.unwrap_or_default(), name }))
}

fn vm_of(plugin: &mut PluginConfig) -> Result<&mut VmConfig> {
    match &mut plugin.vm {
        Some(Vm::VmConfig(vm)) => Ok(vm),
        None => bail!("it refers to no module"),
    }
}

/// The reason why there is no module, and its label in metrics.
struct LoadFailure {
    result: &'static str,
    reason: anyhow::Error,
}

/// Fetches the module and replaces its URL by the path of its file. Variables for the agent are removed in any case.
async fn fetch_module(cache: &ModuleCache, extension: &str, vm: &mut VmConfig) -> Result<(), LoadFailure> {
    let failure = |result, reason| LoadFailure { result, reason };
    let mut pull_secret = None;
    let mut policy = PullPolicy::Unspecified;
    let mut resource_version = String::new();
    if let Some(variables) = &mut vm.environment_variables {
        let values = &mut variables.key_values;
        pull_secret = values.remove(PULL_SECRET).map(Zeroizing::new);
        policy = match values.get(PULL_POLICY).map(String::as_str) {
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Always") => PullPolicy::Always,
            _ => PullPolicy::Unspecified,
        };
        resource_version = values.remove(RESOURCE_VERSION).unwrap_or_default();
        values.retain(|name, _| !name.starts_with(AGENT_VARIABLE_PREFIX));
        if values.is_empty() && variables.host_env_keys.is_empty() {
            vm.environment_variables = None;
        }
    }
    if pull_secret.as_ref().is_some_and(|secret| secret.is_empty()) {
        return Err(failure("fetch_failure", anyhow!("the pull secret of its image is missing")));
    }
    let Some(Code::Remote(remote)) = vm.code.as_ref().and_then(|code| code.specifier.as_ref()) else {
        return Err(failure("miss_remote_fetch_hint", anyhow!("it refers to no module")));
    };
    let Some(HttpUri { uri, timeout, .. }) = &remote.http_uri else {
        return Err(failure("miss_remote_fetch_hint", anyhow!("its module has no URL")));
    };
    let timeout = timeout.as_ref().map_or(DEFAULT_FETCH_TIMEOUT, |timeout| {
        let nanos = u32::try_from(timeout.nanos).unwrap_or_default();
        Duration::new(u64::try_from(timeout.seconds).unwrap_or_default(), nanos)
    });
    let checksum = if remote.sha256 == NO_CHECKSUM { "" } else { remote.sha256.as_str() };
    let request = ModuleRequest {
        url: uri,
        checksum: checksum.to_ascii_lowercase(),
        extension,
        resource_version: &resource_version,
        policy,
        pull_secret: pull_secret.as_ref().map(|secret| secret.as_bytes()),
    };
    let file = match tokio::time::timeout(timeout, cache.get(&request)).await {
        Ok(Ok(file)) => file,
        Ok(Err(reason)) => {
            return Err(failure("fetch_failure", reason.context(format!("fetch {}", redacted(uri)))));
        }
        Err(_) => {
            return Err(failure("fetch_failure", anyhow!("fetch {}: no module within {timeout:?}", redacted(uri))));
        }
    };
    let filename = Specifier::Filename(file.to_string_lossy().into_owned());
    let local = DataSource { specifier: Some(filename), ..Default::default() };
    vm.code = Some(AsyncDataSource { specifier: Some(Code::Local(local)) });
    Ok(())
}

#[expect(deprecated, reason = "older control planes set the deprecated field")]
fn fails_open(plugin: &PluginConfig) -> bool {
    match plugin.failure_policy() {
        FailurePolicy::Unspecified => plugin.fail_open,
        policy => policy == FailurePolicy::FailOpen,
    }
}

fn wasm_filter(network: bool, plugin: PluginConfig) -> Any {
    let type_url = if network { NETWORK } else { HTTP }.to_owned();
    Any { type_url, value: wire::encode(&Wasm { config: Some(plugin) }) }
}

/// The filter that replaces one without module: RBAC without rules allows all traffic, with empty rules it denies all.
fn replacement_filter(network: bool, fail_open: bool) -> Any {
    let prefix = if fail_open { "wasm-default-allow" } else { "wasm-default-deny" }.to_owned();
    let rules = (!fail_open).then(Rules::default);
    match network {
        true => wire::to_any(&NetworkRbac { rules, stat_prefix: prefix, ..Default::default() }),
        false => wire::to_any(&Rbac { rules, rules_stat_prefix: prefix, ..Default::default() }),
    }
}
