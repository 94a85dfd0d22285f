//! The deployment controller: deploys the proxies of Gateways of the Gateway API (G04).
//!
//! The graph derives what is deployed (`gateway_deployments`), the injector renders the objects from the templates of its
//! configuration, and this crate writes them by server-side apply, on the replica that leads.
//!
//! - `deployer.rs`: which Gateways have to be written, and when.
//! - `writer.rs`: the requests for one object.
//! - `stored.rs`: the objects that the API server has, which `watches.rs` reads.
//! - `kinds.rs`: the kinds of objects in the API.
//! - `findings.rs`: findings about Gateways that cannot be deployed.
//!
//! The field manager and the label of managed objects are those of the reference. So either takes over the
//! objects of the other, and applies its own templates to them.

#![forbid(unsafe_code)]

mod deployer;
mod findings;
mod kinds;
mod stored;
mod watches;
mod writer;

#[cfg(test)]
mod tests;

pub use deployer::{DeployerSettings, GatewayDeployer};
