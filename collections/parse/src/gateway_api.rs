//! Kinds of the Kubernetes Gateway API (C02), one file per kind.
//!
//! The rules and defaults are those of the CustomResourceDefinitions. The API server has applied them to stored objects;
//! objects from files need the checks. References are resolved later, where the other object is known.

pub(crate) mod backend;
pub(crate) mod backend_tls_policy;
pub(crate) mod backend_traffic_policy;
mod filter;
pub(crate) mod gateway;
pub(crate) mod gateway_class;
pub(crate) mod grpc_route;
pub(crate) mod http_route;
pub(crate) mod inference_pool;
mod listener;
pub(crate) mod listener_set;
pub(crate) mod parameters;
mod reference;
pub(crate) mod reference_grant;
mod route;
pub(crate) mod tcp_route;
pub(crate) mod tls_route;
pub(crate) mod udp_route;

#[cfg(test)]
mod tests;
