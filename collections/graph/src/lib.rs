//! What derives from what: the collections of the mesh

pub mod gateways;
pub mod virtual_hosts;
pub mod virtual_services;
