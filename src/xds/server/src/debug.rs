//! Debug pages over xDS (O09): requests of type `istio.io/debug`, as `istioctl` sends them.
//!
//! These requests are not subscriptions: each has one response, and a client that sends no other requests is not a proxy.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use sluice_auth::Viewer;
use sluice_model::Identity;
use sluice_xds_protocol::{Interest, MAX_RESOURCE_NAME_BYTES, Request, StreamError, XdsProtocol};

use crate::named_resources::{NamedResource, NamedResponse};

/// The resource name of such a request is a page with its parameters, `config_dump?proxyID=…`.
pub const DEBUG_TYPE: &str = "istio.io/debug";
/// A request of this type is for the synchronization status of all proxies.
const SYNC_TYPE: &str = "istio.io/debug/syncz";
/// The resource name of such a request is a proxy. The response is the configuration that was sent to it.
const DUMP_TYPE: &str = "istio.io/debug/config_dump";
/// Types that begin with this are for debug pages. Unknown ones have an empty response.
const DEBUG_TYPE_PREFIX: &str = "istio.io/debug/";
/// The nonce of a response has its number in the stream after this.
const NONCE_PREFIX: &str = "debug-";
/// Maximum number of requests of one stream that wait for a response.
const MAX_PENDING_DEBUG_REQUESTS: usize = 8;

/// Whether requests of this type are for debug pages.
pub(crate) fn is_debug(type_url: &str) -> bool {
    type_url == DEBUG_TYPE || type_url.starts_with(DEBUG_TYPE_PREFIX)
}

/// A request for a debug page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DebugRequest {
    /// A page below `/debug/`, with its parameters.
    Page(String),
    /// The synchronization status of the proxies.
    Sync,
    /// The configuration that was sent to a proxy, by node id or `pod.namespace`.
    Dump(String),
    /// A type that does not exist. The response is empty.
    Unknown,
}

/// Answers requests for debug pages.
pub trait DebugPages: Send + Sync + 'static {
    /// The viewer with this identity; `None` if the identity is not part of the mesh.
    fn viewer(&self, identity: &Identity) -> Option<Viewer>;

    /// The identifier of this control plane in responses about synchronization: JSON with `Component`, `ID` and `Info`.
    fn identifier(&self) -> String;

    /// The page as this viewer may see it.
    fn answer(
        &self,
        request: DebugRequest,
        viewer: Viewer,
    ) -> BoxFuture<'static, Result<Vec<NamedResource>, StreamError>>;
}

/// The requests for debug pages of one stream.
#[derive(Default)]
pub(crate) struct DebugRequests {
    pending: VecDeque<PendingDebugRequest>,
    responses: u64,
}

/// A request whose response is being built.
struct PendingDebugRequest {
    protocol: XdsProtocol,
    type_url: String,
    identifier: Option<String>,
    response: BoxFuture<'static, Result<Vec<NamedResource>, StreamError>>,
}

impl DebugRequests {
    /// Handles a request. `identity` is that of the caller, `None` if it is anonymous.
    pub(crate) fn add(
        &mut self,
        request: Request,
        protocol: XdsProtocol,
        pages: Option<&Arc<dyn DebugPages>>,
        identity: Option<&Identity>,
    ) -> Result<(), StreamError> {
        let unauthenticated = || StreamError::Unauthenticated("authentication required".to_owned());
        let identity = identity.ok_or_else(unauthenticated)?;
        let pages = pages.ok_or_else(|| StreamError::Unavailable("debug pages are not served".to_owned()))?;
        let viewer = pages.viewer(identity).ok_or_else(unauthenticated)?;
        // istioctl sends a nonce of its own with its first request; a nonce of this stream acknowledges a response.
        if self.has_sent(&request.nonce) || request.error.is_some() {
            return Ok(());
        }
        if self.pending.len() == MAX_PENDING_DEBUG_REQUESTS {
            return Err(StreamError::Exhausted(format!(
                "more than {MAX_PENDING_DEBUG_REQUESTS} debug requests at a time"
            )));
        }
        let page = parse(&request)?;
        let identifier = (page == DebugRequest::Sync).then(|| pages.identifier());
        let response = pages.answer(page, viewer);
        self.pending.push_back(PendingDebugRequest { protocol, type_url: request.type_url, identifier, response });
        Ok(())
    }

    /// Whether a response of this stream has the nonce.
    fn has_sent(&self, nonce: &str) -> bool {
        let number = nonce.strip_prefix(NONCE_PREFIX).and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| (1..=self.responses).contains(&number))
    }

    /// The next response.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<NamedResponse, StreamError>> {
        let Some(pending) = self.pending.front_mut() else { return Poll::Pending };
        let resources = ready!(Pin::new(&mut pending.response).poll(cx));
        let Some(PendingDebugRequest { protocol, type_url, identifier, .. }) = self.pending.pop_front() else {
            return Poll::Pending;
        };
        self.responses += 1;
        let nonce = format!("{NONCE_PREFIX}{}", self.responses);
        let removed = Vec::new();
        Poll::Ready(resources.map(|resources| NamedResponse {
            protocol,
            type_url,
            nonce,
            identifier,
            resources,
            removed,
        }))
    }
}

fn parse(request: &Request) -> Result<DebugRequest, StreamError> {
    let names = match &request.interest {
        Interest::Exactly(names) => names,
        Interest::Change { subscribe, .. } => subscribe,
    };
    match request.type_url.as_str() {
        SYNC_TYPE => return Ok(DebugRequest::Sync),
        // Without a name, there is no proxy to show.
        DUMP_TYPE if names.is_empty() => return Ok(DebugRequest::Unknown),
        DEBUG_TYPE | DUMP_TYPE => {}
        _ => return Ok(DebugRequest::Unknown),
    }
    let mut names = names.iter();
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(StreamError::Invalid("exactly one debug request is required".to_owned()));
    };
    if name.len() > MAX_RESOURCE_NAME_BYTES {
        return Err(StreamError::Invalid(format!("a debug request is longer than {MAX_RESOURCE_NAME_BYTES} bytes")));
    }
    let name = name.to_owned();
    Ok(if request.type_url == DUMP_TYPE { DebugRequest::Dump(name) } else { DebugRequest::Page(name) })
}
