//! Annotations of Istio (IST0107, IST0108, IST0125, IST0135, IST0136).

use serde_json::Value;
use sluice_inject::check_annotation;

use crate::codes::{
    ALPHA_ANNOTATION, DEPRECATED_ANNOTATION, INVALID_ANNOTATION, MISPLACED_ANNOTATION, UNKNOWN_ANNOTATION,
};
use crate::istio_annotations::{self, IstioAnnotation, Stage};
use crate::resource::{DEPLOYMENT, NAMESPACE, POD, SERVICE};
use crate::value::{items, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

const INJECT: &str = "sidecar.istio.io/inject";

/// Written by control planes and installations, not by users.
const IGNORED: [&str; 3] = ["gateway.istio.io/controller-version", "istio.io/rev", "sidecar.istio.io/status"];

/// Alpha annotations that injection writes where the CNI plugin redirects traffic.
const WRITTEN_WITH_CNI: [&str; 4] = [
    "sidecar.istio.io/interceptionMode",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
];

/// The objects whose annotations are checked, with name and value of each.
fn annotations<'m>(mesh: &'m MeshObjects<'m>) -> impl Iterator<Item = (&'m AnalyzedObject, &'m str, &'m str)> {
    let objects =
        [NAMESPACE, SERVICE, POD, DEPLOYMENT].into_iter().flat_map(move |kind| mesh.all(kind).iter().copied());
    let all =
        objects.flat_map(|object| object.annotations().into_iter().map(move |(name, value)| (object, name, value)));
    all.filter(|(_, name, _)| istio_annotations::is_istio(name) && !IGNORED.contains(name))
}

fn field(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for (resource, name, value) in annotations(mesh) {
        match istio_annotations::find(name) {
            Some(annotation) => check(resource, annotation, value, report),
            None => {
                let text = format!("annotation {name} is unknown and has no effect");
                report.add(&UNKNOWN_ANNOTATION, resource, field(name), text);
            }
        }
    }
}

fn check<'m>(resource: &'m AnalyzedObject, annotation: &IstioAnnotation, value: &str, report: &mut MessageList<'m>) {
    let IstioAnnotation { name, is_deprecated, kinds, .. } = *annotation;
    // The label replaces the annotation; objects have both for older versions.
    if is_deprecated && !(name == INJECT && resource.label(INJECT).is_some()) {
        let instead = if name == INJECT { "; use the label of the same name" } else { "" };
        let text = format!("annotation {name} is deprecated and may have no effect in later versions{instead}");
        report.add(&DEPRECATED_ANNOTATION, resource, field(name), text);
    }
    if kinds == ["Any"] {
        return;
    }
    if !kinds.contains(&resource.kind().name) {
        let text = format!("annotation {name} has an effect on {} only", kinds.join(", "));
        report.add(&MISPLACED_ANNOTATION, resource, field(name), text);
    } else if let Err(reason) = check_annotation(name, value) {
        report.add(&INVALID_ANNOTATION, resource, field(name), format!("annotation {name} is invalid: {reason}"));
    }
}

/// Annotations of features in the alpha stage. It runs by name and in `precheck` only: many are written by installations.
pub(crate) fn alpha<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for (resource, name, _) in annotations(mesh) {
        let is_alpha = istio_annotations::find(name).is_some_and(|annotation| annotation.stage == Stage::Alpha);
        let is_written =
            resource.kind() == POD && !has_init_container(resource.spec()) && WRITTEN_WITH_CNI.contains(&name);
        if is_alpha && !is_written {
            let text = format!("annotation {name} belongs to a feature in the alpha stage, which may be incomplete");
            report.add(&ALPHA_ANNOTATION, resource, field(name), text);
        }
    }
}

/// Whether an init container redirects the traffic of a pod, rather than the CNI plugin.
fn has_init_container(spec: &Value) -> bool {
    items(spec, "initContainers").iter().any(|container| text(container, "name") == "istio-init")
}
