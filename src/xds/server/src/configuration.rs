//! Configuration for other control planes over xDS (C09): the generator `api` of istiod.
//!
//! A request of type `GROUP/VERSION/KIND` subscribes to all objects of the kind. A client that sends no other requests is not
//! a proxy of the mesh. A response in the state of the world has all objects, a delta response those that differ.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use sluice_model::Identity;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_proto::google::protobuf::value::Kind;
use sluice_xds_protocol::{Interest, MAX_RESOURCE_NAME_BYTES, Request, StreamError, XdsProtocol};
use tokio::sync::watch;

use crate::named_resources::{NamedResource, NamedResponse};

/// Field of the node's metadata that selects the generator of types without one of their own (X03).
const GENERATOR: &str = "GENERATOR";
/// The generator of configuration.
const API_GENERATOR: &str = "api";
/// The nonce of a response has its number in the stream after this.
const NONCE_PREFIX: &str = "configuration-";
/// Maximum number of types that a stream subscribes to.
const MAX_CONFIGURATION_TYPES: usize = 128;
/// The subscription to all resources, in delta requests.
const WILDCARD: &str = "*";

/// Resources that are being listed.
pub type ListedResources = BoxFuture<'static, Result<Arc<[NamedResource]>, StreamError>>;

/// The configuration that is served to other control planes.
pub trait ConfigurationStore: Send + Sync + 'static {
    /// Whether this type is one of configuration: `GROUP/VERSION/KIND` of a kind that is read.
    fn has_type(&self, type_url: &str) -> bool;

    /// Checks that a caller with this identity may read configuration; `None` is an anonymous caller.
    ///
    /// # Errors
    /// It may not. The stream ends with this status.
    fn authorize(&self, identity: Option<&Identity>) -> Result<(), StreamError>;

    /// The current objects of a type, in the order of their names. An unknown type has none.
    ///
    /// # Errors
    /// They cannot be listed. The stream ends with this status: an empty list would delete the configuration of the client.
    fn list(&self, type_url: &str) -> ListedResources;

    /// Changes when objects of any type may have changed.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Whether the metadata of a node selects the generator of configuration for types without a generator of their own.
pub(crate) fn selects_configuration(node: &Node) -> bool {
    let fields = node.metadata.as_ref().map(|metadata| &metadata.fields);
    let generator = fields.and_then(|fields| fields.get(GENERATOR)).and_then(|value| value.kind.as_ref());
    matches!(generator, Some(Kind::StringValue(name)) if name == API_GENERATOR)
}

/// The subscriptions of one stream to configuration.
#[derive(Default)]
pub(crate) struct ConfigurationRequests {
    identity: Option<Identity>,
    types: BTreeMap<String, WatchedType>,
    /// Number of the last response.
    responses: u64,
    /// Completes at the next change. `None` before the first subscription.
    changed: Option<BoxFuture<'static, Option<watch::Receiver<u64>>>>,
    /// The type that is being listed.
    listing: Option<Listing>,
}

/// A type that the client subscribes to.
struct WatchedType {
    protocol: XdsProtocol,
    /// The client waits for a response, even if nothing has changed.
    is_awaited: bool,
    /// Its objects may have changed since they were listed.
    is_stale: bool,
    /// The objects of the last response.
    sent: Option<Arc<[NamedResource]>>,
}

struct Listing {
    type_url: String,
    resources: ListedResources,
}

