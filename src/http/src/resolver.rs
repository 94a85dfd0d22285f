//! DNS resolution without the addresses that the client must not connect to.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use sluice_parse::forbidden_address;

use crate::error::Refusal;

/// The system's resolver without blocked addresses.
pub(crate) struct FilteringResolver {
    pub(crate) blocked: Arc<[IpNet]>,
}

impl Resolve for FilteringResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let blocked = self.blocked.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            // The port is set by the connector.
            let resolved: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let mut refused = "it has no address".to_owned();
            let mut allowed = Vec::with_capacity(resolved.len());
            for address in resolved {
                match forbidden_address(address.ip(), &blocked) {
                    None => allowed.push(address),
                    Some(reason) => refused = reason,
                }
            }
            if allowed.is_empty() {
                let refusal: Box<dyn Error + Send + Sync> = Box::new(Refusal::BlockedAddress { host, reason: refused });
                return Err(refusal);
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Rejects a URL whose host is a blocked address. Such a host is not resolved, so the resolver cannot reject it.
pub(crate) fn check_literal(url: &reqwest::Url, blocked: &[IpNet]) -> Result<(), Refusal> {
    let host = url.host_str().unwrap_or_default();
    let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else { return Ok(()) };
    match forbidden_address(address, blocked) {
        None => Ok(()),
        Some(reason) => Err(Refusal::BlockedAddress { host: host.to_owned(), reason }),
    }
}
