//! Configuration of this control plane for others, over xDS (MCP, C09).
//!
//! Control planes exchange the objects of Istio's API groups. The type of a resource is `GROUP/VERSION/KIND`, and a resource has
//! the metadata of an object and its `spec` as a message.

mod kinds;
mod resource;
mod served;
mod service_entry;

pub use served::ServedConfiguration;
