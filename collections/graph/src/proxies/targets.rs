//! The services that a proxy is part of, which its inbound listeners serve.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::{
    Endpoint, Host, Kind, KubernetesService, Labels, ObjectKey, Pod, Protocol, Proxy, ProxyKey, Service, ServiceKey,
    ServicePort, Text, match_labels,
};

use super::connected::{ProxyPods, cluster_of};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::endpoints::{
    AddressKey, DeclaredEndpoints, SelectedKey, SelectedWorkloads, ServiceSlice, Slices, workload_port,
};
use crate::registry::services::{DeclaredKey, imported_host, service_host};
use crate::registry::workloads::{WorkloadInstance, WorkloadInstanceKey, WorkloadInstances};

/// A port of a service, and the port of the workload that serves it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ServiceTarget {
    /// The service.
    pub service: ServiceKey,
    /// Its port.
    pub port: ServicePort,
    /// The port of the workload; 0 for a socket.
    pub target_port: u32,
    /// The path of the workload's socket, if it listens at one.
    pub socket: Option<Text>,
}

/// Inputs of the derivation of the targets of a proxy.
pub(crate) struct TargetInputs<'a, 's> {
    pub(crate) objects: &'a ObjectCollections<'s>,
    pub(crate) declared: &'a Collection<'s, DeclaredKey, Service>,
    pub(crate) instances: &'a WorkloadInstances<'s>,
    pub(crate) slices: &'a Slices<'s>,
    pub(crate) endpoints: &'a DeclaredEndpoints<'s>,
    pub(crate) selected: &'a SelectedWorkloads<'s>,
}

/// The service targets of each proxy: of the Services that select its WorkloadEntry or pod (until the pod is read, the
/// labels of its node metadata count), of their imports if it has a pod, and of ServiceEntries of its namespace that have its
/// address.
/// Key: `ProxyKey`. From: `proxies`, `pods`, `kubernetes_services`, `declared_services`, `workload_instances`,
/// `slice_endpoints`, `selected_endpoints`, `declared_endpoints`.
/// Changes when: its pod's labels or ports do, or a service that selects it; not when endpoints do.
/// Size: connected proxies. Rejects: none.
pub(crate) fn derive_service_targets<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    inputs: &TargetInputs<'_, 's>,
    options: &GraphOptions,
) -> Collection<'s, ProxyKey, Vec<ServiceTarget>> {
    // A Service is found by one label of its selector.
    let by_selector = inputs.objects.kubernetes_services.index("services/by-selector", |key, service| {
        let label = service.selector.iter().next();
        label.map(|(label, value)| {
            ((key.cluster.clone(), key.namespace.clone(), label.clone(), value.clone()), service.clone())
        })
    });
    let by_address = inputs.endpoints.endpoints.index("declared_endpoints/by-address", |key, endpoints| {
        let addresses: BTreeSet<&Text> = endpoints.iter().filter_map(|endpoint| endpoint.addresses.first()).collect();
        let at = |address: &Text| (key.object.namespace.clone(), address.clone());
        addresses.into_iter().map(|address| (at(address), ())).collect::<Vec<_>>()
    });
    // Each workload has one address.
    let selected = inputs.selected.endpoints.index("selected_endpoints/by-address", |(key, _), found| {
        let endpoints = found.endpoints.first().filter(|_| key.kind == Kind::ServiceEntry);
        let address = endpoints.and_then(|endpoint| endpoint.addresses.first());
        address.map(|address| ((key.object.namespace.clone(), address.clone()), found.endpoints.clone()))
    });
    let options = options.clone();
    proxies.derive("service_targets", |deps| {
        let registry = TargetLookup {
            pods: ProxyPods { pods: deps.on(&inputs.objects.pods) },
            declared: deps.on(inputs.declared),
            by_selector: deps.by(&by_selector),
            workloads: deps.by(&inputs.instances.by_address),
            slices: deps.by(&inputs.slices.by_address),
            endpoints: deps.on(&inputs.endpoints.endpoints),
            entries: deps.by(&by_address),
            selected: deps.by(&selected),
            options,
        };
        move |cx, _, proxy| {
            let mut targets = registry.kubernetes(cx, proxy);
            targets.extend(registry.entries(cx, proxy));
            Some(targets)
        }
    })
}

