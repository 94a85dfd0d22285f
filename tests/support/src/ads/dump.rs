//! Everything a server sends to one proxy until no more messages arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use sluice_proto::json::encode_any;
use tonic::transport::Channel;

use super::stream::{AdsStream, Identity, Update};
use super::{Kind, Protocol, follow};
use crate::canonical::{canonical_dump, name_of};

/// The resources of each type in canonical form; `None` for a type without an answer.
pub type Dump = BTreeMap<Kind, Option<Vec<Value>>>;

/// Timeouts of a dump.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time without a message after which a client with every subscribed resource ends.
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
    asked: bool,
    /// Subscribed names; empty is the wildcard.
    names: BTreeSet<String>,
    answered: bool,
    /// Names that the server answered as absent.
    absent: BTreeSet<String>,
    resources: Vec<(String, Value)>,
}

impl Subscription {
    /// Whether every subscribed name is answered.
    fn complete(&self) -> bool {
        let told = |name: &String| self.absent.contains(name) || self.resources.iter().any(|(held, _)| held == name);
        !self.asked || (self.answered && self.names.iter().all(told))
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
            // Two resources of one name in one response are both kept, so that the comparison shows them.
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

/// Connects as `identity`, subscribes `kinds` as a real client does, and returns the resources once no more messages
/// arrive.
/// `names` replace those that follow from other types. ztunnel's types always use delta.
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
    ask(&mut stream, &mut held, names)?;
    loop {
        let settled = held.iter().all(|(kind, held)| held.complete() && (held.asked || may_stay_unasked(*kind)));
        let patience = if settled { limits.settle } else { limits.give_up };
        let patience = patience.min(limits.total.saturating_sub(start.elapsed()));
        let Some(update) = stream.next_within(patience).await? else { break };
        stream.ack(&update)?;
        let Some(kind) = Kind::of_type_url(&update.type_url) else { continue };
        held.get_mut(&kind)
            .with_context(|| format!("{} was not asked for", kind.name()))?
            .apply(kind, protocol, update);
        ask(&mut stream, &mut held, names)?;
    }
    let result = held.into_iter().map(|(kind, held)| {
        // A client without names to subscribe has an empty answer.
        let answered = held.answered || !held.asked;
        let resources = held.resources.into_iter().map(|(_, value)| value).collect();
        (kind, answered.then(|| canonical_dump(resources)))
    });
    Ok(result.collect())
}

/// A type whose names follow from other types may have none.
const fn may_stay_unasked(kind: Kind) -> bool {
    !kind.is_wildcard()
}

/// Subscribes the names that follow from the resources received so far.
fn ask(
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
            for source in follow::named_by(kind) {
                for (_, resource) in held.get(source).map(|h| h.resources.as_slice()).unwrap_or_default() {
                    follow::names(kind, resource, &mut names);
                }
            }
            if names.is_empty() {
                continue;
            }
        }
        // As in Envoy, listeners are requested once clusters are known.
        let clusters_known = held.get(&Kind::Cds).is_none_or(|clusters| clusters.answered);
        if kind == Kind::Lds && !clusters_known {
            continue;
        }
        let Some(held) = held.get_mut(&kind) else { continue };
        if !held.asked || held.names != names {
            held.asked = true;
            let list: Vec<String> = names.iter().cloned().collect();
            held.names = names;
            stream.subscribe(kind.type_url(), &list, BTreeMap::new())?;
        }
    }
    Ok(())
}
