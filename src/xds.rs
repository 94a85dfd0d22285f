//! Serving the outputs to proxies: ADS, state of the world and delta (area X of the feature list).
//!
//! [`Store`] holds the latest outputs by layer; a [`Session`] is one stream without its I/O; [`serve`] puts sessions on
//! gRPC streams, whose bodies are shared bytes. Nothing is queued for a client: when there is room to send, its session is
//! asked what differs between what the client holds and what it should hold.

mod admission;
mod body;
mod debug;
mod decode;
mod delta;
mod feed;
mod frames;
mod hub;
mod kinds;
mod limit;
mod messages;
mod metrics;
mod names;
mod proxies;
mod reflection;
mod request;
mod run;
mod secrets;
mod server;
mod session;
mod sotw;
mod status;
mod store;
mod version;
mod wake;
mod wire;

pub use admission::Admission;
pub use debug::{DEBUG_TYPE, DebugPages, DebugRequest, DebugResource};
pub use feed::{EngineProxies, Outputs, follow};
pub use hub::{Encoded, Hub, Stream};
pub use metrics::{Metrics, short_name};
pub use proxies::ProxyInput;
pub use request::{
    HeldList, Interest, MAX_ERROR, MAX_NAME, MAX_NAME_BYTES, MAX_NAMES, MAX_UNKNOWN_TYPES, Malformed, NameList,
    Protocol, Refusal, Request, Response,
};
pub use server::{Beside, ServerOptions, serve, serve_on};
pub use session::{HEALTH_TYPE, Noted, PATIENCE, Progress, Session, TypeStatus};
pub use status::{Adsz, Frontier, Status, StreamStatus, SyncState, Syncz};
pub use store::{Changes, Cut, Found, Stamp, Store, View};
pub use version::Version;
