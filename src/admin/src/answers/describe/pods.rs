//! A pod, and what selects it.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use sluice_model::{
    Kind, Labels, ObjectKey, Pod, Proxy, ProxyKey, ProxyType, Service, ServiceSource, label, match_labels,
};

use super::{MeshFacts, MeshMembership, PodDescription, ServiceDescription, policies, ports, services};
use crate::ambient::workload_of_pod;
use crate::answers::AnswerError;
use crate::answers::names::{did_you_mean, similar};
use crate::answers::proxies::pod_name;

/// Label of the revision of a control plane.
const REVISION: &str = "istio.io/rev";
/// Names in an error.
const MAX_CANDIDATES: usize = 8;

/// A pod with its proxy, if that is connected to this instance.
#[derive(Clone, Debug)]
pub(crate) struct DescribedPod {
    pub(crate) key: ObjectKey,
    pub(crate) pod: Pod,
    pub(crate) proxy: Option<(ProxyKey, Arc<Proxy>)>,
}

impl DescribedPod {
    /// `NAME.NAMESPACE`.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.pod.name, self.pod.namespace)
    }

    /// The labels that policies match: those of the proxy if it is connected.
    pub(crate) fn labels(&self) -> &Labels {
        self.proxy.as_ref().map_or(&self.pod.labels, |(_, proxy)| &proxy.labels)
    }

    /// Whether ztunnel enforces its policies.
    pub(crate) fn is_ambient(&self) -> bool {
        self.membership() == MeshMembership::Ambient
    }

    fn membership(&self) -> MeshMembership {
        match self.proxy.as_ref().map(|(_, proxy)| proxy.proxy_type) {
            Some(ProxyType::Router | ProxyType::Agentgateway) => return MeshMembership::Gateway,
            Some(ProxyType::Waypoint) => return MeshMembership::Waypoint,
            Some(ProxyType::Ztunnel) => return MeshMembership::Ztunnel,
            Some(ProxyType::Sidecar) => return MeshMembership::Sidecar,
            None => {}
        }
        let redirected = self.pod.annotations.get(label::AMBIENT_REDIRECTION);
        if redirected.is_some_and(|word| word.as_str() == "enabled") {
            MeshMembership::Ambient
        } else if self.pod.labels.contains_key(label::TLS_MODE) {
            MeshMembership::Sidecar
        } else if self.pod.labels.contains_key(label::GATEWAY_NAME) {
            MeshMembership::Gateway
        } else {
            MeshMembership::None
        }
    }
}

/// Finds a pod by `POD[.NAMESPACE]`, the beginning of one pod's name, or `deploy/NAME[.NAMESPACE]` for the first pod of a
/// workload.
pub(crate) fn find_pod(facts: &MeshFacts<'_>, text: &str, namespace: &str) -> Result<DescribedPod, AnswerError> {
    let pods: Vec<(&ObjectKey, &Pod)> = facts.snapshot.iter(&facts.state.handles.pods).collect();
    let (kind, name) = text.split_once('/').map_or((None, text), |(kind, name)| (Some(kind), name));
    let (stem, own) = name.rsplit_once('.').unwrap_or((name, namespace));
    let is_here = |pod: &Pod| own.is_empty() || *pod.namespace == *own;
    let find = |fits: &dyn Fn(&Pod) -> bool| {
        pods.iter().filter(|(_, pod)| is_here(pod) && fits(pod)).copied().collect::<Vec<_>>()
    };
    let is_of = |pod: &Pod| *pod.workload_name == *stem;
    let mut found = match kind {
        None | Some("pod" | "pods" | "po") => find(&|pod| *pod.name == *stem),
        Some(_) => find(&is_of).into_iter().take(1).collect(),
    };
    if found.is_empty() && kind.is_none() && !stem.is_empty() {
        found = find(&|pod| pod.name.starts_with(stem));
    }
    let names = || pods.iter().map(|(_, pod)| format!("{}.{}", pod.name, pod.namespace)).collect::<Vec<_>>();
    match found[..] {
        [(key, pod)] => {
            let proxies = facts.state.status.proxies();
            let id = format!("{}.{}", pod.name, pod.namespace);
            let proxy = proxies.into_iter().rev().find(|(_, proxy)| pod_name(proxy) == id);
            Ok(DescribedPod { key: key.clone(), pod: pod.clone(), proxy })
        }
        [] => {
            let known = names();
            let wanted = if own.is_empty() { stem.to_owned() } else { format!("{stem}.{own}") };
            let hint = did_you_mean(&similar(&wanted, known.iter().map(String::as_str)));
            let none = if known.is_empty() { "; this control plane reads no pods" } else { "" };
            Err(AnswerError::NotFound(format!("there is no pod {text:?}{hint}{none}")))
        }
        _ => {
            let candidates =
                found.iter().take(MAX_CANDIDATES).map(|(_, pod)| format!("{}.{}", pod.name, pod.namespace));
            let candidates: Vec<String> = candidates.collect();
            Err(AnswerError::NotFound(format!("{text:?} names several pods: {}", candidates.join(", "))))
        }
    }
}

