//! Debug pages over xDS (O09): requests of type `istio.io/debug`, as `istioctl` sends them.
//!
//! They are no subscriptions: each is answered once, and who asks for nothing else is no proxy.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use sluice_auth::Viewer;
use sluice_model::Identity;

use crate::xds::request::{Interest, MAX_NAME, Protocol, Refusal, Request};
use crate::xds::sotw::{any_len, put_any_head};
use crate::xds::wire::{Rope, field_len, put_field, put_head};

/// Requests of this type name a page with its parameters, `config_dump?proxyID=…`.
pub const DEBUG_TYPE: &str = "istio.io/debug";
/// Requests of this type are for how far all proxies are.
const SYNC_TYPE: &str = "istio.io/debug/syncz";
/// Requests of this type name a proxy, and are for what it was sent.
const DUMP_TYPE: &str = "istio.io/debug/config_dump";
/// Requests of one stream that may wait for their answer.
const MOST_OPEN: usize = 8;

// Fields of DiscoveryResponse and DeltaDiscoveryResponse that are the same in both.
const VERSION: u8 = 1;
const RESOURCES: u8 = 2;
const TYPE_URL: u8 = 4;
const NONCE: u8 = 5;
// Resource.
const RESOURCE: u8 = 2;
const NAME: u8 = 3;
// google.protobuf.Any.
const ANY_VALUE: u8 = 2;

/// Whether requests of a type are for debug pages.
pub(crate) fn is_debug(type_url: &str) -> bool {
    matches!(type_url, DEBUG_TYPE | SYNC_TYPE | DUMP_TYPE)
}

/// What is asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DebugRequest {
    /// The page below `/debug/`, with its parameters.
    Page(String),
    /// How far proxies are.
    Sync,
    /// What a proxy was sent, by node id or `pod.namespace`.
    Dump(String),
}

/// A part of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DebugResource {
    /// What it is of.
    pub name: String,
    /// Type of its contents.
    pub type_url: String,
    /// Its contents.
    pub bytes: Bytes,
}

/// Who answers requests for debug pages.
pub trait DebugPages: Send + Sync + 'static {
    /// How much somebody may see; nothing if he is nobody of the mesh.
    fn viewer(&self, identity: &Identity) -> Option<Viewer>;

    /// What somebody is shown who may see so much.
    fn answer(&self, request: DebugRequest, viewer: Viewer) -> BoxFuture<'static, Result<Vec<DebugResource>, Refusal>>;
}

/// The requests for debug pages of one stream.
#[derive(Default)]
pub(crate) struct Inspections {
    /// Who asks, once it is known whether that is known.
    caller: Option<Option<Identity>>,
    open: VecDeque<Open>,
    answered: u64,
}

/// A request that is being answered.
struct Open {
    protocol: Protocol,
    type_url: String,
    answer: BoxFuture<'static, Result<Vec<DebugResource>, Refusal>>,
}

/// An answer that was not encoded yet.
pub(crate) struct Answer {
    protocol: Protocol,
    type_url: String,
    nonce: String,
    resources: Vec<DebugResource>,
}

impl Inspections {
    pub(crate) fn knows_caller(&self) -> bool {
        self.caller.is_some()
    }

    pub(crate) fn set_caller(&mut self, identity: Option<Identity>) {
        self.caller = Some(identity);
    }

    /// Takes a request in.
    pub(crate) fn take(
        &mut self,
        request: Request,
        protocol: Protocol,
        pages: Option<&Arc<dyn DebugPages>>,
    ) -> Result<(), Refusal> {
        // It answers an answer.
        if !request.nonce.is_empty() || request.error.is_some() {
            return Ok(());
        }
        let unknown = || Refusal::Unauthenticated("authentication required".to_owned());
        let identity = self.caller.as_ref().and_then(Option::as_ref).ok_or_else(unknown)?;
        let pages = pages.ok_or_else(|| Refusal::Unavailable("there are no debug pages".to_owned()))?;
        let viewer = pages.viewer(identity).ok_or_else(unknown)?;
        if self.open.len() == MOST_OPEN {
            return Err(Refusal::Exhausted(format!("more than {MOST_OPEN} debug requests at a time")));
        }
        let wanted = wanted(&request)?;
        let answer = pages.answer(wanted, viewer);
        self.open.push_back(Open { protocol, type_url: request.type_url, answer });
        Ok(())
    }

    /// The next answer.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, Refusal>> {
        let Some(open) = self.open.front_mut() else { return Poll::Pending };
        let resources = ready!(Pin::new(&mut open.answer).poll(cx));
        let Some(Open { protocol, type_url, .. }) = self.open.pop_front() else { return Poll::Pending };
        self.answered += 1;
        let nonce = format!("debug-{}", self.answered);
        Poll::Ready(resources.map(|resources| Answer { protocol, type_url, nonce, resources }))
    }
}

fn wanted(request: &Request) -> Result<DebugRequest, Refusal> {
    let names = match &request.interest {
        Interest::Exactly(names) => names,
        Interest::Change { subscribe, .. } => subscribe,
    };
    if request.type_url == SYNC_TYPE {
        return Ok(DebugRequest::Sync);
    }
    let mut names = names.iter();
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(Refusal::Invalid("exactly one debug request is required".to_owned()));
    };
    if name.len() > MAX_NAME {
        return Err(Refusal::Invalid(format!("a debug request is longer than {MAX_NAME} bytes")));
    }
    let name = name.to_owned();
    Ok(if request.type_url == DUMP_TYPE { DebugRequest::Dump(name) } else { DebugRequest::Page(name) })
}

impl Answer {
    /// The response in the protocol's encoding.
    pub(crate) fn encode(self) -> Rope {
        let mut rope = Rope::response();
        rope.write(|out| {
            put_field(VERSION, self.nonce.as_bytes(), out);
            put_field(TYPE_URL, self.type_url.as_bytes(), out);
            put_field(NONCE, self.nonce.as_bytes(), out);
        });
        for resource in self.resources {
            rope.write(|out| match self.protocol {
                Protocol::Sotw => put_any_head(RESOURCES, &resource.type_url, resource.bytes.len(), out),
                Protocol::Delta => put_resource_head(&resource, out),
            });
            rope.write(|out| put_head(ANY_VALUE, resource.bytes.len(), out));
            rope.push(resource.bytes);
        }
        rope
    }
}

/// A `Resource`, up to the value of its message.
fn put_resource_head(resource: &DebugResource, out: &mut BytesMut) {
    let any = any_len(&resource.type_url, resource.bytes.len());
    put_head(RESOURCES, field_len(resource.name.len()) + field_len(any), out);
    put_field(NAME, resource.name.as_bytes(), out);
    put_any_head(RESOURCE, &resource.type_url, resource.bytes.len(), out);
}
