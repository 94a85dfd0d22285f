//! Services: the hosts and ports that clients send to (S01, S02, S03, S09, S23).

mod entries;
mod imports;
mod kubernetes;
mod merge;

pub(crate) use imports::imported_host;
pub(crate) use kubernetes::{pool_host, service_host, spiffe};

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{
    ExportTo, Host, Kind, LabelSelector, Labels, MeshConfig, ObjectKey, Service, ServiceEntryVisibility, ServiceKey,
    ServiceSettings, ServiceSource, Text, Visibility,
};

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::allocation::AllocationKey;

/// A host as one object declares it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct DeclaredKey {
    /// The kind of the object: `Service`, `ServiceImport` or `ServiceEntry`.
    pub(crate) kind: Kind,
    /// The object.
    pub(crate) object: ObjectKey,
    /// The host.
    pub(crate) host: Host,
}

impl DeclaredKey {
    /// The service that the object declares.
    pub(crate) fn service(&self) -> ServiceKey {
        ServiceKey { namespace: self.object.namespace.clone(), host: self.host.clone() }
    }
}

/// The fields of the mesh config that change services.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceDefaults {
    trust_domain: Text,
    export_to: Vec<Text>,
    visibility: Option<ServiceEntryVisibility>,
    settings: Vec<ServiceSettings>,
}

/// Services as each object declares them.
/// Key: `DeclaredKey`. From: `kubernetes_services`, `service_imports`, `service_entries`, `address_allocations`, `namespaces`,
/// `mesh_config`.
/// Changes when: the object does, the traffic distribution or labels of its namespace, or a default of the mesh. That of a
/// ServiceImport also when a Service of its name does, in any cluster.
/// Size: Services and ServiceImports of all clusters + hosts of ServiceEntries. Rejects: none.
pub(crate) fn derive_declared_services<'s>(
    objects: &ObjectCollections<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    allocations: &Collection<'s, AllocationKey, Vec<Text>>,
    options: &GraphOptions,
) -> Collection<'s, DeclaredKey, Service> {
    let defaults = mesh.map("service_defaults", |(), mesh| ServiceDefaults {
        trust_domain: mesh.trust_domain.clone(),
        export_to: mesh.default_service_export_to.clone(),
        visibility: mesh.service_entry_visibility.clone().filter(|visibility| visibility.apply_to_sidecars),
        settings: mesh.service_settings.clone(),
    });
    let traffic = objects.namespaces.map("namespace_traffic", |_, namespace| {
        namespace.annotations.get(kubernetes::TRAFFIC_DISTRIBUTION).cloned().unwrap_or_default()
    });
    let kubernetes = kubernetes::derive(&objects.kubernetes_services, &defaults, &traffic, options);
    let inputs = entries::EntryInputs { objects, defaults: &defaults, traffic: &traffic, allocations };
    let entries = entries::derive(&inputs, options);
    let imports = imports::derive(&objects.service_imports, &kubernetes, options);
    kubernetes.union("declared_services", &[imports, entries])
}

/// Services, one for each namespace and host, merged over the objects that declare it. `scopes`: whether each is global, in an
/// ambient mesh of several networks. The endpoints of those that are not global are for clients of their own cluster (A09).
/// Key: `ServiceKey`. From: `declared_services`, `ambient_services/scopes`.
/// Changes when: a declaration changes in a field that the merged service has, or its scope.
/// Size: distinct hosts of each namespace. Rejects: none.
pub(crate) fn derive_services<'s>(
    declared: &Collection<'s, DeclaredKey, Service>,
    scopes: Option<&Collection<'s, ServiceKey, bool>>,
    options: &GraphOptions,
) -> Collection<'s, ServiceKey, Service> {
    let cluster = options.cluster.clone();
    let name = if scopes.is_some() { "services/merged" } else { "services" };
    let merged = by_service("services/declared", declared).group(name, move |_, rows| merge::merge(&cluster, rows));
    let Some(scopes) = scopes else { return merged };
    merged.derive("services", |deps| {
        let scopes = deps.on(scopes);
        move |cx, key, service| {
            let is_local = cx.get(&scopes, key).is_some_and(|global| !*global);
            Some(Service { cluster_local: service.cluster_local || is_local, ..service.clone() })
        }
    })
}

