//! `resolv.conf`: name servers and search domains.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};

/// The settings that the DNS proxy uses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ResolvConf {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) search: Vec<String>,
}

impl ResolvConf {
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?))
    }

    fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // The zone of an address (`fe80::1%eth0`) is ignored.
                    let server = words.next().and_then(|word| word.split('%').next()).and_then(|ip| ip.parse().ok());
                    conf.servers.extend(server.map(|ip: IpAddr| SocketAddr::new(ip, 53)));
                }
                // The last line takes effect.
                Some("search") => {
                    conf.search = words.map(|word| word.trim_end_matches('.').to_ascii_lowercase()).collect();
                }
                _ => {}
            }
        }
        conf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_search_domains_are_parsed() {
        let text = "# comment\nnameserver 10.96.0.10\nsearch a.svc.cluster.local. svc.cluster.local\noptions ndots:5\n\
                    nameserver fd00::a\nnameserver nonsense\n";
        let conf = ResolvConf::parse(text);
        let servers: Vec<_> = conf.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.96.0.10:53", "[fd00::a]:53"]);
        assert_eq!(conf.search, ["a.svc.cluster.local", "svc.cluster.local"]);
    }
}
