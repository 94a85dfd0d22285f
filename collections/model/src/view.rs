//! Views, layers and scopes: who shares a resource.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::{Identity, Labels, ObjectKey, ResourceType, SlotValues, Text};

/// A Sidecar in force in a namespace: that of the root namespace means something else in each.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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

/// Whose eyes a resource is written for, apart from the proxy's technical profile.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum View {
    /// Any proxy for which nothing more special is written: public services under mesh-wide rules.
    #[default]
    Base,
    /// Proxies of one namespace: what differs there from `Base`.
    Namespace(Text),
    /// Proxies of one namespace with these values of the labels that some client-side selector mentions.
    Selected {
        /// Namespace.
        namespace: Text,
        /// Only the labels that are selected on.
        labels: Labels,
    },
    /// Proxies of which a Sidecar says what they see: all of it, over nothing else. With labels, what differs for proxies
    /// with these values of the labels that are selected on.
    Sidecar {
        /// The Sidecar, in the namespace of the proxies. Shared, as views are many and most are not of this kind.
        scope: Arc<SidecarScope>,
        /// Only the label keys that are selected on.
        labels: Labels,
    },
    /// Proxies with this content of workload facts (an inbound side, a gateway's servers): the text names the content.
    Workload(Text),
}

impl View {
    /// The client namespace this view is written for; empty for `Base`, which is no namespace in particular.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Base | Self::Workload(_) => "",
            Self::Namespace(namespace) | Self::Selected { namespace, .. } => namespace,
            Self::Sidecar { scope, .. } => &scope.namespace,
        }
    }

    /// The selected labels it is written for, if it is for any.
    #[must_use]
    pub fn labels(&self) -> Option<&Labels> {
        match self {
            Self::Selected { labels, .. } => Some(labels),
            Self::Sidecar { labels, .. } => Some(labels).filter(|labels| !labels.is_empty()),
            Self::Base | Self::Namespace(_) | Self::Workload(_) => None,
        }
    }

    /// The Sidecar it is written for, if it is for one.
    #[must_use]
    pub fn sidecar(&self) -> Option<&SidecarScope> {
        match self {
            Self::Sidecar { scope, .. } => Some(scope),
            _ => None,
        }
    }
}

/// A set of named resources that proxies share: a view, written for one profile.
///
/// A profile is the canonical text of those facts of a proxy that change how resources of the type are written.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Layer {
    /// Whose eyes.
    pub view: View,
    /// Which technical facts.
    pub profile: Text,
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

/// What one proxy may see and how: for each type, layers in order. The first that names a resource, or hides it, wins.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Scope {
    /// Most special first.
    pub layers: BTreeMap<ResourceType, Arc<[Layer]>>,
    /// What this proxy fills into templates: its own identity.
    pub slots: SlotValues,
    /// Who it is for: a stream of anybody else never gets what is in it.
    pub identity: Option<Identity>,
    /// The node of a node proxy: it is told of everything there without asking.
    pub node: Text,
}
