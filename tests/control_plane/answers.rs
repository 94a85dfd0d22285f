//! `sluicectl why`, `why-not`, `wait`, `history`, `preview`, `record` and `replay` on a running control plane with connected proxies, and
//! `analyze` on clusters.

mod analyze;
mod console;
mod history;
mod mesh;
mod operators;
mod preview;
mod recording;
mod traces;
mod wait;
mod why;
mod why_not;
