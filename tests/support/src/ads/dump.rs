//! Receives the resources that a server sends to one proxy, until no more messages arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_proto::json::encode_any;
use tonic::transport::Channel;

use super::stream::{AdsStream, Identity, Update};
use super::{Kind, Protocol, follow};
use crate::canonical::{canonical_dump, name_of};

/// The resources of each type in canonical form; `None` for a type that the server did not answer.
pub type Dump = BTreeMap<Kind, Option<Vec<Value>>>;

/// Timeouts of a dump.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time without a message after which a client that has every subscribed resource ends.
    pub settle: Duration,
    /// Time without a message after which it ends although a subscribed resource is missing.
    pub give_up: Duration,
    /// Longest time in total.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(60),
            give_up: Duration::from_millis(1_500),
            total: Duration::from_secs(20),
        }
    }
}

/// The subscription of one type, and the resources received for it.
#[derive(Default)]
struct Subscription {
    /// A request was sent.
    requested: bool,
    /// Subscribed names; empty is the wildcard.
    names: BTreeSet<String>,
    answered: bool,
    /// Names that the server reported as absent.
    absent: BTreeSet<String>,
    resources: Vec<(String, Value)>,
}

impl Subscription {
    /// Whether every subscribed name is answered.
    fn complete(&self) -> bool {
        let is_answered =
            |name: &String| self.absent.contains(name) || self.resources.iter().any(|(held, _)| held == name);
        !self.requested || (self.answered && self.names.iter().all(is_answered))
    }

    fn apply(&mut self, kind: Kind, protocol: Protocol, update: Update) {
        self.answered = true;
        if protocol == Protocol::Sotw && kind.is_full_state() {
            self.resources.clear();
        }
        let mut fresh = BTreeSet::new();
        for (name, _, any) in update.resources {
            let value = encode_any(&any.type_url, &any.value);
            let name = if name.is_empty() { name_of(&value) } else { name };
            // Two resources with one name in a response are both kept, so that the comparison shows them.
            match self.resources.iter_mut().find(|(held, _)| *held == name && !fresh.contains(held)) {
                Some((_, held)) => *held = value,
                None => self.resources.push((name.clone(), value)),
            }
            self.absent.remove(&name);
            fresh.insert(name);
        }
        for name in update.removed {
            self.resources.retain(|(held, _)| *held != name);
            self.absent.insert(name);
        }
    }
}

/// Connects as `identity`, subscribes to `kinds` as a real client does, and returns the resources when no more messages
/// arrive. `names` replace the names to which resources of other types refer. ztunnel's types always use delta.
///
/// # Errors
/// The stream cannot be opened or ends early.
pub async fn dump(
    channel: Channel,
    protocol: Protocol,
    identity: Identity,
    kinds: &[Kind],
    names: &BTreeMap<Kind, Vec<String>>,
    limits: Limits,
) -> Result<Dump> {
    let wds = |kind: &&Kind| matches!(kind, Kind::WdsAddress | Kind::WdsAuthz);
    let protocol = if kinds.iter().any(|kind| wds(&kind)) { Protocol::Delta } else { protocol };
    let mut stream = AdsStream::open(channel, protocol, identity)?;
    let mut held: BTreeMap<Kind, Subscription> = kinds.iter().map(|kind| (*kind, Subscription::default())).collect();
    let start = Instant::now();
    subscribe_to_referenced_names(&mut stream, &mut held, names)?;
    loop {
        let settled =
            held.iter().all(|(kind, held)| held.complete() && (held.requested || may_have_no_subscription(*kind)));
        let timeout = if settled { limits.settle } else { limits.give_up };
        let timeout = timeout.min(limits.total.saturating_sub(start.elapsed()));
        let Some(update) = stream.next_within(timeout).await? else { break };
        stream.ack(&update)?;
        let Some(kind) = Kind::of_type_url(&update.type_url) else { continue };
        held.get_mut(&kind)
            .with_context(|| format!("the client is not subscribed to {}", kind.name()))?
            .apply(kind, protocol, update);
        subscribe_to_referenced_names(&mut stream, &mut held, names)?;
    }
    let result = held.into_iter().map(|(kind, held)| {
        // For a type without names to subscribe to, the result is empty.
        let answered = held.answered || !held.requested;
        let resources = held.resources.into_iter().map(|(_, value)| value).collect();
        (kind, answered.then(|| canonical_dump(resources)))
    });
    Ok(result.collect())
}

/// Whether a type may stay without a subscription: its names are those to which other resources refer.
const fn may_have_no_subscription(kind: Kind) -> bool {
    !kind.is_wildcard()
}

/// Subscribes to the names to which the resources received so far refer.
fn subscribe_to_referenced_names(
    stream: &mut AdsStream,
    held: &mut BTreeMap<Kind, Subscription>,
    given: &BTreeMap<Kind, Vec<String>>,
) -> Result<()> {
    let kinds: Vec<Kind> = held.keys().copied().collect();
    for kind in kinds {
        let mut names = BTreeSet::new();
        if let Some(given) = given.get(&kind) {
            names.extend(given.iter().cloned());
            if names.is_empty() && !kind.is_wildcard() {
                continue;
            }
        } else if !kind.is_wildcard() {
            for source in follow::referring_kinds(kind) {
                for (_, resource) in held.get(source).map(|h| h.resources.as_slice()).unwrap_or_default() {
                    follow::names(kind, resource, &mut names);
                }
            }
            if names.is_empty() {
                continue;
            }
        }
        // As Envoy does, listeners are requested after clusters have arrived.
        let has_clusters = held.get(&Kind::Cds).is_none_or(|clusters| clusters.answered);
        if kind == Kind::Lds && !has_clusters {
            continue;
        }
        let Some(held) = held.get_mut(&kind) else { continue };
        if !held.requested || held.names != names {
            held.requested = true;
            let list: Vec<String> = names.iter().cloned().collect();
            held.names = names;
            stream.subscribe(kind.type_url(), &list, BTreeMap::new())?;
        }
    }
    Ok(())
}
