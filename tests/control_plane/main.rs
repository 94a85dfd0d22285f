//! Tests of the control plane, through its ports and through its crates: one test binary, a module for each area.
//!
//! All modules share one binary because linking dominates the cost of a small change. A test sets nothing that applies
//! to the whole process: no environment variable, no working directory, no global subscriber.

mod admin;
mod authority;
mod clusters;
mod connections;
mod dataflow;
mod files;
mod hostile;
mod identity;
mod kube;
mod kube_answers;
mod kube_faults;
mod kube_peers;
mod made_up_nodes;
mod mesh_files;
mod secrets;
mod session;
mod startup;
