//! Views, layers and scopes: which proxies share a resource.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Identity, Labels, ObjectKey, ResourceType, SlotValues, Text};

/// A Sidecar as it applies to the proxies of one namespace. A Sidecar of the root namespace resolves differently in
/// each.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SidecarScope {
    /// Namespace of the proxies.
    pub namespace: Text,
    /// The Sidecar.
    pub sidecar: ObjectKey,
}

impl fmt::Display for SidecarScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, sidecar } = self;
        if *namespace == sidecar.namespace {
            write!(f, "{namespace}/{}", sidecar.name)
        } else {
            write!(f, "{namespace},{}/{}", sidecar.namespace, sidecar.name)
        }
    }
}

/// The proxies that a resource is written for, apart from their technical profile.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum View {
    /// All proxies without a more specific view: public services under mesh-wide rules.
    #[default]
    Base,
    /// Proxies of one namespace: the differences from `Base`.
    Namespace(Text),
    /// Proxies of one namespace with these values of the labels that client-side selectors use.
    Selected {
        /// Namespace.
        namespace: Text,
        /// Only the labels that selectors use.
        labels: Labels,
    },
    /// Proxies whose Sidecar limits what they see: everything they see, without a view below. With labels: the
    /// differences for proxies with these values of the labels that selectors use.
    Sidecar {
        /// The Sidecar, in the namespace of the proxies. In an `Arc`, because there are many views and most are of
        /// other kinds.
        scope: Arc<SidecarScope>,
        /// Only the labels that selectors use.
        labels: Labels,
    },
    /// Proxies with the same workload content, such as inbound ports or a gateway's servers. The text identifies the
    /// content.
    Workload(Text),
}

impl View {
    /// The client namespace of the view; empty for `Base` and `Workload`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Base | Self::Workload(_) => "",
            Self::Namespace(namespace) | Self::Selected { namespace, .. } => namespace,
            Self::Sidecar { scope, .. } => &scope.namespace,
        }
    }

    /// The labels of the view, if it has any.
    #[must_use]
    pub fn labels(&self) -> Option<&Labels> {
        match self {
            Self::Selected { labels, .. } => Some(labels),
            Self::Sidecar { labels, .. } => Some(labels).filter(|labels| !labels.is_empty()),
            Self::Base | Self::Namespace(_) | Self::Workload(_) => None,
        }
    }

    /// The Sidecar of the view, if it has one.
    #[must_use]
    pub fn sidecar(&self) -> Option<&SidecarScope> {
        match self {
            Self::Sidecar { scope, .. } => Some(scope),
            _ => None,
        }
    }
}

/// A set of named resources that proxies share: a view, for one profile.
///
/// A profile is the canonical text of the technical facts of a proxy that change how resources of a type are written.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Layer {
    /// The proxies it is for.
    pub view: View,
    /// Their technical facts.
    pub profile: Text,
}

/// How the profile of a layer begins whose resources a client has to name.
const ON_DEMAND: &str = "on-demand:";

impl Layer {
    /// The layer for resources beside those of this one: a client receives them only if it subscribes to their names.
    #[must_use]
    pub fn on_demand(&self) -> Self {
        Self { view: self.view.clone(), profile: format!("{ON_DEMAND}{}", self.profile).into() }
    }

    /// Whether a subscription to all resources leaves out those of this layer.
    #[must_use]
    pub fn is_on_demand(&self) -> bool {
        self.profile.starts_with(ON_DEMAND)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.view {
            View::Base => f.write_str("base")?,
            View::Namespace(namespace) => write!(f, "namespace:{namespace}")?,
            View::Selected { namespace, labels } => {
                write!(f, "selected:{namespace}")?;
                for (key, value) in labels {
                    write!(f, ",{key}={value}")?;
                }
            }
            View::Sidecar { scope, labels } => {
                write!(f, "sidecar:{scope}")?;
                for (key, value) in labels {
                    write!(f, ",{key}={value}")?;
                }
            }
            View::Workload(content) => write!(f, "workload:{content}")?,
        }
        write!(f, "[{}]", self.profile)
    }
}

/// The resources of one proxy: for each type, layers in order. The first layer that has a resource, or hides it, wins.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Most specific first.
    pub layers: BTreeMap<ResourceType, Arc<[Layer]>>,
    /// The values that this proxy fills into templates: its own identity.
    pub slots: SlotValues,
    /// The authenticated identity that the scope is for. A stream with another identity never uses this scope.
    pub identity: Option<Identity>,
    /// The node of a node proxy, which is sent everything on its node without a subscription.
    pub node: Text,
}
