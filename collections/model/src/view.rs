//! Views, layers and scopes: who shares a resource.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::{Labels, ResourceType, Slots, Text};

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
            View::Workload(content) => write!(f, "workload:{content}")?,
        }
        write!(f, "[{}]", self.profile)
    }
}

/// What one proxy may see and how: for each type, layers in order. The first that names a resource, or hides it, wins.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Scope {
    /// Most special first.
    pub layers: BTreeMap<ResourceType, Vec<Layer>>,
    /// What this proxy fills into templates: its own identity.
    pub slots: Slots,
}
