//! Why a host has no endpoints, or an address is not one of them.

use std::collections::BTreeSet;

use sluice_model::{
    Endpoint, EndpointSlice, Health, Host, Kind, ObjectKey, Pod, Resolution, ResourceType, Service, ServiceKey,
    ServiceSource, lb_endpoint, match_labels,
};

use super::super::resource::locate;
use super::facts::Facts;
use super::found_resource::FoundResource;
use super::reach::{followed_rule, reached};
use super::{AbsenceReason, ReasonCode, services};

/// Addresses that a finding lists.
const MAX_ADDRESSES: usize = 5;

/// The endpoints of a service, of any port.
fn endpoints_of(facts: &Facts<'_>, key: &ServiceKey) -> Vec<Endpoint> {
    let handles = &facts.state.handles;
    let listed = facts.snapshot.get(&handles.endpoints, key);
    let chunks = facts.snapshot.iter(&handles.endpoint_chunks).filter(|((group, _), _)| group.service == *key);
    let chunks = chunks.flat_map(|(_, endpoints)| endpoints.iter().cloned());
    listed.iter().flat_map(|endpoints| endpoints.iter().cloned()).chain(chunks).collect()
}

/// The services that have an endpoint with this address, in any state.
fn services_with(facts: &Facts<'_>, address: &str) -> BTreeSet<ServiceKey> {
    let handles = &facts.state.handles;
    let has = |endpoints: &[Endpoint]| {
        endpoints.iter().any(|endpoint| endpoint.addresses.iter().any(|known| known.as_str() == address))
    };
    let listed = facts.snapshot.iter(&handles.endpoints).filter(|(_, endpoints)| has(endpoints));
    let chunks = facts.snapshot.iter(&handles.endpoint_chunks).filter(|(_, endpoints)| has(endpoints));
    listed.map(|(key, _)| key.clone()).chain(chunks.map(|((group, _), _)| group.service.clone())).collect()
}

/// The assignments of the proxy that contain an address.
pub(super) fn assignments(facts: &Facts<'_>, address: &str, host: Option<&Host>) -> Vec<FoundResource> {
    let services = services_with(facts, address);
    let hosts: BTreeSet<&str> = services
        .iter()
        .map(|key| key.host.as_str())
        .filter(|of| host.is_none_or(|host| host.as_str() == *of))
        .collect();
    let is_of_hosts = |kind: ResourceType, name: &str| {
        let host = match kind {
            ResourceType::LbEndpoint => lb_endpoint::outbound_host(name),
            _ => name.rsplit('|').next(),
        };
        host.is_some_and(|host| hosts.contains(host))
    };
    let contains = |kind: ResourceType, name: &str| {
        let located = locate(&facts.snapshot, &facts.state.handles, facts.key, kind, name);
        let json = located.and_then(|located| located.json(&facts.snapshot, &facts.state.handles));
        json.is_some_and(|json| json.to_string().contains(&format!("\"{address}\"")))
    };
    // With LEDS, endpoints are resources of their own.
    let of_kind = |kind: ResourceType| {
        let names = facts.state.status.names(facts.key, kind).into_iter();
        let found = names.filter(move |name| is_of_hosts(kind, name) && contains(kind, name));
        found.map(move |name| FoundResource { kind, name, part: format!("with {address}") }).collect::<Vec<_>>()
    };
    [ResourceType::Endpoint, ResourceType::LbEndpoint].into_iter().flat_map(of_kind).collect()
}

/// Adds the reasons why an address is not among the endpoints that the proxy has.
pub(super) fn check(facts: &Facts<'_>, address: &str, host: Option<&Host>, findings: &mut Vec<AbsenceReason>) {
    let services = services_with(facts, address);
    for key in services.iter().filter(|key| host.is_none_or(|host| *host == key.host)) {
        check_endpoint(facts, address, key, findings);
    }
    if !findings.is_empty() {
        return;
    }
    let slices = facts.all::<EndpointSlice>(Kind::EndpointSlice);
    let of_address = slices.iter().filter(|(_, slice)| {
        slice.endpoints.iter().any(|endpoint| endpoint.addresses.iter().any(|known| known.as_str() == address))
    });
    for (key, slice) in of_address {
        check_slice(facts, address, key, slice, findings);
    }
    if !findings.is_empty() {
        return;
    }
    let pods = facts.snapshot.iter(&facts.state.handles.pods);
    match pods.into_iter().find(|(_, pod)| pod.ips.iter().any(|ip| ip.as_str() == address)) {
        Some((key, pod)) => check_pod(facts, key, pod, findings),
        None => {
            let text = format!("no EndpointSlice, WorkloadEntry, ServiceEntry and no Pod has address {address}");
            findings.push(AbsenceReason::new(ReasonCode::NotDeclared, text));
        }
    }
}

