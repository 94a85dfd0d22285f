//! Real Envoys in pods: the pinned release binary accepts the resources of the control plane, and routes traffic as the
//! objects define. Pods are network namespaces with redirected traffic, so these tests need root on Linux.
//!
//! Each file is a family of scenarios. A family starts one small mesh. Its scenarios run concurrently, each with its own
//! hosts. At the end, every Envoy must hold exactly the resources that it was sent, and must not have rejected any.

mod authorization;
mod backend_tls;
mod certificates;
mod compliance;
mod credentials;
mod custom;
mod egress;
mod family;
mod filters;
mod flips;
mod gateway;
mod hbone;
mod layer4;
mod locality_endpoints;
mod on_demand_clusters;
mod requests;
mod resilience;
mod revocation;
mod routing;
mod scope;
mod security;
mod tea_shop;
mod tokens;
mod traffic_policy;
mod tunnels;
mod udp;
mod upstream_tls;
mod virtual_hosts;
mod waypoint;
