//! Decides what to send next.

use std::collections::BTreeSet;
use std::time::Instant;

use sluice_model::{ResourceType, Text};
use sluice_proto::wire::contents;

use super::held_resources::HeldResources;
use super::subscription::Subscription;
use super::{ACK_TIMEOUT, Session};
use crate::request::XdsProtocol;
use crate::response::Response;
use crate::store::{Comparison, LayerEntry, ResolvedResource, ResponseItem, ScopeSnapshot, TypeSnapshot};
use crate::version::Digest;

/// With at least this number of changed clusters, all endpoints are sent again if most clusters changed.
const RESEND_ALL_THRESHOLD: usize = 1024;

/// The next step for a type.
pub(super) enum PlannedResponse {
    /// This response is sent.
    Send(Box<Response>),
    /// There are changes, but the client has not acknowledged the last response.
    Blocked,
    /// There is nothing to send.
    Idle,
}

/// The differences between what a client holds and what it should hold.
#[derive(Default)]
struct Differences {
    items: Vec<ResponseItem>,
    removed: BTreeSet<Text>,
    /// `items` has all subscribed resources, not only those that differ.
    complete: bool,
}

impl Session {
    pub(super) fn plan(&mut self, kind: ResourceType, snapshot: &ScopeSnapshot, now: Instant) -> PlannedResponse {
        let Some(view) = snapshot.view(kind) else { return PlannedResponse::Idle };
        if kind == ResourceType::Endpoint {
            self.note_held_assignments(snapshot);
        }
        let Some(subscription) = self.subscriptions.get(kind) else { return PlannedResponse::Idle };
        let is_secret = kind == ResourceType::Secret;
        if is_secret && !snapshot.has_layers(kind) {
            // It is not derived yet whether the proxy may have secrets.
            return PlannedResponse::Idle;
        }
        let dirty = subscription.sent.as_ref().is_none_or(|sent| !sent.is_same(view));
        if !dirty && subscription.deferred_removals.is_empty() && !subscription.is_waiting() {
            return PlannedResponse::Idle;
        }
        let references_pending = self.references_pending(snapshot, now);
        let fills_tables = kind == ResourceType::Route && self.has_all_hosts();
        let Some(subscription) = self.subscriptions.get_mut(kind) else { return PlannedResponse::Idle };
        if !dirty && references_pending && !subscription.is_waiting() {
            return PlannedResponse::Idle;
        }
        let is_waiting = subscription.is_waiting();
        if subscription.outstanding && !is_waiting {
            let until = subscription.sent_at.map_or(now, |sent| sent + ACK_TIMEOUT);
            if now < until {
                self.retry_at = Some(self.retry_at.map_or(until, |at| at.min(until)));
                return PlannedResponse::Blocked;
            }
        }
        let on_demand = subscription.is_on_demand();
        if on_demand {
            subscription.resolve(view, &self.names);
        }
        let requested = if kind.is_by_prefix() { subscription.resolve_prefixes(view) } else { BTreeSet::new() };
        let mut differences = subscription.differences(view, &requested);
        if on_demand {
            differences.removed.retain(|name| view.known_as(name).is_empty());
            Subscription::add_aliases(view, &mut differences.items);
        }
        subscription.defer_removals(view, &mut differences, references_pending);
        if subscription.names_only && kind == ResourceType::Endpoint {
            let without_endpoints = std::mem::take(&mut differences.removed);
            let empty = without_endpoints.iter().map(ResolvedResource::without_endpoints).map(ResponseItem::Single);
            differences.items.extend(empty);
        }
        if is_secret {
            self.unserved.extend(differences.removed.iter().cloned());
        }
        // There is no response for secrets until a secret exists: Envoy waits, and keeps its secret if that is removed.
        let response_due = subscription.response_due && !is_secret;
        let had_all = differences.complete;
        let changed = match (kind, had_all) {
            (ResourceType::Cluster, false) => differences.items.iter().flat_map(endpoint_names).collect(),
            _ => Vec::new(),
        };
        let items = match self.protocol {
            XdsProtocol::Delta => differences.items,
            XdsProtocol::Sotw if kind.is_wildcard() => {
                if differences.items.is_empty() && differences.removed.is_empty() && !response_due && !had_all {
                    Vec::new()
                } else {
                    let mut items = if had_all { differences.items } else { subscription.listing(view) };
                    items.extend(subscription.deferred_removals.values().cloned().map(ResponseItem::Single));
                    differences.complete = true;
                    items
                }
            }
            XdsProtocol::Sotw => differences.items,
        };
        if kind == ResourceType::LbEndpoint {
            differences.removed = subscription.removed_endpoints(differences.removed);
        }
        let unresolved = subscription.take_unresolved(view, &mut differences.removed);
        let removed = match (self.protocol, kind) {
            (XdsProtocol::Sotw, _) | (_, ResourceType::ExtensionConfig) => Vec::new(),
            (_, ResourceType::Secret) if items.is_empty() => Vec::new(),
            (XdsProtocol::Delta, _) => differences.removed.into_iter().collect(),
        };
        let whole = self.protocol == XdsProtocol::Sotw && kind.is_wildcard() && differences.complete;
        let new_tables = if fills_tables { subscription.new_tables(&items) } else { BTreeSet::new() };
        self.revision += 1;
        let before = subscription.sent.replace(view.clone());
        let resent = subscription.take_resent();
        subscription.response_due = false;
        subscription.holds = HeldResources::default();
        // pilot-agent, the client of these types, ignores a response without resources and never acknowledges it.
        let is_ignored_if_empty = matches!(kind, ResourceType::NameTable | ResourceType::ProxyConfig);
        let has_no_content = removed.is_empty() && unresolved.is_empty() && !response_due && !whole;
        if items.is_empty() && (is_ignored_if_empty || has_no_content) {
            return PlannedResponse::Idle;
        }
        subscription.set_unacked(before, resent, now);
        subscription.outstanding = true;
        subscription.sent_at = Some(now);
        subscription.sent_nonce = self.responses + 1;
        let nonce = self.next_nonce();
        self.new_tables.extend(new_tables);
        let items = if kind == ResourceType::Endpoint { self.assignments(items) } else { items };
        if kind == ResourceType::Cluster {
            self.force_endpoints(had_all, changed);
        }
        let version = match self.protocol {
            XdsProtocol::Sotw => digest(&items).version().to_string(),
            XdsProtocol::Delta => snapshot.epoch.to_string(),
        };
        let since = if is_waiting { None } else { self.since };
        let type_url = kind.type_url().into();
        let kind = Some(kind);
        PlannedResponse::Send(Box::new(Response { kind, type_url, nonce, version, items, removed, unresolved, since }))
    }

