//! Wildcard and loopback addresses of listeners.

use envoy_types::pb::envoy::config::listener::v3::AdditionalAddress;
use sluice_model::{IpFamilies, Text};

use crate::address::address;

/// Wildcard addresses, the primary family first.
#[must_use]
pub fn wildcards(families: IpFamilies) -> Vec<Text> {
    by_family(families, "0.0.0.0", "::")
}

/// Loopback addresses, the primary family first.
#[must_use]
pub fn localhosts(families: IpFamilies) -> Vec<Text> {
    by_family(families, "127.0.0.1", "::1")
}

fn by_family(families: IpFamilies, v4: &str, v6: &str) -> Vec<Text> {
    match families {
        IpFamilies::V4 => vec![v4.into()],
        IpFamilies::V6 => vec![v6.into()],
        IpFamilies::Dual => vec![v4.into(), v6.into()],
    }
}

pub(crate) fn additional(binds: &[Text], port: u32) -> Vec<AdditionalAddress> {
    binds
        .iter()
        .filter(|bind| !bind.is_empty())
        .map(|bind| AdditionalAddress { address: Some(address(bind, port)), ..AdditionalAddress::default() })
        .collect()
}
