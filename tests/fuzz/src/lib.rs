//! Fuzzing without instrumentation: the inputs of the parity cases are mutated and run through the real code. The code
//! must not panic, must finish in time, must take memory in proportion to the input, and must publish only messages that
//! decode.
//!
//! A turn depends only on the seed and its number, so that each is reproducible. A failure of the targets `objects` and
//! `patches` is minimised and written as YAML, which `sluice-fuzz --replay` reads.

pub mod analysis;
pub mod assembled;
pub mod bytes;
pub mod coverage;
pub mod csr;
pub mod decode;
mod envoy_rules;
pub mod epochs;
pub mod failure;
#[path = "../../../collections/parse/tests/allocation/growth.rs"]
pub(crate) mod growth;
pub mod identity;
pub mod jwt;
pub mod memory;
mod memory_bound;
pub mod mesh;
pub mod minimise;
pub mod mutate;
pub mod objects;
pub mod patches;
pub mod rng;
pub mod run;
pub mod seeds;
pub mod turns;
pub mod violation;
pub mod xds;
pub mod yaml;