    /// Sends the endpoints of changed clusters. Envoy warms a changed cluster again and waits for its endpoints, but does not
    /// subscribe again to endpoints that it holds (X07, X08).
    fn force_endpoints(&mut self, all: bool, mut changed: Vec<Text>) {
        let Some(endpoints) = self.subscriptions.get_mut(ResourceType::Endpoint) else { return };
        changed.retain(|name| endpoints.wants(name));
        // Thousands of names for each of thousands of clients need more memory than a response with all endpoints.
        let most = changed.len() >= RESEND_ALL_THRESHOLD && changed.len() * 2 >= endpoints.names.len();
        let (all, is_first) = (all || most, endpoints.sent.is_none());
        self.note_replaced(all, &changed);
        let Some(endpoints) = self.subscriptions.get_mut(ResourceType::Endpoint).filter(|_| !is_first) else { return };
        if all {
            endpoints.resend_all = true;
        } else {
            endpoints.requested.extend(changed);
        }
    }

    /// Whether listeners or routes are being sent that may replace references to removed clusters.
    fn references_pending(&self, snapshot: &ScopeSnapshot, now: Instant) -> bool {
        [ResourceType::Listener, ResourceType::Route, ResourceType::VirtualHost].iter().any(|kind| {
            let Some(subscription) = self.subscriptions.get(*kind) else { return false };
            let waiting = subscription.outstanding && subscription.sent_at.is_some_and(|sent| now < sent + ACK_TIMEOUT);
            let dirty = match (&subscription.sent, snapshot.view(*kind)) {
                (Some(sent), Some(view)) => !sent.is_same(view),
                _ => false,
            };
            waiting || dirty
        })
    }
}

