//! What to send next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use sluice_model::{ResourceType, Text};
use sluice_proto::wire::contents;

use super::holds::Holds;
use super::watch::Watch;
use super::{PATIENCE, Session};
use crate::xds::request::{Protocol, Response};
use crate::xds::store::{Cut, Entry, Item, View};
use crate::xds::version::{Digest, Version};

/// Changed clusters from which on all endpoints are sent anew, if they are most.
const MANY: usize = 1024;

/// What there is to do about a type.
pub(super) enum Planned {
    /// Send this.
    Send(Box<Response>),
    /// There are changes, but the client has not answered the last response.
    Blocked,
    /// Nothing to send.
    Nothing,
}

/// What differs between what a client holds and what it should hold.
#[derive(Default)]
struct Differences {
    items: Vec<Item>,
    removed: BTreeSet<Text>,
    /// Everything is in `items`, not only what differs.
    complete: bool,
}

impl Session {
    pub(super) fn plan(&mut self, kind: ResourceType, cut: &Cut, now: Instant) -> Planned {
        let Some(watch) = self.watches.get(kind) else { return Planned::Nothing };
        let Some(view) = cut.view(kind) else { return Planned::Nothing };
        let is_secret = kind == ResourceType::Secret;
        if is_secret && !cut.knows(kind) {
            // Whether the proxy may have any is not decided yet.
            return Planned::Nothing;
        }
        let dirty = watch.sent.as_ref().is_none_or(|sent| !sent.is_same(view));
        if !dirty && watch.leaving.is_empty() && !watch.is_asked() {
            return Planned::Nothing;
        }
        let busy = self.successors_busy(cut, now);
        let fills_tables = kind == ResourceType::Route && self.has_all_hosts();
        let Some(watch) = self.watches.get_mut(kind) else { return Planned::Nothing };
        if !dirty && busy && !watch.is_asked() {
            return Planned::Nothing;
        }
        let answers = watch.is_asked();
        if watch.outstanding && !answers {
            let until = watch.sent_at.map_or(now, |sent| sent + PATIENCE);
            if now < until {
                self.retry_at = Some(self.retry_at.map_or(until, |at| at.min(until)));
                return Planned::Blocked;
            }
        }
        let on_demand = watch.is_on_demand();
        if on_demand {
            watch.resolve(view, &self.names);
        }
        if kind.is_by_prefix() {
            watch.resolve_wholes(view);
        }
        let mut differences = watch.differences(view);
        if on_demand {
            differences.removed.retain(|name| view.known_as(name).is_empty());
            Watch::add_aliases(view, &mut differences.items);
        }
        watch.keep_leaving(view, &mut differences, busy);
        if is_secret {
            self.unserved.extend(differences.removed.iter().cloned());
        }
        // Of secrets nothing is said until there is one: Envoy waits, and keeps what it has when one goes.
        let answer = watch.answer && !is_secret;
        let had_all = differences.complete;
        let changed = match (kind, had_all) {
            (ResourceType::Cluster, false) => differences.items.iter().flat_map(assignments).collect(),
            _ => Vec::new(),
        };
        let items = match self.protocol {
            Protocol::Delta => differences.items,
            Protocol::Sotw if kind.is_wildcard() => {
                if differences.items.is_empty() && differences.removed.is_empty() && !answer && !had_all {
                    Vec::new()
                } else {
                    let mut items = if had_all { differences.items } else { watch.listing(view) };
                    items.extend(watch.leaving.values().cloned().map(Item::One));
                    differences.complete = true;
                    items
                }
            }
            Protocol::Sotw => differences.items,
        };
        let unresolved = watch.take_unresolved(view, &mut differences.removed);
        let removed = match (self.protocol, kind) {
            (Protocol::Sotw, _) | (_, ResourceType::ExtensionConfig) => Vec::new(),
            (_, ResourceType::Secret) if items.is_empty() => Vec::new(),
            (Protocol::Delta, _) => differences.removed.into_iter().collect(),
        };
        let whole = self.protocol == Protocol::Sotw && kind.is_wildcard() && differences.complete;
        let new_tables = if fills_tables { watch.new_tables(&items) } else { BTreeSet::new() };
        let before = watch.sent.replace(view.clone());
        watch.asked.clear();
        watch.asked_all = false;
        watch.answer = false;
        watch.holds = Holds::default();
        // pilot-agent, whose types these are, overlooks a response without resources and never acknowledges it.
        let is_overlooked = matches!(kind, ResourceType::NameTable | ResourceType::ProxyConfig);
        let says_nothing = removed.is_empty() && unresolved.is_empty() && !answer && !whole;
        if items.is_empty() && (is_overlooked || says_nothing) {
            return Planned::Nothing;
        }
        watch.is_ahead_of(before);
        watch.outstanding = true;
        watch.sent_at = Some(now);
        watch.sent_nonce = self.responses + 1;
        let nonce = self.next_nonce();
        self.new_tables.extend(new_tables);
        if kind == ResourceType::Cluster {
            self.force_endpoints(had_all, changed);
        }
        let version = match self.protocol {
            Protocol::Sotw => digest(&items).version().to_string(),
            Protocol::Delta => cut.epoch.to_string(),
        };
        let since = if answers { None } else { self.since };
        let type_url = kind.type_url().into();
        let kind = Some(kind);
        Planned::Send(Box::new(Response { kind, type_url, nonce, version, items, removed, unresolved, since }))
    }

