//! Probes of the kubelet, in the network namespace of the node.
//!
//! The kubelet and forwarded traffic have the same source address in a pod. Connections that a process of the node opens to
//! an enrolled pod therefore get the source address [`NodeSettings::probe_v4`], which the rules of the pod let pass. A
//! forwarded packet has no socket on the node, and keeps its source.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::ambient::NodeSettings;
use crate::apply::{self, ApplyError};
use crate::ruleset::{Hook, Ruleset};

/// The table in the namespace of the node.
pub const TABLE: &str = "istio-ambient-probes";

/// The rules of a node with enrolled pods of these addresses.
#[must_use]
pub fn rules(node: &NodeSettings, addresses: &BTreeSet<IpAddr>) -> Ruleset {
    let mut rules = Ruleset::new(TABLE, node.ipv6);
    let elements = |v6: bool| -> Vec<String> {
        addresses.iter().filter(|address| address.is_ipv6() == v6).map(ToString::to_string).collect()
    };
    rules.set(set("pods-v4", "ipv4_addr", &elements(false)));
    if rules.ipv6() {
        rules.set(set("pods-v6", "ipv6_addr", &elements(true)));
    }
    // An owner matches only packets of a socket of the node. No user has the largest id.
    let probe_v4 = format!("meta l4proto tcp ip daddr @pods-v4 meta skuid != 4294967295 snat ip to {}", node.probe_v4);
    if rules.ipv6() {
        rules.rule(Hook::NatPostrouting, probe_v4);
        let probe_v6 =
            format!("meta l4proto tcp ip6 daddr @pods-v6 meta skuid != 4294967295 snat ip6 to {}", node.probe_v6);
        rules.rule(Hook::NatPostrouting, probe_v6);
    } else {
        rules.rule(Hook::NatPostrouting, probe_v4.replace("snat ip to", "snat to"));
    }
    rules
}

fn set(name: &str, kind: &str, elements: &[String]) -> String {
    let elements =
        if elements.is_empty() { String::new() } else { format!(" elements = {{ {} }};", elements.join(", ")) };
    format!("set {name} {{ type {kind};{elements} }}")
}

/// Replaces the rules in the namespace of the calling thread.
///
/// # Errors
/// `nft` fails.
pub fn replace(node: &NodeSettings, addresses: &BTreeSet<IpAddr>) -> Result<(), ApplyError> {
    apply::nft(&rules(node, addresses).to_string())
}

/// Removes the rules in the namespace of the calling thread.
///
/// # Errors
/// `nft` fails.
pub fn remove() -> Result<(), ApplyError> {
    apply::remove_table(TABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_the_set_of_their_family() {
        let addresses = ["10.0.0.9", "fd00::9", "10.0.0.10"].map(|text| text.parse().expect("an address"));
        let text = rules(&NodeSettings::default(), &addresses.into_iter().collect()).to_string();
        assert!(text.contains("set pods-v4 { type ipv4_addr; elements = { 10.0.0.9, 10.0.0.10 }; }"), "{text}");
        assert!(text.contains("set pods-v6 { type ipv6_addr; elements = { fd00::9 }; }"), "{text}");
        assert!(text.contains("meta skuid != 4294967295 snat ip to 169.254.7.127"), "{text}");
    }

    #[test]
    fn node_without_pods_or_ipv6_has_an_empty_set() {
        let node = NodeSettings { ipv6: false, ..NodeSettings::default() };
        let text = rules(&node, &BTreeSet::new()).to_string();
        assert!(text.contains("set pods-v4 { type ipv4_addr; }"), "{text}");
        assert!(!text.contains("ip6"), "{text}");
    }
}
