//! Pure builders of messages for Envoy and the other proxies from model values.
//!
//! Modules depend on each other in one direction. ARCHITECTURE.md, section "The builders", lists them from the bottom.

mod alpn;
mod certificate_provider;
mod compliance;
mod config_source;
mod endpoint_picker;
mod filter;
mod filter_config;
mod filter_state;
mod metadata_exchange;
mod object_metadata;
mod slots;
mod socket_match;
mod stat_name;

pub mod address;
pub mod agentgateway;
pub mod cluster;
pub mod endpoint;
pub mod extension;
pub mod listener;
pub mod listener_settings;
pub mod name;
pub mod name_table;
pub mod proxy_metadata;
pub mod references;
pub mod route;
pub mod sds;
pub mod secret;
pub mod security;
pub mod string_match;
pub mod trust_bundle;
pub mod wire;
pub mod ztunnel;

pub use slots::{identity_slots, marker_slots, template};
