//! Domains of the virtual host of a service (N20).

use std::net::IpAddr;

use sluice_model::{Host, Text};

use crate::address::join_port;

/// Inputs of the domains of a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceDomains<'a> {
    /// Its host.
    pub host: &'a Host,
    /// Alias hosts of the service.
    pub aliases: &'a [Host],
    /// Addresses at which the client reaches the service.
    pub addresses: &'a [Text],
    /// Headless Kubernetes Service: its pods have names below its host.
    pub has_pod_names: bool,
    /// Namespace of the client; empty for clients of any namespace.
    pub namespace: &'a str,
    /// Domain of the mesh, such as `cluster.local`.
    pub domain: &'a str,
    /// Port to append; `None` if Envoy ignores the port when it selects the virtual host.
    pub port: Option<u16>,
}

/// Short forms among the domains. A host whose full name is equal to a short form has precedence.
pub type AltHosts = Vec<String>;

/// All domains of a service, and the short forms among them.
#[must_use]
pub fn service_domains(inputs: &ServiceDomains<'_>) -> (Vec<String>, AltHosts) {
    let mut domains = Vec::new();
    let mut all_alt = Vec::new();
    for host in std::iter::once(inputs.host).chain(inputs.aliases) {
        let alt = alt_hosts(host.as_str(), inputs);
        push(&mut domains, host.as_str(), inputs.port);
        domains.extend(alt.iter().cloned());
        all_alt.extend(alt);
    }
    if inputs.has_pod_names {
        let wildcards: Vec<String> = domains.iter().map(|domain| format!("*.{domain}")).collect();
        domains.extend(wildcards);
    }
    for address in inputs.addresses {
        push(&mut domains, address, inputs.port);
    }
    (domains, all_alt)
}

/// A name without and, if `port` is set, with the port. IPv6 addresses are in brackets.
fn push(domains: &mut Vec<String>, name: &str, port: Option<u16>) {
    domains.push(if name.contains(':') { format!("[{name}]") } else { name.into() });
    domains.extend(port.map(|port| join_port(name, u32::from(port))));
}

/// The fully qualified host and, for Kubernetes Services, the short forms that the DNS search path completes.
fn alt_hosts(host: &str, inputs: &ServiceDomains<'_>) -> Vec<String> {
    let mut alt = Vec::new();
    if host.parse::<IpAddr>().is_err() {
        alt.push(format!("{host}."));
    }
    alt.extend(inputs.port.map(|port| join_port(&format!("{host}."), u32::from(port))));
    if !host.ends_with(&format!(".svc.{}", inputs.domain)) {
        return alt;
    }
    let Some((name_and_namespace, _)) = host.split_once(".svc.") else { return alt };
    let Some((name, namespace)) = name_and_namespace.split_once('.') else { return alt };
    let with_svc = format!("{name_and_namespace}.svc");
    if !inputs.namespace.is_empty() && namespace == inputs.namespace {
        push(&mut alt, name, inputs.port);
    }
    push(&mut alt, &with_svc, inputs.port);
    push(&mut alt, name_and_namespace, inputs.port);
    alt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs<'a>(host: &'a Host, namespace: &'a str) -> ServiceDomains<'a> {
        ServiceDomains {
            host,
            aliases: &[],
            addresses: &[],
            has_pod_names: false,
            namespace,
            domain: "cluster.local",
            port: None,
        }
    }

    #[test]
    fn short_names_are_only_for_the_same_namespace() {
        let host = Host::from("a.shop.svc.cluster.local");
        let everywhere = ["a.shop.svc.cluster.local", "a.shop.svc.cluster.local.", "a.shop.svc", "a.shop"];
        assert_eq!(service_domains(&inputs(&host, "")).0, everywhere);
        assert_eq!(service_domains(&inputs(&host, "other")).0, everywhere);
        let own = ["a.shop.svc.cluster.local", "a.shop.svc.cluster.local.", "a", "a.shop.svc", "a.shop"];
        assert_eq!(service_domains(&inputs(&host, "shop")).0, own);
    }

    #[test]
    fn ports_are_appended_for_the_proxy_listener() {
        let host = Host::from("example.com");
        let addresses = [Text::from("10.0.0.1"), Text::from("fd00::1")];
        let inputs = ServiceDomains { port: Some(80), addresses: &addresses, ..inputs(&host, "shop") };
        let expect = [
            "example.com",
            "example.com:80",
            "example.com.",
            "example.com.:80",
            "10.0.0.1",
            "10.0.0.1:80",
            "[fd00::1]",
            "[fd00::1]:80",
        ];
        assert_eq!(service_domains(&inputs).0, expect);
    }

    #[test]
    fn headless_service_has_wildcard_domains_for_pods() {
        let host = Host::from("db.shop.svc.cluster.local");
        let inputs = ServiceDomains { has_pod_names: true, ..inputs(&host, "") };
        let (domains, _) = service_domains(&inputs);
        assert!(domains.contains(&"*.db.shop".to_owned()));
        assert!(domains.contains(&"*.db.shop.svc.cluster.local.".to_owned()));
        assert_eq!(domains.len(), 8);
    }
}
