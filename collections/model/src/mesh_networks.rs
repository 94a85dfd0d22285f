//! Networks of the mesh (C17, S19).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Which endpoints are on a network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum NetworkEndpoints {
    /// Endpoints with an address in this CIDR block.
    Cidr(Text),
    /// Endpoints of this cluster.
    Registry(Text),
}

/// Address of a gateway of a network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum NetworkGatewayAddress {
    /// The external addresses of the Service with this host.
    RegistryService(Text),
    /// This IP address or host name.
    Address(Text),
}

/// A gateway of a network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct NetworkGatewayConfig {
    /// Its address.
    pub address: NetworkGatewayAddress,
    /// Its port.
    pub port: u16,
    /// `region/zone/subzone`, empty if unknown.
    pub locality: Text,
}

/// A network.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Network {
    /// Its endpoints.
    pub endpoints: Vec<NetworkEndpoints>,
    /// Its gateways.
    pub gateways: Vec<NetworkGatewayConfig>,
}

/// All networks by id.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct MeshNetworks {
    /// By id.
    pub networks: BTreeMap<Text, Network>,
}
