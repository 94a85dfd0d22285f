//! Slots: the address and port of an outbound listener in one view, and the ports of services that share it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_envoy::listener::{BindAddress, ListenerKey, PortProtocol, listener_keys, localhosts, port_protocol};
use sluice_envoy::listener_settings::ListenerSettings;
use sluice_model::{
    ExportTo, Host, InterceptionMode, Protocol, Resolution, Service, ServiceKey, ServicePort, Text, Timestamp, View,
};

use crate::traffic::sidecars::EgressListener;
use crate::views::sidecar_view;

/// The address, port, view and profile of an outbound listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Slot {
    pub(super) profile: Text,
    pub(super) view: View,
    /// Its primary address: two services with the same primary address share the listener.
    pub(super) address: Text,
    pub(super) port: u16,
}

impl Slot {
    /// The same slot in the base view.
    pub(super) fn base(&self) -> Self {
        Self { view: View::Base, ..self.clone() }
    }

    /// The same slot in the view below.
    pub(super) fn below(&self) -> Option<Self> {
        match &self.view {
            View::Base => None,
            View::Sidecar { labels, .. } if labels.is_empty() => None,
            View::Sidecar { scope, .. } => Some(Self { view: sidecar_view(scope), ..self.clone() }),
            _ => Some(self.base()),
        }
    }
}

/// The key of the content that one host has in a slot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct SlotKey {
    pub(super) slot: Slot,
    pub(super) host: Host,
}

/// The precedence of a service: services exported to listed namespaces come before those exported to all, then older
/// ones.
type ServiceOrder = (bool, Timestamp, Text, Text);

/// The content of several hosts in one slot.
type HostContents = Vec<(Host, SlotContent)>;

/// A port of a service in a slot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct Share {
    /// Index of the Sidecar's egress listener that declares it: the first one keeps the address.
    pub(super) listener: usize,
    pub(super) order: ServiceOrder,
    pub(super) kind: PortProtocol,
    pub(super) service: ServiceKey,
    pub(super) port: ServicePort,
    /// All its addresses.
    pub(super) bind: BindAddress,
    /// The address is the pod's own.
    pub(super) pod: bool,
}

/// A share, or the absence of a share that the base view has.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) enum SlotContent {
    /// The share.
    Share(Share),
    /// The host has no share in this view.
    Nothing,
}

/// The address and port that an egress listener of a Sidecar declares; the default declares nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct EgressBinding<'a> {
    pub(super) at: usize,
    pub(super) listener: Option<&'a EgressListener>,
}

impl EgressBinding<'_> {
    fn bind(&self, settings: &ListenerSettings) -> BindAddress {
        // Without interception clients connect to the proxy itself.
        let to_port = settings.profile.interception == InterceptionMode::None
            || self.listener.is_some_and(|listener| listener.to_port);
        let declared = self.listener.map(|listener| &listener.bind).filter(|bind| !bind.is_empty());
        let addresses = match declared {
            Some(bind) => vec![bind.clone()],
            None if to_port => localhosts(settings.profile.families),
            None => Vec::new(),
        };
        BindAddress { addresses, to_port }
    }

    /// The declared port, which replaces the service's.
    fn port(&self) -> Option<ServicePort> {
        let declared = self.listener?.port.as_ref()?;
        Some(ServicePort {
            port: declared.number,
            name: declared.name.clone(),
            protocol: declared.protocol,
            target_port: Text::default(),
        })
    }
}

