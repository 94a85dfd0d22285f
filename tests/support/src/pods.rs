//! A small mesh of real pods on one machine: network namespaces, an application and an Envoy in each.

pub mod app;
pub mod envoy;
pub mod identity;
pub mod mesh;
pub mod network;
pub mod served;
pub mod token;
pub mod workload;
