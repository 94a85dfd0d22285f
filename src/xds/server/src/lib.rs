//! The ADS server: streams of `sluice-xds-protocol` on gRPC (area X of `docs/features.md`).
//!
//! [`serve`] accepts connections and authenticates callers. [`DiscoveryServer`] keeps the open streams. An
//! [`AdsStream`] joins a session of the protocol crate with the caller's identity and the proxy's scope. The body of
//! its gRPC response polls it for the next message when the transport has room. [`follow`] moves the engine's epochs
//! into the store.

mod ack_watch;
mod activity;
mod admission;
mod audience;
mod body;
mod caller_streams;
mod configuration;
mod connection;
mod debug;
mod discovery_server;
mod epoch_pushes;
mod feed;
mod frames;
mod grpc;
mod grpc_messages;
mod metrics;
mod named_resources;
mod partial_request;
mod proxy_limits;
mod proxy_registry;
mod rate_limit;
mod reflection;
mod request_turns;
mod secrets;
mod status;
mod stream;
mod subscriptions;
mod unacknowledged;
mod version_counts;
mod workload_observer;

pub use ack_watch::{AckCounts, AckWatch, AwaitedChange, LaggingProxy, PendingResource, ProxyAck};
pub use admission::Admission;
pub use audience::{Audience, ChangedResources};
pub use caller_streams::StreamLimits;
pub use configuration::{ConfigurationStore, ListedResources};
pub use debug::{DEBUG_TYPE, DebugPages, DebugRequest};
pub use discovery_server::DiscoveryServer;
pub use epoch_pushes::EpochPush;
pub use feed::{EngineProxies, OptionalProxies, Outputs, follow};
pub use grpc::{AdditionalServices, ListenerEnded, ServerOptions, serve, serve_on};
pub use grpc_messages::GrpcMessages;
pub use metrics::{Metrics, short_name};
pub use named_resources::NamedResource;
pub use proxy_limits::ProxyLimits;
pub use proxy_registry::{NodeError, ProxyInput};
pub use status::{AckFrontier, Adsz, ProxyProgress, StatusReader, StreamStatus, Syncz, short_id};
pub use stream::{AdsStream, EncodedResponse};
pub use subscriptions::Subscriptions;
pub use unacknowledged::UnacknowledgedAge;
pub use workload_observer::{StreamRefusal, WorkloadObserver};
