//! Encoded resources, a file a type.

pub mod routes;
