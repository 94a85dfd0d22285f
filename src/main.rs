//! `sluiced`: the control plane.
fn main() {}
