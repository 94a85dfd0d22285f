//! One extension as Envoy takes it.

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

use super::cache::{Cache, Wanted};
use super::client::shown;

const HTTP: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm";
/// A filter as a structure, which an EnvoyFilter may give.
const STRUCTURES: [&str; 2] =
    ["type.googleapis.com/udpa.type.v1.TypedStruct", "type.googleapis.com/xds.type.v3.TypedStruct"];
/// Variables that begin so are for the agent, not for the module.
const INTERNAL: &str = "ISTIO_META_";
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";
/// Time to fetch a module if the extension does not say.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What the control plane says where no checksum is known.
const NO_CHECKSUM: &str = "nil";

/// When a module is fetched although it is there.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum PullPolicy {
    #[default]
    Unspecified,
    IfNotPresent,
    Always,
}

/// Whether a response may name a module.
pub(crate) fn is_wasm(response: &[u8]) -> bool {
    const MARK: &[u8] = b".wasm.v3.Wasm";
    response.windows(MARK.len()).any(|window| window == MARK)
}

/// An extension whose module is a file.
///
/// # Errors
/// It cannot be read.
pub(super) async fn convert(cache: &Cache, extension: Any) -> Result<Any> {
    let read = read(&extension).inspect_err(|_| cache.metrics().wasm_converted("unmarshal_failure"))?;
    let Some(Found { name, network, mut plugin }) = read else {
        cache.metrics().wasm_converted("no_remote_load");
        return Ok(extension);
    };
    let vm = vm_of(&mut plugin).with_context(|| format!("extension {name:?}"))?;
    let typed = match vm.code.as_ref().and_then(|code| code.specifier.as_ref()) {
        Some(Code::Remote(_)) => match load(cache, &name, vm).await {
            Ok(()) => {
                cache.metrics().wasm_converted("success");
                filter(network, plugin)
            }
            Err(failure) => {
                cache.metrics().wasm_converted(failure.result);
                let open = fails_open(&plugin);
                let instead = if open { "everything passes" } else { "nothing passes" };
                warn!(target: "wasm", extension = name, "no module, {instead}: {:#}", failure.reason);
                instead_of(network, open)
            }
        },
        Some(Code::Local(_)) => {
            cache.metrics().wasm_converted("no_remote_load");
            let Some(variables) = &mut vm.environment_variables else { return Ok(extension) };
            if variables.key_values.remove(PULL_SECRET).is_none() {
                return Ok(extension);
            }
            filter(network, plugin)
        }
        None => {
            cache.metrics().wasm_converted("unmarshal_failure");
            bail!("extension {name:?} names no module");
        }
    };
    let extension = TypedExtensionConfig { name, typed_config: Some(typed) };
    Ok(wire::to_any(&extension))
}

/// A filter that runs a module.
struct Found {
    name: String,
    network: bool,
    plugin: PluginConfig,
}

fn read(extension: &Any) -> Result<Option<Found>> {
    let extension = TypedExtensionConfig::decode(extension.value.as_slice()).context("an extension cannot be read")?;
    let name = extension.name;
    let unreadable = || format!("extension {name:?} cannot be read");
    let mut typed = extension.typed_config.with_context(|| format!("extension {name:?} has no configuration"))?;
    if STRUCTURES.contains(&typed.type_url.as_str()) && is_wasm(&typed.value) {
        let mut structure = sluice_proto::json::encode_any(&typed.type_url, &typed.value);
        let type_url = structure["typeUrl"].take();
        let mut fields = structure["value"].take();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("@type".to_owned(), type_url);
        }
        // What is wrong with it may quote it, and it may hold credentials.
        let decoded = sluice_proto::json::decode_any(&fields).map_err(|error| anyhow!("at {}", error.path));
        let (type_url, value) = decoded.with_context(unreadable)?.message;
        typed = Any { type_url, value };
    }
    let network = match typed.type_url.as_str() {
        HTTP => false,
        NETWORK => true,
        _ => return Ok(None),
    };
    // Both messages have the same field.
    let filter = Wasm::decode(typed.value.as_slice()).with_context(unreadable)?;
    Ok(Some(Found { network, plugin: filter.config.unwrap_or_default(), name }))
}

