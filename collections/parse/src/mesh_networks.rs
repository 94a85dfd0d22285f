//! `MeshNetworks` (C17).

use std::net::IpAddr;

use serde_json::Value;
use sluice_model::{MeshNetworks, Network, NetworkEndpoints, NetworkGatewayAddress, NetworkGatewayConfig};

use crate::admission::is_port;
use crate::{Fields, Findings, is_any_case_label, is_fqdn};

/// Parses `MeshNetworks`. Findings have paths below `path`.
#[must_use]
pub fn parse_mesh_networks(value: &Value, path: &str, findings: &Findings) -> MeshNetworks {
    let Some(fields) = Fields::new(value, path, findings) else { return MeshNetworks::default() };
    let networks = fields.entries("networks").filter_map(|(id, value, path)| {
        let fields = Fields::new(value, path, findings)?;
        Some((id, network(&fields)))
    });
    MeshNetworks { networks: networks.collect() }
}

fn network(fields: &Fields<'_>) -> Network {
    let endpoints = fields.objects("endpoints").into_iter().filter_map(|endpoints| {
        match (endpoints.opt_text("fromCidr"), endpoints.opt_text("fromRegistry")) {
            (Some(cidr), _) if cidr.parse::<ipnet::IpNet>().is_ok() => Some(NetworkEndpoints::Cidr(cidr)),
            (Some(cidr), _) => {
                endpoints.reject("fromCidr", format!("{cidr} is not a CIDR block"));
                None
            }
            (None, Some(registry)) => {
                if !is_any_case_label(&registry) {
                    endpoints.refuse("fromRegistry", format!("`{registry}` is not a cluster ID"));
                }
                Some(NetworkEndpoints::Registry(registry))
            }
            (None, None) => None,
        }
    });
    let gateways = fields.objects("gateways").into_iter().filter_map(|gateway| {
        let address = match (gateway.opt_text("registryServiceName"), gateway.opt_text("address")) {
            (Some(host), _) => {
                if !is_fqdn(&host) {
                    gateway.refuse("registryServiceName", format!("`{host}` is not a valid host"));
                }
                NetworkGatewayAddress::RegistryService(host)
            }
            (None, Some(address)) => {
                if address.parse::<IpAddr>().is_err() && !is_fqdn(&address) {
                    gateway.refuse("address", format!("`{address}` is not a host name or an IP address"));
                }
                NetworkGatewayAddress::Address(address)
            }
            (None, None) => {
                gateway.reject("", "`address` or `registryServiceName` is required");
                return None;
            }
        };
        let port = gateway.integer("port");
        if !is_port(port) {
            gateway.refuse("port", "expected a port from 1 to 65535");
        }
        Some(NetworkGatewayConfig { address, port, locality: gateway.text("locality") })
    });
    Network { endpoints: endpoints.collect(), gateways: gateways.collect() }
}
