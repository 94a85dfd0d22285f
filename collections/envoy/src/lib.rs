//! Pure builders: model values to Envoy messages.

mod slots;

pub mod name;
pub mod wire;

pub use slots::{identity_slots, template};
