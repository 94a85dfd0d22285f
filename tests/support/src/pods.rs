//! A small mesh of real pods on one machine. Each has a network namespace, an application, and an Envoy with its agent,
//! or an application with a gRPC library and an agent.

pub mod agent;
pub mod app;
pub mod balancer;
pub mod cluster_mesh;
mod command_process;
pub mod envoy;
pub mod grpc_app;
pub mod identity;
pub mod keys;
pub mod load;
pub mod mesh;
pub mod network;
pub mod pod_set;
pub mod served;
pub mod token;
pub mod workload;
