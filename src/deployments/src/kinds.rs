//! The kinds of deployed objects in the API.

use sluice_kube::{ObjectPath, Resource};
use sluice_model::gateway_api::DeployedKind;
use sluice_model::label;

/// The collection of the objects of a kind.
pub(crate) fn object_path(kind: DeployedKind) -> ObjectPath {
    match kind.names() {
        // The core group has a path of its own.
        ("v1", _) => ObjectPath::new("/api/v1", plural(kind)),
        (version, _) => ObjectPath::of_version(version, plural(kind)),
    }
}

/// The objects of a kind that a deployment controller manages, in all namespaces.
pub(crate) fn managed_resource(kind: DeployedKind) -> Resource {
    let (api_version, name) = kind.names();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Resource::with_label(group, version, name, plural(kind), label::GATEWAY_MANAGED)
}

fn plural(kind: DeployedKind) -> &'static str {
    match kind {
        DeployedKind::ServiceAccount => "serviceaccounts",
        DeployedKind::Deployment => "deployments",
        DeployedKind::Service => "services",
        DeployedKind::HorizontalPodAutoscaler => "horizontalpodautoscalers",
        DeployedKind::PodDisruptionBudget => "poddisruptionbudgets",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_group_of_the_kind() {
        let path = |kind| object_path(kind).of("app", "web", "");
        assert_eq!(path(DeployedKind::Service), "/api/v1/namespaces/app/services/web");
        let budget = "/apis/policy/v1/namespaces/app/poddisruptionbudgets/web";
        assert_eq!(path(DeployedKind::PodDisruptionBudget), budget);
    }
}
