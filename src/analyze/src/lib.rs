//! Analysis of Kubernetes and Istio objects (I06): mistakes that the validation of a single object cannot find, such as a
//! reference to an object that does not exist. The codes, names and levels are those of `istioctl analyze`.
//!
//! The crate does no I/O. The input is a list of [`AnalyzedObject`]s, from files or from a cluster; [`MeshObjects`] indexes them; each
//! analyzer in `analyzers/` reads the index and adds [`Message`]s to a [`MessageList`]. To add an analyzer: add a file there with
//! a `run` function and a line in [`ANALYZERS`] that names the codes of its messages; add the codes to `codes.rs`.

mod analyzers;
mod codes;
mod defaults;
mod istio_annotations;
mod level;
mod mesh;
mod message;
mod resource;
mod selector;
mod suppression;
mod value;

pub use analyzers::{ANALYZERS, Analyzer, OPTIONAL_ANALYZERS};
pub use codes::{MESSAGE_TYPES, MessageType, OTHER_CODES, OtherCode};
pub use defaults::default_resources;
pub use level::Level;
pub use mesh::{MeshObjects, Settings};
pub use message::{Message, MessageList};
pub use resource::{AnalyzedObject, GroupKind, Origin};
pub use suppression::{Suppression, matches_pattern};

/// Runs analyzers on a mesh. The messages are sorted by cluster, level (errors first), code, object and field, without duplicates.
#[must_use]
pub fn analyze<'m>(mesh: &'m MeshObjects<'m>, analyzers: &[&Analyzer]) -> Vec<Message<'m>> {
    let mut report = MessageList::default();
    for analyzer in analyzers {
        (analyzer.run)(mesh, &mut report);
    }
    report.into_messages()
}
