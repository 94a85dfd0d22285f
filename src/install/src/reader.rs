//! The service account by which another control plane reads a cluster, with its rights (I10).

use crate::chart::Charts;
use crate::error::InstallError;
use crate::object::KubeObject;
use crate::operator::{InstallInputs, Installation};
use crate::render::Capabilities;

/// Name of the service account.
pub const READER_ACCOUNT: &str = "istio-reader-service-account";
/// What the names of its cluster role and of the binding begin with.
const READER_ROLE: &str = "istio-reader-clusterrole";

/// The service account in a namespace, its cluster role and the binding, in the order in which they are applied.
///
/// # Errors
/// A chart does not render.
pub fn reader_objects(
    namespace: &str,
    charts: &Charts,
    capabilities: &Capabilities,
) -> Result<Vec<KubeObject>, InstallError> {
    let settings = ["profile=minimal", "values.base.enableIstioConfigCRDs=false"].map(str::to_owned).to_vec();
    let inputs = InstallInputs { settings, namespace: Some(namespace.to_owned()), ..InstallInputs::default() };
    let manifests = Installation::read(&inputs)?.render(charts, capabilities)?;
    let is_of_reader = |object: &KubeObject| {
        let key = object.key();
        match key.kind.as_str() {
            "ServiceAccount" => key.name == READER_ACCOUNT,
            "ClusterRole" | "ClusterRoleBinding" => key.name.starts_with(READER_ROLE),
            _ => false,
        }
    };
    Ok(manifests.into_iter().flat_map(|manifest| manifest.objects).filter(is_of_reader).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_role_and_binding_belong_together() {
        let charts = Charts::embedded().expect("charts");
        let objects = reader_objects("mesh", &charts, &Capabilities::default()).expect("they render");
        let keys: Vec<String> = objects.iter().map(|object| object.key().to_string()).collect();
        let role = "istio-reader-clusterrole-mesh";
        let account = format!("ServiceAccount mesh/{READER_ACCOUNT}");
        assert_eq!(keys, [account, format!("ClusterRole {role}"), format!("ClusterRoleBinding {role}")]);
        let binding = objects[2].json();
        assert_eq!(binding["subjects"][0]["name"], READER_ACCOUNT);
        assert_eq!((&binding["subjects"][0]["namespace"], &binding["roleRef"]["name"]), (&"mesh".into(), &role.into()));
    }
}
