//! Gateways between networks (S20).

use serde::Serialize;

use crate::Text;

/// How endpoints of a network are reached from another.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct NetworkGateway {
    /// Its address; of two gateways the one with the smaller address comes first.
    pub address: Text,
    /// Its port for mutual TLS, 0 if none.
    pub port: u32,
    /// Its port for HBONE, 0 if none.
    pub hbone_port: u32,
    /// The network behind it.
    pub network: Text,
    /// The cluster it runs in, empty if unknown.
    pub cluster: Text,
}
