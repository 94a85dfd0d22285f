//! The service registry: networks, services, workloads, endpoints, allocated addresses, conditions, and nodes.

pub(crate) mod allocation;
pub(crate) mod endpoints;
pub(crate) mod locations;
pub(crate) mod multi_cluster;
pub(crate) mod network_gateways;
pub(crate) mod networks;
pub(crate) mod nodes;
pub(crate) mod services;
pub(crate) mod workloads;
