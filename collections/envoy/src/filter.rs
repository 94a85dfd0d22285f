//! Listener, network and HTTP filters, one file per feature.

mod access_log;
mod extension;
mod http;
mod http_chain;
mod http_filters;
mod istio;
mod network;
mod session;
mod stats;
mod tracing;

pub(crate) use access_log::{connection_failure_logs, listener_access_log, tcp_access_logs};
pub(crate) use extension::Extensions;
pub(crate) use http::{build_http_manager, build_tunnel_manager, connection_settings};
pub(crate) use http_chain::{HttpChain, RouteSource};
pub(crate) use http_filters::router;
pub(crate) use istio::waypoint_peer_metadata;
pub(crate) use network::{hcm_filter, metadata_exchange, protocol_filters, tcp_proxy_filter};
pub(crate) use session::{add_session, session_filter_of};
pub(crate) use stats::tcp_stats;
