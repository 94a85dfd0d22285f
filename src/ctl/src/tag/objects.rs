//! The objects of revisions and tags in a cluster.

use serde_json::Value;
use sluice_install::KubeObject;

use crate::answer_output::{list, text};
use crate::connect::QueryError;
use crate::connect::kubernetes::KubeconfigCluster;

/// The label of the objects of a revision.
const REVISION_LABEL: &str = "istio.io/rev";
/// The label of the objects of a tag.
const TAG_LABEL: &str = "istio.io/tag";

/// The collection of webhooks for injection.
pub(crate) const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
/// The collection of webhooks for validation.
pub(crate) const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// What a cluster has of revisions and tags.
pub(crate) struct RevisionObjects {
    /// MutatingWebhookConfigurations.
    pub(crate) webhooks: Vec<Value>,
    /// ValidatingWebhookConfigurations.
    pub(crate) validators: Vec<Value>,
    /// Services in the namespace of the control plane.
    pub(crate) services: Vec<Value>,
    pub(crate) namespaces: Vec<Value>,
}

impl RevisionObjects {
    /// Reads them.
    pub(crate) async fn read(cluster: &KubeconfigCluster, istio_namespace: &str) -> Result<Self, QueryError> {
        let services = format!("/api/v1/namespaces/{istio_namespace}/services");
        Ok(Self {
            webhooks: items(cluster, MUTATING, "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
                .await?,
            validators: items(cluster, VALIDATING, "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
                .await?,
            services: items(cluster, &services, "v1", "Service").await?,
            namespaces: items(cluster, "/api/v1/namespaces", "v1", "Namespace").await?,
        })
    }

    /// The names of namespaces whose label names a revision or tag.
    pub(crate) fn namespaces_of(&self, name: &str) -> Vec<&str> {
        let of = self.namespaces.iter().filter(|namespace| revision_of(namespace) == Some(name));
        of.map(|namespace| text(&namespace["metadata"], "name")).collect()
    }
}

/// The objects of a collection with their kind, which items of a list do not state.
async fn items(
    cluster: &KubeconfigCluster,
    path: &str,
    api_version: &str,
    kind: &str,
) -> Result<Vec<Value>, QueryError> {
    let answer = cluster.read(path).await?;
    let with_kind = |item: &Value| {
        let mut item = item.clone();
        item["apiVersion"] = api_version.into();
        item["kind"] = kind.into();
        item
    };
    Ok(list(&answer, "items").iter().map(with_kind).collect())
}

/// The revision of an object.
pub(crate) fn revision_of(object: &Value) -> Option<&str> {
    object["metadata"]["labels"][REVISION_LABEL].as_str()
}

/// The tag of an object.
pub(crate) fn tag_of(object: &Value) -> Option<&str> {
    object["metadata"]["labels"][TAG_LABEL].as_str()
}

/// The object of a revision itself: it has no tag.
pub(crate) fn is_canonical(object: &Value, revision: &str) -> bool {
    revision_of(object) == Some(revision) && tag_of(object).is_none()
}

/// An object of the cluster, for a plan of changes.
pub(crate) fn kube_object(value: &Value) -> Result<KubeObject, QueryError> {
    KubeObject::new(value.clone())
        .ok_or_else(|| QueryError::Cluster("the API server returned an object without a name".to_owned()))
}
