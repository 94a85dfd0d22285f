//! Operations that derive collections from collections and indexes.

mod chunk;
pub(crate) mod derive;
mod disjoint;
mod group;
mod incremental;
mod join;
mod nested;
mod record;
mod restrict;
pub(crate) mod status;
mod union;
