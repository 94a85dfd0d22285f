//! Credentials for images of Wasm modules: for who fetches the image, never for Envoy, which would hand them to the module.

use bytes::Bytes;
use prost::Message;
use sluice_proto::envoy::config::core::v3::TypedExtensionConfig;
use sluice_proto::envoy::extensions::wasm::v3::{PluginConfig, plugin_config::Vm};
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use sluice_proto::google::protobuf::Any;

use super::message::Protocol;

/// The type that has them.
pub(super) const EXTENSIONS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// The variable they are in.
const VARIABLE: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";

/// A filter of HTTP or TCP that runs a module: their messages are alike.
#[derive(Clone, PartialEq, Message)]
struct Wasm {
    #[prost(message, optional, tag = "1")]
    config: Option<PluginConfig>,
}

/// A response of extensions without credentials; nothing if it has some that cannot be taken out.
pub(super) fn without_pull_secrets(protocol: Protocol, response: Bytes) -> Option<Bytes> {
    if !response.windows(VARIABLE.len()).any(|window| window == VARIABLE.as_bytes()) {
        return Some(response);
    }
    match protocol {
        Protocol::Sotw => {
            let mut response = DiscoveryResponse::decode(response).ok()?;
            response.resources.iter_mut().try_for_each(strip)?;
            Some(response.encode_to_vec().into())
        }
        Protocol::Delta => {
            let mut response = DeltaDiscoveryResponse::decode(response).ok()?;
            response.resources.iter_mut().filter_map(|resource| resource.resource.as_mut()).try_for_each(strip)?;
            Some(response.encode_to_vec().into())
        }
    }
}

fn strip(resource: &mut Any) -> Option<()> {
    let mut extension = TypedExtensionConfig::decode(resource.value.as_slice()).ok()?;
    let Some(typed) = extension.typed_config.as_mut().filter(|typed| typed.type_url.ends_with(".wasm.v3.Wasm")) else {
        return Some(());
    };
    let mut filter = Wasm::decode(typed.value.as_slice()).ok()?;
    if let Some(Vm::VmConfig(vm)) = filter.config.as_mut().and_then(|config| config.vm.as_mut())
        && let Some(variables) = &mut vm.environment_variables
    {
        variables.key_values.remove(VARIABLE);
    }
    typed.value = filter.encode_to_vec();
    resource.value = extension.encode_to_vec();
    Some(())
}

#[cfg(test)]
mod tests {
    use sluice_proto::envoy::extensions::wasm::v3::{EnvironmentVariables, VmConfig};
    use sluice_proto::envoy::service::discovery::v3::Resource;

    use super::*;

    fn extension(variables: &[(&str, &str)]) -> Any {
        let key_values = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let vm = VmConfig {
            environment_variables: Some(EnvironmentVariables { key_values, ..Default::default() }),
            ..Default::default()
        };
        let config = PluginConfig { name: "a".into(), vm: Some(Vm::VmConfig(vm)), ..Default::default() };
        let typed = Any {
            type_url: "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm".into(),
            value: Wasm { config: Some(config) }.encode_to_vec(),
        };
        let extension = TypedExtensionConfig { name: "a".into(), typed_config: Some(typed) };
        Any { type_url: EXTENSIONS.into(), value: extension.encode_to_vec() }
    }

    #[test]
    fn only_credentials_are_taken_out() {
        let (with, without) = (extension(&[(VARIABLE, "hush"), ("MODE", "x")]), extension(&[("MODE", "x")]));
        let sotw = |any: Any| DiscoveryResponse { resources: vec![any], nonce: "n".into(), ..Default::default() };
        let stripped = without_pull_secrets(Protocol::Sotw, sotw(with.clone()).encode_to_vec().into());
        assert_eq!(stripped.expect("a response"), sotw(without.clone()).encode_to_vec());
        let delta = |any: Any| DeltaDiscoveryResponse {
            resources: vec![Resource { name: "a".into(), resource: Some(any), ..Default::default() }],
            ..Default::default()
        };
        let stripped = without_pull_secrets(Protocol::Delta, delta(with).encode_to_vec().into());
        assert_eq!(stripped.expect("a response"), delta(without).encode_to_vec());
    }

    #[test]
    fn what_cannot_be_read_is_not_passed_on() {
        assert!(without_pull_secrets(Protocol::Sotw, Bytes::from(format!("\u{7f}{VARIABLE}"))).is_none());
        let other = Bytes::from_static(b"\xff\xff");
        assert_eq!(without_pull_secrets(Protocol::Sotw, other.clone()), Some(other));
    }
}