    /// A cluster that changes is warmed anew and waits for its endpoints, though the client asks for none it has (X07, X08).
    fn force_endpoints(&mut self, all: bool, mut changed: Vec<Text>) {
        let Some(endpoints) = self.watches.get_mut(ResourceType::Endpoint) else { return };
        if endpoints.sent.is_none() {
            return;
        }
        changed.retain(|name| endpoints.wants(name));
        // Thousands of names, kept for each of thousands of clients, cost more than to send the few others too.
        let most = changed.len() >= MANY && changed.len() * 2 >= endpoints.names.len();
        if all || most {
            endpoints.asked_all = true;
        } else {
            endpoints.asked.extend(changed);
        }
    }

    /// Whether listeners or routes are on their way that may replace references to clusters.
    fn successors_busy(&self, cut: &Cut, now: Instant) -> bool {
        [ResourceType::Listener, ResourceType::Route, ResourceType::VirtualHost].iter().any(|kind| {
            let Some(watch) = self.watches.get(*kind) else { return false };
            let waiting = watch.outstanding && watch.sent_at.is_some_and(|sent| now < sent + PATIENCE);
            let dirty = match (&watch.sent, cut.view(*kind)) {
                (Some(sent), Some(view)) => !sent.is_same(view),
                _ => false,
            };
            waiting || dirty
        })
    }
}

impl Watch {
    /// Everything the client wants.
    fn listing(&self, view: &View) -> Vec<Item> {
        if self.is_on_demand() {
            return self.pick(view, self.names.iter());
        }
        if self.by_parts() {
            return view.listing_by(|| Box::new(|name| self.wants(name)));
        }
        view.listing((!self.wildcard).then_some(&self.names))
    }

    /// Whether it wants the parts of what it names.
    fn by_parts(&self) -> bool {
        self.kind.is_by_prefix() && !self.wildcard
    }

    /// Names that were asked for and of which there is nothing.
    fn missing(&self, view: &View, items: &[Item]) -> BTreeSet<Text> {
        let mut missing: BTreeSet<Text> =
            self.names.iter().filter(|name| view.version(name).is_none()).cloned().collect();
        if self.kind.is_by_prefix() && !missing.is_empty() {
            // A whole is there if some part of it is.
            for (name, _) in items.iter().flat_map(Item::versions) {
                if let Some((whole, _)) = name.rsplit_once('/') {
                    missing.remove(whole);
                }
            }
        }
        missing
    }

