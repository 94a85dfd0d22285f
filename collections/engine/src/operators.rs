//! The logic of the engine's own operators. The operators of differential dataflow are in `spines.rs`.

pub(crate) mod chunk;
pub(crate) mod disjoint;
pub(crate) mod distinct;
pub(crate) mod fetch;
pub(crate) mod filtered;
pub(crate) mod incremental;
pub(crate) mod lookup;
pub(crate) mod merge;
pub(crate) mod record;
pub(crate) mod restrict;
