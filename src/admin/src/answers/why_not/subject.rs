//! What is absent, as people name it.

use std::fmt;

use sluice_model::{Host, Kind, ObjectKey, ResourceType, Text};
use sluice_xds::short_name;

use super::super::names::{ObjectName, object_text, resource_type};
use super::super::resource::{has_segment, locate};
use super::facts::Facts;
use super::found_resource::FoundResource;
use super::{AbsenceReason, endpoints};
use crate::answers::AnswerError;

/// What is absent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Subject {
    /// The clusters of a host: of one port and subset, or of all.
    Host { host: Host, port: Option<u16>, subset: Option<Text> },
    /// The virtual host of a host.
    Route { host: Host, port: Option<u16> },
    /// An address among the endpoints of a host, or of any.
    Endpoint { address: Text, host: Option<Host> },
    /// The effect of an object.
    Object { kind: Kind, key: ObjectKey },
    /// A resource that is not one of a host.
    Resource { kind: ResourceType, name: Text },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, port, subset } => {
                write!(f, "host {host}")?;
                if let Some(port) = port {
                    write!(f, ", port {port}")?;
                }
                subset.as_ref().map_or(Ok(()), |subset| write!(f, ", subset {subset}"))
            }
            Self::Route { host, port: None } => write!(f, "route of {host}"),
            Self::Route { host, port: Some(port) } => write!(f, "route of {host}:{port}"),
            Self::Endpoint { address, host: None } => write!(f, "endpoint {address}"),
            Self::Endpoint { address, host: Some(host) } => write!(f, "endpoint {address} of {host}"),
            Self::Object { kind, key } => f.write_str(&object_text(&kind.name(), &key.namespace, &key.name)),
            Self::Resource { kind, name } => write!(f, "{} {name}", short_name(*kind)),
        }
    }
}

/// Direction, port, subset and host of the name of an outbound cluster.
fn cluster_name(name: &str) -> Option<(u16, &str, &str)> {
    let mut parts = match name.strip_prefix("outbound|") {
        Some(rest) => rest.splitn(3, '|'),
        None => return None,
    };
    Some((parts.next()?.parse().ok()?, parts.next()?, parts.next()?))
}

impl Subject {
    /// Reads a type and a name.
    pub(super) fn parse(facts: &Facts<'_>, kind: &str, name: &str, namespace: &str) -> Result<Self, AnswerError> {
        if kind.eq_ignore_ascii_case("object") {
            return Self::of_object(facts, name, namespace);
        }
        if ["host", "hosts", "service", "services", "svc"].contains(&kind.to_ascii_lowercase().as_str()) {
            let (host, port) = host_and_port(name);
            return Ok(Self::Host { host: facts.host(host, namespace), port, subset: None });
        }
        let resource_type = resource_type(kind)?;
        let of_cluster = cluster_name(name);
        Ok(match (resource_type, of_cluster) {
            (ResourceType::Cluster | ResourceType::Endpoint, Some((port, subset, host))) => {
                let subset = Some(Text::from(subset)).filter(|subset| !subset.is_empty());
                Self::Host { host: Host::new(host), port: Some(port), subset }
            }
            (ResourceType::Cluster, None) if !name.contains('|') && name.contains('.') => {
                let (host, port) = host_and_port(name);
                Self::Host { host: facts.host(host, namespace), port, subset: None }
            }
            (ResourceType::Endpoint, None) if !name.contains('|') => Self::of_endpoint(facts, name, namespace),
            (ResourceType::Route, _) if name.contains('.') && !is_table(facts, name) => {
                let (host, port) = host_and_port(name);
                Self::Route { host: facts.host(host, namespace), port }
            }
            (kind, _) => Self::Resource { kind, name: name.into() },
        })
    }

    fn of_object(facts: &Facts<'_>, name: &str, namespace: &str) -> Result<Self, AnswerError> {
        let default = if namespace.is_empty() { facts.namespace() } else { namespace };
        let object = ObjectName::parse(name, default)?;
        let candidates: Vec<(Kind, ObjectKey)> = facts
            .state
            .cluster_ids()
            .iter()
            .flat_map(|cluster| object.kinds.iter().map(|kind| (*kind, object.key(cluster))))
            .collect();
        let is_read = |(kind, key): &&(Kind, ObjectKey)| facts.read(*kind, key).is_some();
        let found = candidates.iter().find(is_read).or_else(|| candidates.first()).cloned();
        let (kind, key) = found.ok_or_else(|| AnswerError::BadRequest(format!("{name:?} names no object")))?;
        Ok(Self::Object { kind, key })
    }

