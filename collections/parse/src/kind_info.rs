//! A row of the table of kinds.

use sluice_model::gateway_api::{EXPERIMENTAL_GROUP, GROUP, INFERENCE_GROUP};
use sluice_model::{Kind, MULTI_CLUSTER_GROUP, Object};

use crate::{Findings, Item};

/// Parser of a kind: the model value, or `None` if the object does not apply. Findings are added to the second argument.
pub type Parse = fn(&Item<'_>, &Findings) -> Option<Object>;

/// A kind of object and its parser.
#[derive(Clone, Debug)]
pub struct KindInfo {
    /// The kind.
    pub kind: Kind,
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Supported versions, the preferred one first.
    pub versions: &'static [&'static str],
    /// Value of `kind` in objects.
    pub name: &'static str,
    /// Plural resource name in URLs of the API server.
    pub plural: &'static str,
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    /// The parser; `None` if nothing derives from the kind.
    pub parse: Option<Parse>,
}

impl KindInfo {
    /// Whether a CustomResourceDefinition defines the kind; it may be absent or installed later.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.is_configuration() || self.is_multi_cluster()
    }

    /// Whether the kind is configuration: of Istio or of the Gateway API.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        self.is_istio() || self.is_gateway_api()
    }

    /// Whether the kind is in one of Istio's API groups.
    #[must_use]
    pub fn is_istio(&self) -> bool {
        self.group.ends_with(".istio.io")
    }

    /// Whether the kind is part of the Kubernetes Gateway API or of its inference extension.
    #[must_use]
    pub fn is_gateway_api(&self) -> bool {
        [GROUP, EXPERIMENTAL_GROUP, INFERENCE_GROUP].contains(&self.group)
    }

    /// Whether the kind is part of the Multi-Cluster Services API.
    #[must_use]
    pub fn is_multi_cluster(&self) -> bool {
        self.group == MULTI_CLUSTER_GROUP
    }

    /// `apiVersion` of the preferred version.
    #[must_use]
    pub fn api_version(&self) -> String {
        let version = self.versions.first().copied().unwrap_or_default();
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }
}