impl Subscription {
    /// All resources that the client subscribes to.
    fn listing(&self, view: &TypeSnapshot) -> Vec<ResponseItem> {
        if self.is_on_demand() {
            return find_all(view, self.names.iter()).collect();
        }
        if self.is_by_table() {
            return view.pick(self.named_in(view).iter());
        }
        if self.wildcard && view.has_on_demand() {
            return view.listing_by(|| Box::new(|name| !self.leaves_out(view, name)));
        }
        view.listing((!self.wildcard).then_some(&self.names))
    }

    /// Whether the client subscribes to the virtual hosts of the tables, or the endpoints of the collections, that it names.
    fn is_by_table(&self) -> bool {
        self.kind.is_by_prefix() && !self.wildcard
    }

    /// The subscribed names without a resource.
    fn missing(&self, view: &TypeSnapshot, items: &[ResponseItem]) -> BTreeSet<Text> {
        let mut missing: BTreeSet<Text> =
            self.names.iter().filter(|name| view.version(name).is_none()).cloned().collect();
        if self.kind.is_by_prefix() && !missing.is_empty() {
            // A table exists if one of its hosts does.
            for (name, _) in items.iter().flat_map(ResponseItem::versions) {
                if let Some((table, _)) = name.rsplit_once('/') {
                    missing.remove(table);
                }
            }
        }
        missing
    }

    /// The resources to send and to remove so that the client holds the resources of `view`. `prefixes`: see
    /// [`Self::resolve_prefixes`].
    fn differences(&self, view: &TypeSnapshot, prefixes: &BTreeSet<Text>) -> Differences {
        let mut out = Differences::default();
        if (self.resend_all || self.sent.is_none()) && !self.holds_all(view) {
            let listing = self.listing(view);
            let listed: usize = listing.iter().map(ResponseItem::count).sum();
            if self.kind.is_by_prefix() || self.wildcard || listed < self.names.len() {
                out.removed = self.missing(view, &listing);
            }
            if self.holds.is_empty() {
                out.complete = true;
                out.items = listing;
            } else {
                self.compare_with_held(view, listing, &mut out);
            }
        }
        let is_requested = |name: &Text| {
            let prefix = || name.rsplit_once('/').is_some_and(|(prefix, _)| prefixes.contains(prefix));
            self.requested.contains(name) || !prefixes.is_empty() && prefix()
        };
        let sent = self.sent.as_ref().filter(|sent| !sent.is_same(view));
        let changed = sent.map(|sent| view.changed_since(sent)).unwrap_or_default();
        let mut differing = Vec::new();
        let mut comparison = Comparison::new(sent.unwrap_or(view), view);
        for change in changed.iter().filter(|change| self.covers(change.name) && !is_requested(change.name)) {
            let compared = comparison.compare(change);
            let name = compared.name;
            let before = match self.deferred_removals.get(name) {
                Some(held) => Some(held.version),
                None => compared.before.filter(|_| !sent.is_some_and(|sent| self.leaves_out(sent, name))),
            };
            let after = compared.after.filter(|_| !self.leaves_out(view, name));
            if after.is_none() && before.is_some() {
                out.removed.insert(name.clone());
            } else if after != before {
                differing.push(compared);
            }
        }
        if out.complete || self.is_on_demand() {
            out.removed.extend(self.requested.iter().filter(|name| view.version(name).is_none()).cloned());
        }
        if out.complete {
            return out;
        }
        if self.is_on_demand() {
            let names = differing.iter().map(|compared| compared.name).chain(&self.requested);
            out.items.extend(find_all(view, names));
        } else {
            out.items.extend(view.pick_compared(&differing));
            let requested = view.pick_existing(self.requested.iter(), |absent| {
                out.removed.insert(absent.clone());
            });
            out.items.extend(requested);
        }
        out
    }

    /// Whether the client holds exactly what it subscribes to from an earlier stream. No resource is encoded for this check.
    pub(super) fn holds_all(&self, view: &TypeSnapshot) -> bool {
        let leaves_out = self.wildcard && view.has_on_demand();
        if self.holds.is_empty() || self.is_on_demand() || self.is_by_table() || leaves_out {
            return false;
        }
        let (count, digest) = view.digest((!self.wildcard).then_some(&self.names));
        // Names without a resource have to be reported to the client.
        let complete = self.wildcard || count == self.names.len();
        complete && count == self.holds.len() && digest == self.holds.digest()
    }

