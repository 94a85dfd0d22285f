//! The service registry: networks, services, workloads, endpoints, and allocated addresses.

pub(crate) mod allocation;
pub(crate) mod endpoints;
pub(crate) mod locations;
pub(crate) mod network_gateways;
pub(crate) mod networks;
pub(crate) mod services;
pub(crate) mod workloads;