struct TargetLookup {
    pods: ProxyPods,
    declared: Dep<DeclaredKey, Service>,
    by_selector: IndexDep<(Text, Text, Text, Text), ObjectKey, KubernetesService>,
    workloads: IndexDep<Text, WorkloadInstanceKey, WorkloadInstance>,
    slices: IndexDep<AddressKey, ObjectKey, ServiceSlice>,
    endpoints: Dep<DeclaredKey, Vec<Endpoint>>,
    entries: IndexDep<(Text, Text), DeclaredKey, ()>,
    selected: IndexDep<(Text, Text), SelectedKey, Vec<Endpoint>>,
    options: GraphOptions,
}

impl TargetLookup {
    fn kubernetes(&self, cx: &Context, proxy: &Proxy) -> Vec<ServiceTarget> {
        let cluster = cluster_of(proxy, &self.options.cluster);
        let address = proxy.ips.first().cloned().unwrap_or_default();
        if let Some((key, instance)) = own_workload(proxy, cx.by(&self.workloads, &address)) {
            let services = self.selecting(cx, cluster, &key.object.namespace, &instance.endpoint.labels);
            let services = services.iter().filter_map(|(key, _)| self.service(cx, key));
            return services.flat_map(|service| by_workload(&service, &instance)).collect();
        }
        let Some((key, pod)) = self.pods.get(cx, proxy, &self.options) else {
            let services = self.selecting(cx, cluster, &proxy.namespace, &proxy.labels);
            let targets = |service: &Service, object: &KubernetesService| by_metadata(service, object, proxy);
            return self.targets(cx, &services, targets);
        };
        let services = self.selecting(cx, cluster, &key.namespace, &pod.labels);
        if !services.is_empty() {
            return self.targets(cx, &services, |service, object| by_pod(service, object, &pod));
        }
        // A slice of a Service without a selector may contain the pod's address.
        let at = (cluster.clone(), proxy.namespace.clone(), address.clone());
        let slices = cx.by(&self.slices, &at).into_iter();
        let found = slices.flat_map(|(slice, found)| {
            let service = ObjectKey::new(cluster.clone(), slice.namespace, found.0.clone());
            let services = self.with_import(cx, &service).into_iter();
            services.flat_map(|service| by_endpoint(&service, &found.1, &address)).collect::<Vec<_>>()
        });
        found.collect()
    }

    /// The targets of Services and of their imports.
    fn targets(
        &self,
        cx: &Context,
        services: &[(ObjectKey, Arc<KubernetesService>)],
        targets: impl Fn(&Service, &KubernetesService) -> Vec<ServiceTarget>,
    ) -> Vec<ServiceTarget> {
        let services = services
            .iter()
            .flat_map(|(key, object)| self.with_import(cx, key).into_iter().map(move |service| (service, object)));
        services.flat_map(|(service, object)| targets(&service, object)).collect()
    }

