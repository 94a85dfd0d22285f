//! Extensions, whose Wasm modules are fetched before Envoy is told of them.

use bytes::Bytes;
use prost::Message as _;
use sluice_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};

use super::message::Protocol;
use crate::wasm::{Modules, is_wasm};

/// The type of extensions.
pub(super) const EXTENSIONS: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// A response of extensions as Envoy takes it.
///
/// # Errors
/// It has to be refused; the message says why.
pub(super) async fn convert(protocol: Protocol, response: Bytes, modules: &Modules) -> Result<Bytes, String> {
    if !is_wasm(&response) {
        return Ok(response);
    }
    let unreadable = |_| "the response cannot be read".to_owned();
    let refused = |error: anyhow::Error| format!("{error:#}");
    match protocol {
        Protocol::Sotw => {
            let mut response = DiscoveryResponse::decode(response).map_err(unreadable)?;
            response.resources = modules.convert(response.resources).await.map_err(refused)?;
            Ok(response.encode_to_vec().into())
        }
        Protocol::Delta => {
            let mut response = DeltaDiscoveryResponse::decode(response).map_err(unreadable)?;
            let mut slots: Vec<_> = response
                .resources
                .iter_mut()
                .map(|resource| &mut resource.resource)
                .filter(|slot| slot.is_some())
                .collect();
            let extensions = slots.iter_mut().filter_map(|slot| slot.take()).collect();
            let converted = modules.convert(extensions).await.map_err(refused)?;
            for (slot, extension) in slots.into_iter().zip(converted) {
                *slot = Some(extension);
            }
            Ok(response.encode_to_vec().into())
        }
    }
}
