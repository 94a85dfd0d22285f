//! A small mesh of real pods on one machine: network namespaces, an application, an Envoy and its agent in each.

pub mod agent;
pub mod app;
pub mod envoy;
pub mod identity;
pub mod keys;
pub mod mesh;
pub mod network;
pub mod served;
pub mod token;
pub mod workload;
