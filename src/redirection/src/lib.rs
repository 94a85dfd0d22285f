//! Redirection of a pod's traffic to its proxy: nftables rules and routes in a network namespace.
//!
//! - [`ambient`]: a pod of the ambient mesh. ztunnel listens on its ports in the namespace of the pod.
//! - [`sidecar`]: a pod with a sidecar, by the settings of `istio-iptables`; [`annotations`] reads them from a pod.
//! - [`probes`]: the namespace of a node: probes of the kubelet get a source address that pods recognise.
//! - [`namespace`]: network namespaces, and threads in them.
//! - [`apply`]: runs `nft` and `ip` in the namespace of the calling thread.
//! - [`values`]: ports, address ranges, interfaces, users and groups as they are configured.
//!
//! Every table is replaced in one transaction of `nft`, so traffic never meets a part of the rules, and a second call with
//! the same settings changes nothing.

pub mod ambient;
pub mod annotations;
pub mod apply;
pub mod namespace;
pub mod probes;
mod ruleset;
pub mod sidecar;
pub mod values;

pub use apply::ApplyError;
pub use ruleset::Ruleset;

/// Port of the proxy for outbound traffic.
pub const OUTBOUND_PORT: u16 = 15001;
/// Port of the proxy for inbound traffic that is redirected.
pub const INBOUND_PORT: u16 = 15006;
/// Port of the proxy for inbound HBONE. It is never redirected.
pub const TUNNEL_PORT: u16 = 15008;
/// Port of the DNS proxy.
pub const DNS_PORT: u16 = 15053;