impl ConfigurationRequests {
    /// Handles a request of a caller with this identity.
    pub(crate) fn add(
        &mut self,
        request: Request,
        protocol: XdsProtocol,
        store: &dyn ConfigurationStore,
        identity: Option<Identity>,
    ) -> Result<(), StreamError> {
        store.authorize(identity.as_ref())?;
        self.identity = identity;
        let Request { type_url, nonce, error, interest, .. } = request;
        if type_url.len() > MAX_RESOURCE_NAME_BYTES {
            return Err(StreamError::Invalid(format!("the type URL is longer than {MAX_RESOURCE_NAME_BYTES} bytes")));
        }
        if let Some((code, message)) = error {
            tracing::warn!(target: "ads", type_url, code, error = message, "client rejected configuration");
            return Ok(());
        }
        if let Interest::Change { unsubscribe, .. } = &interest
            && unsubscribe.iter().any(|name| name == WILDCARD)
        {
            self.types.remove(&type_url);
            return Ok(());
        }
        let is_full = self.types.len() >= MAX_CONFIGURATION_TYPES;
        match self.types.get_mut(&type_url) {
            // An acknowledgement, or one of an older response.
            Some(_) if !nonce.is_empty() => return Ok(()),
            // A delta request without a nonce changes the subscription, which is to all objects anyway.
            Some(watched) if protocol == XdsProtocol::Sotw => {
                (watched.is_awaited, watched.is_stale) = (true, true);
            }
            Some(_) => {}
            None if is_full => {
                return Err(StreamError::Exhausted(format!(
                    "more than {MAX_CONFIGURATION_TYPES} types of configuration on one stream"
                )));
            }
            None => {
                // What changes from here on makes all types stale.
                self.changed.get_or_insert_with(|| next_change(store.changes()));
                let watched = WatchedType { protocol, is_awaited: true, is_stale: true, sent: None };
                self.types.insert(type_url, watched);
            }
        }
        Ok(())
    }

    /// The next response.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        store: &dyn ConfigurationStore,
    ) -> Poll<Result<NamedResponse, StreamError>> {
        loop {
            if let Some(changed) = &mut self.changed
                && let Poll::Ready(changes) = Pin::new(changed).poll(cx)
            {
                self.changed = Some(match changes {
                    Some(changes) => next_change(changes),
                    // Without a sender, nothing changes any more.
                    None => Box::pin(std::future::pending()),
                });
                self.types.values_mut().for_each(|watched| watched.is_stale = true);
                continue;
            }
            if let Some(listing) = &mut self.listing {
                let resources = std::task::ready!(Pin::new(&mut listing.resources).poll(cx));
                let listed = self.listing.take().zip(Some(resources?));
                let response = listed.and_then(|(listing, resources)| self.respond(listing.type_url, resources));
                match response {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => continue,
                }
            }
            let Some((type_url, watched)) = self.types.iter_mut().find(|(_, watched)| watched.is_stale) else {
                return Poll::Pending;
            };
            // The root namespace of the mesh may have changed since the request.
            store.authorize(self.identity.as_ref())?;
            watched.is_stale = false;
            self.listing = Some(Listing { type_url: type_url.clone(), resources: store.list(type_url) });
        }
    }

    /// The response with the current objects of a type, unless the client has them already.
    fn respond(&mut self, type_url: String, current: Arc<[NamedResource]>) -> Option<NamedResponse> {
        let watched = self.types.get_mut(&type_url)?;
        let is_same = |sent: &Arc<[NamedResource]>| Arc::ptr_eq(sent, &current) || *sent == current;
        if !watched.is_awaited && watched.sent.as_ref().is_some_and(is_same) {
            return None;
        }
        let (resources, removed) = match watched.protocol {
            XdsProtocol::Sotw => (current.to_vec(), Vec::new()),
            XdsProtocol::Delta => differences(watched.sent.as_deref().unwrap_or_default(), &current),
        };
        self.responses += 1;
        watched.is_awaited = false;
        watched.sent = Some(current);
        let nonce = format!("{NONCE_PREFIX}{}", self.responses);
        Some(NamedResponse { protocol: watched.protocol, type_url, nonce, identifier: None, resources, removed })
    }
}

/// Completes at the next change.
fn next_change(mut changes: watch::Receiver<u64>) -> BoxFuture<'static, Option<watch::Receiver<u64>>> {
    Box::pin(async move { changes.changed().await.is_ok().then_some(changes) })
}

/// The resources of `new` that `old` does not have like this, and the names that only `old` has. Both are in the order of their
/// names.
fn differences(old: &[NamedResource], new: &[NamedResource]) -> (Vec<NamedResource>, Vec<String>) {
    let (mut changed, mut removed) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return (changed, removed),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
        };
        let (before, after) =
            (if order.is_le() { old.next() } else { None }, if order.is_ge() { new.next() } else { None });
        match (before, after) {
            (Some(before), None) => removed.push(before.name.clone()),
            (before, Some(after)) if before != Some(after) => changed.push(after.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
