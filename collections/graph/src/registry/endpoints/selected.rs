//! Endpoints that Services and ServiceEntries select by label: WorkloadEntries and pods (S09, S12).
//!
//! Each workload has records of its own, so that a change of one does not read the others of its services.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{Endpoint, Kind, Labels, Resolution, Service, ServiceKey, ServicePort, Text, match_labels};

use super::ExportLookup;
use super::declared::{is_ip, of_entry, times};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::DeclaredKey;
use crate::registry::workloads::{WorkloadInstance, WorkloadInstanceKey, WorkloadInstances, selector_key};

/// A declaration, and a workload that it selects.
pub(crate) type SelectedKey = (DeclaredKey, WorkloadInstanceKey);

/// The endpoints of a declaration at a workload that it selects.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SelectedEndpoints {
    /// One for each port.
    pub(crate) endpoints: Vec<Endpoint>,
    resolution: Resolution,
    /// How many times the service has each.
    times: usize,
}

impl SelectedEndpoints {
    /// The endpoints, each as often as the service has it.
    pub(super) fn repeated(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().flat_map(|endpoint| std::iter::repeat_n(endpoint, self.times))
    }

    /// Number of endpoints that the service has of the workload.
    pub(super) fn len(&self) -> usize {
        self.endpoints.len() * self.times
    }
}

/// The endpoints of workloads that Services and ServiceEntries select.
#[derive(Clone)]
pub(crate) struct SelectedWorkloads<'s> {
    /// By declaration and workload.
    pub(crate) endpoints: Collection<'s, SelectedKey, SelectedEndpoints>,
    /// By service.
    pub(crate) by_service: Index<'s, ServiceKey, SelectedKey, SelectedEndpoints>,
}

/// What a declaration selects, and what its endpoints depend on.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct WorkloadSelection {
    selector: Labels,
    ports: Vec<ServicePort>,
    resolution: Resolution,
    times: usize,
    /// Name of the Service whose export permits other clusters to use its endpoints, if it needs that.
    export: Option<Text>,
}

impl WorkloadSelection {
    /// That of a Service or an import. A WorkloadEntry is not an endpoint of a headless Service.
    fn of_service(service: &Service) -> Option<Self> {
        let takes = service.resolution == Resolution::ClientSideLb && !service.mesh_external;
        (takes && !service.selector.is_empty()).then(|| Self {
            selector: service.selector.clone(),
            ports: service.ports.clone(),
            resolution: service.resolution,
            times: 1,
            export: service.needs_export.then(|| service.name.clone()),
        })
    }

    fn of_entry(service: &Service, selector: &Labels) -> Self {
        Self {
            selector: selector.clone(),
            ports: service.ports.clone(),
            resolution: service.resolution,
            times: times(service),
            export: None,
        }
    }

