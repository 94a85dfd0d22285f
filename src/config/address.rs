//! Addresses to listen on.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{fmt, io};

use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// An address to listen on: `HOST:PORT` or `:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListenAddress {
    /// Name or address; empty for every interface.
    host: String,
    /// 0 picks a free port.
    port: u16,
}

impl ListenAddress {
    /// Parses an address; `None` for an empty text.
    ///
    /// # Errors
    /// What is wrong and what is accepted, a lower-case fragment.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let (host, port) =
            text.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port: use HOST:PORT or :PORT"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.contains(':') && !text.starts_with('[') {
            return Err(format!("{text:?} is an IPv6 address without brackets: use [ADDRESS]:PORT"));
        }
        // As in istiod, `127.0.0.1:` picks a free port.
        let port = if port.is_empty() { "0" } else { port };
        let port = port.parse().map_err(|_| format!("{port:?} is not a port: use 0 to 65535"))?;
        Ok(Some(Self { host: host.to_owned(), port }))
    }

    /// Binds it. Every interface means IPv6 and IPv4 where there is IPv6, else IPv4.
    ///
    /// # Errors
    /// The operating system refuses, or the name has no address.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        if self.host.is_empty() {
            let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port));
            return match listen(wildcard) {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.port)))
                }
                bound => bound,
            };
        }
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in lookup_host((self.host.as_str(), self.port)).await? {
            match listen(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// Length of the accept queue: all proxies of a mesh can connect at once. The kernel limits it to `net.core.somaxconn`;
/// further connections are retried by their clients after a second.
const BACKLOG: u32 = 65_535;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As in std: a restarted server can bind the port of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
    fn addresses_are_read_and_shown() {
        let shown = |text| ListenAddress::parse(text).map(|address| address.map(|address| address.to_string()));
        assert_eq!(shown(""), Ok(None));
        assert_eq!(shown(":15010"), Ok(Some(":15010".to_owned())));
        assert_eq!(shown("127.0.0.1:"), Ok(Some("127.0.0.1:0".to_owned())));
        assert_eq!(shown("[::1]:80"), Ok(Some("[::1]:80".to_owned())));
        assert!(shown("15010").is_err());
        assert!(shown("::1:80").is_err());
        assert!(shown("localhost:http").is_err());
        assert!(shown(":70000").is_err());
    }

    #[tokio::test]
    async fn more_connect_at_once_than_std_lets_wait() {
        let address = ListenAddress::parse("127.0.0.1:0").expect("an address").expect("one");
        let listener = address.bind().await.expect("bound");
        let to = listener.local_addr().expect("an address");
        let waiting =
            (0..200).map(|_| std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(500)));
        assert_eq!(waiting.filter_map(Result::ok).count(), 200, "no connection is accepted, and all wait");
    }
}
