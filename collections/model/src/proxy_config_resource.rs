//! The ProxyConfig resource (C18): settings that the proxies of a namespace or a workload start with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Labels, Text, Timestamp};

/// A ProxyConfig resource. In Istio, injection merges it over `defaultConfig` of the mesh config. It has no effect on xDS.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ProxyConfigResource {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Creation time.
    pub created: Timestamp,
    /// Selector of workloads; `None` is the whole namespace, an empty selector is no workload.
    pub selector: Option<Labels>,
    /// Number of worker threads, if set.
    pub concurrency: Option<i32>,
    /// Environment of the proxy.
    pub environment: BTreeMap<Text, Text>,
    /// Kind of the image, such as `distroless`, empty if unset.
    pub image_type: Text,
}
