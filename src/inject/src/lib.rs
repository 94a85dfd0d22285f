//! Injection of proxies into pods: an AdmissionReview in, a JSON Patch out.
//!
//! [`Injector::new`] reads the ConfigMap `istio-sidecar-injector` as Istio's installer writes it. [`Injector::inject`]
//! decides about a pod: whether it is injected (`policy.rs`), which proxy configuration it has (`proxy_config.rs`), what
//! its templates render (`rendering.rs`, `functions.rs`), how that is merged into the pod (`pod/merge.rs`),
//! and what is changed afterwards (`overrides.rs`, `probes.rs`, `prometheus.rs`, `container_order.rs`).
//! [`Injector::inject_object`] does the same with the pod template of a Deployment or another workload.
//! [`Injector::render_gateway`] renders the objects that are deployed for a Gateway (`gateway.rs`).
//!
//! The crate does no I/O. The caller serves the webhook, reloads the configuration, and answers questions about clusters.
//! No pod and no configuration makes it panic, and both are bounded in the work that they cause.

#![forbid(unsafe_code)]

mod annotations;
mod config;
mod container_order;
mod functions;
mod gateway;
mod injector;
mod mesh;
mod message;
mod native;
mod openshift;
mod overrides;
mod pod;
mod policy;
mod probes;
mod prometheus;
mod proxy_config;
mod rendering;
mod request_path;
mod review;
mod webhook_selection;
mod workload;
mod workload_object;

pub use annotations::check_annotation;
pub use config::ConfigError;
pub use gateway::{DeployedObject, GatewayContext};
pub use injector::{ClusterView, InjectContext, Injector, InjectorSettings};
pub use mesh::mesh_config;
pub use native::supports_native_sidecars;
pub use proxy_config::merge_proxy_configs;
pub use review::{Admission, AdmissionReview, ReviewError, denial};
pub use sluice_template::TemplateError;
pub use webhook_selection::webhook_selects;
pub use workload_object::ObjectInjection;
