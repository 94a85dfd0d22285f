//! Weights and priorities by locality (N17).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sluice_model::label::{CLUSTER, NETWORK};
use sluice_model::{Endpoint, Locality, LocalityDistribute, NetworkGateway, OtherNetworks, Text, TrafficPolicy};

use super::client::EndpointClient;
use super::group::GroupFrame;
use super::inputs::AssignmentInputs;
use super::metadata::label;
use super::networks::TunnelTarget;
use crate::address::join_port;
use crate::cluster::{LocalityMode, locality_mode};

/// The rules by which an assignment is split into groups, weighted and prioritized.
pub(super) struct LocalityRules<'a> {
    client: &'a EndpointClient,
    policy: Option<TrafficPolicy>,
    rule: LocalityRule,
    /// The destination inside of two tunnels, if gateways of other networks are reached so.
    tunnel_target: Option<TunnelTarget>,
}

enum LocalityRule {
    /// Neither weights nor priorities depend on the client.
    None,
    /// Shares by locality, the most specific pattern first.
    Distribute(Vec<(Text, u32)>),
    /// Priorities: by labels if there are any, then by place.
    FailOver { labels: Vec<(Text, Text)>, by_place: Option<PlaceDistance> },
}

/// The distance of a locality.
struct PlaceDistance {
    /// Number of distances.
    steps: u32,
    failover: Vec<(Text, Text)>,
    of: fn(&Locality, &Locality, &[(Text, Text)]) -> u32,
}

impl<'a> LocalityRules<'a> {
    pub(super) fn new(inputs: &AssignmentInputs<'a>) -> Self {
        let policy = inputs.rule.and_then(|rule| rule.policy(inputs.subset, inputs.port.port));
        let outlier = policy.as_ref().is_some_and(|policy| policy.outlier_detection.is_some())
            || (inputs.by_name && inputs.settings.outlier_detection.is_some());
        let lb = policy.as_ref().and_then(|policy| policy.load_balancer.as_ref());
        let mode = locality_mode(lb, inputs.service, inputs.settings);
        let client = inputs.client;
        let fails_over = mode.fails_over(outlier);
        let rule = match mode {
            LocalityMode::Locality { setting, .. } if !setting.distribute.is_empty() => {
                shares(&client.locality, &setting.distribute).map_or(LocalityRule::None, LocalityRule::Distribute)
            }
            LocalityMode::Locality { setting, .. } if fails_over => {
                let places = setting.failover_priority.is_empty() || !setting.failover.is_empty();
                let failover = setting.failover.clone();
                LocalityRule::FailOver {
                    labels: wanted_labels(client, &setting.failover_priority),
                    by_place: places.then_some(PlaceDistance { steps: 5, failover, of: distance }),
                }
            }
            // A waypoint has no zone-aware routing.
            LocalityMode::ZoneAware(setting) if fails_over && !client.waypoint => LocalityRule::FailOver {
                labels: wanted_labels(client, &setting.failover_priority),
                by_place: Some(PlaceDistance { steps: 3, failover: setting.failover.clone(), of: region_distance }),
            },
            LocalityMode::Off | LocalityMode::Locality { .. } | LocalityMode::ZoneAware(_) => LocalityRule::None,
        };
        let by_tunnels = client.other_networks == OtherNetworks::Tunnels;
        let target = || TunnelTarget {
            service: join_port(inputs.service.host.as_str(), u32::from(inputs.port.port)),
            selects_socket: !client.waypoint,
        };
        Self { client, policy, rule, tunnel_target: by_tunnels.then(target) }
    }

    /// Without weights and priorities by the place of the client.
    pub(super) fn without_places(self) -> Self {
        Self { rule: LocalityRule::None, ..self }
    }

    /// The policy of the rule for the port or subset.
    pub(super) fn policy(&self) -> Option<&TrafficPolicy> {
        self.policy.as_ref()
    }

    /// The destination inside of two tunnels, if gateways of other networks are reached so.
    pub(super) fn tunnel_target(&self) -> Option<&TunnelTarget> {
        self.tunnel_target.as_ref()
    }

    /// Whether groups are split by labels.
    pub(super) fn splits_by_labels(&self) -> bool {
        !self.labels().is_empty()
    }

    /// The rank of an endpoint in its locality.
    pub(super) fn rank(&self, endpoint: &Endpoint) -> usize {
        mismatch(self.labels(), |key| label(endpoint, key).unwrap_or_default())
    }

    /// The rank of a gateway.
    pub(super) fn rank_of_gateway(&self, gateway: &NetworkGateway) -> usize {
        mismatch(self.labels(), |key| match key {
            CLUSTER => gateway.cluster.as_str(),
            NETWORK => gateway.network.as_str(),
            _ => "",
        })
    }

    fn labels(&self) -> &[(Text, Text)] {
        match &self.rule {
            LocalityRule::FailOver { labels, .. } => labels,
            LocalityRule::None | LocalityRule::Distribute(_) => &[],
        }
    }