/// Declarations by the service that they declare.
pub(crate) fn by_service<'s>(
    name: &str,
    declared: &Collection<'s, DeclaredKey, Service>,
) -> Index<'s, ServiceKey, DeclaredKey, Service> {
    declared.index(name, |_, service| [(service.key(), service.clone())])
}

/// Services by host: the same host may be declared in several namespaces.
pub(crate) fn index_by_host<'s>(services: &Collection<'s, ServiceKey, Service>) -> Index<'s, Host, ServiceKey, ()> {
    services.index("services_by_host", |key, _| [(key.host.clone(), ())])
}

/// Looks up the services of a host, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(crate) struct HostServiceLookup {
    by_host: IndexDep<Host, ServiceKey, ()>,
    services: Dep<ServiceKey, Service>,
}

impl HostServiceLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(
        deps: &mut Deps<'s>,
        by_host: &Index<'s, Host, ServiceKey, ()>,
        services: &Collection<'s, ServiceKey, Service>,
    ) -> Self {
        Self { by_host: deps.by(by_host), services: deps.on(services) }
    }

    /// The services of `host`.
    #[must_use]
    pub(crate) fn get(&self, cx: &Context, host: &Host) -> HostServices {
        let keys = cx.by(&self.by_host, host).into_iter();
        HostServices::new(keys.filter_map(|(key, _)| cx.get(&self.services, &key)).collect())
    }
}

/// All services of one host, in the order of preference: services exported to listed namespaces come before services
/// exported to all, and older ones come before newer ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostServices(Vec<Arc<Service>>);

impl HostServices {
    /// Sorts the services of one host.
    pub(crate) fn new(mut services: Vec<Arc<Service>>) -> Self {
        services.sort_by_key(|service| {
            (service.export_to == ExportTo::All, service.created, service.name.clone(), service.namespace.clone())
        });
        Self(services)
    }

    /// The service that a client in `namespace` reaches at the host, see [`preferred`]. The empty namespace stands for
    /// all clients that no rule names.
    #[must_use]
    pub(crate) fn visible_to(&self, namespace: &str) -> Option<&Arc<Service>> {
        preferred(self.0.iter().filter(|service| service.export_to.allows(namespace)), namespace)
    }

    /// Namespaces whose clients may reach another service than `visible_to("")` gives, or none.
    pub(crate) fn special_namespaces(&self) -> impl Iterator<Item = &Text> {
        let several = self.0.len() > 1;
        self.0.iter().flat_map(move |service| {
            let listed = match &service.export_to {
                ExportTo::Namespaces(namespaces) => Some(namespaces),
                ExportTo::All | ExportTo::None => None,
            };
            let own = (several || listed.is_some()).then_some(&service.namespace);
            own.into_iter().chain(listed.into_iter().flatten())
        })
    }

    /// All of them, in the order of preference.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.0.iter()
    }
}

/// Of the services of one host that a client can reach, the one that it reaches: the service of its own namespace, else
/// the first from Kubernetes, else the first.
pub(crate) fn preferred<'a>(
    services: impl Iterator<Item = &'a Arc<Service>> + Clone,
    namespace: &str,
) -> Option<&'a Arc<Service>> {
    let own = services.clone().find(|service| *service.namespace == *namespace);
    own.or_else(|| services.clone().find(|service| service.source == ServiceSource::Kubernetes))
        .or_else(|| services.clone().next())
}

/// The export of a ServiceEntry of a namespace with these labels, limited by the visibility policy of the mesh (S11).
fn limit(export_to: ExportTo, policy: Option<&ServiceEntryVisibility>, namespace: &str, labels: &Labels) -> ExportTo {
    match visibility(policy, labels) {
        Visibility::Public => export_to,
        Visibility::Namespace if export_to.allows(namespace) => ExportTo::Namespaces([namespace.into()].into()),
        Visibility::Namespace | Visibility::None => ExportTo::None,
    }
}

/// The visibility of a ServiceEntry of a namespace with these labels: that of the first policy that matches (S11).
pub(crate) fn visibility(policy: Option<&ServiceEntryVisibility>, labels: &Labels) -> Visibility {
    let Some(policy) = policy else { return Visibility::Public };
    let matches = |rule: &Option<LabelSelector>| rule.as_ref().is_some_and(|selector| selector.matches(labels));
    let decided = policy.policies.iter().find(|(_, rules)| rules.iter().all(matches));
    decided.map_or(policy.default_visibility, |(visibility, _)| *visibility)
}
