//! Kubernetes and Istio objects to model values and rejects; a file a kind.
//!
//! Input is an object as JSON (YAML sources convert first), output a [`sluice_model::ParsedObject`]: a model value with
//! only what is used, and a [`sluice_model::Reject`] with a field path for every part that is invalid. Nothing here panics
//! on any input, and an invalid object never affects another.
//!
//! `kinds.rs` is the table of kinds: which API versions carry them, whether they are namespaced, which function parses
//! them. A kind in the table without a parser yields a warning that it is not supported yet.
//!
//! Adding a kind: a model type and a variant of [`sluice_model::Object`]; a file here with
//! `pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object>`, which returns `None` for an object that
//! does not apply; the function in the kind's line in `kinds.rs`. Metadata is read by [`Item::meta`], the `spec` of an
//! Istio kind with [`Fields`].

mod address;
mod admission;
mod attachment;
mod authorization_policy;
mod cel;
mod destination_rule;
mod encoding;
mod endpoint_slice;
mod envoy_filter;
mod extension_provider;
mod fields;
mod gateway;
mod gateway_api;
mod header;
mod ingress;
mod kinds;
mod kubeconfig;
mod mesh_config;
mod mesh_networks;
mod mesh_settings;
mod metadata;
mod names;
mod namespace;
mod node;
mod object;
mod peer_authentication;
mod pod;
mod protocol;
mod proxy;
mod proxy_config;
mod proxy_config_resource;
mod request_authentication;
mod secret;
mod service;
mod service_entry;
mod sidecar;
mod telemetry;
mod traffic_extension;
mod traffic_policy;
mod validate;
mod virtual_service;
mod workload_entry;
mod workload_group;
pub mod yaml;

pub use address::{address_blocks, forbidden_address};
pub use fields::{Fields, Finding, Findings, parse_duration};
pub use gateway::{parse_gateway, parse_protocol};
pub use kinds::{KINDS, KindInfo, Parse, find_kind, kind_info};
pub use kubeconfig::{Kubeconfig, KubeconfigFault, parse_kubeconfig};
pub use mesh_config::lay_mesh_config;
pub use mesh_networks::parse_mesh_networks;
pub use names::{
    is_admitted_host, is_any_case_label, is_dns_label, is_fqdn, is_label_key, is_label_value, is_wildcard_domain,
    resolve_gateway, resolve_host,
};
pub use object::{Item, ObjectError, ObjectId, identify, parse_object};
pub use proxy::parse_proxy;
pub use proxy_config::lay_proxy_config;
pub use validate::{Problem, Validation, validate_object, validate_text, validated_kinds};
pub use virtual_service::{parse_http_retry, parse_virtual_service};
