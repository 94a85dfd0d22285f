//! Gateways between networks (S20).

use serde::{Deserialize, Serialize};

use crate::Text;

/// A gateway through which other networks reach the endpoints of a network.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct NetworkGateway {
    /// Its address. Gateways are sorted by address.
    pub address: Text,
    /// Its port for mutual TLS, 0 if none.
    pub port: u32,
    /// Its port for HBONE, 0 if none.
    pub hbone_port: u32,
    /// The network that it leads into.
    pub network: Text,
    /// The cluster it runs in, empty if unknown.
    pub cluster: Text,
}
