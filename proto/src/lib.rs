//! Generated protobuf types of Istio's messages, and one descriptor pool with Envoy's.
//!
//! - [`agentgateway`], [`istio`], [`stats`], [`metadata_exchange`], [`typed_struct`], [`matchers`], [`private_key_providers`]: generated
//!   from the declarations in `decl/`.
//! - [`envoy`], [`google`], [`udpa`], [`xds`]: from the `envoy-types` crate.
//! - [`pool`]: the descriptors of all these types, of the same version as the types.
//! - [`json`]: protobuf JSON to messages, leniently and with field paths in errors; messages to canonical JSON.
//! - [`wire`]: deterministic encoding.

pub use envoy_types::pb::{envoy, google, udpa, xds};
pub use generated::{
    agentgateway::dev::resource as agentgateway, envoy::extensions::private_key_providers,
    envoy::tcp::metadataexchange::config as metadata_exchange, istio, stats, udpa::r#type::v1 as typed_struct,
    xds::r#type::matcher::v3 as matchers,
};
pub use pool::pool;

pub mod json;
mod pool;
pub mod wire;

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, rustdoc::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}
