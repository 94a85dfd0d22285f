//! The collections at one epoch, as answers read them.

use std::sync::Arc;

use sluice_engine::{Snapshot, Value};
use sluice_graph::{Inputs, RejectKey};
use sluice_model::{Host, Kind, MeshConfig, ObjectKey, Reject, Service, ServiceEntry, ServiceSource, Severity, Text};

use super::objects::ObjectVersion;
use crate::AdminState;

/// The collections at one epoch.
pub(crate) struct MeshFacts<'a> {
    pub(crate) state: &'a AdminState,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) mesh: Arc<MeshConfig>,
}

impl<'a> MeshFacts<'a> {
    pub(crate) fn new(state: &'a AdminState) -> Self {
        let snapshot = state.engine.snapshot();
        let mesh = snapshot.get(&state.handles.mesh, &()).unwrap_or_default();
        Self { state, snapshot, mesh }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.snapshot.epoch().0
    }

    /// All objects of a kind as they are read, also of namespaces that are not discovered.
    pub(crate) fn all<V: Value>(&self, kind: Kind) -> Vec<(ObjectKey, V)> {
        Inputs::collection(kind).map(|name| self.collection(name)).unwrap_or_default()
    }

    /// All records of a collection of objects, such as one with those of discovered namespaces only.
    pub(crate) fn collection<V: Value>(&self, name: &str) -> Vec<(ObjectKey, V)> {
        let dump = self.state.engine.dump(name);
        let rows = dump.iter().flat_map(|dump| dump.typed::<ObjectKey, V>());
        rows.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// The object with the version that is read; `None` if it is not read.
    pub(crate) fn read(&self, kind: Kind, key: &ObjectKey) -> Option<ObjectVersion> {
        let why = self.state.engine.explain_key(Inputs::collection(kind)?, key)?.why;
        (why.present == Some(true)).then(|| ObjectVersion::new(kind, key, why.origin.as_ref()))
    }

    /// The object, with its version if it is read.
    pub(crate) fn object(&self, kind: Kind, key: &ObjectKey) -> ObjectVersion {
        self.read(kind, key).unwrap_or_else(|| ObjectVersion::new(kind, key, None))
    }

    /// Whether objects of the namespace of this object are read.
    pub(crate) fn is_discovered(&self, key: &ObjectKey) -> bool {
        let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
        self.mesh.discovery_selectors.is_empty()
            || key.namespace == self.state.options.namespace
            || self.snapshot.get(&self.state.handles.discovered_namespaces, &namespace).is_some()
    }

    /// The findings because of which an object, or a part of it, does not apply.
    pub(crate) fn rejects(&self, kind: Kind, key: &ObjectKey) -> Vec<Reject> {
        let found = self.snapshot.get(&self.state.handles.rejects, &RejectKey { kind, object: key.clone() });
        let found = found.iter().flat_map(|rejects| rejects.iter().cloned());
        found.filter(|reject| reject.severity == Severity::Error).collect()
    }

    /// The services of a host: those with exactly this host, else those of a wildcard that covers it.
    pub(crate) fn services(&self, host: &Host) -> Vec<Arc<Service>> {
        let of = |accepts: &dyn Fn(&Host) -> bool| {
            let services = self.snapshot.iter(&self.state.handles.services);
            let found = services.filter(|(key, _)| accepts(&key.host));
            found.map(|(_, service)| Arc::new(service.clone())).collect::<Vec<_>>()
        };
        let exact = of(&|known| known == host);
        if exact.is_empty() { of(&|known| known.is_wildcard() && known.contains(host)) } else { exact }
    }

    /// The object that declares a service.
    pub(crate) fn declaring(&self, service: &Service) -> ObjectVersion {
        let kind = match service.source {
            ServiceSource::Kubernetes => Kind::Service,
            ServiceSource::ServiceEntry => Kind::ServiceEntry,
        };
        self.object(kind, &self.declaring_key(service))
    }

    /// The key of the object that declares a service.
    pub(crate) fn declaring_key(&self, service: &Service) -> ObjectKey {
        let of_host = ObjectKey::new(service.cluster.clone(), service.namespace.clone(), service.name.clone());
        if service.source == ServiceSource::Kubernetes {
            return of_host;
        }
        let declares = |(key, entry): &&(ObjectKey, ServiceEntry)| {
            key.namespace == service.namespace && entry.hosts.contains(&service.host)
        };
        let entries = self.all::<ServiceEntry>(Kind::ServiceEntry);
        entries.iter().find(declares).map_or(of_host, |(key, _)| key.clone())
    }

    /// The host of a Kubernetes Service.
    pub(crate) fn host_of_service(&self, key: &ObjectKey) -> Host {
        Host::new(&format!("{}.{}.svc.{}", key.name, key.namespace, self.state.graph.domain))
    }

    /// Namespace and name of the Kubernetes Service of a host, whether or not it exists.
    pub(crate) fn service_of_host(&self, host: &Host) -> Option<(Text, Text)> {
        let stem = host.as_str().strip_suffix(&format!(".svc.{}", self.state.graph.domain))?;
        let (name, namespace) = stem.split_once('.')?;
        Some((namespace.into(), name.into()))
    }

    /// The hosts of a ServiceEntry.
    pub(crate) fn hosts_of_entry(&self, key: &ObjectKey) -> Vec<Host> {
        let entries = self.all::<ServiceEntry>(Kind::ServiceEntry);
        entries.into_iter().find(|(known, _)| known == key).map(|(_, entry)| entry.hosts).unwrap_or_default()
    }
}
