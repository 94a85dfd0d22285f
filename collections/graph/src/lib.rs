//! What derives from what: the collections of the mesh

pub mod virtual_services;
