//! `sluicectl why`, `why-not`, `describe`, `wait`, `history`, `preview`, `record` and `replay` on a running control plane with
//! connected proxies, and `analyze` on clusters.

mod analyze;
mod bug_report;
mod console;
mod dashboard;
mod describe;
mod history;
mod inject;
pub(crate) mod mesh;
mod metrics;
mod operators;
mod port_forward;
mod preview;
mod reconciled;
mod recording;
mod remote_secret;
mod tags;
mod traces;
mod wait;
mod waypoints;
mod why;
mod why_not;
mod xds;
mod ztunnels;
