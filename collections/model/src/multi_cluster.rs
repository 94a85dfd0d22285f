//! The Multi-Cluster Services API (S22).

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::gateway_api::GroupKind;

/// API group of ServiceExport and ServiceImport.
pub const MULTI_CLUSTER_GROUP: &str = "multicluster.x-k8s.io";
/// DNS domain of imported Services.
pub const CLUSTER_SET_DOMAIN: &str = "clusterset.local";

/// API group and version of ServiceExports and ServiceImports.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct MultiClusterApi {
    /// The group (`MCS_API_GROUP`).
    pub group: Text,
    /// The version (`MCS_API_VERSION`).
    pub version: Text,
}

impl Default for MultiClusterApi {
    fn default() -> Self {
        Self { group: MULTI_CLUSTER_GROUP.into(), version: "v1alpha1".into() }
    }
}

impl MultiClusterApi {
    /// `apiVersion` of the objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Whether a reference is to a ServiceImport.
    #[must_use]
    pub fn is_service_import(&self, kind: &GroupKind) -> bool {
        kind.is(&self.group, "ServiceImport")
    }
}

/// A ServiceExport: the cluster exports the Service of its namespace and name. Only its existence counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceExport;

/// A ServiceImport: clients in the cluster reach the Service of its namespace and name in all clusters that export it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceImport {
    /// Virtual addresses, sorted.
    pub ips: Vec<Text>,
}
