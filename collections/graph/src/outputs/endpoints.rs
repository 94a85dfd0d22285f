//! Endpoint assignments (S07, N16).

use sluice_engine::Graph;
use sluice_model::Layer;

use super::Outputs;
use crate::{Client, Spine};

/// None are made yet, so a proxy gets no layer of them.
pub(crate) fn layers(_client: &Client<'_>) -> Vec<Layer> {
    Vec::new()
}

/// Nothing is made yet.
pub(crate) fn derive_endpoint_assignments<'s>(_graph: &Graph<'s>, _spine: &Spine<'s>, _outputs: &mut Outputs<'s>) {}
