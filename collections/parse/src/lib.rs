//! Parsers from Kubernetes and Istio objects to model values and rejects, one file per kind.
//!
//! The input is an object as JSON; sources convert YAML first. The output is a [`sluice_model::ParsedObject`]: a model value
//! with only the fields that something reads, and a [`sluice_model::Reject`] with a field path for each invalid part. No
//! input makes a parser panic, and an invalid object does not affect another.
//!
//! `kinds.rs` is the table of kinds: their API versions, whether they are namespaced, and their parser.
//!
//! Modules import each other in one direction: `fields.rs` and `item.rs`, which every parser uses; the parsers;
//! `panicked.rs`, for an object whose parser panics; the table of kinds; `object.rs`, which looks a kind up in the table and
//! runs its parser; `validate.rs`.
//!
//! To add a kind: add a model type and a variant of [`sluice_model::Object`]; add a file here with
//! `pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object>`, which returns `None` for an object that
//! does not apply; name the function in the kind's line in `kinds.rs`. [`Item::meta`] reads the metadata and [`Fields`] the
//! `spec` of an Istio kind.

mod address;
mod admission;
mod attachment;
mod authorization_policy;
mod cel;
mod condition_request;
mod destination_rule;
mod encoding;
mod endpoint_slice;
mod envoy_filter;
mod extension_provider;
mod field_path;
mod fields;
mod findings;
mod gateway;
mod gateway_api;
mod header;
mod host_index;
mod ingress;
mod item;
mod kind_info;
mod kinds;
mod kubeconfig;
mod label_selector;
mod list;
mod mesh_config;
mod mesh_networks;
mod mesh_settings;
mod metadata;
mod multi_cluster;
mod names;
mod namespace;
mod node;
mod object;
mod panicked;
mod pattern;
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
mod webhook_configuration;
mod workload_entry;
mod workload_group;
pub mod yaml;

pub use address::{address_blocks, forbidden_address};
pub use condition_request::condition_request;
pub use field_path::FieldPath;
pub use fields::Fields;
pub use findings::{Finding, Findings};
pub(crate) use gateway::parse_gateway;
pub use item::Item;
pub use kind_info::{KindInfo, Parse};
pub(crate) use kinds::find_kind;
pub use kinds::{KINDS, WORKLOAD_KINDS, kind_info};
pub use kubeconfig::{Kubeconfig, KubeconfigFault, kubeconfig_cluster, parse_kubeconfig};
pub use label_selector::parse_label_selector;
pub use list::list_items;
pub use mesh_config::merge_mesh_config;
pub use mesh_networks::parse_mesh_networks;
pub use names::is_dns_label;
pub(crate) use names::{
    is_admitted_host, is_any_case_label, is_fqdn, is_label_key, is_label_value, is_wildcard_domain, resolve_host,
};
pub use object::{ObjectError, ObjectId, identify, parse_object};
pub use protocol::{protocol_name, service_port_protocol};
pub use proxy::{NodeParseError, parse_proxy};
pub use proxy_config::{default_proxy_config, merge_proxy_config};
pub use sluice_proto::json::parse_duration;
pub use validate::{
    FurtherRules, Problem, Validation, validate_object, validate_text, validate_text_with, validated_kinds,
};
pub(crate) use virtual_service::parse_virtual_service;
