//! The Sluice control plane: edges and wiring.
//!
//! What is pure is in `collections/`; here are the command line, the sources of objects, the ports, and the one place
//! that builds everything in order, `app`.

pub mod admin;
pub mod app;
pub mod auth;
pub mod authority;
pub mod config;
pub mod jwks;
pub mod names;
pub mod sources;
pub mod telemetry;
pub mod tls;
pub mod xds;
