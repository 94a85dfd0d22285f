//! Slots: the address and port of an outbound listener in one view, and what services put there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_envoy::listener::{Bind, Kind, ListenerKey, Settings, kind, listener_keys, localhosts};
use sluice_model::{
    ExportTo, Host, InterceptionMode, Protocol, Resolution, Service, ServiceKey, ServicePort, Text, Timestamp, View,
};

/// Where an outbound listener is.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Slot {
    pub(super) profile: Text,
    pub(super) view: View,
    /// Its primary address: two services that share it share the listener.
    pub(super) address: Text,
    pub(super) port: u16,
}

impl Slot {
    /// The same place for anybody.
    pub(super) fn base(&self) -> Self {
        Self { view: View::Base, ..self.clone() }
    }
}

/// What one host puts into a slot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct SlotKey {
    pub(super) slot: Slot,
    pub(super) host: Host,
}

/// The age of a service, as far as it decides who was there first: what is shown to some comes before what everyone sees.
type Order = (bool, Timestamp, Text, Text);

/// The hosts of a part of a slot, and what each puts there.
type Hosts = Vec<(Host, Content)>;

/// A service's port in a slot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Share {
    pub(super) order: Order,
    pub(super) kind: Kind,
    pub(super) service: ServiceKey,
    pub(super) port: ServicePort,
    /// All addresses it asks for.
    pub(super) bind: Bind,
    /// The address is a pod's own.
    pub(super) pod: bool,
}

/// A share, or the word that in this view the host has none where others see one.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) enum Content {
    /// The share.
    Share(Share),
    /// None.
    Nothing,
}

/// The shares of a service in the view of one profile. `pods` gives the addresses of its pods.
pub(super) fn shares_of(
    settings: &Settings,
    service: &Service,
    pods: &dyn Fn() -> Vec<Vec<Text>>,
) -> BTreeMap<(Text, u16), Share> {
    let mut shares = BTreeMap::new();
    // Without redirection clients address the proxy itself.
    let asked = if settings.facts.interception == InterceptionMode::None {
        Bind { addresses: localhosts(settings.facts.families), to_port: true }
    } else {
        Bind::default()
    };
    let order = || {
        let everyone = service.export_to == ExportTo::All;
        (everyone, service.created, service.name.clone(), service.namespace.clone())
    };
    for port in &service.ports {
        let Some(kind) = kind(port.protocol) else { continue };
        let per_pod = asked.addresses.is_empty() && kind != Kind::Http && service.resolution == Resolution::Passthrough;
        let addresses = if per_pod { pods() } else { Vec::new() };
        for key in listener_keys(settings, service, port, &asked, &addresses) {
            let pod = per_pod && addresses.contains(&key.bind.addresses);
            let mut port = port.clone();
            if kind == Kind::Http {
                // Only what the listener is written from: most HTTP services of a port then look the same.
                port.name = Text::default();
                port.target_port = Text::default();
                if port.protocol != Protocol::GrpcWeb && port.protocol != Protocol::HttpProxy {
                    port.protocol = Protocol::Http;
                }
            }
            let ListenerKey { bind, port: number } = key;
            let place = (bind.primary().into(), number);
            shares.entry(place).or_insert(Share { order: order(), kind, service: service.key(), port, bind, pod });
        }
    }
    shares
}

/// How many HTTP services of a slot are kept in order: the first decides, the next count where a view hides it.
const KEPT: usize = 4;
/// Into how many groups the HTTP services of a slot are split, so that a change looks only at a part of them.
const GROUPS: u64 = 128;

/// The first HTTP services of each slot, in order.
/// Key: `Slot`. From: `listeners/shares`. Changes when: one of the first services of a port does.
/// Size: HTTP ports × profiles. Rejects: none.
pub(super) fn derive_first_http<'s>(
    shares: &Collection<'s, SlotKey, Content>,
) -> Collection<'s, Slot, Vec<(Host, Content)>> {
    let grouped = shares.index("listeners/http-by-group", |key, content| {
        let http = matches!(content, Content::Share(share) if share.kind == Kind::Http);
        let group = rapidhash::v3::rapidhash_v3(key.host.as_str().as_bytes()) % GROUPS;
        (http || *content == Content::Nothing).then(|| ((key.slot.clone(), group), (key.host.clone(), content.clone())))
    });
    let firsts = grouped.group("listeners/http-firsts", |_, rows: &[(&SlotKey, &(Host, Content))]| {
        Some(first(rows.iter().map(|(_, row)| (*row).clone()).collect()))
    });
    let by_slot = firsts.index("listeners/http-by-slot", |(slot, _), first| [(slot.clone(), first.clone())]);
    by_slot.group("listeners/http", |_, rows: &[(&(Slot, u64), &Hosts)]| {
        Some(first(rows.iter().flat_map(|(_, firsts)| (*firsts).clone()).collect()))
    })
}

/// The first shares in order, and every host that has none: those are few, and each hides a share of others.
fn first(mut rows: Vec<(Host, Content)>) -> Vec<(Host, Content)> {
    rows.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    let shares = rows.iter().filter(|(_, content)| matches!(content, Content::Share(_))).count();
    let nothing = rows.split_off(shares);
    rows.truncate(KEPT);
    rows.extend(nothing);
    rows
}

/// Shares that are not HTTP, and hosts without, by slot.
pub(super) fn index_others<'s>(shares: &Collection<'s, SlotKey, Content>) -> Index<'s, Slot, SlotKey, Content> {
    shares.index("listeners/others-by-slot", |key, content| {
        let other = !matches!(content, Content::Share(share) if share.kind == Kind::Http);
        other.then(|| (key.slot.clone(), content.clone()))
    })
}

/// What is in a slot of a special view: its own shares, and those of everybody that it does not replace.
pub(super) fn overlay(own: Vec<(Host, Content)>, base: Vec<(Host, Content)>) -> Vec<Share> {
    let replaced: BTreeSet<Host> = own.iter().map(|(host, _)| host.clone()).collect();
    let kept = base.into_iter().filter(|(host, _)| !replaced.contains(host));
    let mut shares: Vec<Share> = own
        .into_iter()
        .chain(kept)
        .filter_map(|(_, content)| match content {
            Content::Share(share) => Some(share),
            Content::Nothing => None,
        })
        .collect();
    shares.sort();
    shares
}
