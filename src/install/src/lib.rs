//! Installation of the control plane and of gateways, for people who come from istioctl.
//!
//! [`Installation::read`] reads IstioOperator files and flags: which components there are, and the values of their charts.
//! [`Installation::render`] renders the charts as helm does. [`ChangePlan::of_installation`] compares the objects with those of a
//! cluster. [`execute`] carries the plan out and waits until all is ready; [`Journal::undo`] reverts it.
//!
//! Only `cluster` sends requests. Objects are applied by server-side apply, with the labels of `ownership`, by which later runs
//! find objects that are no longer rendered.

#![forbid(unsafe_code)]

mod chart;
mod cluster;
mod error;
mod execution;
mod helm_release;
mod kubernetes;
mod manifest;
mod object;
mod operator;
mod ownership;
mod plan;
mod precheck;
mod reader;
mod readiness;
mod render;
mod revision_tag;
mod schema;
mod values;
mod verification;

#[cfg(test)]
mod tests;

pub use chart::Charts;
pub use cluster::{TargetCluster, Write, cluster_config};
pub use error::InstallError;
pub use execution::{Journal, Undone, execute};
pub use helm_release::{HelmRelease, Renderings};
pub use manifest::Manifest;
pub use object::{KubeObject, ObjectKey};
pub use operator::{Component, DEFAULT_NAMESPACE, DEFAULT_REVISION, InstallInputs, Installation};
pub use plan::{Action, ChangePlan, Counts, ObjectChange};
pub use precheck::{FromVersion, PrecheckFinding, Severity, precheck};
pub use reader::{READER_ACCOUNT, reader_objects};
pub use render::Capabilities;
pub use revision_tag::{DEFAULT_VALIDATOR, RevisionTag, deactivated};
pub use sluice_template::functions::to_yaml;
pub use verification::{Verification, verify};
