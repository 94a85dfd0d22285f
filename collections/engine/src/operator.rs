//! The engine's own timely operator: waits for an epoch to be complete, then handles all of it at once.

use std::collections::BTreeMap;

use differential_dataflow::AsCollection;
use differential_dataflow::consolidation::consolidate_updates;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use crate::spines::{Delta, Raw, Time};

/// Handles the consolidated changes of one epoch, one list an input, and puts out changes for the same epoch.
pub(crate) type EpochLogic = Box<dyn FnMut(Time, &mut [Vec<Delta>], &mut Vec<Delta>)>;

/// An operator that sees whole epochs. What it puts out is consolidated: no change, no output.
pub(crate) fn epochwise<'s>(
    scope: Scope<'s, Time>,
    name: &str,
    inputs: Vec<Raw<'s>>,
    mut logic: EpochLogic,
) -> Raw<'s> {
    let mut builder = OperatorBuilder::new(name.to_owned(), scope);
    let mut handles: Vec<_> = inputs.into_iter().map(|raw| builder.new_input(raw.inner, Pipeline)).collect();
    let (output, stream) = builder.new_output::<Vec<Delta>>();
    let mut output = OutputBuilder::<Time, CapacityContainerBuilder<Vec<Delta>>>::from(output);

    builder.build(move |capabilities| {
        drop(capabilities);
        let mut waiting: BTreeMap<Time, (Capability<Time>, Vec<Vec<Delta>>)> = BTreeMap::new();
        let mut out: Vec<Delta> = Vec::new();
        move |frontiers| {
            let inputs = handles.len();
            for (input, handle) in handles.iter_mut().enumerate() {
                handle.for_each(|capability, data| {
                    let (_, deltas) = waiting
                        .entry(*capability.time())
                        .or_insert_with(|| (capability.retain(0), vec![Vec::new(); inputs]));
                    if deltas[input].is_empty() {
                        std::mem::swap(&mut deltas[input], data);
                    } else {
                        deltas[input].append(data);
                    }
                });
            }
            while let Some(first) = waiting.first_entry() {
                if frontiers.iter().any(|frontier| frontier.less_equal(first.key())) {
                    break;
                }
                let (time, (capability, mut deltas)) = first.remove_entry();
                deltas.iter_mut().for_each(consolidate_updates);
                logic(time, &mut deltas, &mut out);
                consolidate_updates(&mut out);
                if !out.is_empty() {
                    output.activate().session_with_builder(&capability).give_container(&mut out);
                    out.clear();
                }
            }
        }
    });
    stream.as_collection()
}
