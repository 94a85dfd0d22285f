//! Unions of collections without common keys.

use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::update::{EpochLogic, size_change};

/// Forwards the updates of all inputs. It keeps nothing.
pub(crate) fn disjoint_logic(gauges: Arc<CollectionGauges>) -> EpochLogic {
    Box::new(move |_, updates, out| {
        updates.iter_mut().for_each(|input| out.append(input));
        gauges.record_input(out.len());
        gauges.record_output(size_change(out), out.len());
    })
}
