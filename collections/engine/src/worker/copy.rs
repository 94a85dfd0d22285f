//! Copies of the state of the dataflow thread.

use std::sync::Arc;

use super::DataflowThread;
use crate::engine_state::{CopyError, EngineState};
use crate::epoch::{Epoch, EpochTiming};

impl DataflowThread {
    /// The state after the last epoch.
    pub(super) fn copy(&self) -> EngineState {
        EngineState {
            epoch: self.epoch,
            nodes: self.nodes.iter().map(|node| node.name.clone()).collect(),
            sizes: self.nodes.iter().map(|node| node.gauges.size()).collect(),
            operators: self.states.iter().map(|state| state.copy()).collect(),
            inputs: self.inputs.iter().map(|input| input.copy()).collect(),
            published: self.published.iter().map(|collection| collection.copy()).collect(),
        }
    }

    /// Takes over the state of another engine, in place of the first epoch.
    pub(crate) fn restore(&mut self, state: EngineState) -> Result<(), CopyError> {
        if !self.nodes.iter().map(|node| &node.name).eq(&state.nodes) {
            return Err(CopyError::OtherGraph);
        }
        let EngineState { epoch, sizes, operators, inputs, published, .. } = state;
        self.states.iter().zip(operators).for_each(|(state, copy)| state.restore(copy));
        self.inputs.iter_mut().zip(inputs).for_each(|(input, copy)| input.restore(copy));
        self.published.iter_mut().zip(published).for_each(|(collection, copy)| collection.restore(copy));
        // After the operators, which count what they restore.
        self.nodes.iter().zip(sizes).for_each(|(node, size)| node.gauges.set_size(size));
        self.written.clear();
        self.epoch = epoch;
        self.maps = Arc::new(self.published.iter().map(|collection| collection.map.clone()).collect());
        self.publish(Epoch(epoch), Vec::new(), EpochTiming::default());
        Ok(())
    }
}
