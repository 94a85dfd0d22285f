//! The kinds of the Kubernetes Gateway API (C02), a file a kind.
//!
//! The rules are those of the definitions of the kinds: the API server has applied them, and its defaults, to what it
//! stores; a file may say anything. What goes wrong with a reference is found later, where the other object is known.

pub(crate) mod backend;
pub(crate) mod backend_tls_policy;
pub(crate) mod backend_traffic_policy;
mod filter;
pub(crate) mod gateway;
pub(crate) mod gateway_class;
pub(crate) mod grpc_route;
pub(crate) mod http_route;
mod listener;
pub(crate) mod listener_set;
mod reference;
pub(crate) mod reference_grant;
mod route;
pub(crate) mod tcp_route;
pub(crate) mod tls_route;

#[cfg(test)]
mod tests;
