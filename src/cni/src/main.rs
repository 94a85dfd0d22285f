//! `sluice-cni`.
fn main() {}
