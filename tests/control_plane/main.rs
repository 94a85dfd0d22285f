//! Tests of the control plane, through its ports and through its crates: one test binary, a module for each area.
//!
//! All modules share one binary because linking dominates the cost of a small change. A test sets nothing that applies
//! to the whole process: no environment variable, no working directory, no global subscriber.

/// A list of rules of the chart.
macro_rules! rules {
    ($name:literal) => {
        include_str!(concat!("../../manifests/charts/sluice/files/rights/", $name, ".yaml"))
    };
}

mod admin;
mod agentgateway;
mod answers;
mod authority;
mod browser;
mod clusters;
mod connections;
mod dataflow;
mod files;
mod gateway_api;
mod hostile;
mod identity;
mod istioctl;
mod kube;
mod kube_answers;
mod kube_api;
mod kube_faults;
mod kube_peers;
#[path = "../kube_suite/suite.rs"]
mod kube_suite;
mod kube_writes;
mod large_services;
mod log;
mod made_up_nodes;
mod mcp;
mod mcp_client;
mod mesh_files;
mod metrics;
mod pages;
mod process;
mod profiles;
mod secrets;
mod session;
mod shutdown;
mod startup;
mod supervision;
mod token_service;
mod webhooks;
