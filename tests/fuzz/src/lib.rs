//! Fuzzing without instrumentation: what the cases hold is mutated and put through the real thing, and nothing may
//! panic, run away, or be published that does not decode.
//!
//! A turn depends on the seed and its number only, so that any can be had again. A failure is made smaller and written
//! as YAML that `sluice-fuzz --replay` takes.

pub mod assembled;
pub mod bytes;
pub mod csr;
pub mod decode;
mod envoy_rules;
pub mod failure;
pub mod identity;
pub mod jwt;
pub mod mesh;
pub mod minimise;
pub mod mutate;
pub mod objects;
pub mod patches;
pub mod rng;
pub mod run;
pub mod seeds;
pub mod turns;
pub mod xds;