    /// An address, a pod, or all endpoints of a host.
    fn of_endpoint(facts: &Facts<'_>, name: &str, namespace: &str) -> Self {
        let address = name.parse::<std::net::SocketAddr>().map(|socket| socket.ip());
        if let Ok(address) = address.or_else(|_| name.parse::<std::net::IpAddr>()) {
            return Self::Endpoint { address: address.to_string().into(), host: None };
        }
        let (pod, of) =
            name.rsplit_once('.').unwrap_or((name, if namespace.is_empty() { facts.namespace() } else { namespace }));
        let pods = facts.snapshot.iter(&facts.state.handles.pods);
        let pod = pods.into_iter().find(|(key, _)| *key.name == *pod && *key.namespace == *of);
        match pod.and_then(|(_, pod)| pod.ips.first()) {
            Some(address) => Self::Endpoint { address: address.clone(), host: None },
            None => {
                let (host, port) = host_and_port(name);
                Self::Host { host: facts.host(host, namespace), port, subset: None }
            }
        }
    }

    /// The resources of the proxy that are or contain the subject.
    pub(super) fn resources(&self, facts: &Facts<'_>) -> Vec<FoundResource> {
        let names = |kind| facts.state.status.names(facts.key, kind);
        match self {
            Self::Host { host, port, subset } => {
                let is_of = |name: &str| {
                    cluster_name(name).is_some_and(|(of_port, of_subset, of_host)| {
                        host.as_str() == of_host
                            && port.is_none_or(|port| port == of_port)
                            && subset.as_deref().is_none_or(|subset| subset == of_subset)
                    })
                };
                let clusters = names(ResourceType::Cluster).into_iter().filter(|name| is_of(name));
                clusters.map(|name| FoundResource { kind: ResourceType::Cluster, name, part: String::new() }).collect()
            }
            Self::Route { host, port } => {
                let tables = names(ResourceType::Route).into_iter().filter_map(|name| {
                    let number = name.rsplit(['.', ':']).next().and_then(|number| number.parse::<u16>().ok());
                    let number = number.or(*port)?;
                    let virtual_host = format!("{host}:{number}");
                    let is_port = port.is_none_or(|port| port == number);
                    let has = || {
                        let segment = (ResourceType::Route, &name, virtual_host.as_str());
                        has_segment(&facts.snapshot, &facts.state.handles, facts.key, segment)
                    };
                    (is_port && has()).then(|| {
                        let part = format!("virtualHosts[{virtual_host}]");
                        FoundResource { kind: ResourceType::Route, name: name.clone(), part }
                    })
                });
                tables.collect()
            }
            Self::Endpoint { address, host } => endpoints::assignments(facts, address, host.as_ref()),
            Self::Object { .. } => Vec::new(),
            Self::Resource { kind, name } => {
                let located = locate(&facts.snapshot, &facts.state.handles, facts.key, *kind, name);
                let found = located.map(|_| FoundResource { kind: *kind, name: name.clone(), part: String::new() });
                found.into_iter().collect()
            }
        }
    }

    /// Adds what is wrong with a subject that the proxy has.
    pub(super) fn check_present(&self, facts: &Facts<'_>, findings: &mut Vec<AbsenceReason>) {
        if let Self::Host { host, port, subset } = self {
            endpoints::check_host(facts, host, *port, subset.as_deref(), findings);
        }
    }
}

fn is_table(facts: &Facts<'_>, name: &str) -> bool {
    locate(&facts.snapshot, &facts.state.handles, facts.key, ResourceType::Route, name).is_some()
}

/// A host, and the port after its last colon.
fn host_and_port(text: &str) -> (&str, Option<u16>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (text, None),
        },
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clusters_and_hosts_are_read() {
        assert_eq!(cluster_name("outbound|80|v1|web.shop"), Some((80, "v1", "web.shop")));
        assert_eq!(cluster_name("outbound|80||web.shop"), Some((80, "", "web.shop")));
        for name in ["inbound|80||", "outbound|x||web", "outbound|80|web", "web"] {
            assert_eq!(cluster_name(name), None, "{name}");
        }
        assert_eq!(host_and_port("web.shop:80"), ("web.shop", Some(80)));
        assert_eq!(host_and_port("web.shop"), ("web.shop", None));
        assert_eq!(host_and_port("web:http"), ("web:http", None));
    }
}