/// A service has the endpoint: why the proxy does not.
fn check_endpoint(facts: &Facts<'_>, address: &str, key: &ServiceKey, findings: &mut Vec<AbsenceReason>) {
    let services = facts.services(&key.host);
    match reached(facts, &services) {
        Some(service) if service.key() == *key => {
            let endpoints = endpoints_of(facts, key);
            let of_address: Vec<&Endpoint> = endpoints
                .iter()
                .filter(|endpoint| endpoint.addresses.iter().any(|known| known.as_str() == address))
                .collect();
            if !service.publish_not_ready && of_address.iter().all(|endpoint| !is_used(endpoint.health)) {
                findings.push(not_ready(facts, &service, &of_address));
            }
            let home = facts.proxy.home_cluster();
            if of_address
                .iter()
                .all(|endpoint| (endpoint.cluster_local || service.cluster_local) && endpoint.cluster != *home)
            {
                let text = format!(
                    "{address} is in another cluster than the proxy, and the service is limited to its own cluster"
                );
                findings.push(AbsenceReason::of(ReasonCode::NotExported, facts.declaring(&service), text));
            }
            let network = |endpoint: &&Endpoint| facts.proxy.network_view.contains(&endpoint.network);
            if !facts.proxy.network_view.is_empty() && !of_address.iter().any(network) {
                let text = format!(
                    "{address} is on a network that the proxy does not request (ISTIO_META_REQUESTED_NETWORK_VIEW)"
                );
                findings.push(AbsenceReason::new(ReasonCode::NotSelected, text));
            }
        }
        _ => services::check(facts, &key.host, None, None, findings),
    }
}

const fn is_used(health: Health) -> bool {
    matches!(health, Health::Healthy | Health::Unknown)
}

/// An EndpointSlice has the address, and no service has it as an endpoint.
fn check_slice(
    facts: &Facts<'_>,
    address: &str,
    key: &ObjectKey,
    slice: &EndpointSlice,
    findings: &mut Vec<AbsenceReason>,
) {
    let object = || facts.object(Kind::EndpointSlice, key);
    let host =
        facts.host_of_service(&ObjectKey::new(key.cluster.clone(), slice.namespace.clone(), slice.service.clone()));
    if facts.services(&host).is_empty() {
        services::check(facts, &host, None, None, findings);
        return;
    }
    let endpoint =
        slice.endpoints.iter().find(|endpoint| endpoint.addresses.iter().any(|known| known.as_str() == address));
    let Some(endpoint) = endpoint else { return };
    if !endpoint.ready {
        let state = if endpoint.terminating { "is terminating" } else { "is not ready" };
        findings.push(AbsenceReason::of(ReasonCode::NoReadyEndpoints, object(), format!("{address} {state}")));
    }
    if endpoint.addresses.first().is_some_and(|first| first.as_str() != address) {
        let text = "only the first address of each endpoint is used".to_owned();
        findings.push(AbsenceReason::of(ReasonCode::Mismatch, object(), text));
    }
}

/// No EndpointSlice has the address of the pod.
fn check_pod(facts: &Facts<'_>, key: &ObjectKey, pod: &Pod, findings: &mut Vec<AbsenceReason>) {
    let object = facts.object(Kind::Pod, key);
    let services = facts.snapshot.iter(&facts.state.handles.services).map(|(_, service)| service);
    let selecting: Vec<&Service> = services
        .filter(|service| *service.namespace == *pod.namespace && !service.selector.is_empty())
        .filter(|service| match_labels(&service.selector, &pod.labels))
        .collect();
    if !pod.ready {
        let text = format!("the pod is not ready (phase Running: {})", pod.running);
        findings.push(AbsenceReason::of(ReasonCode::NoReadyEndpoints, object.clone(), text));
    }
    let text = match selecting.first() {
        None => "no Service of its namespace selects the labels of the pod".to_owned(),
        Some(service) => {
            format!("Service {} selects the pod, and no EndpointSlice of it has its address", service.name)
        }
    };
    let reason = if selecting.is_empty() { ReasonCode::NotSelected } else { ReasonCode::NoEndpoints };
    findings.push(AbsenceReason::of(reason, object, text));
}

