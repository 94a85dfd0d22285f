//! Parity with recorded resources: reads cases, brings dumps into canonical form, compares and counts them.
//!
//! A case is a directory `tests/cases/FAMILY/NN-SLUG` with objects, proxies and, for every proxy and type, the expected
//! resources. `golden/PROXY/TYPE.json` is an array of resources in canonical form, one on each line; `null` if the server
//! never answers for the type.

pub mod case;
pub mod case_server;
pub mod compare;
pub mod differences;
pub mod report;
pub mod run;

#[cfg(test)]
mod tests;
