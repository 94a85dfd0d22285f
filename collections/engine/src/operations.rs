//! Operations that derive collections from collections and indexes.

pub(crate) mod derive;
mod group;
mod join;
mod record;
mod union;
