//! Kubernetes and Istio objects to model values and rejects

mod fields;
pub mod yaml;

pub use fields::{Fields, Finding, Findings, parse_duration};
