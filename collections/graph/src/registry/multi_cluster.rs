//! What clusters export and import, and the ServiceExports that the control plane creates (S22).

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Host, Kind, KubernetesService, MeshConfig, Namespace, ObjectKey, Service, Text, is_cluster_local};

use crate::inputs::{ObjectCollections, ServedKind};
use crate::options::GraphOptions;
use crate::registry::services::{DeclaredKey, imported_host, service_host};

/// A ServiceExport that the control plane creates.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MissingServiceExport {
    /// `apiVersion` of the object.
    pub api_version: Text,
    /// Unique id of the Service, which owns it: the API server deletes the ServiceExport with the Service.
    pub service_uid: Text,
}

/// ServiceExports that do not exist, of the Services that are not limited to their cluster. Those of a remote cluster are created
/// if it has no control plane of its own, which its system namespace says.
/// Key: the Service, of any cluster. From: `kubernetes_services`, `service_exports`, `served_kinds`, `namespaces`,
/// `mesh_config`.
/// Changes when: a Service or its ServiceExport is created or deleted, the kind is defined, the mesh config limits the
/// Service to its cluster, or a remote cluster requests this control plane.
/// Size: none once all exist, and none without [`GraphOptions::exports_services`]. Rejects: none.
pub(crate) fn derive_missing_exports<'s>(
    objects: &ObjectCollections<'s>,
    (served, namespaces): (&Collection<'s, ServedKind, ()>, &Collection<'s, ObjectKey, Namespace>),
    mesh: &Collection<'s, (), MeshConfig>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, MissingServiceExport> {
    let is_enabled = options.exports_services;
    let settings = mesh.map("mesh_config/service_settings", |(), mesh| mesh.service_settings.clone());
    let services = objects
        .kubernetes_services
        .filter("kubernetes_services/exported", move |_, service| is_enabled && !service.uid.is_empty());
    let (own, system_namespace) = (options.cluster.clone(), options.system_namespace.clone());
    let (domain, api_version) = (options.domain.clone(), Text::from(options.multi_cluster_api.api_version()));
    let cluster = own.clone();
    let requests = namespaces.filter("namespaces/requesting-control-plane", move |_, namespace| {
        namespace.requests_control_plane_of(&cluster)
    });
    services.derive("missing_service_exports", |deps| {
        let (exports, served, settings) = (deps.on(&objects.service_exports), deps.on(served), deps.on(&settings));
        let namespaces = deps.on(&requests);
        move |cx, key, service: &KubernetesService| {
            cx.get(&served, &ServedKind { cluster: key.cluster.clone(), kind: Kind::ServiceExport })?;
            if key.cluster != own {
                cx.get(&namespaces, &ObjectKey::new(key.cluster.clone(), "", system_namespace.clone()))?;
            }
            let settings = cx.get(&settings, &())?;
            let host = service_host(&key.name, &key.namespace, &domain);
            if is_cluster_local(&settings, host.as_str(), &domain) || cx.get(&exports, key).is_some() {
                return None;
            }
            Some(MissingServiceExport { api_version: api_version.clone(), service_uid: service.uid.clone() })
        }
    })
}

/// A Service that a cluster exports or imports.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MultiClusterService {
    /// The cluster has a ServiceExport.
    pub is_exported: bool,
    /// The cluster has a ServiceImport.
    pub is_imported: bool,
    /// The first virtual address of the import; empty if it declares no host.
    pub address: Text,
    /// The hosts of an exported Service in the cluster, and whether clients of other clusters may use its endpoints there.
    pub hosts: BTreeMap<Host, bool>,
}

/// The Services that clusters export or import. Only the debug pages read it.
/// Key: the ServiceExport or ServiceImport. From: `service_exports`, `service_imports`, `declared_services`.
/// Changes when: one of the objects is created or deleted, or a host of the Service in the cluster is.
/// Size: ServiceExports and ServiceImports. Rejects: none.
pub(crate) fn derive_multi_cluster_services<'s>(
    objects: &ObjectCollections<'s>,
    declared: &Collection<'s, DeclaredKey, Service>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, MultiClusterService> {
    let multi_cluster = options.multi_cluster;
    let exports = objects.service_exports.flat_map("service_exports/names", move |key, _| {
        multi_cluster.is_some().then(|| ((Kind::ServiceExport, key.clone()), ()))
    });
    let imports = objects.service_imports.flat_map("service_imports/names", move |key, _| {
        multi_cluster
            .is_some_and(|multi_cluster| multi_cluster.imported_hosts)
            .then(|| ((Kind::ServiceImport, key.clone()), ()))
    });
    let names = exports.union("multi_cluster_services/objects", &[imports]);
    let names = names.index("multi_cluster_services/by-name", |(_, key), ()| [(key.clone(), ())]);
    let domain = options.domain.clone();
    names.distinct("multi_cluster_services/names").derive("multi_cluster_services", |deps| {
        let (exports, imports) = (deps.on(&objects.service_exports), deps.on(&objects.service_imports));
        let declared = deps.on(declared);
        move |cx, key, ()| {
            let multi_cluster = multi_cluster?;
            let declared =
                |kind, host: &Host| cx.get(&declared, &DeclaredKey { kind, object: key.clone(), host: host.clone() });
            let is_exported = cx.get(&exports, key).is_some();
            let imported = imported_host(&key.name, &key.namespace);
            let import = declared(Kind::ServiceImport, &imported);
            let own = service_host(&key.name, &key.namespace, &domain);
            let address = import.as_ref().and_then(|import| import.addresses_for(&key.cluster).first().cloned());
            let mut hosts = BTreeMap::new();
            if is_exported && declared(Kind::Service, &own).is_some() {
                hosts.insert(own, !multi_cluster.cluster_local);
            }
            if is_exported && import.is_some() {
                hosts.insert(imported, true);
            }
            let is_imported = multi_cluster.imported_hosts && cx.get(&imports, key).is_some();
            Some(MultiClusterService { is_exported, is_imported, address: address.unwrap_or_default(), hosts })
        }
    })
}