    /// Compares with the resources that the client holds from an earlier stream.
    fn compare_with_held(&self, view: &TypeSnapshot, listing: Vec<ResponseItem>, out: &mut Differences) {
        let holds = self.holds.by_name();
        let mut known = 0;
        for item in listing {
            let versions = item.versions();
            let differ: Vec<&Text> = versions
                .iter()
                .filter(|(name, version)| {
                    let held = holds.get(name.as_str());
                    known += usize::from(held.is_some());
                    held != Some(&Some(*version))
                })
                .map(|(name, _)| *name)
                .collect();
            if differ.len() == versions.len() {
                out.items.push(item);
            } else {
                out.items.extend(view.pick(differ.into_iter()));
            }
        }
        if known < holds.len() {
            let absent = holds.keys().filter(|name| self.version_in(view, name).is_none());
            out.removed.extend(absent.map(|name| Text::from(*name)));
        }
    }

    /// Defers removals while other resources may still refer to the removed ones, and sends the deferred ones afterwards.
    fn defer_removals(&mut self, view: &TypeSnapshot, differences: &mut Differences, references_pending: bool) {
        if !matches!(self.kind, ResourceType::Cluster | ResourceType::Endpoint | ResourceType::LbEndpoint) {
            return;
        }
        // A resource that exists again is sent, or is as the client still holds it.
        let mut deferred = std::mem::take(&mut self.deferred_removals);
        deferred.retain(|name, _| self.version_in(view, name).is_none());
        self.deferred_removals = deferred;
        if references_pending {
            // A separate endpoint goes at once, unless all of its collection go.
            let is_whole = |name: &Text| {
                let collection = name.rsplit_once('/').filter(|_| self.kind == ResourceType::LbEndpoint);
                collection.is_none_or(|(collection, _)| !view.has_below(collection))
            };
            let keep: Vec<Text> = differences
                .removed
                .iter()
                .filter(|name| !self.requested.contains(*name) && is_whole(name))
                .cloned()
                .collect();
            for name in keep {
                let held = self
                    .deferred_removals
                    .get(&name)
                    .cloned()
                    .or_else(|| self.sent.as_ref().and_then(|sent| sent.find(&name)));
                if let Some(resource) = held {
                    self.deferred_removals.insert(name.clone(), resource);
                    differences.removed.remove(&name);
                }
            }
        } else {
            differences.removed.extend(std::mem::take(&mut self.deferred_removals).into_keys());
        }
    }
}

/// The names by which clusters subscribe to their endpoints.
fn endpoint_names(clusters: &ResponseItem) -> Vec<Text> {
    match clusters {
        ResponseItem::Range { chunk, rows } => {
            let shared = |(name, entry): &(Text, LayerEntry)| endpoint_name(name, entry.shared()?.1);
            chunk.rows()[rows.clone()].iter().filter_map(shared).collect()
        }
        ResponseItem::Single(resource) => endpoint_name(&resource.name, &resource.bytes()).into_iter().collect(),
    }
}

fn endpoint_name(name: &Text, cluster: &[u8]) -> Option<Text> {
    const EDS_CLUSTER_CONFIG: u32 = 3;
    const SERVICE_NAME: u32 = 2;
    let config = contents(cluster, EDS_CLUSTER_CONFIG).next()?;
    let service = contents(config, SERVICE_NAME).next();
    match service.filter(|name| !name.is_empty()) {
        Some(name) => std::str::from_utf8(name).ok().map(Text::from),
        None => Some(name.clone()),
    }
}

/// The resources of these names one by one, with the aliases by which they may have been requested.
fn find_all<'a>(view: &TypeSnapshot, names: impl Iterator<Item = &'a Text>) -> impl Iterator<Item = ResponseItem> {
    names.filter_map(|name| view.find(name)).map(ResponseItem::Single)
}

fn digest(items: &[ResponseItem]) -> Digest {
    let mut digest = Digest::default();
    for item in items {
        digest.join(item.digest());
    }
    digest
}