fn vm_of(plugin: &mut PluginConfig) -> Result<&mut VmConfig> {
    match &mut plugin.vm {
        Some(Vm::VmConfig(vm)) => Ok(vm),
        None => bail!("it names no module"),
    }
}

/// Why there is no module, and what of that is counted.
struct Failure {
    result: &'static str,
    reason: anyhow::Error,
}

/// Has the module fetched, and names its file instead. What is internal is taken out in any case.
async fn load(cache: &Cache, extension: &str, vm: &mut VmConfig) -> Result<(), Failure> {
    let failure = |result, reason| Failure { result, reason };
    let mut secret = None;
    let mut policy = PullPolicy::Unspecified;
    let mut resource_version = String::new();
    if let Some(variables) = &mut vm.environment_variables {
        let values = &mut variables.key_values;
        secret = values.remove(PULL_SECRET).map(Zeroizing::new);
        policy = match values.get(PULL_POLICY).map(String::as_str) {
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Always") => PullPolicy::Always,
            _ => PullPolicy::Unspecified,
        };
        resource_version = values.remove(RESOURCE_VERSION).unwrap_or_default();
        values.retain(|name, _| !name.starts_with(INTERNAL));
        if values.is_empty() && variables.host_env_keys.is_empty() {
            vm.environment_variables = None;
        }
    }
    if secret.as_ref().is_some_and(|secret| secret.is_empty()) {
        return Err(failure("fetch_failure", anyhow!("the credentials for its image are missing")));
    }
    let Some(Code::Remote(remote)) = vm.code.as_ref().and_then(|code| code.specifier.as_ref()) else {
        return Err(failure("miss_remote_fetch_hint", anyhow!("it names no module")));
    };
    let Some(HttpUri { uri, timeout, .. }) = &remote.http_uri else {
        return Err(failure("miss_remote_fetch_hint", anyhow!("it does not say where its module is")));
    };
    let timeout = timeout.as_ref().map_or(TIMEOUT, |timeout| {
        let nanos = u32::try_from(timeout.nanos).unwrap_or_default();
        Duration::new(u64::try_from(timeout.seconds).unwrap_or_default(), nanos)
    });
    let checksum = if remote.sha256 == NO_CHECKSUM { "" } else { remote.sha256.as_str() };
    let wanted = Wanted {
        url: uri,
        checksum: checksum.to_ascii_lowercase(),
        extension,
        resource_version: &resource_version,
        policy,
        secret: secret.as_ref().map(|secret| secret.as_bytes()),
    };
    let file = match tokio::time::timeout(timeout, cache.get(&wanted)).await {
        Ok(Ok(file)) => file,
        Ok(Err(reason)) => {
            return Err(failure("fetch_failure", reason.context(format!("fetch {}", shown(uri)))));
        }
        Err(_) => return Err(failure("fetch_failure", anyhow!("fetch {}: not within {timeout:?}", shown(uri)))),
    };
    let filename = Specifier::Filename(file.to_string_lossy().into_owned());
    let local = DataSource { specifier: Some(filename), ..Default::default() };
    vm.code = Some(AsyncDataSource { specifier: Some(Code::Local(local)) });
    Ok(())
}

#[expect(deprecated, reason = "older control planes set it")]
fn fails_open(plugin: &PluginConfig) -> bool {
    match plugin.failure_policy() {
        FailurePolicy::Unspecified => plugin.fail_open,
        policy => policy == FailurePolicy::FailOpen,
    }
}

fn filter(network: bool, plugin: PluginConfig) -> Any {
    let type_url = if network { NETWORK } else { HTTP }.to_owned();
    Any { type_url, value: wire::encode(&Wasm { config: Some(plugin) }) }
}

/// The filter in place of one without module: without rules everything passes, with empty rules nothing.
fn instead_of(network: bool, open: bool) -> Any {
    let prefix = if open { "wasm-default-allow" } else { "wasm-default-deny" }.to_owned();
    let rules = (!open).then(Rules::default);
    match network {
        true => wire::to_any(&NetworkRbac { rules, stat_prefix: prefix, ..Default::default() }),
        false => wire::to_any(&Rbac { rules, rules_stat_prefix: prefix, ..Default::default() }),
    }
}
