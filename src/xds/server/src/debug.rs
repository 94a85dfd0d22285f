//! Debug pages over xDS (O09): requests of type `istio.io/debug`, as `istioctl` sends them.
//!
//! These requests are not subscriptions: each has one response, and a client that sends no other requests is not a proxy.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use sluice_auth::Viewer;
use sluice_model::Identity;
use sluice_xds_protocol::wire::{ANY_VALUE, ResponseBuffer, any_len, field_len, put_any_head, put_field, put_head};
use sluice_xds_protocol::{Interest, MAX_RESOURCE_NAME_BYTES, Request, StreamError, XdsProtocol};

/// The resource name of such a request is a page with its parameters, `config_dump?proxyID=…`.
pub const DEBUG_TYPE: &str = "istio.io/debug";
/// A request of this type is for the synchronization status of all proxies.
const SYNC_TYPE: &str = "istio.io/debug/syncz";
/// The resource name of such a request is a proxy. The response is the configuration that was sent to it.
const DUMP_TYPE: &str = "istio.io/debug/config_dump";
/// Maximum number of requests of one stream that wait for a response.
const MAX_PENDING_DEBUG_REQUESTS: usize = 8;

// Fields that DiscoveryResponse and DeltaDiscoveryResponse have in common.
const VERSION: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;
// Resource.
const RESOURCE: u8 = 2;
const NAME: u8 = 3;

/// Whether requests of this type are for debug pages.
pub(crate) fn is_debug(type_url: &str) -> bool {
    matches!(type_url, DEBUG_TYPE | SYNC_TYPE | DUMP_TYPE)
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
}

/// A resource of a response.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DebugResource {
    /// Its name.
    pub name: String,
    /// Type of its contents.
    pub type_url: String,
    /// Its contents.
    pub bytes: Bytes,
}

/// Answers requests for debug pages.
pub trait DebugPages: Send + Sync + 'static {
    /// The viewer with this identity; `None` if the identity is not part of the mesh.
    fn viewer(&self, identity: &Identity) -> Option<Viewer>;

    /// The page as this viewer may see it.
    fn answer(
        &self,
        request: DebugRequest,
        viewer: Viewer,
    ) -> BoxFuture<'static, Result<Vec<DebugResource>, StreamError>>;
}

/// The requests for debug pages of one stream.
#[derive(Default)]
pub(crate) struct DebugRequests {
    /// Outer `None`: there was no request yet. Inner `None`: the caller is anonymous.
    caller: Option<Option<Identity>>,
    pending: VecDeque<PendingDebugRequest>,
    responses: u64,
}

/// A request whose response is being built.
struct PendingDebugRequest {
    protocol: XdsProtocol,
    type_url: String,
    response: BoxFuture<'static, Result<Vec<DebugResource>, StreamError>>,
}

/// A response that is not encoded yet.
pub(crate) struct DebugResponse {
    protocol: XdsProtocol,
    type_url: String,
    nonce: String,
    resources: Vec<DebugResource>,
}

impl DebugRequests {
    pub(crate) fn has_caller(&self) -> bool {
        self.caller.is_some()
    }

    pub(crate) fn set_caller(&mut self, identity: Option<Identity>) {
        self.caller = Some(identity);
    }

    /// Handles a request.
    pub(crate) fn add(
        &mut self,
        request: Request,
        protocol: XdsProtocol,
        pages: Option<&Arc<dyn DebugPages>>,
    ) -> Result<(), StreamError> {
        // The request acknowledges or rejects a response.
        if !request.nonce.is_empty() || request.error.is_some() {
            return Ok(());
        }
        let unauthenticated = || StreamError::Unauthenticated("authentication required".to_owned());
        let identity = self.caller.as_ref().and_then(Option::as_ref).ok_or_else(unauthenticated)?;
        let pages = pages.ok_or_else(|| StreamError::Unavailable("debug pages are not served".to_owned()))?;
        let viewer = pages.viewer(identity).ok_or_else(unauthenticated)?;
        if self.pending.len() == MAX_PENDING_DEBUG_REQUESTS {
            return Err(StreamError::Exhausted(format!(
                "more than {MAX_PENDING_DEBUG_REQUESTS} debug requests at a time"
            )));
        }
        let response = pages.answer(parse(&request)?, viewer);
        self.pending.push_back(PendingDebugRequest { protocol, type_url: request.type_url, response });
        Ok(())
    }

    /// The next response.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<DebugResponse, StreamError>> {
        let Some(pending) = self.pending.front_mut() else { return Poll::Pending };
        let resources = ready!(Pin::new(&mut pending.response).poll(cx));
        let Some(PendingDebugRequest { protocol, type_url, .. }) = self.pending.pop_front() else {
            return Poll::Pending;
        };
        self.responses += 1;
        let nonce = format!("debug-{}", self.responses);
        Poll::Ready(resources.map(|resources| DebugResponse { protocol, type_url, nonce, resources }))
    }
}

fn parse(request: &Request) -> Result<DebugRequest, StreamError> {
    let names = match &request.interest {
        Interest::Exactly(names) => names,
        Interest::Change { subscribe, .. } => subscribe,
    };
    if request.type_url == SYNC_TYPE {
        return Ok(DebugRequest::Sync);
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

impl DebugResponse {
    /// The response in the protocol's encoding.
    pub(crate) fn encode(self) -> ResponseBuffer {
        let mut buffer = ResponseBuffer::response();
        buffer.write(|out| {
            put_field(VERSION, self.nonce.as_bytes(), out);
            put_field(TYPE_URL, self.type_url.as_bytes(), out);
            put_field(NONCE, self.nonce.as_bytes(), out);
        });
        for resource in self.resources {
            buffer.write(|out| match self.protocol {
                XdsProtocol::Sotw => put_any_head(RESOURCES, &resource.type_url, resource.bytes.len(), out),
                XdsProtocol::Delta => put_resource_head(&resource, out),
            });
            buffer.write(|out| put_head(ANY_VALUE, resource.bytes.len(), out));
            buffer.push(resource.bytes);
        }
        buffer
    }
}

/// Writes a `Resource`, up to the value of its message.
fn put_resource_head(resource: &DebugResource, out: &mut BytesMut) {
    let any = any_len(&resource.type_url, resource.bytes.len());
    put_head(RESOURCES, field_len(resource.name.len()) + field_len(any), out);
    put_field(NAME, resource.name.as_bytes(), out);
    put_any_head(RESOURCE, &resource.type_url, resource.bytes.len(), out);
}
