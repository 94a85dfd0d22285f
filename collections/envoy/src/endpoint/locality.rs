//! Weights and priorities by locality (N17).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::Locality as EnvoyLocality;
use envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints;
use sluice_model::label::{CLUSTER, NETWORK};
use sluice_model::{Locality, LocalityDistribute, Text, TrafficPolicy};

use super::client::EndpointClient;
use super::group::{EndpointOrigin, Group, weight_of};
use super::inputs::AssignmentInputs;
use super::metadata::label;
use crate::cluster::{LocalityMode, locality_mode};
use crate::wire::uint32;

/// Applies locality weights and priorities for the locality of the client.
pub(super) fn order(
    inputs: &AssignmentInputs<'_>,
    policy: Option<&TrafficPolicy>,
    groups: Vec<Group<'_>>,
) -> Vec<LocalityLbEndpoints> {
    let outlier = policy.is_some_and(|policy| policy.outlier_detection.is_some())
        || (inputs.by_name && inputs.settings.outlier_detection.is_some());
    let lb = policy.and_then(|policy| policy.load_balancer.as_ref());
    let mode = locality_mode(lb, inputs.service, inputs.settings);
    let client = inputs.client;
    let fails_over = mode.fails_over(outlier);
    let prioritised = |groups, order: &[Text]| {
        if order.is_empty() { messages(groups) } else { by_labels(client, groups, order) }
    };
    match mode {
        LocalityMode::Locality { setting, .. } if !setting.distribute.is_empty() => {
            let mut groups = messages(groups);
            distribute(&client.locality, &mut groups, &setting.distribute);
            groups
        }
        LocalityMode::Locality { setting, .. } if fails_over => {
            let mut groups = prioritised(groups, &setting.failover_priority);
            if setting.failover_priority.is_empty() || !setting.failover.is_empty() {
                by_place(&mut groups, 5, |group| distance(&client.locality, group, &setting.failover));
            }
            groups
        }
        LocalityMode::ZoneAware(setting) if fails_over => {
            let mut groups = prioritised(groups, &setting.failover_priority);
            by_place(&mut groups, 3, |group| region_distance(&client.locality, group, &setting.failover));
            groups
        }
        LocalityMode::Off | LocalityMode::Locality { .. } | LocalityMode::ZoneAware(_) => messages(groups),
    }
}

fn messages(groups: Vec<Group<'_>>) -> Vec<LocalityLbEndpoints> {
    groups.into_iter().map(|group| group.message).collect()
}

/// Applies `distribute`. The first matching rule decides; localities without a weight in it lose their endpoints.
fn distribute(client: &Locality, groups: &mut [LocalityLbEndpoints], rules: &[LocalityDistribute]) {
    let Some(rule) = rules.iter().find(|rule| matches(parts(client), &rule.from)) else { return };
    let mut open: BTreeSet<usize> = (0..groups.len()).collect();
    // If several patterns match a locality, the most specific one applies, independent of the order.
    let mut shares: Vec<(&Text, u32)> = rule.to.iter().map(|(to, share)| (to, *share)).collect();
    shares.sort_by_key(|(to, _)| (to.contains('*'), Reverse(to.len()), (*to).clone()));
    for (to, share) in shares {
        let chosen: Vec<usize> = open.iter().copied().filter(|index| matches(parts_of(&groups[*index]), to)).collect();
        let weight = |index: usize| groups[index].load_balancing_weight.as_ref().map_or(1, |weight| weight.value);
        let weights: Vec<u32> = chosen.iter().map(|index| weight(*index)).collect();
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (index, weight) in chosen.into_iter().zip(weights) {
            open.remove(&index);
            let part = (u64::from(weight) * u64::from(share)).div_ceil(total.max(1));
            if part > 0 {
                groups[index].load_balancing_weight = Some(uint32(u32::try_from(part).unwrap_or(u32::MAX)));
            }
        }
    }
    for index in open {
        groups[index].lb_endpoints.clear();
    }
}

