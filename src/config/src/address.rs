//! Addresses to listen on.

use std::fmt;

/// An address to listen on: `HOST:PORT` or `:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListenAddress {
    /// Name or address; empty for all interfaces.
    host: String,
    /// 0 selects a free port.
    port: u16,
}

/// A text that is not an address to listen on. Its text is a lower-case fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddressError {
    /// The address has no port.
    #[error("{0:?} has no port: use HOST:PORT or :PORT")]
    MissingPort(String),
    /// An IPv6 address is not in brackets.
    #[error("{0:?} is an IPv6 address without brackets: use [ADDRESS]:PORT")]
    MissingBrackets(String),
    /// The port is not a number, or too large.
    #[error("{0:?} is not a port: use 0 to 65535")]
    InvalidPort(String),
}

impl ListenAddress {
    /// Parses an address; `None` for an empty text.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Option<Self>, AddressError> {
        if text.is_empty() {
            return Ok(None);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| AddressError::MissingPort(text.to_owned()))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.contains(':') && !text.starts_with('[') {
            return Err(AddressError::MissingBrackets(text.to_owned()));
        }
        // As in istiod, `127.0.0.1:` selects a free port.
        let port = if port.is_empty() { "0" } else { port };
        let port = port.parse().map_err(|_| AddressError::InvalidPort(port.to_owned()))?;
        Ok(Some(Self { host: host.to_owned(), port }))
    }

    /// A port of a host, without brackets around an IPv6 address: `*` for all interfaces. `None` if the host is empty.
    #[must_use]
    pub fn of_host(host: &str, port: u16) -> Option<Self> {
        let all_interfaces = host == "*";
        let bound = if all_interfaces { "" } else { host };
        (all_interfaces || !host.is_empty()).then(|| Self { host: bound.to_owned(), port })
    }

    /// The name or address; empty for all interfaces.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 selects a free one.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ListenAddress;

    #[test]
    fn addresses_are_parsed_and_displayed() {
        let displayed = |text| ListenAddress::parse(text).map(|address| address.map(|address| address.to_string()));
        assert_eq!(displayed(""), Ok(None));
        assert_eq!(displayed(":15010"), Ok(Some(":15010".to_owned())));
        assert_eq!(displayed("127.0.0.1:"), Ok(Some("127.0.0.1:0".to_owned())));
        assert_eq!(displayed("[::1]:80"), Ok(Some("[::1]:80".to_owned())));
        assert!(displayed("15010").is_err());
        assert!(displayed("::1:80").is_err());
        assert!(displayed("localhost:http").is_err());
        assert!(displayed(":70000").is_err());
    }
}
