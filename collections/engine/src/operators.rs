//! The logic of the engine's own operators. The operators of differential dataflow are in `spines.rs`.

pub(crate) mod distinct;
pub(crate) mod lookup;
pub(crate) mod merge;
pub(crate) mod record;