/// The shares of a service in the view of one profile. `pods` gives the addresses of its pods.
pub(super) fn shares_of(
    settings: &ListenerSettings,
    service: &Service,
    egress: EgressBinding<'_>,
    pods: &dyn Fn() -> Vec<Vec<Text>>,
) -> BTreeMap<(Text, u16), Share> {
    let mut shares = BTreeMap::new();
    let binding = egress.bind(settings);
    let declared = egress.port();
    let order = || {
        let by_age = egress.listener.is_some_and(|listener| listener.only_exact);
        let everyone = !by_age && service.export_to == ExportTo::All;
        (everyone, service.created, service.name.clone(), service.namespace.clone())
    };
    let ports = declared.as_ref().map_or(service.ports.as_slice(), std::slice::from_ref);
    for port in ports {
        let Some(kind) = port_protocol(port.protocol) else { continue };
        let headless =
            binding.addresses.is_empty() && kind != PortProtocol::Http && service.resolution == Resolution::Passthrough;
        let per_pod = headless && declared.is_none();
        let addresses = if per_pod { pods() } else { Vec::new() };
        let pod_addresses = declared.is_none().then_some(addresses.as_slice());
        for key in listener_keys(settings, service, port, &binding, pod_addresses) {
            let pod = per_pod && addresses.contains(&key.bind.addresses);
            let mut port = port.clone();
            if kind == PortProtocol::Http {
                // Keep only the fields that the listener is built from, so that most HTTP services of a port are equal.
                port.name = Text::default();
                port.target_port = Text::default();
                if port.protocol != Protocol::GrpcWeb && port.protocol != Protocol::HttpProxy {
                    port.protocol = Protocol::Http;
                }
            }
            let ListenerKey { bind, port: number } = key;
            let place = (bind.primary().into(), number);
            let listener = egress.at;
            shares.entry(place).or_insert(Share {
                listener,
                order: order(),
                kind,
                service: service.key(),
                port,
                bind,
                pod,
            });
        }
    }
    shares
}

/// How many HTTP services of a slot are kept in order: the first decides, the next ones are used where a view hides it.
const KEPT: usize = 4;
/// Number of groups of the HTTP services of a slot: a change recomputes only one group.
const GROUPS: u64 = 128;

/// The first HTTP services of each slot, in order.
/// Key: `Slot`. From: `listeners/shares`. Changes when: one of the first services of a port does.
/// Size: HTTP ports × profiles. Rejects: none.
pub(super) fn derive_first_http<'s>(
    shares: &Collection<'s, SlotKey, SlotContent>,
) -> Collection<'s, Slot, Vec<(Host, SlotContent)>> {
    let grouped = shares.index("listeners/http-by-group", |key, content| {
        let http = matches!(content, SlotContent::Share(share) if share.kind == PortProtocol::Http);
        let group = rapidhash::v3::rapidhash_v3(key.host.as_str().as_bytes()) % GROUPS;
        (http || *content == SlotContent::Nothing)
            .then(|| ((key.slot.clone(), group), (key.host.clone(), content.clone())))
    });
    let first_services = grouped.group("listeners/http-firsts", |_, rows: &[(&SlotKey, &(Host, SlotContent))]| {
        Some(first(rows.iter().map(|(_, row)| (*row).clone()).collect()))
    });
    let by_slot = first_services.index("listeners/http-by-slot", |(slot, _), first| [(slot.clone(), first.clone())]);
    by_slot.group("listeners/http", |_, rows: &[(&(Slot, u64), &HostContents)]| {
        Some(first(rows.iter().flat_map(|(_, first_services)| (*first_services).clone()).collect()))
    })
}

/// The first shares in order, and every absence: absences are few, and each hides a share of the base view.
fn first(mut rows: Vec<(Host, SlotContent)>) -> Vec<(Host, SlotContent)> {
    rows.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    let shares = rows.iter().filter(|(_, content)| matches!(content, SlotContent::Share(_))).count();
    let nothing = rows.split_off(shares);
    rows.truncate(KEPT);
    rows.extend(nothing);
    rows
}

/// Shares that are not HTTP, and absences, by slot.
pub(super) fn index_others<'s>(shares: &Collection<'s, SlotKey, SlotContent>) -> Index<'s, Slot, SlotKey, SlotContent> {
    shares.index("listeners/others-by-slot", |key, content| {
        let other = !matches!(content, SlotContent::Share(share) if share.kind == PortProtocol::Http);
        other.then(|| (key.slot.clone(), content.clone()))
    })
}

/// The content of a slot in a special view: its own shares, and those of the view below that it does not replace.
pub(super) fn overlay(own: Vec<(Host, SlotContent)>, base: Vec<(Host, SlotContent)>) -> Vec<Share> {
    let replaced: BTreeSet<Host> = own.iter().map(|(host, _)| host.clone()).collect();
    let kept = base.into_iter().filter(|(host, _)| !replaced.contains(host));
    let mut shares: Vec<Share> = own
        .into_iter()
        .chain(kept)
        .filter_map(|(_, content)| match content {
            SlotContent::Share(share) => Some(share),
            SlotContent::Nothing => None,
        })
        .collect();
    shares.sort();
    // Only the first egress listener that declares an address keeps it.
    let first = shares.first().map(|share| share.listener);
    shares.retain(|share| Some(share.listener) == first);
    shares
}
