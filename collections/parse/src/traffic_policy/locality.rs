//! Locality load balancing and its validation.

use std::collections::{BTreeMap, BTreeSet};

use sluice_model::{LocalityDistribute, LocalityLb, Text, ZoneAwareLb, label};

use crate::Fields;

/// Node labels of region, zone and subzone. Regional failover and zone-aware balancing already order endpoints by them.
const TOPOLOGY: [&str; 3] = [label::REGION, label::ZONE, label::SUBZONE];

/// `LocalityLoadBalancerSetting`.
pub(crate) fn locality_lb(fields: &Fields<'_>) -> LocalityLb {
    LocalityLb {
        enabled: fields.opt_bool("enabled"),
        distribute: fields.list("distribute", |distribute| LocalityDistribute {
            from: distribute.text("from"),
            to: weights(distribute),
        }),
        failover: fields.list("failover", failover),
        failover_priority: fields.texts("failoverPriority"),
    }
}

fn weights(fields: &Fields<'_>) -> BTreeMap<Text, u32> {
    let weights = fields.entries("to").filter_map(|(locality, value, path)| {
        let weight = value.as_u64().and_then(|weight| u32::try_from(weight).ok());
        if weight.is_none() {
            fields.findings().error(&path, "expected a weight from 1 to 100");
        }
        Some((locality, weight?))
    });
    weights.collect()
}

fn failover(fields: &Fields<'_>) -> (Text, Text) {
    (fields.text("from"), fields.text("to"))
}

/// `ZoneAwareLoadBalancerSetting`.
pub(crate) fn zone_aware_lb(fields: &Fields<'_>) -> ZoneAwareLb {
    ZoneAwareLb {
        enabled: fields.opt_bool("enabled"),
        failover: fields.list("failover", failover),
        failover_priority: fields.texts("failoverPriority"),
        min_cluster_size: fields.opt_integer("minClusterSize"),
    }
}

/// Records what admission refuses.
pub(crate) fn check_locality_lb(fields: &Fields<'_>, lb: &LocalityLb) {
    let topology = lb.failover_priority.iter().position(|label| TOPOLOGY.contains(&label.as_str()));
    if let (false, Some(n)) = (lb.failover.is_empty(), topology) {
        fields.refuse(
            &format!("failoverPriority[{n}]"),
            "no effect: `failover` already orders endpoints by region, zone and subzone",
        );
    }
    for (n, distribute) in lb.distribute.iter().enumerate() {
        let path = format!("distribute[{n}].to");
        for (locality, weight) in &distribute.to {
            if !(1..=100).contains(weight) {
                fields.refuse(&format!("{path}[{locality}]"), "expected a weight from 1 to 100");
            }
        }
        check_localities(fields, &path, distribute.to.keys());
    }
    check_localities(fields, "distribute", lb.distribute.iter().map(|distribute| &distribute.from));
    check_failover(fields, &lb.failover);
}

/// Records what admission refuses.
pub(crate) fn check_zone_aware_lb(fields: &Fields<'_>, lb: &ZoneAwareLb) {
    for (n, label) in lb.failover_priority.iter().enumerate() {
        if TOPOLOGY.contains(&label.as_str()) {
            let reason = format!("`{label}` has no effect: zone-aware balancing already orders endpoints by it");
            fields.refuse(&format!("failoverPriority[{n}]"), reason);
        }
    }
    if lb.min_cluster_size == Some(0) {
        fields.refuse("minClusterSize", "expected an integer of at least 1");
    }
    for (n, (from, to)) in lb.failover.iter().enumerate().filter(|(_, (from, to))| from == to) {
        fields.refuse(&format!("failover[{n}]"), format!("region `{from}` must not fail over to itself, `{to}`"));
    }
    check_failover(fields, &lb.failover);
}

fn check_failover(fields: &Fields<'_>, failover: &[(Text, Text)]) {
    for (n, (from, to)) in failover.iter().enumerate() {
        for (name, region) in [("from", from), ("to", to)] {
            if region.contains(['/', '*']) {
                fields.refuse(
                    &format!("failover[{n}].{name}"),
                    format!("`{region}` is not a region: it must not contain `/` or `*`"),
                );
            }
        }
    }
}

/// Checks a list of localities, none of which may contain another.
fn check_localities<'t>(fields: &Fields<'_>, path: &str, localities: impl Iterator<Item = &'t Text>) {
    let mut earlier: BTreeSet<Vec<&str>> = BTreeSet::new();
    for locality in localities {
        let parts: Vec<&str> = locality.splitn(3, '/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            fields.refuse(path, format!("`{locality}` is invalid: region, zone and subzone must not be empty"));
        }
        if locality.find('*').is_some_and(|at| at + 1 < locality.len()) {
            fields.refuse(path, format!("`{locality}` is invalid: `*` must be at the end"));
        }
        let own: Vec<&str> = parts.into_iter().take_while(|part| *part != "*").collect();
        let is_within = (0..=own.len()).any(|length| earlier.contains(&own[..length]));
        // Those that begin with `own` follow it in the order.
        let contains = earlier.range(own.clone()..).next().is_some_and(|next| next.starts_with(&own));
        if is_within || contains {
            fields.refuse(path, format!("`{locality}` overlaps another locality"));
        }
        earlier.insert(own);
    }
}
