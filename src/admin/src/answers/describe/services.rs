//! A service, and the rules of its clients.

use std::collections::BTreeMap;

use sluice_graph::host_candidates;
use sluice_model::{AmbientService, Labels, ObjectKey, Pod, Service, ServiceSource, Text, match_labels};

use super::{
    MeshFacts, ServiceAnswer, ServiceDescription, destination_rules, gateways, policies, ports, virtual_services,
    waypoint_text,
};
use crate::answers::AnswerError;
use crate::answers::names::{did_you_mean, similar};

/// The service that a name means: `NAME[.NAMESPACE]`, or a host.
pub(super) fn describe(facts: &MeshFacts<'_>, name: &str, namespace: &str) -> Result<ServiceAnswer, AnswerError> {
    let name = name.strip_prefix("svc/").or_else(|| name.strip_prefix("service/")).unwrap_or(name);
    let near = if namespace.is_empty() { "default" } else { namespace };
    let found = host_candidates(name, near, &facts.state.graph.domain)
        .into_iter()
        .find_map(|host| facts.services(&host).into_iter().next());
    let Some(service) = found else {
        let services = facts.snapshot.iter(&facts.state.handles.services).map(|(_, service)| service);
        let known: Vec<String> = services.map(short_name).collect();
        let wanted = if name.contains('.') { name.to_owned() } else { format!("{name}.{near}") };
        let hint = did_you_mean(&similar(&wanted, known.iter().map(String::as_str)));
        return Err(AnswerError::NotFound(format!("there is no service {wanted:?}{hint}")));
    };
    let selects = |pod: &&Pod| {
        pod.namespace == service.namespace
            && !service.selector.is_empty()
            && match_labels(&service.selector, &pod.labels)
    };
    let pods: Vec<&Pod> = facts.snapshot.iter(&facts.state.handles.pods).map(|(_, pod)| pod).filter(selects).collect();
    let mut mutual_tls: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for pod in &pods {
        let peers = policies::peer_description(facts, &pod.namespace, &pod.labels);
        mutual_tls.entry(peers.mode).or_default().push(format!("{}.{}", pod.name, pod.namespace));
    }
    Ok(ServiceAnswer {
        epoch: facts.epoch(),
        pods: pods.iter().map(|pod| format!("{}.{}", pod.name, pod.namespace)).collect(),
        warnings: warnings(&service, &pods),
        // A client of the namespace without labels follows rules without a selector.
        service: of_service(facts, &service, &service.namespace, &Labels::default(), &pods),
        mutual_tls,
    })
}

/// A service as clients of a namespace with these labels see it.
pub(super) fn of_service(
    facts: &MeshFacts<'_>,
    service: &Service,
    namespace: &Text,
    labels: &Labels,
    pods: &[&Pod],
) -> ServiceDescription {
    let of_pods: Vec<&Labels> = pods.iter().map(|pod| &pod.labels).collect();
    let rule = destination_rules::describe(facts, service, (namespace.as_str(), labels), &of_pods);
    let virtual_services = virtual_services::describe(facts, service, namespace, rule.as_ref());
    ServiceDescription {
        service: short_name(service),
        host: service.host.to_string(),
        object: facts.declaring(service),
        ports: ports::of_service(service, pods.first().copied()),
        gateways: gateways::describe(facts, &virtual_services),
        destination_rule: rule,
        virtual_services,
        waypoint: waypoint(facts, service).as_ref().map(waypoint_text),
    }
}

/// `NAME.NAMESPACE`, or the host of a ServiceEntry.
pub(crate) fn short_name(service: &Service) -> String {
    match service.source {
        ServiceSource::Kubernetes => format!("{}.{}", service.name, service.namespace),
        ServiceSource::ServiceEntry => service.host.to_string(),
    }
}

/// The waypoint of a service, in ambient mode.
pub(crate) fn waypoint(facts: &MeshFacts<'_>, service: &Service) -> Option<ObjectKey> {
    let dump = facts.state.engine.dump("ambient_services")?;
    let mut rows = dump.typed::<sluice_model::ServiceKey, AmbientService>();
    let (_, found) = rows.find(|(key, _)| **key == service.key())?;
    found.waypoints.waypoint.clone()
}

fn warnings(service: &Service, pods: &[&Pod]) -> Vec<String> {
    let mut warnings = Vec::new();
    if pods.is_empty() && !service.selector.is_empty() {
        warnings.push(format!("Service {:?} has no pods.", short_name(service)));
    }
    for pod in pods.iter().filter(|pod| !pod.ready) {
        warnings.push(format!("Pod {}.{} NOT READY", pod.name, pod.namespace));
    }
    warnings
}