    /// Whether traffic goes to a locality: with `distribute`, localities without a share lose their endpoints.
    pub(super) fn sends_to(&self, place: &Locality) -> bool {
        match &self.rule {
            LocalityRule::Distribute(shares) => shares.iter().any(|(to, _)| matches(place, to)),
            LocalityRule::None | LocalityRule::FailOver { .. } => true,
        }
    }

    /// Sets weights and priorities of all groups of an assignment. A group's priority is its rank before.
    pub(super) fn apply(&self, groups: &mut [GroupFrame]) {
        match &self.rule {
            LocalityRule::None => {}
            LocalityRule::Distribute(shares) => distribute(groups, shares),
            LocalityRule::FailOver { labels, by_place } => {
                if !labels.is_empty() {
                    compact(groups);
                }
                if let Some(PlaceDistance { steps, failover, of }) = by_place {
                    for group in groups.iter_mut() {
                        let distance = of(&self.client.locality, &group.key.place, failover);
                        group.priority = group.priority.saturating_mul(*steps).saturating_add(distance);
                    }
                    compact(groups);
                }
            }
        }
    }
}

/// The shares of the first rule that matches the client. If several patterns match a locality, the most specific one
/// applies, independent of the order.
fn shares(client: &Locality, rules: &[LocalityDistribute]) -> Option<Vec<(Text, u32)>> {
    let rule = rules.iter().find(|rule| matches(client, &rule.from))?;
    let mut shares: Vec<(Text, u32)> = rule.to.iter().map(|(to, share)| (to.clone(), *share)).collect();
    shares.sort_by_key(|(to, _)| (to.contains('*'), Reverse(to.len()), to.clone()));
    Some(shares)
}

/// Splits the share of each pattern by the weights of the groups that match it.
fn distribute(groups: &mut [GroupFrame], shares: &[(Text, u32)]) {
    let mut open: BTreeSet<usize> = (0..groups.len()).collect();
    for (to, share) in shares {
        let chosen: Vec<usize> = open.iter().copied().filter(|index| matches(&groups[*index].key.place, to)).collect();
        let weights: Vec<u32> = chosen.iter().map(|index| groups[*index].weight.unwrap_or(1)).collect();
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (index, weight) in chosen.into_iter().zip(weights) {
            open.remove(&index);
            let part = (u64::from(weight) * u64::from(*share)).div_ceil(total.max(1));
            if part > 0 {
                groups[index].weight = Some(u32::try_from(part).unwrap_or(u32::MAX));
            }
        }
    }
}

/// The labels of `failoverPriority` with the values that the client wants.
fn wanted_labels(client: &EndpointClient, order: &[Text]) -> Vec<(Text, Text)> {
    let wanted = |entry: &Text| {
        let mut parts = entry.split('=');
        let key = parts.next().unwrap_or_default();
        match (parts.next(), parts.next()) {
            (Some(value), None) => (key.into(), value.into()),
            _ => (key.into(), client.label(key).into()),
        }
    };
    order.iter().map(wanted).collect()
}

/// Distance by labels: 0 if all agree, larger the earlier the first difference; the largest for another network.
fn mismatch<'v>(wanted: &[(Text, Text)], label_of: impl Fn(&str) -> &'v str) -> usize {
    let mut far = 0;
    for (index, (key, value)) in wanted.iter().enumerate() {
        if label_of(key) != value.as_str() {
            if index == 0 && **key == *NETWORK {
                far = wanted.len();
                continue;
            }
            return wanted.len() - index + far;
        }
    }
    far
}

/// Removes gaps between priorities: Envoy requires consecutive priorities from 0.
fn compact(groups: &mut [GroupFrame]) {
    let used: BTreeSet<u32> = groups.iter().map(|group| group.priority).collect();
    let rank: BTreeMap<u32, u32> = used.into_iter().zip(0..).collect();
    for group in groups {
        group.priority = rank.get(&group.priority).copied().unwrap_or_default();
    }
}

fn distance(client: &Locality, place: &Locality, failover: &[(Text, Text)]) -> u32 {
    if client.region != place.region {
        let to = failover.iter().find(|(from, _)| *from == client.region).map(|(_, to)| to);
        return if to.is_some_and(|to| *to != place.region) { 4 } else { 3 };
    }
    match (client.zone == place.zone, client.subzone == place.subzone) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
    }
}

fn region_distance(client: &Locality, place: &Locality, failover: &[(Text, Text)]) -> u32 {
    if client.region == place.region {
        return 0;
    }
    let to = failover.iter().find(|(from, _)| *from == client.region).map(|(_, to)| to);
    if to.is_some_and(|to| *to == place.region) { 1 } else { 2 }
}

/// Whether a locality matches a pattern `region/zone/subzone`, in which `*` and missing parts match everything.
fn matches(place: &Locality, pattern: &str) -> bool {
    let pattern = Locality::parse(pattern);
    (pattern.region == *"*" || pattern.region == place.region)
        && (pattern.zone.is_empty() || pattern.zone == *"*" || pattern.zone == place.zone)
        && (pattern.subzone.is_empty() || pattern.subzone == *"*" || pattern.subzone == place.subzone)
}
