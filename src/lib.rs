//! The Sluice control plane: edges and wiring.
//!
//! What is pure is in `collections/`; here are the command line, the sources of objects, the ports, and the one place
//! that builds everything in order, `app`.

pub mod admin;
pub mod app;
pub mod config;
