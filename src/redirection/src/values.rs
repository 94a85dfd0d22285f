//! Ports, address ranges, interfaces, users and groups as they are configured. Each is valid text for `nft`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A value that is not valid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

impl ValueError {
    /// With a reason.
    #[must_use]
    pub fn new(reason: String) -> Self {
        Self(reason)
    }
}

/// A port or a range of ports: `80`, `8000-8080` or, as iptables writes it, `8000:8080`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl FromStr for Ports {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        let port = |part: &str| {
            part.trim()
                .parse::<u16>()
                .map_err(|_| ValueError(format!("invalid port {text:?}: not a number up to 65535")))
        };
        let (first, last) = match text.split_once([':', '-']) {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(ValueError(format!("invalid ports {text:?}: the first is greater than the last")));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

/// A list, or everything.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Included<T> {
    /// `*`.
    All,
    /// The values; an empty list selects nothing.
    Only(Vec<T>),
}

impl<T: FromStr<Err = ValueError>> Included<T> {
    /// Parses `*` or a comma-separated list.
    ///
    /// # Errors
    /// An item is invalid.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        if text.trim() == "*" { Ok(Self::All) } else { parse_list(text).map(Self::Only) }
    }
}

/// Parses a comma-separated list. Empty items are ignored.
///
/// # Errors
/// An item is invalid.
pub fn parse_list<T: FromStr<Err = ValueError>>(text: &str) -> Result<Vec<T>, ValueError> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::parse).collect()
}

/// A range of addresses: CIDR, or an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range(IpNet);

impl Range {
    /// Whether it is a range of IPv6 addresses.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        matches!(self.0, IpNet::V6(_))
    }

    /// Whether its address is a loopback address.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.0.addr().is_loopback()
    }
}

impl From<IpAddr> for Range {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

impl FromStr for Range {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network
            .map(|network| Self(network.trunc()))
            .map_err(|_| ValueError(format!("invalid range {text:?}: not a CIDR")))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The name of a network interface, or a prefix of names that ends with `+`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Interface(String);

impl FromStr for Interface {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = text.strip_suffix('+').unwrap_or(text);
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        if name.is_empty() || text.len() > 15 || !name.chars().all(valid) {
            return Err(ValueError(format!("invalid interface {text:?}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.strip_suffix('+') {
            Some(prefix) => write!(f, "{prefix}*"),
            None => f.write_str(&self.0),
        }
    }
}

/// A user or a group, by id or by name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner(String);

impl Owner {
    /// By id.
    #[must_use]
    pub fn id(id: u32) -> Self {
        Self(id.to_string())
    }
}

impl FromStr for Owner {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 32 || !text.chars().all(valid) {
            return Err(ValueError(format!("invalid user or group {text:?}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name has to be quoted, an id must not be.
        if self.0.bytes().all(|byte| byte.is_ascii_digit()) {
            f.write_str(&self.0)
        } else {
            write!(f, "\"{}\"", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_wildcards() {
        assert_eq!(Included::<Ports>::parse("*"), Ok(Included::All));
        let ports = parse_list::<Ports>("80, 443,,8000:8080,").expect("ports");
        assert_eq!(ports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["80", "443", "8000-8080"]);
        assert_eq!("10.1.2.3/8".parse::<Range>().expect("a range").to_string(), "10.0.0.0/8");
        assert_eq!("::1".parse::<Range>().expect("a range").to_string(), "::1/128");
    }

    #[test]
    fn text_that_is_not_a_value_never_reaches_nft() {
        for text in ["80;drop", "70000", "9-1", "http"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
        for text in ["eth0\"", "a b", "", "an-interface-too-long", "eth0;"] {
            assert!(text.parse::<Interface>().is_err(), "{text}");
        }
        for text in ["root\"", "", "a b", "1;2"] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
        assert!("10.0.0.0/33".parse::<Range>().is_err());
    }
}
