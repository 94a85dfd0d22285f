//! Blocks of addresses, and those that nothing is fetched from, whatever an object names: keys of tokens, Wasm modules.

use std::net::IpAddr;

use ipnet::IpNet;

/// Where clouds keep metadata and credentials of machines, beside what is link-local.
const METADATA: [&str; 2] = ["100.100.100.200/32", "fd00:ec2::/32"];

/// The blocks of a list with commas. What is no block is left out and told of.
pub fn address_blocks(text: &str, mut wrong: impl FnMut(&str)) -> Vec<IpNet> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.filter_map(|part| part.parse().map_err(|_| wrong(part)).ok()).collect()
}

/// Why an address must not be asked; `None` if it may.
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
    if METADATA.iter().filter_map(|block| block.parse::<IpNet>().ok()).any(|block| block.contains(&address)) {
        return Some(format!("{address} is where a cloud keeps metadata"));
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
    fn lists_hold_blocks_and_what_is_none_is_told() {
        let mut wrong = Vec::new();
        let blocks = address_blocks(" 10.0.0.0/8,,nonsense, fd00::/8,10.0.0.1,", |part| wrong.push(part.to_owned()));
        assert_eq!(blocks.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(wrong, ["nonsense", "10.0.0.1"]);
    }

    #[test]
    fn metadata_of_machines_is_out_of_bounds() {
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