    /// The endpoints at a workload, which the selector matches.
    fn endpoints(&self, kind: Kind, of: Kind, instance: &WorkloadInstance) -> Vec<Endpoint> {
        let endpoint = &instance.endpoint;
        match kind {
            Kind::ServiceEntry if self.resolution.is_dns() || is_ip(endpoint) => {
                of_entry(&self.ports, std::iter::once((endpoint, &instance.ports)))
            }
            Kind::Service | Kind::ServiceImport if of == Kind::WorkloadEntry && is_ip(endpoint) => {
                let ports = self.ports.iter();
                let own = ports.filter_map(|port| Some((port, workload_port(port, &instance.ports)?)));
                own.map(|(port, number)| Endpoint { port: number, port_name: port.name.clone(), ..endpoint.clone() })
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Endpoints of the WorkloadEntries that a Service selects, and of the WorkloadEntries and pods that a ServiceEntry selects.
/// Key: `SelectedKey`. From: `workload_instances`, `declared_services`, `service_entries`, `service_exports`.
/// Changes when: the workload does, a declaration that selects it, or the export of its cluster.
/// Size: workloads × declarations that select them. Rejects: none.
pub(crate) fn derive_selected_workloads<'s>(
    objects: &ObjectCollections<'s>,
    declared: &Collection<'s, DeclaredKey, Service>,
    instances: &WorkloadInstances<'s>,
    options: &GraphOptions,
) -> SelectedWorkloads<'s> {
    let services_select_entries = options.services_select_entries;
    // Most namespaces have no such workloads, and their selectors need no memory.
    let namespaces = instances
        .all
        .index("workload_instances/by-namespace", |key, _| [(key.object.namespace.clone(), ())])
        .distinct("workload_instances/namespaces");
    let selections = declared.derive("workload_selections", |deps| {
        let (namespaces, entries) = (deps.on(&namespaces), deps.on(&objects.service_entries));
        move |cx, key, service| {
            cx.get(&namespaces, &key.object.namespace)?;
            match key.kind {
                Kind::Service | Kind::ServiceImport => {
                    WorkloadSelection::of_service(service).filter(|_| services_select_entries)
                }
                _ => {
                    let entry = cx.get(&entries, &key.object)?;
                    entry.workload_selector.as_ref().map(|selector| WorkloadSelection::of_entry(service, selector))
                }
            }
        }
    });
    let by_label = selections.index("workload_selections/by-label", |key, selection| {
        [(selector_key(&key.object.namespace, &selection.selector), ())]
    });
    let endpoints = instances.all.derive_many("selected_endpoints", |deps| {
        let (selections, by_label) = (deps.on(&selections), deps.by(&by_label));
        let exports = ExportLookup::on(deps, objects, options);
        move |cx, key: &WorkloadInstanceKey, instance: &WorkloadInstance| {
            let (namespace, labels) = (&key.object.namespace, &instance.endpoint.labels);
            // A selector is found by its first label; one without labels selects all.
            let of_labels = labels.iter().filter(|(label, _)| !label.is_empty());
            let none = (Text::default(), Text::default());
            let places = std::iter::once((&none.0, &none.1)).chain(of_labels);
            let rows =
                places.flat_map(|(label, value)| cx.by(&by_label, &(namespace.clone(), label.clone(), value.clone())));
            let found = rows.filter_map(|(declared, _)| Some((cx.get(&selections, &declared)?, declared)));
            let selecting = found.filter(|(selection, _)| match_labels(&selection.selector, labels));
            let made = selecting.filter_map(|(selection, declared)| {
                let mut endpoints = selection.endpoints(declared.kind, key.kind, instance);
                for endpoint in &mut endpoints {
                    let export = selection.export.as_ref();
                    endpoint.cluster_local |=
                        export.is_some_and(|service| !exports.has(cx, &endpoint.cluster, namespace, service));
                }
                let (resolution, times) = (selection.resolution, selection.times);
                let found = SelectedEndpoints { endpoints, resolution, times };
                (!found.endpoints.is_empty()).then(|| ((declared, key.clone()), found))
            });
            made.collect()
        }
    });
    let by_service =
        endpoints.index("selected_endpoints/by-service", |(declared, _), found| [(declared.service(), found.clone())]);
    SelectedWorkloads { endpoints, by_service }
}

/// The endpoints of a service among those of the workloads that it selects, in the order of declarations and workloads.
pub(super) fn selected_endpoints<'a>(
    rows: impl Iterator<Item = (&'a DeclaredKey, &'a SelectedEndpoints)>,
) -> Vec<Endpoint> {
    let mut found = Vec::new();
    // Envoy resolves one host name for each port of a round-robin cluster.
    let mut resolved = BTreeSet::new();
    for (declared, selected) in rows {
        let is_once = selected.resolution == Resolution::DnsRoundRobinLb;
        let own = selected.repeated().filter(|endpoint| !is_once || resolved.insert((declared, &endpoint.port_name)));
        found.extend(own.cloned());
    }
    found
}

/// The port at which a WorkloadEntry listens for a Service's port. A named target port must be one of the workload's
/// ports. A number is used unless the workload declares another number under the port's name.
pub(crate) fn workload_port(port: &ServicePort, ports: &BTreeMap<Text, u32>) -> Option<u32> {
    let own = |name: &Text| ports.get(name).copied().filter(|number| *number > 0);
    match port.target_port.as_str() {
        "" => Some(u32::from(port.port)),
        text => match text.parse::<u32>() {
            Ok(number) => Some(own(&port.name).unwrap_or(number)),
            Err(_) => own(&port.target_port),
        },
    }
}
