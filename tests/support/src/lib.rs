//! The test kit: an ADS client, canonical dumps, a fake API server, a real Kubernetes control plane, one interface for both, a
//! faulty TCP proxy, pods with real Envoys, the side of ztunnel in ZDS, the
//! directory of a node, the memory of a process under attack.

pub mod ads;
pub mod api_server;
pub mod binary;
pub mod canonical;
pub mod cluster;
pub mod fault_proxy;
pub mod handshake;
pub mod hbone;
pub mod kube_api;
pub mod memory;
pub mod node;
pub mod node_directory;
pub mod parity;
pub mod pods;
pub mod ports;
pub mod secure;
pub mod server;
pub mod wait;
pub mod zds;
