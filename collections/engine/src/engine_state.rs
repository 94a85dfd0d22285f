//! The state of an engine, from which a second engine of the same graph starts.

use crate::copied_state::OperatorStateCopy;
use crate::input_state::InputRows;
use crate::output::PublishedRows;
use crate::update::Time;

/// The state of an engine after an epoch.
pub(crate) struct EngineState {
    pub(crate) epoch: Time,
    /// Names of the nodes: only a graph with the same nodes can take it over.
    pub(crate) nodes: Vec<String>,
    /// Numbers of records of the nodes.
    pub(crate) sizes: Vec<i64>,
    /// In the order in which the operators were built.
    pub(crate) operators: Vec<OperatorStateCopy>,
    pub(crate) inputs: Vec<InputRows>,
    pub(crate) published: Vec<PublishedRows>,
}

/// There is no copy of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyError {
    /// The engine has stopped.
    Stopped,
    /// The other graph has other collections.
    OtherGraph,
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stopped => "the engine has stopped",
            Self::OtherGraph => "the graph has other collections than the engine that is copied",
        })
    }
}

impl std::error::Error for CopyError {}
