//! What the reasons are found in: the collections at one epoch, and the proxy.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_engine::{Snapshot, Value};
use sluice_graph::{Inputs, RejectKey, SidecarImports, host_candidates};
use sluice_model::{
    Host, Kind, MeshConfig, ObjectKey, Proxy, ProxyKey, Reject, Service, ServiceEntry, ServiceSource, Severity,
    Sidecar, Text,
};

use super::super::names::{did_you_mean, object_text, similar};
use super::super::objects::ObjectVersion;
use super::{AbsenceReason, ReasonCode};
use crate::AdminState;

/// The collections at one epoch, and the proxy.
pub(super) struct Facts<'a> {
    pub(super) state: &'a AdminState,
    pub(super) key: &'a ProxyKey,
    /// The proxy, with its Sidecar.
    pub(super) proxy: Arc<Proxy>,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) mesh: Arc<MeshConfig>,
    /// What its Sidecar imports, if the Sidecar limits that.
    pub(super) imports: Option<SidecarImports>,
}

impl<'a> Facts<'a> {
    /// `None` if the dataflow does not have the proxy.
    pub(super) fn new(state: &'a AdminState, key: &'a ProxyKey) -> Option<Self> {
        let snapshot = state.engine.snapshot();
        let proxy = snapshot.get(&state.handles.proxies, key)?;
        let mesh = snapshot.get(&state.handles.mesh, &()).unwrap_or_default();
        let mut facts = Self { state, key, proxy: proxy.clone(), snapshot, mesh, imports: None };
        if let Some(chosen) = proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits) {
            let sidecars = facts.all::<Sidecar>(Kind::Sidecar);
            let sidecar = sidecars.into_iter().find(|(key, _)| *key == chosen.scope.sidecar);
            facts.imports = sidecar.map(|(_, sidecar)| SidecarImports::new(chosen.scope.clone(), &sidecar));
        }
        Some(facts)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.snapshot.epoch().0
    }

    pub(super) fn namespace(&self) -> &str {
        &self.proxy.namespace
    }

    /// All objects of a kind as they are read, also of namespaces that are not discovered.
    pub(super) fn all<V: Value>(&self, kind: Kind) -> Vec<(ObjectKey, V)> {
        let dump = Inputs::collection(kind).and_then(|name| self.state.engine.dump(name));
        let rows = dump.iter().flat_map(|dump| dump.typed::<ObjectKey, V>());
        rows.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// The object with the version that is read; `None` if it is not read.
    pub(super) fn read(&self, kind: Kind, key: &ObjectKey) -> Option<ObjectVersion> {
        let why = self.state.engine.explain_key(Inputs::collection(kind)?, key)?.why;
        (why.present == Some(true)).then(|| ObjectVersion::new(kind, key, why.origin.as_ref()))
    }

    /// The object, with its version if it is read.
    pub(super) fn object(&self, kind: Kind, key: &ObjectKey) -> ObjectVersion {
        self.read(kind, key).unwrap_or_else(|| ObjectVersion::new(kind, key, None))
    }

    /// Whether objects of the namespace of this object are read.
    pub(super) fn is_discovered(&self, key: &ObjectKey) -> bool {
        let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
        self.mesh.discovery_selectors.is_empty()
            || key.namespace == self.state.options.namespace
            || self.snapshot.get(&self.state.handles.discovered_namespaces, &namespace).is_some()
    }

    /// The findings because of which an object, or a part of it, does not apply.
    pub(super) fn rejects(&self, kind: Kind, key: &ObjectKey) -> Vec<Reject> {
        let found = self.snapshot.get(&self.state.handles.rejects, &RejectKey { kind, object: key.clone() });
        let found = found.iter().flat_map(|rejects| rejects.iter().cloned());
        found.filter(|reject| reject.severity == Severity::Error).collect()
    }

    /// Adds the findings of an object. Returns whether there are any.
    pub(super) fn add_rejects(&self, kind: Kind, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) -> bool {
        let rejects = self.rejects(kind, key);
        for reject in &rejects {
            let field = if reject.field_path.is_empty() { String::new() } else { format!("{}: ", reject.field_path) };
            let text = format!("it is invalid: {field}{}", reject.reason);
            findings.push(AbsenceReason::of(ReasonCode::Rejected, self.object(kind, key), text));
        }
        !rejects.is_empty()
    }

    /// Adds the reasons why an object is not read or does not apply at all. Returns whether it applies to some proxies.
    pub(super) fn check_read(&self, kind: Kind, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) -> bool {
        let is_rejected = self.add_rejects(kind, key, findings);
        let Some(object) = self.read(kind, key) else {
            if !is_rejected {
                findings.push(self.not_declared(kind, key));
            }
            return false;
        };
        if self.is_discovered(key) {
            return true;
        }
        findings.push(self.not_discovered(object, key));
        false
    }

    pub(super) fn not_discovered(&self, object: ObjectVersion, key: &ObjectKey) -> AbsenceReason {
        let text = format!(
            "the labels of namespace {} do not match discoverySelectors of the mesh config, so its objects are not read",
            key.namespace
        );
        AbsenceReason::of(ReasonCode::NamespaceNotDiscovered, object, text)
    }

    fn not_declared(&self, kind: Kind, key: &ObjectKey) -> AbsenceReason {
        let dump = Inputs::collection(kind).and_then(|name| self.state.engine.dump(name));
        let keys = dump.iter().flat_map(|dump| dump.keys::<ObjectKey>());
        let names: BTreeSet<String> =
            keys.map(|known| object_text(&kind.name(), &known.namespace, &known.name)).collect();
        let object = object_text(&kind.name(), &key.namespace, &key.name);
        let similar = similar(&object, names.iter().map(String::as_str));
        AbsenceReason::new(ReasonCode::NotDeclared, format!("there is no {object}{}", did_you_mean(&similar)))
    }

    /// The services of a host: those with exactly this host, else those of a wildcard that covers it.
    pub(super) fn services(&self, host: &Host) -> Vec<Arc<Service>> {
        let of = |accepts: &dyn Fn(&Host) -> bool| {
            let services = self.snapshot.iter(&self.state.handles.services);
            let found = services.filter(|(key, _)| accepts(&key.host));
            found.map(|(_, service)| Arc::new(service.clone())).collect::<Vec<_>>()
        };
        let exact = of(&|known| known == host);
        if exact.is_empty() { of(&|known| known.is_wildcard() && known.contains(host)) } else { exact }
    }

    /// The object that declares a service.
    pub(super) fn declaring(&self, service: &Service) -> ObjectVersion {
        match service.source {
            ServiceSource::Kubernetes => {
                let key = ObjectKey::new(service.cluster.clone(), service.namespace.clone(), service.name.clone());
                self.object(Kind::Service, &key)
            }
            ServiceSource::ServiceEntry => {
                let entries = self.all::<ServiceEntry>(Kind::ServiceEntry);
                let declares = |(key, entry): &&(ObjectKey, ServiceEntry)| {
                    key.namespace == service.namespace && entry.hosts.contains(&service.host)
                };
                let of_host = ObjectKey::new(service.cluster.clone(), service.namespace.clone(), service.name.clone());
                let key = entries.iter().find(declares).map_or(of_host, |(key, _)| key.clone());
                self.object(Kind::ServiceEntry, &key)
            }
        }
    }

    /// The host of a Kubernetes Service.
    pub(super) fn host_of_service(&self, key: &ObjectKey) -> Host {
        Host::new(&format!("{}.{}.svc.{}", key.name, key.namespace, self.state.graph.domain))
    }

    /// Namespace and name of the Kubernetes Service of a host, whether or not it exists.
    pub(super) fn service_of_host(&self, host: &Host) -> Option<(Text, Text)> {
        let stem = host.as_str().strip_suffix(&format!(".svc.{}", self.state.graph.domain))?;
        let (name, namespace) = stem.split_once('.')?;
        Some((namespace.into(), name.into()))
    }

    /// The hosts of a ServiceEntry.
    pub(super) fn hosts_of_entry(&self, key: &ObjectKey) -> Vec<Host> {
        let entries = self.all::<ServiceEntry>(Kind::ServiceEntry);
        entries.into_iter().find(|(known, _)| known == key).map(|(_, entry)| entry.hosts).unwrap_or_default()
    }

    /// The host that a text means: the first candidate that has a service, else the first one.
    pub(super) fn host(&self, text: &str, namespace: &str) -> Host {
        let namespace = if namespace.is_empty() { self.namespace() } else { namespace };
        let mut candidates = host_candidates(text, namespace, &self.state.graph.domain);
        let known = candidates.iter().position(|host| !self.services(host).is_empty());
        candidates.swap_remove(known.unwrap_or_default())
    }

    /// The name of the Sidecar of the proxy.
    pub(super) fn sidecar(&self) -> Option<ObjectVersion> {
        let sidecar = self.proxy.sidecar.as_ref()?;
        Some(self.object(Kind::Sidecar, &sidecar.scope.sidecar))
    }
}
