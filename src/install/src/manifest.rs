//! The objects of an installation, by component.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use sluice_template::Lookup;

use crate::chart::{Chart, Charts};
use crate::cluster::TargetCluster;
use crate::error::InstallError;
use crate::kubernetes::{self, ComponentWorkload, add_labels, with_annotations};
use crate::object::{KubeObject, ObjectKey, step};
use crate::operator::{Component, ComponentSpec, DEFAULT_REVISION, Installation, ztunnel_name};
use crate::ownership::{self, Owner};
use crate::render::{self, Capabilities, EmptyCluster, Release};

/// How often charts are rendered until they read no further object of the cluster.
const MAX_LOOKUP_ROUNDS: usize = 8;

/// The file of the chart `base` with the CRDs.
const DEFINITIONS: &str = "files/istio.yaml";

/// The rendered objects of a component.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The component.
    pub component: Component,
    /// The name of the release: for a gateway, its own.
    pub name: String,
    /// The objects, in the order in which they are applied.
    pub objects: Vec<KubeObject>,
}

impl Installation {
    /// Renders the objects without a cluster. They have the labels of the charts only.
    ///
    /// # Errors
    /// A chart does not render with the values, or a setting of `k8s` has no effect.
    pub fn render(&self, charts: &Charts, capabilities: &Capabilities) -> Result<Vec<Manifest>, InstallError> {
        self.render_with(charts, capabilities, &EmptyCluster)
    }

    /// Renders the objects with what templates read of the cluster, and with the labels of the installation.
    ///
    /// # Errors
    /// As [`Installation::render`], or the API server does not answer.
    pub async fn render_for(
        &self,
        charts: &Charts,
        capabilities: &Capabilities,
        cluster: &TargetCluster,
    ) -> Result<Vec<Manifest>, InstallError> {
        let mut lookup = KnownObjects::default();
        for _ in 0..MAX_LOOKUP_ROUNDS {
            let mut manifests = self.render_with(charts, capabilities, &lookup)?;
            let wanted = std::mem::take(&mut *lookup.wanted.borrow_mut());
            if wanted.is_empty() {
                self.own(&mut manifests);
                return Ok(manifests);
            }
            for key in wanted {
                let found = match cluster.get(&key).await? {
                    Some(found) => self.as_release(found),
                    None => Json::Null,
                };
                lookup.known.insert(key, found);
            }
        }
        Err(InstallError::refused("the charts", "they read further objects of the cluster in each rendering"))
    }

    fn render_with(
        &self,
        charts: &Charts,
        capabilities: &Capabilities,
        lookup: &dyn Lookup,
    ) -> Result<Vec<Manifest>, InstallError> {
        self.components.iter().map(|spec| self.component(spec, charts, capabilities, lookup)).collect()
    }

    fn component(
        &self,
        spec: &ComponentSpec,
        charts: &Charts,
        capabilities: &Capabilities,
        lookup: &dyn Lookup,
    ) -> Result<Manifest, InstallError> {
        let mut objects = self.release_objects(spec, charts, capabilities, lookup)?;
        self.customize(spec, &mut objects)?;
        Ok(Manifest { component: spec.component, name: spec.release.clone(), objects })
    }

    /// The objects of a chart with the values of a component, without the changes of `k8s`.
    pub(crate) fn release_objects(
        &self,
        spec: &ComponentSpec,
        charts: &Charts,
        capabilities: &Capabilities,
        lookup: &dyn Lookup,
    ) -> Result<Vec<KubeObject>, InstallError> {
        let chart = charts.of(spec.component);
        self.check_definitions(spec, chart)?;
        // Whether objects exist is decided object by object; no chart distinguishes an upgrade.
        let release = Release { name: spec.release.clone(), namespace: spec.namespace.clone(), is_upgrade: false };
        let mut objects = render::render(chart, &release, &spec.values, capabilities, lookup)?;
        objects.sort_by_key(|object| step(&object.key().kind));
        Ok(objects)
    }

    /// Applies the changes of `k8s` to the objects of a component.
    pub(crate) fn customize(&self, spec: &ComponentSpec, objects: &mut [KubeObject]) -> Result<(), InstallError> {
        let name = match spec.component {
            Component::Pilot if self.revision != DEFAULT_REVISION => format!("istiod-{}", self.revision),
            Component::Pilot => "istiod".to_owned(),
            Component::Cni => "istio-cni-node".to_owned(),
            Component::Ztunnel => ztunnel_name(&spec.values),
            _ => spec.release.clone(),
        };
        let container = match spec.component {
            Component::Base => None,
            Component::Pilot => Some("discovery"),
            Component::Cni => Some("install-cni"),
            Component::Ztunnel | Component::IngressGateway | Component::EgressGateway => Some("istio-proxy"),
        };
        let kind = match spec.component.is_node_agent() {
            true => "DaemonSet",
            false => "Deployment",
        };
        let workload = ComponentWorkload { kind, name: &name, container };
        kubernetes::change(objects, &spec.kubernetes, &workload, &spec.path)
    }

    /// The chart of the base has the CRDs only where they were built.
    fn check_definitions(&self, spec: &ComponentSpec, chart: &Chart) -> Result<(), InstallError> {
        let is_wanted = spec.component == Component::Base && spec.values["base"]["enableIstioConfigCRDs"] != false;
        if !is_wanted || chart.files.contains_key(DEFINITIONS) {
            return Ok(());
        }
        let reason = "the charts do not have the CRDs: give the directory of `make manifests` with --manifests, or install the \
                      CRDs yourself and set values.base.enableIstioConfigCRDs: false";
        Err(InstallError::input(&spec.path, reason))
    }

    /// Adds the labels of the installation.
    fn own(&self, manifests: &mut [Manifest]) {
        for manifest in manifests {
            let labels = self.owner(manifest.component).labels();
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            for object in &mut manifest.objects {
                add_labels(object, &labels);
            }
        }
    }

    pub(crate) fn owner(&self, component: Component) -> Owner<'_> {
        Owner { name: &self.owner, revision: &self.revision, component }
    }

    /// An object of the cluster, as templates see it. They recognize objects of their release by an annotation of helm.
    fn as_release(&self, object: KubeObject) -> Json {
        let is_own = Component::ALL.iter().any(|component| self.owner(*component).owns(&object));
        let Some(spec) = self.components.iter().find(|spec| is_own && spec.component == Component::Pilot) else {
            return object.json().clone();
        };
        with_annotations(object.json().clone(), &json!({ownership::HELM_RELEASE: spec.release}))
    }
}

/// Objects of a cluster that are read between two renderings.
#[derive(Debug, Default)]
struct KnownObjects {
    known: BTreeMap<ObjectKey, Json>,
    /// What a template read and is not known yet.
    wanted: RefCell<BTreeSet<ObjectKey>>,
}

impl Lookup for KnownObjects {
    fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Json {
        let key = ObjectKey {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        if let Some(found) = self.known.get(&key) {
            return found.clone();
        }
        self.wanted.borrow_mut().insert(key);
        Json::Null
    }
}
