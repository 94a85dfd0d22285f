//! Responses with extensions: Wasm modules are fetched before Envoy receives the response.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};

use super::message::XdsProtocol;
use crate::wasm::{Modules, is_wasm};

/// The type of extensions.
pub(super) const EXTENSIONS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// A response with files in place of the URLs of Wasm modules.
///
/// # Errors
/// The response must be rejected.
pub(super) async fn convert(protocol: XdsProtocol, response: Bytes, modules: &Modules) -> Result<Bytes> {
    if !is_wasm(&response) {
        return Ok(response);
    }
    let malformed = "the response is malformed";
    match protocol {
        XdsProtocol::Sotw => {
            let mut response = DiscoveryResponse::decode(response).context(malformed)?;
            response.resources = modules.convert(response.resources).await?;
            Ok(response.encode_to_vec().into())
        }
        XdsProtocol::Delta => {
            let mut response = DeltaDiscoveryResponse::decode(response).context(malformed)?;
            let mut slots: Vec<_> = response
                .resources
                .iter_mut()
                .map(|resource| &mut resource.resource)
                .filter(|slot| slot.is_some())
                .collect();
            let extensions = slots.iter_mut().filter_map(|slot| slot.take()).collect();
            let converted = modules.convert(extensions).await?;
            for (slot, extension) in slots.into_iter().zip(converted) {
                *slot = Some(extension);
            }
            Ok(response.encode_to_vec().into())
        }
    }
}