    /// The Services that select a workload with these labels, by name.
    fn selecting(
        &self,
        cx: &Context,
        cluster: &Text,
        namespace: &Text,
        labels: &Labels,
    ) -> Vec<(ObjectKey, Arc<KubernetesService>)> {
        let rows = labels.iter().flat_map(|(label, value)| {
            cx.by(&self.by_selector, &(cluster.clone(), namespace.clone(), label.clone(), value.clone()))
        });
        let mut found: Vec<_> = rows.filter(|(_, object)| match_labels(&object.selector, labels)).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// The service of a Service, and that of its import in the same cluster.
    fn with_import(&self, cx: &Context, key: &ObjectKey) -> Vec<Arc<Service>> {
        let Some(service) = self.service(cx, key) else { return Vec::new() };
        let has_imports = self.options.multi_cluster.is_some_and(|multi_cluster| multi_cluster.imported_hosts);
        let host = has_imports.then(|| imported_host(&key.name, &key.namespace));
        let import = host.and_then(|host| {
            cx.get(&self.declared, &DeclaredKey { kind: Kind::ServiceImport, object: key.clone(), host })
        });
        [service].into_iter().chain(import).collect()
    }

    fn service(&self, cx: &Context, key: &ObjectKey) -> Option<Arc<Service>> {
        let host: Host = service_host(&key.name, &key.namespace, &self.options.domain);
        cx.get(&self.declared, &DeclaredKey { kind: Kind::Service, object: key.clone(), host })
    }

    /// ServiceEntries only count within their namespace, so that no other namespace can redirect a workload's traffic.
    fn entries(&self, cx: &Context, proxy: &Proxy) -> Vec<ServiceTarget> {
        let mut targets = Vec::new();
        for address in &proxy.ips {
            let at = (proxy.namespace.clone(), address.clone());
            let listed = cx.by(&self.entries, &at).into_iter();
            let listed = listed.filter_map(|(key, _)| Some((cx.get(&self.endpoints, &key)?, key)));
            let selected = cx.by(&self.selected, &at).into_iter();
            let mut found: Vec<_> = listed.chain(selected.map(|((key, _), endpoints)| (endpoints, key))).collect();
            found.sort_by(|a, b| a.1.cmp(&b.1));
            for (endpoints, key) in found {
                if let Some(service) = cx.get(&self.declared, &key) {
                    targets.extend(by_endpoint(&service, &endpoints, address));
                }
            }
        }
        targets
    }
}

/// The WorkloadEntry of a proxy: of those with its address the one with its name, else one of its namespace, else the
/// first.
fn own_workload(
    proxy: &Proxy,
    found: Vec<(WorkloadInstanceKey, Arc<WorkloadInstance>)>,
) -> Option<(WorkloadInstanceKey, Arc<WorkloadInstance>)> {
    let in_namespace = |key: &WorkloadInstanceKey| key.object.namespace == proxy.namespace;
    let named = |key: &WorkloadInstanceKey| in_namespace(key) && key.object.name == proxy.name;
    let best = found.iter().position(|(key, _)| named(key));
    let best = best.or_else(|| found.iter().position(|(key, _)| in_namespace(key)));
    found.into_iter().nth(best.unwrap_or(0))
}

fn target(service: &Service, port: &ServicePort, target_port: u32) -> ServiceTarget {
    ServiceTarget { service: service.key(), port: port.clone(), target_port, socket: None }
}

fn by_workload(service: &Service, instance: &WorkloadInstance) -> Vec<ServiceTarget> {
    // A WorkloadEntry is not an endpoint of a headless Service.
    if service.resolution != sluice_model::Resolution::ClientSideLb {
        return Vec::new();
    }
    let ports = service.ports.iter().filter(|port| port.protocol != Protocol::Udp);
    ports.filter_map(|port| Some(target(service, port, workload_port(port, &instance.ports)?))).collect()
}

fn by_pod(service: &Service, object: &KubernetesService, pod: &Pod) -> Vec<ServiceTarget> {
    let named = |name: &str, transport: &str| {
        let found = pod.ports.iter().find(|(of, _, protocol)| **of == *name && **protocol == *transport);
        found.map(|(_, number, _)| u32::from(*number))
    };
    resolve(service, object, named)
}

fn by_metadata(service: &Service, object: &KubernetesService, proxy: &Proxy) -> Vec<ServiceTarget> {
    let named = |name: &str, transport: &str| {
        let found = proxy.pod_ports.iter().find(|(of, _, protocol)| **of == *name && **protocol == *transport);
        found.map(|(_, number, _)| u32::from(*number))
    };
    resolve(service, object, named)
}

/// Each container port and protocol once, in the order of the Service's ports.
fn resolve(
    service: &Service,
    object: &KubernetesService,
    named: impl Fn(&str, &str) -> Option<u32>,
) -> Vec<ServiceTarget> {
    let mut known = BTreeSet::new();
    let mut targets = Vec::new();
    for (n, declared) in object.ports.iter().enumerate() {
        // An import has the ports of the Service in all clusters.
        let has_name = |port: &&ServicePort| port.name == declared.name;
        let at_position = service.ports.get(n).filter(has_name);
        let Some(port) = at_position.or_else(|| service.ports.iter().find(has_name)) else { continue };
        let transport = if declared.transport.is_empty() { "TCP" } else { declared.transport.as_str() };
        let number = match declared.target_port.as_str() {
            "" => Some(u32::from(declared.port)),
            text => text.parse().ok().or_else(|| named(text, transport)),
        };
        if let Some(number) = number
            && known.insert((number, port.protocol))
        {
            targets.push(target(service, port, number));
        }
    }
    targets
}

fn by_endpoint(service: &Service, endpoints: &[Endpoint], address: &Text) -> Vec<ServiceTarget> {
    let own = endpoints.iter().filter(|endpoint| endpoint.addresses.first() == Some(address));
    let targets = own.filter_map(|endpoint| {
        let port = service.ports.iter().find(|port| port.name == endpoint.port_name)?;
        Some(target(service, port, endpoint.port))
    });
    targets.collect()
}
