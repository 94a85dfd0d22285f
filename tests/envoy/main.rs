//! Real Envoys in real pods: the pinned release binary takes what the control plane serves, and traffic goes where the
//! objects say. Pods are network namespaces with redirected traffic, so these tests want root on Linux.
//!
//! A file a family of scenarios. A family starts one small mesh; its scenarios run side by side, each with hosts of its
//! own. At the end every Envoy must hold exactly what it was served and have refused nothing.

mod ask;
mod authorization;
mod certificates;
mod compliance;
mod custom;
mod egress;
mod family;
mod filters;
mod flips;
mod gateway;
mod layer4;
mod load;
mod resilience;
mod revocation;
mod routing;
mod scope;
mod security;
mod tea_shop;
mod tokens;
mod traffic_policy;
mod virtual_hosts;
