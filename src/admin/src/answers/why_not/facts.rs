//! What the reasons are found in: the collections at one epoch, and the proxy.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use sluice_graph::{Inputs, SidecarImports, host_candidates};
use sluice_model::{Host, Kind, ObjectKey, Proxy, ProxyKey, Sidecar};

use super::super::mesh_facts::MeshFacts;
use super::super::names::{did_you_mean, object_text, similar};
use super::super::objects::ObjectVersion;
use super::{AbsenceReason, ReasonCode};
use crate::AdminState;

/// The collections at one epoch, and the proxy.
pub(super) struct Facts<'a> {
    collections: MeshFacts<'a>,
    pub(super) key: &'a ProxyKey,
    /// The proxy, with its Sidecar.
    pub(super) proxy: Arc<Proxy>,
    /// What its Sidecar imports, if the Sidecar limits that.
    pub(super) imports: Option<SidecarImports>,
}

impl<'a> Deref for Facts<'a> {
    type Target = MeshFacts<'a>;

    fn deref(&self) -> &MeshFacts<'a> {
        &self.collections
    }
}

impl<'a> Facts<'a> {
    /// `None` if the dataflow does not have the proxy.
    pub(super) fn new(state: &'a AdminState, key: &'a ProxyKey) -> Option<Self> {
        let collections = MeshFacts::new(state);
        let proxy = collections.snapshot.get(&state.handles.proxies, key)?;
        let mut facts = Self { collections, key, proxy: proxy.clone(), imports: None };
        if let Some(chosen) = proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits) {
            let sidecars = facts.all::<Sidecar>(Kind::Sidecar);
            let sidecar = sidecars.into_iter().find(|(key, _)| *key == chosen.scope.sidecar);
            facts.imports = sidecar.map(|(_, sidecar)| SidecarImports::new(chosen.scope.clone(), &sidecar));
        }
        Some(facts)
    }

    pub(super) fn namespace(&self) -> &str {
        &self.proxy.namespace
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
