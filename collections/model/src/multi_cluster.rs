//! The Multi-Cluster Services API (S22).

use serde::{Deserialize, Serialize};

use crate::Text;

/// API group of ServiceExport and ServiceImport.
pub const MULTI_CLUSTER_GROUP: &str = "multicluster.x-k8s.io";
/// DNS domain of imported Services.
pub const CLUSTER_SET_DOMAIN: &str = "clusterset.local";

/// A ServiceExport: the cluster exports the Service of its namespace and name. Only its existence counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceExport;

/// A ServiceImport: clients in the cluster reach the Service of its namespace and name in all clusters that export it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceImport {
    /// Virtual addresses, sorted.
    pub ips: Vec<Text>,
}
