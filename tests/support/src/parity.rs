//! Parity with recorded answers: cases are read, dumps brought into one form, compared, counted.
//!
//! A case is a directory `tests/cases/FAMILY/NN-SLUG` with objects, proxies and, for every proxy and type, what is to
//! be answered. `golden/PROXY/TYPE.json` is an array of resources in canonical form, one a line; `null` says that the
//! type is never answered.

pub mod case;
pub mod compare;
pub mod differences;
pub mod report;
pub mod run;

#[cfg(test)]
mod tests;