    /// What to tell a client so that it holds what `view` has.
    fn differences(&self, view: &View) -> Differences {
        let mut out = Differences::default();
        if (self.asked_all || self.sent.is_none()) && !self.holds_all(view) {
            let listing = self.listing(view);
            let listed: usize = listing.iter().map(Item::count).sum();
            if self.kind.is_by_prefix() || listed < self.names.len() {
                out.removed = self.missing(view, &listing);
            }
            if self.holds.is_empty() {
                out.complete = true;
                out.items = listing;
            } else {
                self.compare_with_held(view, listing, &mut out);
            }
        }
        let changed = match &self.sent {
            Some(sent) if !sent.is_same(view) => view.changed_since(sent),
            _ => Arc::default(),
        };
        let mut differing = Vec::new();
        for name in changed.iter().filter(|name| self.wants(name) && !self.asked.contains(*name)) {
            let before = self.held_version(name);
            let after = view.version(name);
            if after.is_none() && before.is_some() {
                out.removed.insert(name.clone());
            } else if after != before {
                differing.push(name);
            }
        }
        out.removed.extend(self.asked.iter().filter(|name| view.version(name).is_none()).cloned());
        if !out.complete {
            out.items.extend(self.pick(view, differing.into_iter()));
            out.items.extend(self.pick(view, self.asked.iter()));
        }
        out
    }

    /// The resources of these names, which are in order.
    fn pick<'a>(&self, view: &View, names: impl Iterator<Item = &'a Text>) -> Vec<Item> {
        // These say by which other name each was asked for.
        if self.is_on_demand() {
            return names.filter_map(|name| view.find(name)).map(Item::One).collect();
        }
        view.pick(names)
    }

    /// Whether what the client brought from an earlier stream is just what it wants. No resource is written for that.
    fn holds_all(&self, view: &View) -> bool {
        if self.holds.is_empty() || self.is_on_demand() || self.by_parts() {
            return false;
        }
        let (count, digest) = view.digest((!self.wildcard).then_some(&self.names));
        // What it names and is not there has to be told.
        let complete = self.wildcard || count == self.names.len();
        complete && count == self.holds.len() && digest == self.holds.digest()
    }

    /// Compares with what the client brought from an earlier stream.
    fn compare_with_held(&self, view: &View, listing: Vec<Item>, out: &mut Differences) {
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
            out.removed.extend(holds.keys().filter(|name| view.version(name).is_none()).map(|name| Text::from(*name)));
        }
    }

    /// The version the client holds, by what it was told.
    fn held_version(&self, name: &str) -> Option<Version> {
        match self.leaving.get(name) {
            Some(found) => Some(found.version),
            None => self.sent.as_ref().and_then(|sent| sent.version(name)),
        }
    }

    /// Keeps removals back while something may still refer to what is removed, and lets them go afterwards.
    fn keep_leaving(&mut self, view: &View, differences: &mut Differences, busy: bool) {
        if !matches!(self.kind, ResourceType::Cluster | ResourceType::Endpoint) {
            return;
        }
        // What has come back was sent, or is as the client still has it.
        self.leaving.retain(|name, _| view.version(name).is_none());
        if busy {
            let keep: Vec<Text> =
                differences.removed.iter().filter(|name| !self.asked.contains(*name)).cloned().collect();
            for name in keep {
                let held =
                    self.leaving.get(&name).cloned().or_else(|| self.sent.as_ref().and_then(|sent| sent.find(&name)));
                if let Some(found) = held {
                    self.leaving.insert(name.clone(), found);
                    differences.removed.remove(&name);
                }
            }
        } else {
            differences.removed.extend(std::mem::take(&mut self.leaving).into_keys());
        }
    }
}

/// The names by which clusters ask for their endpoints, of those that do.
fn assignments(clusters: &Item) -> Vec<Text> {
    match clusters {
        Item::Stretch { chunk, rows } => {
            let shared = |(name, entry): &(Text, Entry)| assignment(name, entry.shared()?.1);
            chunk.rows()[rows.clone()].iter().filter_map(shared).collect()
        }
        Item::One(found) => assignment(&found.name, &found.bytes()).into_iter().collect(),
    }
}

fn assignment(name: &Text, cluster: &[u8]) -> Option<Text> {
    const EDS_CLUSTER_CONFIG: u32 = 3;
    const SERVICE_NAME: u32 = 2;
    let config = contents(cluster, EDS_CLUSTER_CONFIG).next()?;
    let service = contents(config, SERVICE_NAME).next();
    match service.filter(|name| !name.is_empty()) {
        Some(name) => std::str::from_utf8(name).ok().map(Text::from),
        None => Some(name.clone()),
    }
}

fn digest(items: &[Item]) -> Digest {
    let mut digest = Digest::default();
    for item in items {
        digest.join(item.digest());
    }
    digest
}
