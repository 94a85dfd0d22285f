//! Configuration over xDS (MCP): of this control plane for others (C09), and of others for this one (C08).
//!
//! Control planes exchange the objects of Istio's API groups. The type of a resource is `GROUP/VERSION/KIND`, and a resource has
//! the metadata of an object and its `spec` as a message.

mod client;
mod kinds;
mod resource;
mod served;
mod service_entry;
mod unknown_fields;

pub use client::{McpSource, SourceCredentials, SourceNode};
pub use served::ServedConfiguration;
