//! Operations that derive collections from collections and indexes.

mod chunk;
pub(crate) mod derive;
mod group;
mod incremental;
mod join;
mod record;
mod restrict;
mod union;
