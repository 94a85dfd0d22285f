//! The groups of an assignment without their endpoints: from the sums over all endpoints.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint;

use super::group::GroupFrame;
use super::locality::LocalityRules;
use super::networks::{gateway_endpoint, tunnel_endpoint};
use super::totals::{AssignmentTotals, GroupKey, GroupTotals};

/// The groups of an assignment in order.
pub(super) fn frames(rules: &LocalityRules<'_>, totals: &AssignmentTotals) -> Vec<GroupFrame> {
    let mut frames = Vec::new();
    for (place, totals) in &totals.0 {
        let mut groups: BTreeMap<usize, (GroupTotals, Vec<LbEndpoint>, u32)> =
            totals.groups.iter().map(|(rank, totals)| (*rank, (*totals, Vec::new(), totals.weight))).collect();
        if !rules.splits_by_labels() {
            // The locality exists even without endpoints.
            groups.entry(0).or_default();
        }
        for (gateway, weight) in &totals.gateways {
            let (_, gateways, sum) = groups.entry(rules.rank_of_gateway(gateway)).or_default();
            let weight = (*weight).max(1);
            gateways.push(match rules.tunnel_target() {
                Some(target) => tunnel_endpoint(gateway, target, weight),
                None => gateway_endpoint(gateway, weight),
            });
            *sum = sum.saturating_add(weight);
        }
        frames.extend(groups.into_iter().map(|(rank, (totals, gateways, sum))| GroupFrame {
            key: GroupKey { place: place.clone(), rank },
            priority: u32::try_from(rank).unwrap_or(u32::MAX),
            weight: (totals.endpoints + gateways.len() > 0).then_some(sum),
            gateways: if rules.sends_to(place) { gateways } else { Vec::new() },
            totals,
        }));
    }
    rules.apply(&mut frames);
    frames
}
