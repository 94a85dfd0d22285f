//! What derives from what: the collections of the mesh

pub mod destination_rules;
pub mod gateways;
pub mod peer_authentications;
pub mod sidecar_routes;
pub mod virtual_hosts;
pub mod virtual_services;
