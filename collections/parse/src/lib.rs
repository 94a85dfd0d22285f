//! Kubernetes and Istio objects to model values and rejects

mod base64;
mod fields;
mod gateway;
mod names;
mod virtual_service;
pub mod yaml;

pub use fields::{Fields, Finding, Findings, parse_duration};
pub use gateway::{parse_gateway, parse_protocol};
pub use names::{is_dns_label, is_wildcard_domain, resolve_gateway, resolve_host};
pub use virtual_service::{parse_http_retry, parse_virtual_service};
