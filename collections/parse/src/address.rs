//! Address blocks that the control plane and the agent never fetch JWKS or Wasm modules from.

use std::net::IpAddr;

use ipnet::IpNet;

/// Addresses of cloud metadata services that are not link-local.
const METADATA_BLOCKS: [&str; 2] = ["100.100.100.200/32", "fd00:ec2::/32"];

/// Parses a comma-separated list of CIDR blocks. An entry that is not a block is left out and passed to `invalid`.
pub fn address_blocks(text: &str, mut invalid: impl FnMut(&str)) -> Vec<IpNet> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.filter_map(|part| part.parse().map_err(|_| invalid(part)).ok()).collect()
}

/// The reason why nothing may be fetched from an address; `None` if it is allowed.
#[must_use]
pub fn forbidden_address(address: IpAddr, blocked: &[IpNet]) -> Option<String> {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || (v4.is_multicast() && v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments()[0] & 0xff0f == 0xff02,
    };
    if link_local {
        return Some(format!("{address} is link-local"));
    }
    if METADATA_BLOCKS.iter().filter_map(|block| block.parse::<IpNet>().ok()).any(|block| block.contains(&address)) {
        return Some(format!("{address} is the address of a cloud metadata service"));
    }
    blocked
        .iter()
        .find(|block| block.contains(&address))
        .map(|block| format!("{address} is in {block}, which is blocked"))
}

#[cfg(test)]
mod tests {
    use super::{address_blocks, forbidden_address};

    #[test]
    fn invalid_entries_of_a_block_list_are_reported() {
        let mut invalid = Vec::new();
        let blocks = address_blocks(" 10.0.0.0/8,,nonsense, fd00::/8,10.0.0.1,", |part| invalid.push(part.to_owned()));
        assert_eq!(blocks.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(invalid, ["nonsense", "10.0.0.1"]);
    }

    #[test]
    fn metadata_and_blocked_addresses_are_forbidden() {
        let blocked = ["10.0.0.0/8".parse().expect("a block")];
        let check = |address: &str| forbidden_address(address.parse().expect("an address"), &blocked).is_some();
        for bad in ["169.254.169.254", "::ffff:169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "100.100.100.200"] {
            assert!(check(bad), "{bad}");
        }
        assert!(check("fd00:ec2::254") && check("10.1.2.3") && check("::ffff:10.1.2.3"));
        for good in ["127.0.0.1", "192.168.0.1", "8.8.8.8", "fd00::1", "100.100.100.201"] {
            assert!(!check(good), "{good}");
        }
    }
}
