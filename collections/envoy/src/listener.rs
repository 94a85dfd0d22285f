//! Listeners (N01 to N11, N34), one file per feature.

mod address;
mod auto_passthrough;
mod bind;
mod chain;
mod connect_originate;
mod connect_terminate;
mod dynamic_dns;
mod east_west;
mod gateway;
mod grpc;
mod http_proxy;
mod inbound;
mod inbound_chain;
mod inspector;
mod mtls;
mod outbound;
mod outbound_port;
mod outbound_tcp;
mod protocol_detection;
mod server_tls;
mod service_address;
mod tcp_filters;
mod udp;
mod virtual_outbound;
mod waypoint;
mod waypoint_chains;
mod waypoint_matcher;

pub use address::{localhosts, wildcards};
pub use auto_passthrough::build_auto_passthrough;
pub use bind::{BindAddress, can_bind};
pub use connect_originate::{build_connect_originate, build_double_tunnel};
pub use connect_terminate::build_connect_terminate;
pub use east_west::{WaypointHop, build_east_west_chains, build_forward_inner_connect};
pub use gateway::{GatewayAction, GatewayChain, GatewayListener, GatewayPort, build_gateway, gateway_addresses};
pub use grpc::{
    GrpcClientInputs, GrpcServerInputs, build_grpc_client, build_grpc_server, grpc_server_addresses, grpc_server_name,
};
pub use http_proxy::build_http_proxy;
pub use inbound::{InboundHbone, InboundInputs, InboundPort, build_inbound, operation, take_names};
pub use mtls::{MtlsMode, PeerPolicy};
pub use outbound::{ListenerKey, build_outbound, listener_keys};
pub use outbound_port::{ListenerClient, OutboundPort};
pub use protocol_detection::{PortProtocol, port_protocol};
pub use tcp_filters::{DestinationFacts, Destinations};
pub use udp::{UdpListener, build_udp_listener};
pub use virtual_outbound::build_virtual_outbound;
pub use waypoint::{DispatchInputs, build_main_internal};
pub use waypoint_chains::{WaypointChainInputs, WaypointChains, WaypointPort, build_waypoint_chains};

#[cfg(test)]
mod tests;