pub(super) fn describe(facts: &MeshFacts<'_>, found: &DescribedPod) -> PodDescription {
    let DescribedPod { key, pod, proxy } = found;
    let (namespace, labels) = (&pod.namespace, found.labels());
    let services: Vec<ServiceDescription> = selecting(facts, pod)
        .into_iter()
        .map(|service| services::of_service(facts, &service, namespace, labels, &[pod]))
        .collect();
    let of_proxy = proxy.as_ref().map(|(_, proxy)| proxy.revision.clone());
    let revision = pod.labels.get(REVISION).cloned().or(of_proxy).unwrap_or_default();
    // The dataflow knows the Sidecar that was chosen for the proxy.
    let chosen = proxy.as_ref().and_then(|(key, _)| facts.snapshot.get(&facts.state.handles.proxies, key));
    let sidecar = chosen.and_then(|proxy| proxy.sidecar.as_ref().map(|chosen| chosen.scope.sidecar.clone()));
    PodDescription {
        epoch: facts.epoch(),
        pod: found.name(),
        cluster: key.cluster.clone(),
        revision,
        service_account: pod.service_account.clone(),
        running: pod.running && !pod.is_stopping(),
        ready: pod.ready,
        ports: ports::of_pod(pod),
        mesh: found.membership(),
        connected: proxy.is_some(),
        warnings: warnings(found, services.is_empty()),
        services,
        peer_authentication: policies::peer_description(facts, namespace, labels),
        authorization_policies: policies::authorization(facts, namespace, labels),
        request_authentications: policies::tokens(facts, namespace, labels),
        sidecar: sidecar.map(|key| facts.object(Kind::Sidecar, &key)),
        waypoint: waypoint_address(facts, key),
        extensions: policies::extensions(facts, namespace, labels),
    }
}

/// The services that select a pod: Kubernetes Services, and ServiceEntries with a selector.
pub(crate) fn selecting(facts: &MeshFacts<'_>, pod: &Pod) -> Vec<Service> {
    let services = facts.snapshot.iter(&facts.state.handles.services).map(|(_, service)| service);
    let selects = |service: &&Service| {
        service.namespace == pod.namespace
            && !service.selector.is_empty()
            && match_labels(&service.selector, &pod.labels)
            && (service.source == ServiceSource::Kubernetes || facts.state.graph.entries_select_pods)
    };
    services.filter(selects).cloned().collect()
}

/// The waypoint through which a pod is reached, in ambient mode: `NAMESPACE/HOST`, or its address.
pub(crate) fn waypoint_address(facts: &MeshFacts<'_>, key: &ObjectKey) -> Option<String> {
    let workload = workload_of_pod(facts.state, &facts.snapshot, key)?;
    let host = &workload["waypoint"]["hostname"];
    let text = |field: &str| host[field].as_str();
    let address = || {
        let bytes = workload["waypoint"]["address"]["address"].as_str()?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(bytes).ok()?;
        let v4 = <[u8; 4]>::try_from(bytes.as_slice()).ok().map(IpAddr::from);
        v4.or_else(|| <[u8; 16]>::try_from(bytes.as_slice()).ok().map(IpAddr::from)).map(|address| address.to_string())
    };
    text("namespace").zip(text("hostname")).map(|(namespace, name)| format!("{namespace}/{name}")).or_else(address)
}

fn warnings(found: &DescribedPod, is_unselected: bool) -> Vec<String> {
    let DescribedPod { pod, proxy, .. } = found;
    let name = found.name();
    let mut warnings = Vec::new();
    if is_unselected {
        warnings.push(format!("No Kubernetes Services select pod {name}"));
    }
    if !pod.running {
        warnings.push("Pod is not Running".to_owned());
    } else if !pod.ready {
        warnings.push(format!("Pod {name} NOT READY"));
    }
    match found.membership() {
        MeshMembership::None => warnings.push(format!("{name} is not part of mesh; no Istio sidecar")),
        MeshMembership::Sidecar | MeshMembership::Gateway if proxy.is_none() => {
            warnings.push(format!("the proxy of {name} is not connected to this instance of the control plane"));
        }
        _ => {}
    }
    let has_any = |names: &[&str]| names.iter().any(|name| has_label(&pod.labels, name));
    if !has_any(&[label::CANONICAL_NAME, label::APP_NAME, "app"]) {
        warnings.push("no label app names the service for telemetry".to_owned());
    }
    if !has_any(&[label::CANONICAL_REVISION, "app.kubernetes.io/version", "version"]) {
        warnings.push("no label version names the version for telemetry".to_owned());
    }
    warnings
}

fn has_label(labels: &Labels, name: &str) -> bool {
    labels.get(name).is_some_and(|value| !value.is_empty())
}
