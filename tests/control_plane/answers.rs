//! `sluicectl why`, `why-not`, `wait` and `history` on a running control plane with connected proxies.

mod console;
mod history;
mod mesh;
mod operators;
mod traces;
mod wait;
mod why;
mod why_not;
