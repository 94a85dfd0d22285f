//! Listeners (N01 to N11, N34): a file a feature.

mod address;
mod bind;
mod chain;
mod http_proxy;
mod inbound;
mod inbound_chain;
mod inspector;
mod mtls;
mod outbound;
mod outbound_tcp;
mod settings;
mod virtual_outbound;

pub use address::{address, localhosts, wildcards};
pub use bind::{Bind, can_bind};
pub use http_proxy::build_http_proxy;
pub use inbound::{InboundInputs, InboundPort, build_inbound};
pub use mtls::{MtlsMode, PeerPolicy};
pub use outbound::{Entry, ListenerKey, OutboundPort, build_outbound, listener_keys};
pub use outbound_tcp::{DestinationFacts, Destinations};
pub use settings::{Collector, Facts, Settings};
pub use virtual_outbound::build_virtual_outbound;

#[cfg(test)]
mod tests;
