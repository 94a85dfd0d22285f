//! Networks of the mesh (C17, S19).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::Text;

/// Which endpoints are on a network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum NetworkEndpoints {
    /// Those with an address in this block.
    Cidr(Text),
    /// Those of this cluster.
    Registry(Text),
}

/// How other networks reach it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum NetworkGatewayAddress {
    /// By the external addresses of this Service host.
    RegistryService(Text),
    /// At this IP or host name.
    Address(Text),
}

/// A gateway of a network.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct NetworkGatewayConfig {
    /// Where it is.
    pub address: NetworkGatewayAddress,
    /// Its port.
    pub port: u16,
    /// `region/zone/subzone`, empty if unknown.
    pub locality: Text,
}

/// A network.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Network {
    /// What is on it.
    pub endpoints: Vec<NetworkEndpoints>,
    /// Its gateways.
    pub gateways: Vec<NetworkGatewayConfig>,
}

/// All networks by id.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MeshNetworks {
    /// By id.
    pub networks: BTreeMap<Text, Network>,
}
