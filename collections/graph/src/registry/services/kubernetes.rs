//! Converts Kubernetes Services to services (S01 to S03).

use sluice_engine::Collection;
use sluice_model::{
    ExportTo, Host, Identity, Kind, KubernetesService, ObjectKey, Resolution, Service, ServicePort, ServiceSource,
    ServiceType, Text, TextMap, TrafficDistribution, is_cluster_local,
};

use super::{DeclaredKey, ServiceDefaults};
use crate::options::GraphOptions;

/// Annotation of a Service or a Namespace.
pub(super) const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";
const EXPORT_TO: &str = "networking.istio.io/exportTo";
const CANONICAL_ACCOUNTS: &str = "alpha.istio.io/canonical-serviceaccounts";
const KUBERNETES_ACCOUNTS: &str = "alpha.istio.io/kubernetes-serviceaccounts";

pub(super) fn derive<'s>(
    services: &Collection<'s, ObjectKey, KubernetesService>,
    defaults: &Collection<'s, (), ServiceDefaults>,
    traffic: &Collection<'s, ObjectKey, Text>,
    options: &GraphOptions,
) -> Collection<'s, DeclaredKey, Service> {
    let (domain, multi_cluster) = (options.domain.clone(), options.multi_cluster);
    services.derive_many("declared_services/kubernetes", |deps| {
        let (defaults, traffic) = (deps.on(defaults), deps.on(traffic));
        move |cx, key, object| {
            let Some(defaults) = cx.get(&defaults, &()) else { return Vec::new() };
            let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
            let traffic = cx.get(&traffic, &namespace).map(|traffic| (*traffic).clone()).unwrap_or_default();
            let mut service = convert(key, object, &defaults, &traffic, &domain);
            if let Some(multi_cluster) = multi_cluster {
                service.needs_export = true;
                service.cluster_local |= multi_cluster.cluster_local;
            }
            vec![(DeclaredKey { kind: Kind::Service, object: key.clone(), host: service.host.clone() }, service)]
        }
    })
}

/// The host of a Kubernetes Service.
pub(crate) fn service_host(name: &str, namespace: &str, domain: &str) -> Host {
    Host::new(&format!("{name}.{namespace}.svc.{domain}"))
}

/// The host of an InferencePool, by which agentgateways refer to it.
pub(crate) fn pool_host(name: &str, namespace: &str, domain: &str) -> Host {
    Host::new(&format!("{name}.{namespace}.inference.{domain}"))
}

fn convert(
    key: &ObjectKey,
    object: &KubernetesService,
    defaults: &ServiceDefaults,
    namespace_traffic: &str,
    domain: &str,
) -> Service {
    let annotation = |name: &str| object.meta.annotations.get(name).filter(|value| !value.is_empty());
    let host = service_host(&key.name, &key.namespace, domain);
    let alias = object.service_type == ServiceType::ExternalName && !object.external_name.is_empty();
    let export_to = match annotation(EXPORT_TO) {
        Some(list) => ExportTo::resolve(&words(list), &key.namespace),
        None => ExportTo::resolve(&defaults.export_to, &key.namespace),
    };
    let mut external: Vec<Text> =
        if object.service_type == ServiceType::LoadBalancer { object.load_balancer.clone() } else { Vec::new() };
    external.extend(object.external_ips.iter().cloned());
    let of_cluster = |addresses: Vec<Text>| -> TextMap<Vec<Text>> {
        if addresses.is_empty() { TextMap::new() } else { [(key.cluster.clone(), addresses)].into() }
    };
    Service {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        source: ServiceSource::Kubernetes,
        cluster: key.cluster.clone(),
        created: object.meta.created,
        addresses: of_cluster(object.cluster_ips.clone()),
        auto_allocated_addresses: Vec::new(),
        external_addresses: of_cluster(external),
        ports: object.ports.iter().map(port).collect(),
        resolution: match () {
            () if object.headless => Resolution::Passthrough,
            () if alias => Resolution::Alias,
            () => Resolution::ClientSideLb,
        },
        mesh_external: alias,
        export_to,
        labels: object.meta.labels.clone(),
        selector: object.selector.clone(),
        subject_alt_names: accounts(key, object, &defaults.trust_domain),
        external_name: alias.then(|| Host::new(&object.external_name)),
        node_local: object.internal_traffic_local,
        publish_not_ready: object.publish_not_ready,
        traffic_distribution: traffic_distribution(object, namespace_traffic),
        races_connects: false,
        covered_by: None,
        needs_export: false,
        cluster_local: is_cluster_local(&defaults.settings, host.as_str(), domain),
        host,
    }
}

fn port(port: &sluice_model::KubernetesServicePort) -> ServicePort {
    ServicePort {
        port: port.port,
        name: port.name.clone(),
        protocol: port.protocol,
        target_port: port.target_port.clone(),
    }
}

/// Words of a comma-separated list.
fn words(list: &str) -> Vec<Text> {
    list.split(',').map(|word| word.trim().into()).collect()
}

fn accounts(key: &ObjectKey, object: &KubernetesService, trust_domain: &str) -> Vec<Text> {
    let list = |name: &str| {
        let list = object.meta.annotations.get(name).filter(|list| !list.is_empty());
        list.into_iter().flat_map(|list| list.split(','))
    };
    let own = list(CANONICAL_ACCOUNTS).map(Text::from);
    let named = list(KUBERNETES_ACCOUNTS).map(|account| spiffe(trust_domain, &key.namespace, account));
    let mut accounts: Vec<Text> = own.chain(named).collect();
    accounts.sort();
    accounts.dedup();
    accounts
}

/// The SPIFFE id of a service account.
pub(crate) fn spiffe(trust_domain: &str, namespace: &str, account: &str) -> Text {
    Identity::new(trust_domain, namespace, account).to_string().into()
}

fn traffic_distribution(object: &KubernetesService, namespace_traffic: &str) -> TrafficDistribution {
    match object.traffic_distribution.as_str() {
        "PreferClose" | "PreferSameZone" => return TrafficDistribution::PreferSameZone,
        "PreferSameNode" => return TrafficDistribution::PreferSameNode,
        _ => {}
    }
    annotated_distribution(object.meta.annotations.get(TRAFFIC_DISTRIBUTION).map(Text::as_str), namespace_traffic)
}

/// By the object's annotation, else by that of its namespace. An unknown value at the object hides the value of its
/// namespace.
pub(super) fn annotated_distribution(own: Option<&str>, namespace: &str) -> TrafficDistribution {
    let word = own.filter(|word| !word.is_empty()).unwrap_or(namespace).to_ascii_lowercase();
    match word.as_str() {
        "preferclose" | "prefersamezone" => TrafficDistribution::PreferSameZone,
        "prefersamenode" => TrafficDistribution::PreferSameNode,
        _ => TrafficDistribution::Any,
    }
}
