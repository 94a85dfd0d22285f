//! `sluiced` with a real Kubernetes API server and the real controllers. `make test-cluster` builds and runs this; otherwise
//! the tests are skipped. Each test starts a control plane of its own, because it installs CRDs, restarts programs and
//! writes to the namespace of the mesh's control plane. Most tests of `kube_suite` share one.

mod ambient;
mod charts;
mod conformance;
mod definitions;
mod deployments;
mod faults;
mod fixture;
mod gateway;
mod identity;
mod install;
mod installation;
mod kube_api;
#[path = "../kube_suite/suite.rs"]
mod kube_suite;
mod locks;
mod machines;
mod nodes;
mod operate;
mod policies;
mod registration;
mod remote;
mod rendering;
mod replicas;
mod rights;
mod signers;
mod sources;
mod status;
mod takeover;
mod traffic;
mod upgrade;
mod webhooks;
mod writes;