/// Adds the reasons why a host that the proxy has a cluster for has no endpoints that are used.
pub(super) fn check_host(
    facts: &Facts<'_>,
    host: &Host,
    port: Option<u16>,
    subset: Option<&str>,
    findings: &mut Vec<AbsenceReason>,
) {
    let services = facts.services(host);
    let Some(service) = reached(facts, &services) else { return };
    if service.resolution != Resolution::ClientSideLb {
        return;
    }
    let port_name = port.and_then(|port| service.port(port)).map(|port| port.name.clone());
    let mut endpoints = endpoints_of(facts, &service.key());
    endpoints.retain(|endpoint| port_name.as_ref().is_none_or(|name| endpoint.port_name == *name));
    if endpoints.is_empty() {
        findings.push(no_endpoints(facts, &service));
        return;
    }
    if !service.publish_not_ready && !endpoints.iter().any(|endpoint| is_used(endpoint.health)) {
        findings.push(not_ready(facts, &service, &endpoints.iter().collect::<Vec<_>>()));
        return;
    }
    let rule = subset.and_then(|_| followed_rule(facts, &service));
    let labels = rule.iter().flat_map(|rule| &rule.subsets).find(|declared| Some(declared.name.as_str()) == subset);
    if let Some(declared) =
        labels.filter(|declared| !endpoints.iter().any(|it| match_labels(&declared.labels, &it.labels)))
    {
        let labels: Vec<String> = declared.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = format!("no endpoint has the labels {} of subset {}", labels.join(","), declared.name);
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, facts.declaring(&service), text));
    }
}

fn not_ready(facts: &Facts<'_>, service: &Service, endpoints: &[&Endpoint]) -> AbsenceReason {
    let texts: BTreeSet<String> = endpoints
        .iter()
        .map(|endpoint| {
            let state = match endpoint.health {
                Health::Unhealthy => "not ready",
                Health::Draining | Health::Terminating => "terminating",
                Health::Healthy | Health::Unknown => "ready",
            };
            format!("{} is {state}", endpoint.addresses.first().map_or("", |address| address.as_str()))
        })
        .collect();
    AbsenceReason::of(
        ReasonCode::NoReadyEndpoints,
        facts.declaring(service),
        format!("none of its endpoints is ready: {}", listed(texts)),
    )
}

fn listed(texts: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.into_iter().collect();
    let more = texts.len().saturating_sub(MAX_ADDRESSES);
    texts.truncate(MAX_ADDRESSES);
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    texts.join(", ")
}

/// A service has no endpoint of any readiness: the reason in its EndpointSlices and Pods.
fn no_endpoints(facts: &Facts<'_>, service: &Service) -> AbsenceReason {
    let object = facts.declaring(service);
    if service.source == ServiceSource::ServiceEntry {
        let text = "it has no endpoints, and its selector matches no WorkloadEntry and no Pod".to_owned();
        return AbsenceReason::of(ReasonCode::NoEndpoints, object, text);
    }
    let slices = facts.all::<EndpointSlice>(Kind::EndpointSlice);
    let of_service: Vec<&EndpointSlice> = slices
        .iter()
        .map(|(_, slice)| slice)
        .filter(|slice| slice.namespace == service.namespace && slice.service == service.name)
        .collect();
    let not_ready: BTreeSet<String> = of_service
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .filter(|endpoint| !endpoint.ready)
        .map(|endpoint| {
            let state = if endpoint.terminating { "terminating" } else { "not ready" };
            format!("{} is {state}", endpoint.addresses.first().map_or("", |address| address.as_str()))
        })
        .collect();
    if !not_ready.is_empty() {
        let text = format!("none of its endpoints is ready: {}", listed(not_ready));
        return AbsenceReason::of(ReasonCode::NoReadyEndpoints, object, text);
    }
    let of_port = of_service.iter().any(|slice| !slice.endpoints.is_empty());
    let pods = facts.snapshot.iter(&facts.state.handles.pods);
    let selected = pods
        .filter(|(_, pod)| pod.namespace == service.namespace && match_labels(&service.selector, &pod.labels))
        .count();
    let text = match (of_service.is_empty(), of_port, service.selector.is_empty(), selected) {
        (_, true, ..) => "its EndpointSlices have no port with the name of this port".to_owned(),
        (true, _, true, _) => "it has no EndpointSlice, and no selector for which one would be made".to_owned(),
        (true, ..) => format!("it has no EndpointSlice; its selector matches {selected} pods"),
        (false, _, true, _) => "its EndpointSlices have no endpoints".to_owned(),
        (false, _, false, selected) => {
            format!("its EndpointSlices have no endpoints; its selector matches {selected} pods")
        }
    };
    AbsenceReason::of(ReasonCode::NoEndpoints, object, text)
}
