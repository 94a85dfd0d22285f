//! Plain, ordered values of the mesh: what parsing leaves of an object.
//!
//! Everything here is data: no I/O, no clock, no protobuf. Types derive `Eq + Ord + Hash + Serialize`, hold no floats and
//! no hash maps, so that equal content is equal everywhere and a dump is reproducible. Secrets redact in `Debug` and
//! `Serialize`.

mod endpoint;
mod host;
mod object;
mod proxy;
mod reject;
mod resource;
mod service;
mod text;
mod view;
mod workload;

pub use endpoint::{Endpoint, EndpointKey, Health, TlsMode};
pub use host::{Host, match_labels};
pub use object::{Kind, Labels, ObjectKey, ObjectMeta, Timestamp};
pub use proxy::{Extensions, InterceptionMode, IpFamilies, Proxy, ProxyKey, ProxyType};
pub use reject::{Reject, Severity};
pub use resource::{Resource, ResourceKey, ResourceType, Segment, SegmentKey};
pub use service::{
    ExportTo, Protocol, Resolution, Service, ServiceKey, ServicePort, ServiceSource, TrafficDistribution,
};
pub use text::Text;
pub use view::{Layer, Scope, View};
pub use workload::{EndpointSlice, Locality, Node, NodeKey, Pod, SliceEndpoint, SlicePort};
