//! Analysis of Kubernetes and Istio objects (I06): mistakes that the validation of a single object cannot find, such as a
//! reference to an object that does not exist. The codes, names and levels are those of `istioctl analyze`.
//!
//! The crate does no I/O. The input is a list of [`Resource`]s, from files or from a cluster; [`Mesh`] indexes them; each
//! analyzer in `analyzers/` reads the index and adds [`Message`]s to a [`Report`]. To add an analyzer: add a file there with
//! a `run` function and a line in [`ANALYZERS`] that names the codes of its messages; add the codes to `codes.rs`.

mod analyzers;
mod codes;
mod defaults;
mod mesh;
mod message;
mod resource;
mod selector;
mod suppression;
mod value;

pub use analyzers::{ANALYZERS, Analyzer};
pub use codes::{MESSAGE_TYPES, MessageType, NOT_APPLICABLE, NotApplicable};
pub use defaults::default_resources;
pub use mesh::{Mesh, Settings};
pub use message::{Level, Message, Report};
pub use resource::{Kind, Origin, Resource};
pub use suppression::Suppression;

/// Runs analyzers on a mesh. The messages are sorted by level (errors first), code, object and field, without duplicates.
#[must_use]
pub fn analyze<'m>(mesh: &'m Mesh<'m>, analyzers: &[&Analyzer]) -> Vec<Message<'m>> {
    let mut report = Report::default();
    for analyzer in analyzers {
        (analyzer.run)(mesh, &mut report);
    }
    report.into_messages()
}
