//! Services: what clients address by host and port (S01, S02, S03, S09, S23).

mod entries;
mod kubernetes;
mod merge;

pub(crate) use kubernetes::{service_host, spiffe};

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{
    ExportTo, Host, Kind, LabelSelector, Labels, MeshConfig, ObjectKey, Service, ServiceEntryVisibility, ServiceKey,
    ServiceSettings, ServiceSource, Text, Visibility,
};

use crate::inputs::Objects;
use crate::options::GraphOptions;
use crate::registry::allocation::AllocationKey;

/// A host as one object declares it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct DeclaredKey {
    /// What declares it: `Service` or `ServiceEntry`.
    pub(crate) kind: Kind,
    /// The object.
    pub(crate) object: ObjectKey,
    /// The host.
    pub(crate) host: Host,
}

/// What of the mesh config changes services.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceDefaults {
    trust_domain: Text,
    export_to: Vec<Text>,
    visibility: Option<ServiceEntryVisibility>,
    settings: Vec<ServiceSettings>,
}

/// Services as each object declares them.
/// Key: `DeclaredKey`. From: `kubernetes_services`, `service_entries`, `address_allocations`, `namespaces`, `mesh_config`.
/// Changes when: the object does, the traffic distribution or labels of its namespace, or a default of the mesh.
/// Size: Services of all clusters + hosts of ServiceEntries. Rejects: none.
pub(crate) fn derive_declared_services<'s>(
    objects: &Objects<'s>,
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
    kubernetes.union("declared_services", &[entries])
}

/// Services, one a namespace and host, merged over the objects that declare it.
/// Key: `ServiceKey`. From: `declared_services`.
/// Changes when: a declaration does in something that counts after merging.
/// Size: distinct hosts a namespace. Rejects: none.
pub(crate) fn derive_services<'s>(
    declared: &Collection<'s, DeclaredKey, Service>,
    options: &GraphOptions,
) -> Collection<'s, ServiceKey, Service> {
    let cluster = options.cluster.clone();
    by_service("services/declared", declared).group("services", move |_, rows| merge::merge(&cluster, rows))
}

/// Declarations by the service they make.
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

/// Looks the services of a host up, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(crate) struct Hosts {
    by_host: IndexDep<Host, ServiceKey, ()>,
    services: Dep<ServiceKey, Service>,
}

impl Hosts {
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
        let mut services: Vec<Arc<Service>> = keys.filter_map(|(key, _)| cx.get(&self.services, &key)).collect();
        // What everyone sees comes after what is shown to some, each oldest first.
        services.sort_by_key(|service| {
            (service.export_to == ExportTo::All, service.created, service.name.clone(), service.namespace.clone())
        });
        HostServices(services)
    }
}

/// All services of one host, in the order clients prefer them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostServices(Vec<Arc<Service>>);

impl HostServices {
    /// The one that a client in `namespace` means by the host: that of its own namespace, else the first from Kubernetes,
    /// else the first. The empty namespace stands for one that no rule names.
    #[must_use]
    pub(crate) fn visible_to(&self, namespace: &str) -> Option<&Arc<Service>> {
        let mut visible = self.0.iter().filter(|service| service.export_to.allows(namespace));
        let own = self.0.iter().find(|service| *service.namespace == *namespace && service.export_to.allows(namespace));
        own.or_else(|| visible.clone().find(|service| service.source == ServiceSource::Kubernetes))
            .or_else(|| visible.next())
    }

    /// Namespaces whose clients may see another service, or none, where others see what `visible_to("")` gives.
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

    /// All of them, those shown only to some namespaces first, each oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.0.iter()
    }

    /// The same.
    #[must_use]
    pub(crate) fn as_slice(&self) -> &[Arc<Service>] {
        &self.0
    }
}

/// The visibility that limits a ServiceEntry of a namespace with these labels (S11).
fn limit(export_to: ExportTo, policy: Option<&ServiceEntryVisibility>, namespace: &str, labels: &Labels) -> ExportTo {
    match visibility(policy, labels) {
        Visibility::Public => export_to,
        Visibility::Namespace if export_to.allows(namespace) => ExportTo::Namespaces([namespace.into()].into()),
        Visibility::Namespace | Visibility::None => ExportTo::None,
    }
}

/// How far a ServiceEntry of a namespace with these labels is visible: by the first policy that matches (S11).
pub(crate) fn visibility(policy: Option<&ServiceEntryVisibility>, labels: &Labels) -> Visibility {
    let Some(policy) = policy else { return Visibility::Public };
    let matches = |rule: &Option<LabelSelector>| rule.as_ref().is_some_and(|selector| selector.matches(labels));
    let decided = policy.policies.iter().find(|(_, rules)| rules.iter().all(matches));
    decided.map_or(policy.default_visibility, |(visibility, _)| *visibility)
}
