//! The xDS protocols without I/O: state of the world and delta (area X of `docs/features.md`).
//!
//! [`Store`] holds the latest outputs of the dataflow by layer and publishes each epoch with one atomic swap. A
//! [`Session`] is one ADS stream: decoded requests go in, responses come out. Nothing is queued for a client. When the
//! transport has room, the session compares what the client holds with what it should hold.
//!
//! This crate depends on no async runtime, opens no file or socket, and reads no clock: callers pass the time.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests pass the current time"))]

mod change_signal;
mod chunked_map;
mod codec;
mod decode;
mod delta;
mod limits;
mod name_list;
mod name_set;
mod node;
mod request;
mod resource_types;
mod response;
mod session;
mod sotw;
mod store;
mod version;
pub mod wire;

pub use change_signal::{ChangeSignal, PendingChanges};
pub use codec::encode;
pub use decode::DecodeError;
pub use limits::MAX_RESOURCE_NAME_BYTES;
pub use name_list::{HeldList, NameList};
pub use name_set::{CallerNames, NameBudget, NameInterner};
pub use request::{Interest, Request, StreamError, XdsProtocol};
pub use resource_types::ResourceTypeSet;
pub use response::Response;
pub use session::{ACK_TIMEOUT, HEALTH_TYPE, RequestOutcome, ResourceProgress, Session, SyncState, TypeStatus};
pub use store::{
    ChangeTimes, EpochChanges, ProxyScope, PushTrigger, ResolvedResource, ScopeSnapshot, Store, TypeSnapshot,
    segment_field,
};
pub use version::Version;