/// Applies `failoverPriority`: priorities by the number of leading labels that an endpoint shares with the client. Groups
/// are split by priority.
fn by_labels(client: &EndpointClient, groups: Vec<Group<'_>>, order: &[Text]) -> Vec<LocalityLbEndpoints> {
    let wanted: Vec<(&str, &str)> = order
        .iter()
        .map(|entry| {
            let mut parts = entry.split('=');
            let key = parts.next().unwrap_or_default();
            match (parts.next(), parts.next()) {
                (Some(value), None) => (key, value),
                _ => (key, client.label(key)),
            }
        })
        .collect();
    let mut split = Vec::new();
    for group in groups {
        let mut by_priority: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, origin) in group.origins.iter().enumerate() {
            by_priority.entry(mismatch(&wanted, *origin)).or_default().push(index);
        }
        for (priority, indices) in by_priority {
            let chosen: Vec<_> = indices.into_iter().map(|index| group.message.lb_endpoints[index].clone()).collect();
            let weight = chosen.iter().fold(0u32, |sum, endpoint| sum.saturating_add(weight_of(endpoint)));
            split.push(LocalityLbEndpoints {
                locality: group.message.locality.clone(),
                lb_endpoints: chosen,
                priority: u32::try_from(priority).unwrap_or(u32::MAX),
                load_balancing_weight: Some(uint32(weight)),
                ..LocalityLbEndpoints::default()
            });
        }
    }
    compact(&mut split);
    split
}

/// Distance of an endpoint: 0 if all labels agree, larger the earlier the first difference; the largest for another
/// network.
fn mismatch(wanted: &[(&str, &str)], origin: EndpointOrigin<'_>) -> usize {
    let mut far = 0;
    for (index, (key, value)) in wanted.iter().enumerate() {
        if label_of(origin, key) != *value {
            if index == 0 && *key == NETWORK {
                far = wanted.len();
                continue;
            }
            return wanted.len() - index + far;
        }
    }
    far
}

fn label_of<'a>(origin: EndpointOrigin<'a>, key: &str) -> &'a str {
    match origin {
        EndpointOrigin::Endpoint(endpoint) => label(endpoint, key).unwrap_or_default(),
        EndpointOrigin::Gateway(gateway) => match key {
            CLUSTER => &gateway.cluster,
            NETWORK => &gateway.network,
            _ => "",
        },
    }
}

/// Adds priorities by locality below the existing priorities. `steps` is the number of distances.
fn by_place(groups: &mut [LocalityLbEndpoints], steps: u32, distance: impl Fn(&LocalityLbEndpoints) -> u32) {
    for group in groups.iter_mut() {
        group.priority = group.priority.saturating_mul(steps).saturating_add(distance(group));
    }
    compact(groups);
}

/// Removes gaps between priorities: Envoy requires consecutive priorities from 0.
fn compact(groups: &mut [LocalityLbEndpoints]) {
    let used: BTreeSet<u32> = groups.iter().map(|group| group.priority).collect();
    let rank: BTreeMap<u32, u32> = used.into_iter().zip(0..).collect();
    for group in groups {
        group.priority = rank.get(&group.priority).copied().unwrap_or_default();
    }
}

fn distance(client: &Locality, group: &LocalityLbEndpoints, failover: &[(Text, Text)]) -> u32 {
    let (region, zone, subzone) = parts_of(group);
    if client.region != *region {
        let to = failover.iter().find(|(from, _)| *from == client.region).map(|(_, to)| to);
        return if to.is_some_and(|to| *to != *region) { 4 } else { 3 };
    }
    match (client.zone == *zone, client.subzone == *subzone) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
    }
}

fn region_distance(client: &Locality, group: &LocalityLbEndpoints, failover: &[(Text, Text)]) -> u32 {
    let (region, _, _) = parts_of(group);
    if client.region == *region {
        return 0;
    }
    let to = failover.iter().find(|(from, _)| *from == client.region).map(|(_, to)| to);
    if to.is_some_and(|to| *to == *region) { 1 } else { 2 }
}

fn parts(place: &Locality) -> (&str, &str, &str) {
    (&place.region, &place.zone, &place.subzone)
}

fn parts_of(group: &LocalityLbEndpoints) -> (&str, &str, &str) {
    let none = ("", "", "");
    group.locality.as_ref().map_or(none, |place: &EnvoyLocality| (&place.region, &place.zone, &place.sub_zone))
}

/// Whether a locality matches a pattern `region/zone/subzone`, in which `*` and missing parts match everything.
fn matches((region, zone, subzone): (&str, &str, &str), pattern: &str) -> bool {
    let pattern = Locality::parse(pattern);
    (pattern.region == *"*" || pattern.region == *region)
        && (pattern.zone.is_empty() || pattern.zone == *"*" || pattern.zone == *zone)
        && (pattern.subzone.is_empty() || pattern.subzone == *"*" || pattern.subzone == *subzone)
}
