//! The labels that mark the objects of an installation. They are those of istioctl, so that an installation of it is taken over.

use crate::object::KubeObject;
use crate::operator::Component;

/// Says that an installation has the object, and not a release of helm.
const MANAGED: &str = "operator.istio.io/managed";
const MANAGED_VALUE: &str = "Reconcile";
const COMPONENT: &str = "operator.istio.io/component";
const VERSION: &str = "operator.istio.io/version";
const OWNER: &str = "install.operator.istio.io/owning-resource";
const REVISION: &str = "istio.io/rev";
/// The annotation of objects of a release of helm.
pub(crate) const HELM_RELEASE: &str = "meta.helm.sh/release-name";

/// The labels by which an installation finds its objects again, and which those of other owners must not have.
pub(crate) const OWNERSHIP_LABELS: [&str; 4] = [MANAGED, COMPONENT, VERSION, OWNER];

/// The version of the charts.
const VERSION_VALUE: &str = env!("CARGO_PKG_VERSION");

/// Kinds of objects that an installation can have, in the order in which they are removed. CRDs are never removed, since all
/// their objects would disappear with them. The group of the last one may be missing.
pub(crate) const KINDS: [(&str, &str); 18] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "ResourceQuota"),
    ("v1", "Service"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("v1", "ConfigMap"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("v1", "ServiceAccount"),
];

/// A kind of a CRD that the charts render on request.
pub(crate) const SERVICE_MONITOR: (&str, &str) = ("monitoring.coreos.com/v1", "ServiceMonitor");

/// The owner of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'o> {
    pub(crate) name: &'o str,
    pub(crate) revision: &'o str,
    pub(crate) component: Component,
}

impl Owner<'_> {
    /// The labels of its objects. The base has no revision, because all share it.
    pub(crate) fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![
            (MANAGED, MANAGED_VALUE.to_owned()),
            (COMPONENT, self.component.label().to_owned()),
            (VERSION, VERSION_VALUE.to_owned()),
            (OWNER, self.name.to_owned()),
        ];
        if self.component != Component::Base {
            labels.push((REVISION, self.revision.to_owned()));
        }
        labels
    }

    /// Whether the labels of an object are those of the owner.
    pub(crate) fn owns(&self, object: &KubeObject) -> bool {
        self.labels().iter().filter(|(name, _)| *name != VERSION).all(|(name, value)| object.label(name) == Some(value))
    }

    /// The selector of its objects.
    pub(crate) fn selector(&self) -> String {
        let labels = self.labels().into_iter().filter(|(name, _)| *name != VERSION);
        labels.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
    }
}

/// The selector of the objects of a revision, without the base, of any owner.
pub(crate) fn revision_selector(revision: &str) -> String {
    let components = Component::ALL.iter().filter(|component| **component != Component::Base);
    let components: Vec<&str> = components.map(|component| component.label()).collect();
    format!("{MANAGED}={MANAGED_VALUE},{REVISION}={revision},{COMPONENT} in ({})", components.join(","))
}

/// The selector of the objects of all installations.
pub(crate) fn purge_selector() -> String {
    let components = Component::ALL.map(Component::label).join(",");
    format!("{MANAGED}={MANAGED_VALUE},{COMPONENT} in ({components})")
}

/// The component that a label names.
pub(crate) fn component_of(object: &KubeObject) -> Option<Component> {
    let label = object.label(COMPONENT)?;
    Component::ALL.into_iter().find(|component| component.label() == label)
}

/// The release of helm that has an object.
pub(crate) fn helm_release(object: &KubeObject) -> Option<&str> {
    object.annotation(HELM_RELEASE).filter(|_| object.label("app.kubernetes.io/managed-by") == Some("Helm"))
}
