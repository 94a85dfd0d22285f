//! Requests, independent of the protocol that encodes them.

use sluice_proto::envoy::config::core::v3::Node;

use crate::name_list::{HeldList, NameList};

/// The protocol of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum XdsProtocol {
    /// State of the world: a response has all resources of a type, or all subscribed ones.
    Sotw,
    /// Delta: a response has only the changed resources.
    Delta,
}

/// A request of either protocol.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The node of the proxy; only on the first request of a stream.
    pub node: Option<Node>,
    /// The type that the request is about.
    pub type_url: String,
    /// The nonce of the response that is acknowledged or rejected; empty if there is none.
    pub nonce: String,
    /// The response was rejected: code and message.
    pub error: Option<(i32, String)>,
    /// The resources that the client subscribes to.
    pub interest: Interest,
}

/// The resources that a client subscribes to.
#[derive(Clone, Debug)]
pub enum Interest {
    /// Exactly these (state of the world).
    Exactly(NameList),
    /// A change of the subscription (delta).
    Change {
        /// Names to add, or `*`.
        subscribe: NameList,
        /// Names to remove, or `*`.
        unsubscribe: NameList,
        /// The resources that the client holds from an earlier stream.
        holds: HeldList,
    },
}

impl Default for Interest {
    fn default() -> Self {
        Self::Exactly(NameList::default())
    }
}

/// The reason why the server ends a stream.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StreamError {
    /// The request violates the protocol or a limit: `INVALID_ARGUMENT`.
    #[error("{0}")]
    Invalid(String),
    /// Authentication is required and the caller has no valid credentials: `UNAUTHENTICATED`.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller's identity does not match the proxy, or does not allow the request: `PERMISSION_DENIED`.
    #[error("{0}")]
    Denied(String),
    /// The server is not ready, or is shutting down: `UNAVAILABLE`.
    #[error("{0}")]
    Unavailable(String),
    /// A limit on the size of a subscription or the number of requests is exceeded: `RESOURCE_EXHAUSTED`.
    #[error("{0}")]
    Exhausted(String),
}
