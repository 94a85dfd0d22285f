//! The addresses of a service, by route profile.

use std::net::IpAddr;

use serde::Serialize;
use sluice_model::{IpFamilies, OutboundTraffic, Proxy, ProxyConfig, Service, ServiceSource, Text};

/// The facts of a proxy that change its routes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouteProfile {
    /// The cluster it runs in: a service may have an address in each.
    pub(crate) cluster: Text,
    /// Address families it can use.
    pub(crate) ip_families: IpFamilies,
    /// It uses the allocated addresses of services without addresses.
    pub(crate) auto_allocated: bool,
    /// The header configuration of the proxy; `None` is that of the mesh.
    pub(crate) headers: Option<RouteHeaders>,
    /// It has an HTTP proxy listener of its own.
    pub(crate) http_proxy: bool,
    /// The policy of its Sidecar for unknown hosts; `None` is that of the mesh.
    pub(crate) outbound: Option<OutboundTraffic>,
    /// It gets virtual hosts by VHDS.
    pub(crate) virtual_hosts: bool,
    /// It is a gRPC client without an Envoy.
    pub(crate) grpc: bool,
}

/// Headers proxies add to requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RouteHeaders {
    /// The attempt count is not sent upstream.
    pub(crate) attempt_count_disabled: bool,
    /// `x-forwarded-host` is appended when the authority is rewritten.
    pub(crate) append_x_forwarded_host: bool,
}

impl RouteHeaders {
    /// Those of a proxy configuration.
    #[must_use]
    pub(crate) fn of(config: &ProxyConfig) -> Self {
        let headers = config.proxy_headers.as_ref();
        Self {
            attempt_count_disabled: headers.is_some_and(|headers| headers.attempt_count_disabled == Some(true)),
            append_x_forwarded_host: headers.is_some_and(|headers| headers.x_forwarded_host_enabled == Some(true)),
        }
    }
}

impl RouteProfile {
    /// The profile of a proxy.
    #[must_use]
    pub(crate) fn of(proxy: &Proxy) -> Self {
        let shared = Self {
            cluster: proxy.shared_location().cluster,
            ip_families: proxy.ip_families,
            auto_allocated: proxy.uses_allocated_addresses(),
            headers: proxy.config.as_deref().map(RouteHeaders::of),
            ..Self::default()
        };
        // A gRPC client has no HTTP proxy listener, and no routes to unknown hosts.
        if proxy.grpc {
            return Self { grpc: true, ..shared };
        }
        Self {
            http_proxy: proxy.http_proxy_port > 0,
            outbound: proxy.sidecar.as_ref().and_then(|sidecar| sidecar.outbound.clone()),
            virtual_hosts: proxy.virtual_hosts,
            ..shared
        }
    }
}

/// The addresses at which a client of that profile reaches a service, the primary one first; none if it has none.
///
/// Unless `dual_stack` is on, a client with both families uses only the family of the service's first address.
#[must_use]
pub(crate) fn addresses_for(service: &Service, profile: &RouteProfile, dual_stack: bool) -> Vec<Text> {
    let own = service.addresses.get(&profile.cluster).filter(|addresses| !addresses.is_empty());
    let own = match own {
        Some(addresses) => addresses.as_slice(),
        None if profile.auto_allocated => service.auto_allocated_addresses.as_slice(),
        None => &[],
    };
    let is_v6 = |address: &Text| address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
    let v6_only = match profile.ip_families {
        IpFamilies::V4 => Some(false),
        IpFamilies::V6 => Some(true),
        IpFamilies::Dual if dual_stack => None,
        IpFamilies::Dual => own.first().map(is_v6),
    };
    let usable = |address: &&Text| {
        let known = address.parse::<IpAddr>().is_ok_and(|address| !address.is_unspecified());
        known && v6_only.is_none_or(|v6| v6 == is_v6(address))
    };
    let usable_own: Vec<Text> = own.iter().filter(usable).cloned().collect();
    if !usable_own.is_empty() {
        return usable_own;
    }
    let declared = service.addresses.get(&service.cluster).or_else(|| service.addresses.values().next());
    let Some(first) = declared.and_then(|addresses| addresses.first()) else { return Vec::new() };
    // The address of a ServiceEntry need not be reachable; that of a Service must be.
    let is_fit = service.source == ServiceSource::ServiceEntry || usable(&first);
    if is_fit { vec![first.clone()] } else { Vec::new() }
}
